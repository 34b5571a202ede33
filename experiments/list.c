/* brick list TOPIC: tables of what this build has, each from the list that the code itself uses. */
#include "experiments/list.h"

#include <string.h>

#include "blocks/names.h"
#include "blocks/transforms.h"
#include "experiments/backends.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/scheme.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "ops/ops.h"
#include "quant/quantizer.h"

static void print_methods(FILE *to)
{
    for (int i = 0; i < bk_method_count; i++) {
        const bk_method *m = &bk_methods[i];
        fprintf(to, "%-12s %s\n%-12s scheme=%s", m->name, m->about, "", m->scheme);
        if (m->weights) fprintf(to, " quant.weight.quantizer=%s", m->weights);
        if (m->activations) fprintf(to, " quant.activation.quantizer=%s", m->activations);
        for (const char *const *s = m->settings; *s; s++) fprintf(to, " %s", *s);
        fputc('\n', to);
    }
}

static void print_schemes(FILE *to)
{
    for (int i = 0; i < bk_common_scheme_count; i++) {
        bk_scheme s;
        char text[512];
        if (bk_scheme_parse(bk_common_schemes[i], &s, NULL)) continue;
        bk_scheme_describe(&s, text, sizeof text);
        fprintf(to, "%-22s %s\n", bk_common_schemes[i], text);
    }
}

static void print_sites(FILE *to)
{
    for (int i = 0; i < BK_SITE_COUNT; i++)
        fprintf(to, "%-12s %-10s %s\n", bk_site_name[i], bk_site_quantized[i] ? "quantized" : "observed",
                bk_site_about[i]);
}

/* The same at every place that the quantizer serves. */
static void print_options(FILE *to, const bk_quantizer *q)
{
    char path[64];
    for (int k = 0, n = 0; k < bk_key_count && n < q->n_options; k++) {
        bk_key key = bk_keys[k];
        if (bk_key_owner(&bk_keys[k]) != q) continue;
        snprintf(path, sizeof path, "quant.<place>.%s.%s", q->name, q->options[n++].name);
        key.path = path;
        bk_key_help(to, 13, &key);
    }
}

static void print_quantizers(FILE *to)
{
    for (int i = 0; i < bk_quantizer_count; i++) {
        const bk_quantizer *q = bk_quantizers[i];
        fprintf(to, "%-12s %s\n", q->name, q->about);
        print_options(to, q);
    }
}

static void print_transforms(FILE *to)
{
    for (int i = 0; i < BK_TRANSFORM_COUNT; i++)
        fprintf(to, "%-12s %s\n", bk_transforms[i].name, bk_transforms[i].about);
}

static void print_ops(FILE *to)
{
    for (int i = 0; i < bk_op_count; i++) fprintf(to, "%-14s %s\n", bk_ops[i]->name, bk_ops[i]->formula);
}

static void print_backends(FILE *to)
{
    for (int i = 0; i < bk_backend_count; i++) fprintf(to, "%-12s %s\n", bk_backends[i].name, bk_backends[i].about);
}

static void print_models(FILE *to)
{
    fputs("llama        Llama 1 to 3, SmolLM2, TinyLlama, Yi, DeepSeek-LLM\n"
          "mistral      Mistral, with or without a sliding window\n"
          "qwen2        Qwen2 and Qwen2.5, biases of q, k and v\n"
          "qwen3        Qwen3 (dense), norms of q and k\n"
          "GGUF file    version 2 or 3: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K\n"
          "folder       Hugging Face: config.json, tokenizer.json, model.safetensors or shards with an index\n", to);
}

const bk_list_topic bk_list_topics[] = {
    {"methods", "named sets of defaults", print_methods},
    {"schemes", "common scheme strings and what they mean", print_schemes},
    {"quantizers", "how codes and steps are found", print_quantizers},
    {"transforms", "what changes a model without changing its function", print_transforms},
    {"ops", "differentiable operations", print_ops},
    {"backends", "what computes", print_backends},
    {"sites", "places of a block that are quantized or observed", print_sites},
    {"models", "architectures and files that can be read", print_models},
};
const int bk_list_topic_count = sizeof bk_list_topics / sizeof bk_list_topics[0];

static bk_status find_topic(const char *name, const bk_list_topic **out, bk_error *err)
{
    const char *names[32];
    char near[128];
    for (int i = 0; i < bk_list_topic_count; i++) {
        names[i] = bk_list_topics[i].name;
        *out = &bk_list_topics[i];
        if (strcmp(names[i], name) == 0) return BK_OK;
    }
    bk_suggest_text(name, names, (size_t)bk_list_topic_count, near, sizeof near);
    return bk_fail(err, BK_EINVAL, "list: unknown topic '%.60s'%s (brick list alone names them)", name, near);
}

int bk_verb_list(int argc, char **argv)
{
    const char *name = NULL;
    const bk_opt opts[] = {{.name = "TOPIC", .type = BK_OPT_TEXT, .to = &name, .about = "what to list; without it, the topics"}, BK_OPT_PLUGIN, {0}};
    const bk_cli cli = {"list", "prints what this build has", opts, "brick list schemes\nbrick list quantizers --plugin ./mine.so\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    if (!name) {
        for (int i = 0; i < bk_list_topic_count; i++)
            printf("%-12s %s\n", bk_list_topics[i].name, bk_list_topics[i].about);
        return BK_EXIT_OK;
    }
    const bk_list_topic *topic;
    bk_error err = {0};
    bk_status status = find_topic(name, &topic, &err);
    if (status) return bk_exit_report(status, &err);
    topic->print(stdout);
    return BK_EXIT_OK;
}
