/* The shapes and constants of a Llama-style model, read from config.json or GGUF metadata. */
#ifndef BK_CONFIG_H
#define BK_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"
#include "blocks/names.h"
#include "io/gguf.h"
#include "io/json.h"

#define BK_MAX_HEAD_DIM 4096

typedef enum { BK_ROPE_PLAIN, BK_ROPE_LINEAR, BK_ROPE_LLAMA3 } bk_rope_kind;

typedef struct bk_config {
    char arch[16]; /* llama | mistral | qwen2 | qwen3; the first also for Mistral in GGUF */
    int64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab, max_positions;
    double eps; /* of every RMSNorm */
    double rope_theta;
    bk_rope_kind rope_kind;
    double rope_factor;                   /* of linear and llama3 */
    double rope_low_freq, rope_high_freq; /* the frequency factors of llama3 */
    int64_t rope_original_positions;
    int64_t sliding_window; /* 0 = none: token t sees keys t-window+1 .. t (prefix keys always) */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    bool r3_per_kv_head; /* keys, and the queries that read them, turn after RoPE by a matrix of their own (bk_block_weights.r3) */
    bool overlap_prefix; /* text behind a prefix of P tokens stands at positions 0, 1, ... again; else at P, P + 1, ... */
} bk_config;

/* Both refuse, naming file, key and value (BK_EFORMAT: absent, of another type or out of range; BK_EUNSUP: valid, but
 * brick does not compute it): another architecture, heads that do not divide, eps <= 0, rope scalings other than linear
 * and llama3, partial rotary, mixture of experts, layers that mix full and sliding attention, weights quantized by
 * others. `path` is for messages. */
bk_status bk_config_from_json(const bk_json *root, const char *path, bk_config *out, bk_error *err) BK_MUST_USE;
/* The tensor rope_freqs.weight, in which GGUF files hide llama3 scaling, is turned back into its parameters. */
bk_status bk_config_from_gguf(const bk_gguf *g, bk_config *out, bk_error *err) BK_MUST_USE;
/* config.json content that bk_config_from_json reads back to the same config (for exports and synthetic models). Where
 * a Hugging Face model cannot say it (an o bias that does not go with the q, k and v biases; positions that overlap
 * a prefix; rotated keys) the keys attention_out_bias, overlap_prefix and r3_per_kv_head are added. NULL when memory is out. */
bk_json *bk_config_to_json(const bk_config *c);
/* f_i = theta^(-2i/d), scaled; out has head_dim / 2 values. Linear: f_i / factor. llama3: f_i for waves (2 pi / f_i)
 * shorter than original_positions / high_freq, f_i / factor for those longer than original_positions / low_freq, a
 * blend between. */
void bk_config_inv_freq(const bk_config *c, double *out);
/* Out and in of a linear; weights of all linears of a block. */
void bk_linear_shape(const bk_config *c, bk_linear_id id, int64_t *out, int64_t *in);
int64_t bk_config_block_weights(const bk_config *c);

#endif
