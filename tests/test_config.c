#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/block.h"
#include "blocks/config.h"
#include "tests/repack_model.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static bk_error err;
static bk_config c;

static void setup(void)
{
    bk_error_clear(&err);
    memset(&c, 0, sizeof c);
}

static bk_status read_json(const char *text)
{
    bk_json *root;
    ck_assert_msg(bk_json_parse(text, strlen(text), "config.json", &root, &err) == BK_OK, "%s", err.msg);
    bk_status status = bk_config_from_json(root, "config.json", &c, &err);
    bk_json_free(root);
    return status;
}

static void accept(const char *text)
{
    ck_assert_msg(read_json(text) == BK_OK, "%s: %s", text, err.msg);
}

static void refuse(const char *text, bk_status code, const char *why)
{
    bk_error_clear(&err);
    ck_assert_msg(read_json(text) == code, "%s: %d, %s", text, err.code, err.msg);
    ck_assert_msg(strstr(err.msg, why) != NULL, "'%s' not in '%s'", why, err.msg);
    ck_assert_msg(strncmp(err.msg, "config.json: ", 13) == 0, "%s", err.msg);
}

/* A small config of an architecture, with members of the test's choice after it. */
#define BASE(type)                                                                                                   \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "       \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 256"
#define WITH(type, more) BASE(type) ", " more "}"

/* What the published config.json files say, shortened. */
static const struct {
    const char *text, *arch;
    int64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab, positions;
    double eps, theta;
    bool qkv_bias, qk_norm, tied;
} known[] = {
    {"{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 11008, \"max_position_embeddings\": 4096, "
     "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 32, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
     "\"rope_scaling\": null, \"tie_word_embeddings\": false, \"vocab_size\": 32000}",
     "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e-5, 1e4, false, false, false},
    {"{\"attention_bias\": false, \"hidden_act\": \"silu\", \"hidden_size\": 576, \"intermediate_size\": 1536, \"max_position_embeddings\": 8192, "
     "\"model_type\": \"llama\", \"num_attention_heads\": 9, \"num_hidden_layers\": 30, \"num_key_value_heads\": 3, \"rms_norm_eps\": 1e-05, "
     "\"rope_interleaved\": false, \"rope_scaling\": null, \"rope_theta\": 100000, \"tie_word_embeddings\": true, \"vocab_size\": 49152}",
     "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e-5, 1e5, false, false, true},
    {"{\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, \"model_type\": \"mistral\", "
     "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "
     "\"sliding_window\": null, \"tie_word_embeddings\": false, \"vocab_size\": 32768}",
     "mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e-5, 1e6, false, false, false},
    {"{\"hidden_act\": \"silu\", \"hidden_size\": 896, \"intermediate_size\": 4864, \"max_position_embeddings\": 131072, \"max_window_layers\": 24, "
     "\"model_type\": \"qwen2\", \"num_attention_heads\": 14, \"num_hidden_layers\": 24, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, "
     "\"rope_theta\": 1000000.0, \"sliding_window\": 131072, \"tie_word_embeddings\": true, \"use_sliding_window\": false, \"vocab_size\": 151936}",
     "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 131072, 1e-6, 1e6, true, false, true},
    {"{\"attention_bias\": false, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 2560, \"intermediate_size\": 9728, "
     "\"max_position_embeddings\": 40960, \"model_type\": \"qwen3\", \"num_attention_heads\": 32, \"num_hidden_layers\": 36, "
     "\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000, \"sliding_window\": null, "
     "\"tie_word_embeddings\": true, \"use_sliding_window\": false, \"vocab_size\": 151936}",
     "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e-6, 1e6, false, true, true},
};

START_TEST(published_configs)
{
    accept(known[_i].text);
    ck_assert_str_eq(c.arch, known[_i].arch);
    ck_assert_int_eq(c.hidden, known[_i].hidden);
    ck_assert_int_eq(c.inter, known[_i].inter);
    ck_assert_int_eq(c.layers, known[_i].layers);
    ck_assert_int_eq(c.heads, known[_i].heads);
    ck_assert_int_eq(c.kv_heads, known[_i].kv_heads);
    ck_assert_int_eq(c.head_dim, known[_i].head_dim);
    ck_assert_int_eq(c.vocab, known[_i].vocab);
    ck_assert_int_eq(c.max_positions, known[_i].positions);
    ck_assert_double_eq(c.eps, known[_i].eps);
    ck_assert_double_eq(c.rope_theta, known[_i].theta);
    ck_assert_int_eq(c.qkv_bias, known[_i].qkv_bias);
    ck_assert_int_eq(c.qk_norm, known[_i].qk_norm);
    ck_assert_int_eq(c.tied, known[_i].tied);
    ck_assert_int_eq(c.sliding_window, 0);
    ck_assert_int_eq(c.rope_kind, BK_ROPE_PLAIN);
}
END_TEST

START_TEST(other_models_are_refused_by_name)
{
    refuse("{\"model_type\": \"gemma2\"}", BK_EUNSUP, "'gemma2' is not supported; brick reads llama, mistral, qwen2 and qwen3");
    refuse("{\"model_type\": \"gpt2\", \"n_embd\": 768}", BK_EUNSUP, "'gpt2'");
    refuse("{\"model_type\": \"qwen3_moe\"}", BK_EUNSUP, "'qwen3_moe'");
    refuse("{\"meta-llama/Llama-2-7b\": {\"dim\": 4096}}", BK_EFORMAT, "no model_type");
    refuse("[1]", BK_EFORMAT, "no JSON object");
    refuse(WITH("llama", "\"num_local_experts\": 8"), BK_EUNSUP, "num_local_experts");
    refuse(WITH("llama", "\"hidden_act\": \"gelu\""), BK_EUNSUP, "hidden_act 'gelu'");
    refuse(WITH("llama", "\"quantization_config\": {\"quant_method\": \"gptq\"}"), BK_EUNSUP, "'gptq'");
    accept(WITH("llama", "\"quantization_config\": {\"quant_method\": \"brick\"}"));
}
END_TEST

START_TEST(missing_and_wrong_values_name_their_key)
{
    refuse("{\"model_type\": \"llama\", \"intermediate_size\": 96}", BK_EFORMAT, "hidden_size is missing");
    refuse("{\"model_type\": \"llama\", \"hidden_size\": \"64\"}", BK_EFORMAT, "hidden_size must be a whole number");
    refuse("{\"model_type\": \"llama\", \"hidden_size\": 64.5}", BK_EFORMAT, "hidden_size must be a whole number");
    refuse("{\"model_type\": \"llama\", \"hidden_size\": -64}", BK_EFORMAT, "hidden_size is -64");
    refuse("{\"model_type\": 7}", BK_EFORMAT, "model_type must be a string");
    refuse(WITH("llama", "\"rms_norm_eps\": 0"), BK_EFORMAT, "eps is 0");
    refuse(WITH("llama", "\"rms_norm_eps\": \"x\""), BK_EFORMAT, "rms_norm_eps must be a number");
    refuse(WITH("llama", "\"rope_theta\": -1"), BK_EFORMAT, "rope theta is -1");
    refuse(WITH("llama", "\"tie_word_embeddings\": 1"), BK_EFORMAT, "tie_word_embeddings must be true or false");
    refuse(WITH("llama", "\"head_dim\": 15"), BK_EFORMAT, "head dimension of 15");
    refuse(WITH("llama", "\"head_dim\": 1000000"), BK_EFORMAT, "head dimension");
    refuse("{\"model_type\": \"llama\", \"hidden_size\": 4611686018427387904, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
           "\"num_attention_heads\": 4, \"vocab_size\": 256}", BK_EFORMAT, "hidden size is 4611686018427387904");
}
END_TEST

START_TEST(heads_must_divide)
{
    refuse("{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
           "\"num_key_value_heads\": 3, \"vocab_size\": 256}", BK_EFORMAT, "4 heads are no multiple of 3 KV heads");
    refuse("{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 5, "
           "\"vocab_size\": 256}", BK_EFORMAT, "5 heads do not divide the hidden size 64");
}
END_TEST

START_TEST(head_dim_may_be_explicit_null_or_absent)
{
    accept(WITH("llama", "\"head_dim\": 32"));
    ck_assert_int_eq(c.head_dim, 32);
    accept(WITH("llama", "\"head_dim\": null"));
    ck_assert_int_eq(c.head_dim, 16);
    int64_t out, in;
    accept(WITH("llama", "\"head_dim\": 32"));
    bk_linear_shape(&c, BK_W_O, &out, &in);
    ck_assert_int_eq(out, 64);
    ck_assert_int_eq(in, 128);
    bk_linear_shape(&c, BK_W_K, &out, &in);
    ck_assert_int_eq(out, 64);
    ck_assert_int_eq(bk_config_block_weights(&c), 64 * 128 + 2 * 64 * 64 + 64 * 128 + 3 * 64 * 96);
}
END_TEST

START_TEST(kv_heads_absent_are_all_heads)
{
    accept("{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
           "\"vocab_size\": 256}");
    ck_assert_int_eq(c.kv_heads, 4);
}
END_TEST

START_TEST(biases_follow_the_architecture)
{
    accept(WITH("llama", "\"attention_bias\": true"));
    ck_assert(c.qkv_bias && c.o_bias && !c.mlp_bias);
    accept(WITH("llama", "\"mlp_bias\": true"));
    ck_assert(!c.qkv_bias && !c.o_bias && c.mlp_bias);
    accept(BASE("qwen2") "}");
    ck_assert(c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);
    accept(BASE("qwen3") "}");
    ck_assert(!c.qkv_bias && !c.o_bias && c.qk_norm);
}
END_TEST

START_TEST(sliding_windows)
{
    accept(WITH("mistral", "\"sliding_window\": 8"));
    ck_assert_int_eq(c.sliding_window, 8);
    accept(WITH("mistral", "\"sliding_window\": null"));
    ck_assert_int_eq(c.sliding_window, 0);
    accept(WITH("mistral", "\"head_dim\": 8")); /* no such key: the default of Hugging Face */
    ck_assert_int_eq(c.sliding_window, 4096);
    accept(WITH("llama", "\"sliding_window\": 8"));
    ck_assert_int_eq(c.sliding_window, 0);
    accept(WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": false, \"max_window_layers\": 0"));
    ck_assert_int_eq(c.sliding_window, 0);
    accept(WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 0"));
    ck_assert_int_eq(c.sliding_window, 8);
    accept(WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 2"));
    ck_assert_int_eq(c.sliding_window, 0);
    accept(WITH("qwen3", "\"sliding_window\": 8, \"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", \"sliding_attention\"]"));
    ck_assert_int_eq(c.sliding_window, 8);
    accept(WITH("qwen3", "\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"full_attention\"]"));
    ck_assert_int_eq(c.sliding_window, 0);
    refuse(WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 1"), BK_EUNSUP, "1 of 2 layers");
    refuse(WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": true"), BK_EFORMAT, "needs layer_types or max_window_layers");
    refuse(WITH("qwen3", "\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\"]"), BK_EUNSUP, "1 of 2 layers");
    refuse(WITH("qwen3", "\"layer_types\": [\"full_attention\"]"), BK_EFORMAT, "1 entries for 2 layers");
    refuse(WITH("qwen3", "\"layer_types\": [\"full_attention\", \"linear_attention\"]"), BK_EUNSUP, "layer_types[1] 'linear_attention'");
    refuse(WITH("mistral", "\"sliding_window\": -1"), BK_EFORMAT, "sliding_window is -1");
}
END_TEST

/* Frequencies 0, 3, 4, 5 and 7 of head_dim 16, theta 500000; made with Python from the definition of Hugging Face. */
static const struct {
    const char *more;
    double f[5];
} ropes[] = {
    {"\"rope_scaling\": null", {1.0, 0.007292664737217109, 0.001414213562373095, 0.0002742481756762073, 1.031338537721246e-05}},
    {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}",
     {0.5, 0.0036463323686085545, 0.0007071067811865475, 0.00013712408783810366, 5.15669268860623e-06}},
    {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
     {0.5, 0.0036463323686085545, 0.0007071067811865475, 0.00013712408783810366, 5.15669268860623e-06}},
};

START_TEST(rope_scalings)
{
    char text[600];
    snprintf(text, sizeof text, "%s, \"rope_theta\": 500000.0, %s}", BASE("llama"), ropes[_i].more);
    accept(text);
    double f[8];
    bk_config_inv_freq(&c, f);
    const int index[5] = {0, 3, 4, 5, 7};
    for (int i = 0; i < 5; i++) ck_assert_double_eq_tol(f[index[i]] / ropes[_i].f[i], 1, 1e-12);
}
END_TEST

#define LLAMA3(factor)                                                                                                     \
    "{\"rope_type\": \"llama3\", \"factor\": " #factor ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "            \
    "\"original_max_position_embeddings\": 8192}"

START_TEST(llama3_scaling_keeps_blends_and_divides)
{
    accept(WITH("llama", "\"head_dim\": 128, \"rope_theta\": 500000.0, \"rope_scaling\": " LLAMA3(32.0)));
    ck_assert_int_eq(c.rope_kind, BK_ROPE_LLAMA3);
    double f[64];
    bk_config_inv_freq(&c, f);
    for (int i = 0; i < 64; i++) {
        double plain = pow(500000, -i / 64.0), wave = 2 * M_PI / plain, want = plain;
        double blend = (8192 / wave - 1) / 3;
        if (wave > 8192)
            want = plain / 32;
        else if (wave > 2048)
            want = (1 - blend) * plain / 32 + blend * plain;
        ck_assert_double_eq_tol(f[i] / want, 1, 1e-12);
    }
    ck_assert_double_eq(f[0], 1);
    ck_assert_double_eq_tol(f[63] * 32 / pow(500000, -63 / 64.0), 1, 1e-12);
    ck_assert_double_gt(f[31], pow(500000, -31 / 64.0) / 32 * 1.01); /* between */
}
END_TEST

/* cos and sin of frequencies 0, 3, 4, 5 and 7 at four positions, theta 500000, head_dim 16; made with Python from the definitions. */
static const int64_t table_position[] = {1, 777, 8192, 32767};
static const struct {
    const char *more;
    double at[4][5][2];
} tables[] = {
    {"\"rope_scaling\": null",
     {{{0.540302306, 0.841470985}, {0.999973409, 0.007292600}, {0.999999000, 0.001414213}, {0.999999962, 0.000274248}, {1.000000000, 0.000010313}},
      {{-0.517718221, -0.855551193}, {0.815742387, -0.578415385}, {0.454626109, 0.890682379}, {0.977381929, 0.211481829}, {0.999967892, 0.008013415}},
      {{0.292801813, -0.956173153}, {-0.998687052, -0.051226678}, {0.556081143, -0.831128006}, {-0.625556579, 0.780178804}, {0.996433075, 0.084386776}},
      {{0.982263352, 0.187506554}, {0.980520184, 0.196418352}, {-0.707844727, 0.706368065}, {-0.905394654, 0.424570984}, {0.943440080, 0.331543084}}}},
    {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}",
     {{{0.877582562, 0.479425539}, {0.999993352, 0.003646324}, {0.999999750, 0.000707107}, {0.999999991, 0.000137124}, {1.000000000, 0.000005157}},
      {{0.491060984, -0.871125198}, {-0.952822750, 0.303527274}, {0.852826509, 0.522194356}, {0.994329405, 0.106343948}, {0.999991973, 0.004006739}},
      {{0.803990613, -0.594641988}, {0.025621750, -0.999671709}, {0.882066081, -0.471125703}, {0.432691242, 0.901542173}, {0.999107871, 0.042231063}},
      {{-0.995555963, -0.094171780}, {0.995118130, 0.098690973}, {-0.382201042, -0.924079198}, {-0.217491777, -0.976062153}, {0.985758611, 0.168166466}}}},
    {"\"rope_scaling\": " LLAMA3(8.0),
     {{{0.540302306, 0.841470985}, {0.999973409, 0.007292600}, {0.999999862, 0.000524846}, {0.999999999, 0.000034281}, {1.000000000, 0.000001289}},
      {{-0.517718221, -0.855551193}, {0.815742387, -0.578415385}, {0.917993375, 0.396595718}, {0.999645273, 0.026633204}, {0.999999498, 0.001001687}},
      {{0.292801813, -0.956173153}, {-0.998687052, -0.051226678}, {-0.401220794, -0.915981372}, {0.960825696, 0.277153356}, {0.999944234, 0.010560710}},
      {{0.982263352, 0.187506554}, {0.980520184, 0.196418352}, {-0.081036481, -0.996711136}, {0.432722147, 0.901527339}, {0.999107925, 0.042229775}}}},
    {"\"rope_scaling\": " LLAMA3(32.0),
     {{{0.540302306, 0.841470985}, {0.999973409, 0.007292600}, {0.999999908, 0.000429557}, {1.000000000, 0.000008570}, {1.000000000, 0.000000322}},
      {{-0.517718221, -0.855551193}, {0.815742387, -0.578415385}, {0.944815413, 0.327603169}, {0.999977828, 0.006659039}, {0.999999969, 0.000250422}},
      {{0.292801813, -0.956173153}, {-0.998687052, -0.051226678}, {-0.929649241, -0.368445773}, {0.997536463, 0.070149871}, {0.999996515, 0.002640224}},
      {{0.982263352, 0.187506554}, {0.980520184, 0.196418352}, {0.061839906, 0.998086081}, {0.960828071, 0.277145121}, {0.999944238, 0.010560388}}}},
};

START_TEST(rope_tables_hold_up_to_32k_positions)
{
    char text[600];
    snprintf(text, sizeof text, "%s, \"rope_theta\": 500000.0, %s}", BASE("llama"), tables[_i].more);
    accept(text);
    bk_tensor *t;
    static float v[32768][16];
    const int index[5] = {0, 3, 4, 5, 7};
    ck_assert_int_eq(bk_rope_table(bk_backend_cpu(), &c, 32768, &t, &err), BK_OK);
    ck_assert_int_eq(bk_read(bk_backend_cpu(), t, 0, v[0], sizeof v / sizeof v[0][0], &err), BK_OK);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 2; k++) ck_assert_double_eq_tol((double)v[table_position[p]][index[i] + 8 * k], tables[_i].at[p][i][k], 1e-6);
    bk_tensor_destroy(bk_backend_cpu(), t);
}
END_TEST

START_TEST(rope_parameters_spelling)
{
    accept(WITH("llama", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 250000.0}"));
    ck_assert_double_eq(c.rope_theta, 250000);
    accept(WITH("llama", "\"rope_parameters\": {\"rope_theta\": 250000.0}"));
    ck_assert_double_eq(c.rope_theta, 250000);
    accept(WITH("llama", "\"rope_theta\": 5000.0, \"rope_parameters\": " LLAMA3(8.0)));
    ck_assert_double_eq(c.rope_theta, 5000);
    ck_assert_double_eq(c.rope_factor, 8);
    ck_assert_int_eq(c.rope_original_positions, 8192);
    refuse(WITH("llama", "\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e5}"), BK_EFORMAT,
           "rope_theta is 10000 in one place and 100000");
    refuse(WITH("llama", "\"rope_parameters\": {\"full_attention\": {}}"), BK_EFORMAT, "'full_attention' but no rope_type");
    refuse(WITH("llama", "\"rope_scaling\": " LLAMA3(8.0) ", \"rope_parameters\": " LLAMA3(8.0)), BK_EFORMAT, "both rope_scaling and");
}
END_TEST

START_TEST(rope_scalings_that_are_not_computed)
{
    const char *const types[] = {"dynamic", "yarn", "longrope", "su", "mrope"};
    char text[600];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        snprintf(text, sizeof text, "%s, \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": 2.0}}", BASE("llama"), types[i]);
        refuse(text, BK_EUNSUP, types[i]);
    }
    refuse(WITH("llama", "\"rope_scaling\": {\"factor\": 2.0}"), BK_EFORMAT, "no rope_type");
    refuse(WITH("llama", "\"rope_scaling\": {\"rope_type\": \"linear\"}"), BK_EFORMAT, "factor is 0");
    refuse(WITH("llama", "\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"yarn\", \"factor\": 2}"), BK_EFORMAT, "type 'yarn'");
    refuse(WITH("llama", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}"), BK_EFORMAT, "original_max_position_embeddings is missing");
    refuse(WITH("llama", "\"rope_scaling\": 2"), BK_EFORMAT, "rope_scaling must be an object");
    refuse(WITH("llama", "\"partial_rotary_factor\": 0.5"), BK_EUNSUP, "partial_rotary_factor 0.5");
    refuse(WITH("llama", "\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}"), BK_EUNSUP, "partial_rotary_factor");
    accept(WITH("llama", "\"partial_rotary_factor\": 1.0"));
}
END_TEST

static const char *const round_trips[] = {
    BASE("llama") "}",
    WITH("llama", "\"attention_bias\": true, \"mlp_bias\": true, \"tie_word_embeddings\": true, \"head_dim\": 32"),
    WITH("llama", "\"rope_theta\": 500000.0, \"rope_scaling\": " LLAMA3(8.0)),
    WITH("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}, \"max_position_embeddings\": 77"),
    WITH("llama", "\"attention_bias\": false, \"attention_out_bias\": true"),
    WITH("mistral", "\"sliding_window\": 8, \"rms_norm_eps\": 1e-5"),
    WITH("qwen2", "\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 0"),
    WITH("qwen2", "\"attention_out_bias\": true"),
    WITH("qwen3", "\"head_dim\": 32"),
};

static void check_same(const bk_config *a, const bk_config *b, const char *text)
{
    const int64_t x[] = {a->hidden, a->inter, a->layers, a->heads, a->kv_heads, a->head_dim, a->vocab, a->max_positions, a->rope_original_positions,
                         a->sliding_window, a->rope_kind, a->qkv_bias, a->o_bias, a->mlp_bias, a->qk_norm, a->tied};
    const int64_t y[] = {b->hidden, b->inter, b->layers, b->heads, b->kv_heads, b->head_dim, b->vocab, b->max_positions, b->rope_original_positions,
                         b->sliding_window, b->rope_kind, b->qkv_bias, b->o_bias, b->mlp_bias, b->qk_norm, b->tied};
    const double u[] = {a->eps, a->rope_theta, a->rope_factor, a->rope_low_freq, a->rope_high_freq};
    const double v[] = {b->eps, b->rope_theta, b->rope_factor, b->rope_low_freq, b->rope_high_freq};
    ck_assert_str_eq(a->arch, b->arch);
    ck_assert_msg(memcmp(x, y, sizeof x) == 0 && memcmp(u, v, sizeof u) == 0, "%s", text);
}

START_TEST(to_json_and_back)
{
    accept(round_trips[_i]);
    bk_config first = c;
    bk_json *root = bk_config_to_json(&c);
    char *text = bk_json_dump(root, 2);
    ck_assert_ptr_nonnull(text);
    accept(text);
    check_same(&first, &c, text);
    free(text);
    bk_json_free(root);
}
END_TEST

/* ---- GGUF ---- */

static bk_status read_gguf(make_gguf *m)
{
    char path[] = "/tmp/bk_config_XXXXXX";
    close(mkstemp(path));
    gguf_save(m, path);
    bk_gguf *g;
    bk_error_clear(&err);
    ck_assert_msg(bk_gguf_open(path, &g, &err) == BK_OK, "%s", err.msg);
    bk_status status = bk_config_from_gguf(g, &c, &err);
    bk_gguf_close(g);
    unlink(path);
    return status;
}

static void refuse_gguf(make_gguf *m, bk_status code, const char *why)
{
    ck_assert_int_eq(read_gguf(m), code);
    ck_assert_msg(strstr(err.msg, why) != NULL, "'%s' not in '%s'", why, err.msg);
}

static make_gguf tiny_keys(const char *arch)
{
    bk_config tiny = bk_tiny_config();
    strcpy(tiny.arch, arch);
    make_gguf m = {0};
    repack_gguf_keys(&m, &tiny);
    return m;
}

START_TEST(gguf_keys_make_the_config)
{
    make_gguf m = tiny_keys("llama");
    const float row[1] = {0};
    const int64_t dim[1] = {1};
    gguf_f32_tensor(&m, "output.weight", 1, dim, row);
    gguf_f32_tensor(&m, "blk.0.attn_q.bias", 1, dim, row);
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    bk_config want = bk_tiny_config();
    ck_assert_int_eq(c.hidden, want.hidden);
    ck_assert_int_eq(c.inter, want.inter);
    ck_assert_int_eq(c.layers, want.layers);
    ck_assert_int_eq(c.heads, want.heads);
    ck_assert_int_eq(c.kv_heads, want.kv_heads);
    ck_assert_int_eq(c.head_dim, want.head_dim);
    ck_assert_int_eq(c.vocab, want.vocab);
    ck_assert_int_eq(c.max_positions, want.max_positions);
    ck_assert_double_eq_tol(c.eps, want.eps, 1e-12);
    ck_assert(c.qkv_bias && !c.o_bias && !c.tied);
    ck_assert_str_eq(c.arch, "llama");
    m = tiny_keys("qwen3");
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    ck_assert(c.qk_norm && c.tied && !c.qkv_bias);
}
END_TEST

START_TEST(gguf_refusals)
{
    make_gguf m = {0};
    refuse_gguf(&m, BK_EFORMAT, "general.architecture is missing");
    m = tiny_keys("gemma2");
    refuse_gguf(&m, BK_EUNSUP, "architecture 'gemma2' is not supported");
    m = (make_gguf){0};
    gguf_str(&m, "general.architecture", "llama");
    refuse_gguf(&m, BK_EFORMAT, "llama.embedding_length is missing");
    m = tiny_keys("llama");
    gguf_u32(&m, "llama.expert_count", 8);
    refuse_gguf(&m, BK_EUNSUP, "llama.expert_count");
    m = tiny_keys("llama");
    gguf_u32(&m, "llama.rope.dimension_count", 8);
    refuse_gguf(&m, BK_EUNSUP, "rope turns 8 of 16");
    m = tiny_keys("llama");
    gguf_u32(&m, "llama.attention.value_length", 8);
    refuse_gguf(&m, BK_EUNSUP, "values of 8 dimensions");
    m = tiny_keys("llama");
    gguf_str(&m, "llama.rope.scaling.type", "yarn");
    refuse_gguf(&m, BK_EUNSUP, "'yarn'");
    m = tiny_keys("llama");
    const char *const words[300] = {"x"};
    const char *tokens[300];
    for (int i = 0; i < 300; i++) tokens[i] = words[0];
    gguf_strs(&m, "tokenizer.ggml.tokens", 300, tokens);
    refuse_gguf(&m, BK_EFORMAT, "300 tokens, the vocabulary 256");
    m = (make_gguf){0};
    const int32_t kv[2] = {2, 4};
    gguf_str(&m, "general.architecture", "llama");
    gguf_u32(&m, "llama.embedding_length", 64);
    gguf_array(&m, "llama.feed_forward_length", GGUF_I32, 2, kv, sizeof kv);
    refuse_gguf(&m, BK_EUNSUP, "feed_forward_length is no single whole number");
}
END_TEST

START_TEST(gguf_linear_scaling_and_window)
{
    make_gguf m = tiny_keys("llama");
    gguf_str(&m, "llama.rope.scaling.type", "linear");
    gguf_f32(&m, "llama.rope.scaling.factor", 4);
    gguf_u32(&m, "llama.attention.sliding_window", 128);
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(c.rope_kind, BK_ROPE_LINEAR);
    ck_assert_double_eq(c.rope_factor, 4);
    ck_assert_int_eq(c.sliding_window, 128);
    m = tiny_keys("llama");
    gguf_str(&m, "llama.rope.scaling.type", "none");
    gguf_f32(&m, "llama.rope.scaling.factor", 4);
    gguf_u32(&m, "llama.attention.sliding_window", 0);
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(c.rope_kind, BK_ROPE_PLAIN);
    ck_assert_int_eq(c.sliding_window, 0);
}
END_TEST

/* The divisors that converters store for llama3 scaling. */
static void add_divisors(make_gguf *m, double factor, int64_t n, float spoil)
{
    float v[64];
    for (int i = 0; i < n; i++) {
        double f = pow(500000, -(double)i / (double)n), wave = 2 * M_PI / f, blend = (8192 / wave - 1) / 3;
        v[i] = (float)(wave < 2048 ? 1 : wave > 8192 ? factor : 1 / ((1 - blend) / factor + blend));
    }
    v[1] += spoil;
    gguf_f32_tensor(m, "rope_freqs.weight", 1, &n, v);
}

START_TEST(gguf_rope_freqs_become_llama3_scaling)
{
    bk_config tiny = bk_tiny_config();
    tiny.head_dim = 128, tiny.rope_theta = 500000;
    make_gguf m = {0};
    repack_gguf_keys(&m, &tiny);
    add_divisors(&m, 32, 64, 0);
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(c.rope_kind, BK_ROPE_LLAMA3);
    ck_assert_double_eq(c.rope_factor, 32);
    ck_assert_double_eq(c.rope_low_freq, 1);
    ck_assert_double_eq(c.rope_high_freq, 4);
    ck_assert_int_eq(c.rope_original_positions, 8192);
    m = (make_gguf){0};
    repack_gguf_keys(&m, &tiny);
    add_divisors(&m, 1, 64, 0);
    ck_assert_msg(read_gguf(&m) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(c.rope_kind, BK_ROPE_PLAIN);
    repack_gguf_keys(&m, &tiny);
    add_divisors(&m, 32, 64, 0.5f);
    refuse_gguf(&m, BK_EUNSUP, "'rope_freqs.weight' is no llama3 scaling");
    repack_gguf_keys(&m, &tiny);
    add_divisors(&m, 32, 32, 0);
    refuse_gguf(&m, BK_EFORMAT, "has 32 values, not 64");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, published_configs, 0, sizeof known / sizeof *known);
    tcase_add_test(t, other_models_are_refused_by_name);
    tcase_add_test(t, missing_and_wrong_values_name_their_key);
    tcase_add_test(t, heads_must_divide);
    tcase_add_test(t, head_dim_may_be_explicit_null_or_absent);
    tcase_add_test(t, kv_heads_absent_are_all_heads);
    tcase_add_test(t, biases_follow_the_architecture);
    tcase_add_test(t, sliding_windows);
    tcase_add_loop_test(t, rope_scalings, 0, sizeof ropes / sizeof *ropes);
    tcase_add_test(t, llama3_scaling_keeps_blends_and_divides);
    tcase_add_loop_test(t, rope_tables_hold_up_to_32k_positions, 0, sizeof tables / sizeof *tables);
    tcase_add_test(t, rope_parameters_spelling);
    tcase_add_test(t, rope_scalings_that_are_not_computed);
    tcase_add_loop_test(t, to_json_and_back, 0, sizeof round_trips / sizeof *round_trips);
    tcase_add_test(t, gguf_keys_make_the_config);
    tcase_add_test(t, gguf_refusals);
    tcase_add_test(t, gguf_linear_scaling_and_window);
    tcase_add_test(t, gguf_rope_freqs_become_llama3_scaling);
    suite_add_tcase(s, t);
    return run_suite(s);
}
