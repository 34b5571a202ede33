/* What every registered quantizer writes into the file of a model comes back from it, to the bit. */
#include <check.h>
#include <stdio.h>

#include "tests/laws.h"
#include "tests/tiny_block.h"
#include "tests/written_model.h"

static const char *const places[] = {"weight", "activation", "key", "value"};
enum { PLACES = 4 };

static bk_qspec *spec_at(bk_block_quant *q, int place)
{
    bk_qspec *const all[PLACES] = {&q->weight, &q->activation, &q->key, &q->value};
    return all[place];
}

/* Does every site and linear of that place take it? */
static bool can_be(const bk_block_quant *quant)
{
    bk_config c = bk_tiny_config();
    bk_error err = {0};
    bk_block *b = NULL;
    bk_status st = bk_block_create(&b, bk_backend_cpu(), &c, &(bk_block_options){.quant = quant, .tokens = WRITTEN_TOKENS}, &err);
    ck_assert_msg(!st || st == BK_EINVAL || st == BK_ESHAPE, "%s: %s", bk_status_name(st), err.msg);
    if (!st) bk_block_free(b);
    return !st;
}

/* Finds bits and a step that it takes; steps of both kinds take turns with the granularity. */
static bool find_bits(const bk_block_quant *quant, bk_qspec *at)
{
    static const int bits[] = {3, 2, 4, 8};
    for (int i = 0; i < 8; i++) {
        at->bits = bits[i / 2];
        at->restricted = ((int)at->granularity + i) % 2;
        if (can_be(quant)) return true;
    }
    return false;
}

static void comes_back(const bk_block_quant *quant, const char *name, bool rotated)
{
    written_model e;
    const written_way v = {.name = name, .rotated = rotated, .bias = !rotated, .prefix = 2};
    written_open(&e, &v, quant, bk_backend_cpu());
    written_check(&e);
    written_close(&e);
}

/* With each granularity that it takes there, with and without a zero point; a dynamic W4A8KV8 around it. How often it was tried. */
static int comes_back_from(const bk_quantizer *q, int place)
{
    int times = 0;
    for (int k = 0; k < 2 * BK_GRANULARITY_COUNT; k++) {
        char name[96];
        bk_block_quant quant = bk_tiny_quant("dynamic", 4, 8, true);
        bk_qspec *at = spec_at(&quant, place);
        *at = bk_tiny_spec(q->name, 16, k % 2, (bk_granularity)(k / 2), k / 2 == BK_PER_GROUP ? 16 : 0);
        if (!find_bits(&quant, at)) continue;
        snprintf(name, sizeof name, "%s %s %d bits per %s%s", q->name, places[place], at->bits, bk_granularity_name[k / 2], k % 2 ? "" : ", asymmetric");
        comes_back(&quant, name, k % 2);
        times++;
    }
    return times;
}

/* Weights, or activations, keys and values, of which one may be all that it serves. */
START_TEST(every_quantizer_comes_back_from_every_place_that_it_serves)
{
    for (int i = 0; i < bk_quantizer_count; i++) {
        const bk_quantizer *q = bk_quantizers[i];
        int times = 0;
        for (int place = _i ? 1 : 0; place < (_i ? PLACES : 1); place++) times += comes_back_from(q, place);
        ck_assert_msg((times > 0) == (_i ? q->for_activations : q->for_weights), "%s came back from %s %d times", q->name,
                      _i ? "activations, keys and values" : "weights", times);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantizer models");
    TCase *t = tcase_create("round trip");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, every_quantizer_comes_back_from_every_place_that_it_serves, 0, 2);
    suite_add_tcase(s, t);
    return law_main(s, NULL);
}
