/* brick inspect as CSV. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "experiments/inspect_view.h"

/* A number that was not computed is an empty field. */
static void put_number(FILE *out, double v)
{
    fputc(',', out);
    if (isfinite(v)) fprintf(out, "%.9g", v);
}

static void put_int(FILE *out, int64_t v)
{
    fputc(',', out);
    if (v >= 0) fprintf(out, "%" PRId64, v);
}

/* Names of the axes that number the rows. */
static void put_axes(const bk_view *v, FILE *out)
{
    char name[BK_LABEL];
    for (int k = 0; k < v->top->rank - 1; k++) {
        if (k) fputc(',', out);
        bk_print_field(out, bk_axis_name(v->top, k, name));
    }
}

static void put_place(const bk_view *v, int64_t row, FILE *out)
{
    int64_t index[BK_STORE_ANY_RANK] = {0};
    bk_unflatten(v->top, v->top->rank - 1, row, index);
    for (int k = 0; k < v->top->rank - 1; k++) fprintf(out, k ? ",%" PRId64 : "%" PRId64, index[k]);
}

/* ",id,text" */
static bk_status put_token(bk_view *v, int64_t row, FILE *out, bk_error *err)
{
    int64_t id;
    BK_TRY(bk_view_id(v, row, &id, err));
    put_int(out, id);
    fputc(',', out);
    size_t len = 0;
    char *text = bk_row_token_text(&v->tokens, id, &len), shown[BK_PRINTABLE_ROOM];
    if (text) bk_print_field(out, bk_visible(text, len, shown, sizeof shown));
    free(text);
    return BK_OK;
}

static double snr(const bk_peak *p)
{
    return bk_snr(p->signal, p->size);
}

void bk_view_csv_row_head(const bk_view_csv *c)
{
    put_axes(c->view, c->out);
    fputs(c->view->comparison ? ",id,text,mse,snr_db,max_error,channel\n" : ",id,text,value,over_median,channel\n",
          c->out);
}

bk_status bk_view_csv_row(void *csv, const bk_peak *row, bk_error *err)
{
    bk_view_csv *c = csv;
    bk_view *v = c->view;
    bool any = row->channel >= 0;
    put_place(v, row->at, c->out);
    BK_TRY(put_token(v, row->at, c->out, err));
    if (v->comparison) {
        put_number(c->out, any ? row->size : NAN);
        put_number(c->out, any ? snr(row) : NAN);
        put_number(c->out, any ? row->value : NAN);
    } else {
        put_number(c->out, any ? row->value : NAN);
        put_number(c->out, any ? row->size / v->stats->row_median : NAN);
    }
    put_int(c->out, row->channel);
    fputc('\n', c->out);
    return BK_OK;
}

void bk_view_csv_channels(const bk_view_csv *c)
{
    const bk_view *v = c->view;
    const bk_comparison *cmp = v->comparison;
    const bk_peak *channel = cmp ? cmp->channel : v->stats->channel;
    int64_t n = cmp ? cmp->row_len : v->stats->row_len;
    fputs(cmp ? "channel,mse,snr_db,max_error," : "channel,value,over_median,", c->out);
    put_axes(v, c->out);
    fputc('\n', c->out);
    for (int64_t k = 0; k < n; k++) {
        const bk_peak *p = &channel[k];
        bool any = p->at >= 0;
        fprintf(c->out, "%" PRId64, k);
        if (cmp) {
            put_number(c->out, any ? p->size : NAN);
            put_number(c->out, any ? snr(p) : NAN);
            put_number(c->out, any ? p->value : NAN);
        } else {
            put_number(c->out, any ? p->value : NAN);
            put_number(c->out, any ? p->size / v->stats->channel_median : NAN);
        }
        fputc(',', c->out);
        if (any) put_place(v, p->at, c->out);
        else
            for (int axis = 1; axis < v->top->rank - 1; axis++) fputc(',', c->out);
        fputc('\n', c->out);
    }
}
