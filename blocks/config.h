/* The shapes and constants of a Llama-style model, read from config.json or GGUF metadata. */
#ifndef BK_CONFIG_H
#define BK_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"
#include "io/gguf.h"
#include "io/json.h"

typedef enum { BK_ROPE_PLAIN, BK_ROPE_LINEAR, BK_ROPE_LLAMA3 } bk_rope_kind;

typedef struct bk_config {
    char arch[16]; /* llama | mistral | qwen2 | qwen3 */
    int64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab, max_positions;
    double eps; /* of every RMSNorm */
    double rope_theta;
    bk_rope_kind rope_kind;
    double rope_factor, rope_low_freq, rope_high_freq; /* factor of linear and llama3; the frequency factors of llama3 */
    int64_t rope_original_positions;
    int64_t sliding_window; /* 0 = none: token t sees keys t-window+1 .. t (prefix keys always) */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
} bk_config;

/* Both refuse, naming key and value: another architecture, heads that do not divide, eps <= 0, sizes out of range, rope scalings that
 * brick does not compute (dynamic, yarn, longrope, partial rotary), mixture of experts. */
bk_status bk_config_from_json(const bk_json *root, const char *path, bk_config *out, bk_error *err) BK_MUST_USE;
bk_status bk_config_from_gguf(const bk_gguf *g, bk_config *out, bk_error *err) BK_MUST_USE;
/* config.json content that bk_config_from_json reads back to the same config (for exports and synthetic models). */
bk_json *bk_config_to_json(const bk_config *c);
/* f_i = theta^(-2i/d), scaled; out has head_dim / 2 values. */
void bk_config_inv_freq(const bk_config *c, double *out);
/* Weights of one block, in numbers; and the useful FLOPs per token of one forward pass through a block's linears. */
int64_t bk_config_block_weights(const bk_config *c);

#endif
