/* Picture of the quantization error of tokens at the output of one block.
 * Source: PrefixQuant (arXiv 2410.05265), figures 1 and 2. */
#include <math.h>

#include "experiments/report.h"

static const bk_json *errors_of(const bk_report_run *r, int stage)
{
    return bk_json_get(bk_report_stage(r, stage), "error");
}

static bool range_of_errors(const bk_report_run *r, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        const bk_json *tokens = bk_json_get(errors_of(r, s), "tokens");
        for (size_t t = 0; t < bk_json_size(tokens); t++) {
            double x = bk_on_log_axis(bk_json_num(bk_json_at(tokens, t), NAN));
            *lo = fmin(*lo, x);
            *hi = fmax(*hi, x);
        }
    }
    return *lo <= *hi;
}

static void plot_errors(const bk_report_run *r, bk_picture *p, int stage)
{
    const bk_json *tokens = bk_json_get(errors_of(r, stage), "tokens");
    bk_buffer_add(&p->script, "plot '-' using 1:2 with lines ls %d lw 0.8 notitle\n", stage + 1);
    for (size_t t = 0; t < bk_json_size(tokens); t++) {
        bk_buffer_add(&p->script, "%zu ", t);
        bk_number_add(&p->script, bk_on_log_axis(bk_json_num(bk_json_at(tokens, t), NAN)));
        bk_buffer_add(&p->script, "\n");
    }
    bk_buffer_add(&p->script, "e\n");
}

static void panels_of_errors(const bk_report_run *r, bk_picture *p, double lo, double hi)
{
    int64_t samples = bk_report_whole(r, "samples"), seqlen = bk_report_whole(r, "seqlen"), all = samples * seqlen;
    bk_buffer_add(&p->script,
                  "set xrange [%.6g:%.6g]\n"
                  "set xlabel 'token, sequence behind sequence' offset 0,0.4\n"
                  "set xtics 0,%lld,%lld\n",
                  -0.02 * (double)all, 1.01 * (double)all, (long long)(all / 4 + 1 - (all % 4 == 0)),
                  (long long)(all - all / 8));
    for (int64_t i = 1; i < samples && samples <= 32; i++)
        bk_buffer_add(&p->script, "set arrow from %lld, graph 0 to %lld, graph 1 nohead back lc rgb '#bbbbbb' dt 2\n",
                      (long long)(i * seqlen), (long long)(i * seqlen));
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        if (!bk_report_stage(r, s)) continue;
        bk_picture_panel(p, 0.11 + 0.298 * s, 0.11 + 0.298 * s + 0.278, 0.53, 0.925);
        bk_picture_log(p, 'y', lo, hi);
        bk_buffer_add(&p->script, "set title '%s'\n", bk_report_stage_name[s]);
        bk_buffer_add(&p->script, s == 0 ? "set ylabel \"squared error (log)\\nmean over channels\" offset 0.5,0\n"
                                         : "unset ylabel\nset format y ''\n");
        plot_errors(r, p, s);
    }
    bk_buffer_add(&p->script, "unset arrow\n");
}

static void panel_of_shares(const bk_report_run *r, bk_picture *p)
{
    static const int top = 3;
    int n = 0, at = 0;
    for (int s = 0; s < BK_REPORT_STAGES; s++) n += bk_report_stage(r, s) != NULL;
    bk_picture_panel(p, 0.11, 0.6, 0.105, 0.4);
    bk_picture_linear(p, 'y', 0, 100 / 1.08);
    bk_buffer_add(&p->script,
                  "unset title\n"
                  "set ylabel 'share of the error [%%]'\n"
                  "set xlabel 'worst tokens of a sequence' offset 0,0.4\n"
                  "set xrange [0.4:3.6]\n"
                  "set xtics (1, 2, 3)\n"
                  "set boxwidth %g\n"
                  "set key at graph 1.04, graph 1 left top Left reverse\n"
                  "plot ",
                  0.8 / n);
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        if (!bk_report_stage(r, s)) continue;
        bk_buffer_add(&p->script,
                      "%s'-' using ($1 + %g):2 with boxes fs solid ls %d title '%s (mean squared error %.3g)'",
                      at ? ", " : "", 0.8 / n * (at - (n - 1) / 2.0), s + 1, bk_report_stage_name[s],
                      bk_json_num(bk_json_get(errors_of(r, s), "mse"), NAN));
        at++;
    }
    bk_buffer_add(&p->script, "\n");
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        for (int k = 0; bk_report_stage(r, s) && k < top; k++) {
            bk_buffer_add(&p->script, "%d ", k + 1);
            bk_number_add(&p->script,
                          100 *
                              bk_json_num(bk_json_at(bk_json_get(errors_of(r, s), "share_of_worst"), (size_t)k), NAN));
            bk_buffer_add(&p->script, "\n");
        }
        if (bk_report_stage(r, s)) bk_buffer_add(&p->script, "e\n");
    }
}

void bk_report_error(const bk_report_run *r, bk_picture *p)
{
    double lo, hi;
    if (!bk_report_measured(r, p)) return;
    if (!range_of_errors(r, &lo, &hi)) {
        bk_picture_missing(
            p,
            "The quantized block gives what the block in full precision gives, to the bit: there is no error to show.");
        return;
    }
    bk_picture_begin(p, 960, 620);
    bk_buffer_add(&p->script, "set multiplot\n");
    panels_of_errors(r, p, lo, hi);
    panel_of_shares(r, p);
    bk_buffer_add(&p->script, "unset multiplot\n");
    bk_buffer_add(&p->caption,
                  "Quantization error of the output of block %lld, token by token, on a logarithmic axis that the "
                  "columns share; and how much of a "
                  "sequence's squared error its worst one, two and three tokens carry. The block is the one whose "
                  "largest token stands out "
                  "most; it is quantized ",
                  (long long)bk_json_int(bk_json_get(r->data, "error_block"), -1));
    bk_html_add(&p->caption, bk_json_str(bk_json_get(r->data, "scheme"), "?"));
    bk_buffer_add(&p->caption, " with minima and maxima of these inputs: no search, no training.");
    bk_report_say_absent(r, p);
    bk_report_say_samples(r, p);
}
