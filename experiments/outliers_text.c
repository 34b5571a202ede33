/* The report of brick outliers as tables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/names.h"
#include "experiments/outliers.h"
#include "experiments/printable.h"

#define CONTENT_ROWS 12

static void print_head(const bk_outlier_report *r)
{
    char model[BK_PRINTABLE_ROOM], text[BK_PRINTABLE_ROOM];
    printf("model      %s\ntext       %s: %lld sequences of %lld tokens\nbos        %s\nrotation   %s\n",
           bk_printable(r->model, strlen(r->model), model, sizeof model),
           bk_printable(r->text, strlen(r->text), text, sizeof text), (long long)r->samples->n,
           (long long)r->samples->seqlen, r->bos, r->rotate);
}

static bk_status print_prefix(const bk_outlier_report *r, bk_error *err)
{
    fputs("prefix     ", stdout);
    for (int64_t i = 0; i < r->n_prefix; i++) printf(i ? ",%d" : "%d", r->prefix[i]);
    for (int64_t i = 0; i < r->n_prefix; i++) {
        char token[BK_PRINTABLE_ROOM];
        BK_TRY(bk_token_printable(r->tok, r->prefix[i], token, err));
        printf("%s\"%s\"", i ? " " : "   ", token);
    }
    puts(r->n_prefix ? "" : "none");
    return BK_OK;
}

static void print_stage_names(const bk_outlier_report *r)
{
    for (int i = 0; i < r->n_stages; i++) printf(" %12s", r->stage[i].name);
}

static void print_cells(const bk_outlier_report *r, int64_t at)
{
    for (int i = 0; i < r->n_stages; i++) printf(" %12.2f", r->stage[i].top[at]);
    fputs("  |", stdout);
    for (int i = 0; i < r->n_stages; i++) printf(" %12.2f", r->stage[i].low[at]);
    putchar('\n');
}

static void print_ratios(const bk_outlier_report *r)
{
    int width = 13 * r->n_stages;
    printf("\nLargest magnitudes of the tokens of a sequence; ratios per sequence, mean over sequences\n\n%-16s %*s  | "
           "%*s\n%5s %-10s",
           "", width - 1, "top-1 / median", width - 1, "median / min-1", "block", "site");
    print_stage_names(r);
    fputs("  |", stdout);
    print_stage_names(r);
    putchar('\n');
    for (int64_t l = 0; l < r->stage[0].layers; l++)
        for (int s = 0; s < BK_SITE_COUNT; s++) {
            printf("%5lld %-10s", (long long)l, bk_site_name[s]);
            print_cells(r, l * BK_SITE_COUNT + s);
        }
}

static void print_counts(const bk_outlier_report *r)
{
    static const struct {
        const char *what;
        unsigned kinds;
    } row[] = {{"upper (either site)", BK_UPPER_KINDS},      {"  at down_raw", 1u << BK_UPPER_DOWN_RAW},
               {"  at block_out", 1u << BK_UPPER_BLOCK_OUT}, {"lower (either site)", BK_LOWER_KINDS},
               {"  at query", 1u << BK_LOWER_QUERY},         {"  at key", 1u << BK_LOWER_KEY}};
    printf("\nOutlier tokens in any block, of %lld\nupper: magnitude > %g medians at down_raw or block_out; lower: median "
           "> %g magnitudes at query or key\n\n%-26s",
           (long long)(r->samples->n * r->samples->seqlen), r->limits.upper, r->limits.lower, "");
    print_stage_names(r);
    putchar('\n');
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        printf("%-26s", row[k].what);
        for (int i = 0; i < r->n_stages; i++) printf(" %12lld", (long long)bk_outlier_count(&r->stage[i], row[k].kinds));
        putchar('\n');
    }
    printf("%-26s", "upper and lower at once");
    for (int i = 0; i < r->n_stages; i++) printf(" %12lld", (long long)bk_outlier_shared(&r->stage[i]));
    putchar('\n');
}

/* Where the first few tokens of an id stand, as sequence:position. */
static void print_places(const bk_outlier_report *r, const bk_outlier_stage *s, int32_t id, unsigned kinds)
{
    char text[64] = "";
    size_t len = 0;
    for (int64_t i = 0, shown = 0; i < s->samples * s->tokens && shown < 4; i++) {
        if (r->samples->ids[i] != id || !bk_outlier_token(s, i, kinds)) continue;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%lld:%lld", shown++ ? " " : "",
                                (long long)(i / s->tokens), (long long)(i % s->tokens));
        if (len >= sizeof text - 1) break;
    }
    printf("  %-28.28s", text);
}

static bk_status print_content(const bk_outlier_report *r, const bk_outlier_stage *s, const char *what, unsigned kinds,
                               bk_error *err)
{
    bk_outlier_content *c = NULL;
    int64_t n;
    BK_TRY(bk_outlier_contents(s, r->samples, kinds, &c, &n, err));
    bk_status st = BK_OK;
    if (n)
        printf("\n%s outlier tokens, %s (%lld different)\n\n%8s %8s %8s  %-28s  %s\n", what, s->name, (long long)n, "id",
               "count", "at 0", "sequence:position", "text");
    for (int64_t i = 0; !st && i < n && i < CONTENT_ROWS; i++) {
        char token[BK_PRINTABLE_ROOM];
        st = bk_token_printable(r->tok, c[i].id, token, err);
        if (st) break;
        printf("%8d %8lld %8lld", c[i].id, (long long)c[i].count, (long long)c[i].at_start);
        print_places(r, s, c[i].id, kinds);
        printf("  \"%s\"\n", token);
    }
    if (!st && n > CONTENT_ROWS) printf("     ... and %lld more (--json lists all)\n", (long long)(n - CONTENT_ROWS));
    free(c);
    return st;
}

static void print_errors(const bk_outlier_report *r)
{
    printf("\nError of block %lld, quantized %s, on its full-precision inputs; shares of a sequence's squared error, mean "
           "over sequences\n\n%-27s",
           (long long)r->block, r->scheme, "");
    print_stage_names(r);
    printf("\n%-27s", "mean squared error");
    for (int i = 0; i < r->n_stages; i++) printf(" %12.4e", r->stage[i].error.mse);
    printf("\n%-27s", "error / output power");
    for (int i = 0; i < r->n_stages; i++) printf(" %12.4e", r->stage[i].error.relative);
    for (int k = 0; k < BK_ERROR_TOP; k++) {
        printf("\nshare of the worst %d token%s", k + 1, k ? "s" : " ");
        for (int i = 0; i < r->n_stages; i++) printf(" %11.2f%%", 100 * r->stage[i].error.share[k]);
    }
    putchar('\n');
}

bk_status bk_outlier_print_text(const bk_outlier_report *r, bk_error *err)
{
    print_head(r);
    BK_TRY(print_prefix(r, err));
    print_ratios(r);
    print_counts(r);
    for (int i = 0; i < r->n_stages; i++) {
        BK_TRY(print_content(r, &r->stage[i], "Upper", BK_UPPER_KINDS, err));
        BK_TRY(print_content(r, &r->stage[i], "Lower", BK_LOWER_KINDS, err));
    }
    print_errors(r);
    bk_outlier_print_offq(r);
    printf("\nseconds    %.1f\n", r->seconds);
    return BK_OK;
}
