/* Lists as data: the linears and the sites of a block. Code loops over them; no switch anywhere. */
#ifndef BK_NAMES_H
#define BK_NAMES_H

/* BK_LINEAR(ENUM, name, Hugging Face name inside the layer, GGUF name inside the block) */
#define BK_LINEARS(BK_LINEAR)                                  \
    BK_LINEAR(Q, "q", "self_attn.q_proj", "attn_q")            \
    BK_LINEAR(K, "k", "self_attn.k_proj", "attn_k")            \
    BK_LINEAR(V, "v", "self_attn.v_proj", "attn_v")            \
    BK_LINEAR(O, "o", "self_attn.o_proj", "attn_output")       \
    BK_LINEAR(GATE, "gate", "mlp.gate_proj", "ffn_gate")       \
    BK_LINEAR(UP, "up", "mlp.up_proj", "ffn_up")               \
    BK_LINEAR(DOWN, "down", "mlp.down_proj", "ffn_down")

typedef enum {
#define BK_LINEAR(E, name, hf, gguf) BK_W_##E,
    BK_LINEARS(BK_LINEAR)
#undef BK_LINEAR
    BK_W_COUNT
} bk_linear_id;

/* BK_NORM(ENUM, name, Hugging Face name, GGUF name); norm_q and norm_k only in models with q/k norm */
#define BK_NORMS(BK_NORM)                                               \
    BK_NORM(ATTN, "norm_attn", "input_layernorm", "attn_norm")          \
    BK_NORM(MLP, "norm_mlp", "post_attention_layernorm", "ffn_norm")    \
    BK_NORM(Q, "norm_q", "self_attn.q_norm", "attn_q_norm")             \
    BK_NORM(K, "norm_k", "self_attn.k_norm", "attn_k_norm")

typedef enum {
#define BK_NORM(E, name, hf, gguf) BK_NORM_##E,
    BK_NORMS(BK_NORM)
#undef BK_NORM
    BK_NORM_COUNT
} bk_norm_id;

/* BK_SITE(ENUM, name, quantized?, what) */
#define BK_SITES(BK_SITE)                                                              \
    BK_SITE(ATTN_IN, "attn_in", 1, "input of q, k and v")                               \
    BK_SITE(O_IN, "o_in", 1, "input of o")                                              \
    BK_SITE(MLP_IN, "mlp_in", 1, "input of gate and up")                                \
    BK_SITE(DOWN_IN, "down_in", 1, "input of down, after R4")                           \
    BK_SITE(KEY, "key", 1, "keys after RoPE and R3")                                    \
    BK_SITE(VALUE, "value", 1, "values")                                                \
    BK_SITE(QUERY, "query", 0, "queries after RoPE and R3")                             \
    BK_SITE(DOWN_RAW, "down_raw", 0, "input of down before R4")                         \
    BK_SITE(BLOCK_OUT, "block_out", 0, "output of the block")

typedef enum {
#define BK_SITE(E, name, quantized, what) BK_SITE_##E,
    BK_SITES(BK_SITE)
#undef BK_SITE
    BK_SITE_COUNT
} bk_site_id;

extern const char *const bk_linear_name[BK_W_COUNT];
extern const char *const bk_norm_name[BK_NORM_COUNT];
extern const char *const bk_linear_hf[BK_W_COUNT], *const bk_norm_hf[BK_NORM_COUNT]; /* their Hugging Face names */
extern const char *const bk_site_name[BK_SITE_COUNT];
extern const char *const bk_site_about[BK_SITE_COUNT];
extern const int bk_site_quantized[BK_SITE_COUNT];

#endif
