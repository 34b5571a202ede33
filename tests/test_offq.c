/* What OffQ fits to its statistics. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/offset.h"
#include "tests/offq_model.h"
#include "tests/ok.h"
#include "tests/suite.h"

/* Statistics of a stream with `spikes` directions e_(3 k + 1) of falling energy, keys and maxima of down that rise with the channel. */
static bk_offq_stats made_up(const bk_config *c, int64_t spikes)
{
    int64_t n = c->hidden, d = c->head_dim, heads = c->layers * c->kv_heads;
    bk_offq_stats s = {.layers = c->layers, .hidden = n, .kv_heads = c->kv_heads, .head_dim = d, .inter = c->inter, .sequences = 4};
    s.top = offq_zeros(n * n, sizeof(double)), s.all = offq_zeros(n * n, sizeof(double)), s.key = offq_zeros(heads * d * d, sizeof(double));
    s.spikiness = offq_zeros(heads, sizeof(double)), s.down = offq_zeros(c->layers * c->inter, sizeof(float));
    for (int64_t i = 0; i < n; i++) s.top[i * n + i] = 1 + 0.001 * (double)i, s.all[i * n + i] = 1;
    for (int64_t k = 0; k < spikes; k++) s.top[(3 * k + 1) * (n + 1)] = 1000.0 / (double)(k + 1), s.all[(3 * k + 1) * (n + 1)] = 3;
    for (int64_t h = 0; h < heads; h++) {
        s.spikiness[h] = 2.8;
        for (int64_t i = 0; i < d; i++) s.key[h * d * d + i * (d + 1)] = i == h % d ? 100 : 1 + 0.01 * (double)i;
    }
    for (int64_t i = 0; i < c->layers * c->inter; i++) s.down[i] = (float)(i % c->inter);
    return s;
}

static bk_fitted *fit(const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *report)
{
    return offq_fit(bk_backend_cpu(), c, s, o, report);
}

START_TEST(outlier_directions_become_offsets_of_their_groups)
{
    bk_config c = offq_config(1); /* 48 channels: with groups of 16 there are three */
    bk_offq_stats s = made_up(&c, 3);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.group = 16, .seed = 3, .spread = _i ? BK_OFFQ_GAUSSIAN : BK_OFFQ_HADAMARD}, &report);
    ck_assert(report.group == 16 && report.groups == 3 && report.gaussian == (_i == 1));
    for (int64_t k = 0; k < 3; k++)
        for (int64_t j = 0; j < 48; j++)
            ck_assert_double_eq_tol(f->r1[(3 * k + 1) * 48 + j], j / 16 == k ? 0.25 : 0, 1e-12);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(the_order_of_down_is_the_index_rule)
{
    bk_config c = offq_config(1); /* 72 channels, groups of 72 / 8 */
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.down_group = 8, .seed = 3, .zigzag = _i == 1}, &report);
    ck_assert_int_eq(report.down_group, 8);
    double score[72];
    int32_t want[72];
    bk_error err = {0};
    for (int i = 0; i < 72; i++) score[i] = i;
    ok(bk_offset_order(score, 72, 9, _i == 1, want, &err), &err);
    for (int64_t l = 0; l < c.layers; l++) {
        ck_assert_mem_eq(f->down_order + l * 72, want, sizeof want);
        for (int i = 0; i < 72; i += 8) ck_assert_int_eq(f->down_signs[l * 72 + i], 1);
    }
    ck_assert_mem_ne(f->down_signs, f->down_signs + 72, 72);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(keys_are_fitted_where_they_are_spiky_or_biased)
{
    bk_config c = offq_config(1), biased = offq_config(1);
    biased.qkv_bias = true;
    bk_offq_stats s = made_up(&c, 1);
    const struct {
        const bk_config *c;
        double spikiness;
        bk_offq_options o;
        bool keys;
    } cases[] = {
        {&c, 2.8, {.seed = 1}, false},
        {&c, BK_OFFQ_SPIKINESS + 0.1, {.seed = 1}, true},
        {&c, BK_OFFQ_SPIKINESS - 0.1, {.seed = 1}, false},
        {&c, BK_OFFQ_SPIKINESS - 0.1, {.spikiness = BK_OFFQ_SPIKINESS - 0.2}, true},
        {&biased, 2.8, {.seed = 1}, true},
        {&biased, 9, {.keys = BK_OFFQ_KEYS_OFF}, false},
        {&c, 2.8, {.keys = BK_OFFQ_KEYS_ON}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bk_offq_report report;
        for (int h = 0; h < 2; h++) s.spikiness[h] = cases[i].spikiness; /* two of three: the median */
        s.spikiness[2] = 99;
        bk_fitted *f = fit(cases[i].c, &s, &cases[i].o, &report);
        ck_assert_msg((f->r3 != NULL) == cases[i].keys && report.keys == cases[i].keys, "case %d", (int)i);
        ck_assert(report.spikiness == cases[i].spikiness);
        bk_fitted_free(f);
    }
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(spikiness_is_the_lower_middle_of_the_heads)
{
    bk_config c = offq_config(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    for (int h = 0; h < 4; h++) s.spikiness[h] = (double)(9 - 2 * h);
    bk_fitted_free(fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_OFF}, &report));
    ck_assert(report.spikiness == 5);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(the_direction_of_a_key_becomes_an_offset_of_its_head)
{
    bk_config c = offq_config(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_ON}, &report);
    for (int64_t h = 0; h < c.layers * c.kv_heads; h++)
        for (int64_t j = 0; j < 16; j++) ck_assert_double_eq_tol(f->r3[h * 256 + h * 16 + j], 0.25, 1e-12);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Shares by hand: made_up has diagonal covariances. */
START_TEST(concentration_is_the_share_of_the_first_directions)
{
    bk_config c = offq_config(1);
    bk_offq_stats s = made_up(&c, 3);
    bk_offq_report report;
    double top = 0, all = 0, first = 0;
    for (int64_t i = 0; i < 48; i++) top += s.top[i * 49], all += s.all[i * 49];
    for (int64_t k = 0; k < 3; k++) first += s.top[(3 * k + 1) * 49];
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.group = 16, .concentration = true}, &report);
    for (int basis = 0; basis < 2; basis++) { /* both find the three directions */
        ck_assert_double_eq_tol(report.share[basis][BK_OFFQ_TOP_TOKENS], first / top, 1e-12);
        ck_assert_double_eq_tol(report.share[basis][BK_OFFQ_ALL_TOKENS], 9 / all, 1e-12);
    }
    bk_fitted_free(f);
    free(s.all);
    s.all = NULL;
    f = fit(&c, &s, &(bk_offq_options){.group = 16}, &report);
    ck_assert_double_eq_tol(report.share[0][0], first / top, 1e-12);
    ck_assert(isnan(report.share[0][1]) && isnan(report.share[1][0]) && isnan(report.share[1][1]));
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Two sets of orthogonal directions: unit vectors, but two of them turned in their plane, 4 and 5 or 6 and 7. */
static void directions(double d[8][8], int turned)
{
    memset(d, 0, 64 * sizeof **d);
    for (int i = 0; i < 8; i++) d[i][i] = 1;
    d[turned][turned] = 0.6, d[turned][turned + 1] = 0.8;
    d[turned + 1][turned] = 0.8, d[turned + 1][turned + 1] = -0.6;
}

/* Made-up covariances, diagonal in directions of their own, and by hand which direction (of the top tokens, or `of_all`) comes where. Variances of
 * all tokens in the directions of the top tokens are 10, 1, 80, 2, 34.96, 59.04, 21, 14. */
static const double top_alone[8] = {0, 70, 0, 60, 0, 0, 0, 0}, top_energy[8] = {5, 70, 3, 60, 1, 2, 4, 6}, all_energy[8] = {10, 1, 80, 2, 90, 4, 5, 30};
static const struct {
    const char *name;
    const double *top;
    bk_offq_options o;
    bool of_all;
    int order[8];
} by_hand[] = {
    {"eigenvalue", top_energy, {.seed = 1}, false, {1, 4, 5, 2, 3, 6, 0, 7}},
    {"zigzag", top_energy, {.zigzag = true}, false, {1, 4, 2, 0, 3, 5, 6, 7}},
    {"variance", top_energy, {.score = BK_OFFQ_VARIANCE}, false, {2, 1, 3, 0, 5, 7, 6, 4}},
    {"basis of all tokens", top_energy, {.basis = BK_OFFQ_ALL_TOKENS}, true, {4, 1, 3, 5, 2, 6, 0, 7}},
    {"basis of all tokens, variance", top_energy, {.basis = BK_OFFQ_ALL_TOKENS, .score = BK_OFFQ_VARIANCE}, true, {4, 1, 3, 5, 2, 6, 0, 7}},
    {"a small tail, which orders what has no energy", top_alone, {.tail = 1e-6}, true, {1, 5, 6, 0, 3, 7, 2, 4}},
    {"a tail as large as the rest", top_alone, {.tail = 1}, true, {4, 5, 6, 0, 2, 7, 3, 1}},
};

/* The direction that comes k-th is turned into row k of a matrix with a Hadamard matrix of order 4 for each of the two groups, but for its sign. */
START_TEST(basis_and_order_are_those_found_by_hand)
{
    bk_config c = {.hidden = 8, .inter = 8, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2};
    double top[8][8], all[8][8];
    bk_offq_stats s = made_up(&c, 0);
    bk_offq_options o = by_hand[_i].o;
    bk_offq_report report;
    directions(top, 6);
    directions(all, 4);
    memset(s.top, 0, 64 * sizeof *s.top);
    memset(s.all, 0, 64 * sizeof *s.all);
    for (int i = 0; i < 8; i++) {
        offq_add_outer(s.top, top[i], 8, by_hand[_i].top[i]);
        offq_add_outer(s.all, all[i], 8, all_energy[i]);
    }
    o.group = 4;
    bk_fitted *f = fit(&c, &s, &o, &report);
    for (int k = 0; k < 8; k++) {
        const double *u = (by_hand[_i].of_all ? all : top)[by_hand[_i].order[k]];
        double along = 0;
        for (int i = 0; i < 8; i++)
            for (int j = k / 4 * 4; j < k / 4 * 4 + 4; j++) along += u[i] * f->r1[i * 8 + j] * (__builtin_popcount(k & j & 3) % 2 ? -0.5 : 0.5);
        bool there = fabs((k % 4 ? fabs(along) : along) - 1) < 1e-7; /* the first of a group keeps its sign */
        ck_assert_msg(there, "%s: direction %d is not the one in place %d (%g)", by_hand[_i].name, by_hand[_i].order[k], k, along);
    }
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Every choice makes another rotation, and the seed does. */
static const bk_offq_options other_choices[] = {{.group = 16},
                                                {.group = 16, .seed = 2},
                                                {.group = 16, .tail = 0.5},
                                                {.group = 16, .basis = BK_OFFQ_ALL_TOKENS},
                                                {.group = 16, .score = BK_OFFQ_VARIANCE},
                                                {.group = 16, .zigzag = true},
                                                {.group = 16, .spread = BK_OFFQ_GAUSSIAN},
                                                {.group = 8},
                                                {.group = 16, .scope = BK_OFFQ_TOKEN_PER_SEQUENCE}};
enum { OTHERS = sizeof other_choices / sizeof *other_choices };

static bk_fitted *fit_model(const offq_model *t, bk_offq_options o, bk_offq_report *report)
{
    bk_offq_stats s = offq_measure(bk_backend_cpu(), t, NULL, &o);
    bk_fitted *f = fit(&t->c, &s, &o, report);
    bk_offq_stats_free(&s);
    return f;
}

START_TEST(choices_and_seeds_make_a_difference)
{
    bk_config c = offq_config(0);
    offq_model t;
    bk_fitted *f[OTHERS];
    bk_offq_report report;
    size_t bytes = (size_t)(c.hidden * c.hidden) * sizeof(double);
    offq_model_open(&t, &c, NULL);
    for (int i = 0; i < OTHERS; i++) {
        f[i] = fit_model(&t, other_choices[i], &report);
        for (int k = 0; k < i; k++) ck_assert_msg(memcmp(f[k]->r1, f[i]->r1, bytes) != 0, "choices %d and %d give the same", k, i);
    }
    bk_fitted *again = fit_model(&t, other_choices[0], &report);
    ck_assert_mem_eq(again->r1, f[0]->r1, bytes);
    ck_assert_mem_eq(again->down_signs, f[0]->down_signs, (size_t)(c.layers * c.inter));
    ck_assert_mem_ne(f[1]->down_signs, f[0]->down_signs, (size_t)(c.layers * c.inter));
    bk_fitted_free(again);
    for (int i = 0; i < OTHERS; i++) bk_fitted_free(f[i]);
    offq_model_close(&t);
}
END_TEST

START_TEST(sizes_without_a_matrix_have_a_way_out)
{
    bk_config c = offq_config(2); /* 90 channels: one group, Gaussian; heads of 30 too */
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_ON}, &report);
    ck_assert(report.group == 90 && report.groups == 1 && report.gaussian && report.down_group == 172);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
    c.inter = 90; /* and R4 has no groups whose first channel becomes an offset */
    s = made_up(&c, 1);
    f = fit(&c, &s, &(bk_offq_options){.seed = 1}, &report);
    ck_assert(report.down_group == 0 && !f->down_order && !f->down_signs);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(options_that_need_more_than_was_measured_are_refused)
{
    const bk_offq_options more[] = {{.tail = 1e-6}, {.basis = BK_OFFQ_ALL_TOKENS}, {.score = BK_OFFQ_VARIANCE}, {.concentration = true}};
    bk_config c = offq_config(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_error err = {0};
    bk_fitted *f;
    free(s.all);
    s.all = NULL;
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &c, &s, &more[_i], f, &report, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "all tokens"));
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(groups_that_cannot_be_are_refused)
{
    static const struct {
        bk_offq_options o;
        const char *said;
    } bad[] = {{{.group = 36}, "hidden"}, {{.group = -4}, "hidden"}, {{.down_group = 50}, "down"}, {{.down_group = 6}, "order 6"}};
    bk_config c = offq_config(0), other = c;
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_error err = {0};
        bk_fitted *f;
        ok(bk_fitted_create(&c, &f, &err), &err);
        ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &c, &s, &bad[i].o, f, &report, &err), BK_EINVAL);
        ck_assert_msg(strstr(err.msg, bad[i].said) != NULL, "%s", err.msg);
        bk_error_clear(&err);
        other.hidden = 32;
        ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &other, &s, &(bk_offq_options){.seed = 1}, f, &report, &err), BK_ESHAPE);
        bk_fitted_free(f);
    }
    bk_offq_stats_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offq");
    TCase *tc = tcase_create("fit");
    tcase_add_loop_test(tc, outlier_directions_become_offsets_of_their_groups, 0, 2);
    tcase_add_loop_test(tc, the_order_of_down_is_the_index_rule, 0, 2);
    tcase_add_test(tc, keys_are_fitted_where_they_are_spiky_or_biased);
    tcase_add_test(tc, spikiness_is_the_lower_middle_of_the_heads);
    tcase_add_test(tc, the_direction_of_a_key_becomes_an_offset_of_its_head);
    tcase_add_test(tc, concentration_is_the_share_of_the_first_directions);
    tcase_add_loop_test(tc, basis_and_order_are_those_found_by_hand, 0, sizeof by_hand / sizeof *by_hand);
    tcase_add_test(tc, choices_and_seeds_make_a_difference);
    tcase_add_test(tc, sizes_without_a_matrix_have_a_way_out);
    tcase_add_loop_test(tc, options_that_need_more_than_was_measured_are_refused, 0, 4);
    tcase_add_test(tc, groups_that_cannot_be_are_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
