/* brick report: one page of HTML, and pictures, of runs and of sweeps. Pictures are drawn by gnuplot from scripts that
 * stay beside them. */
#ifndef BK_REPORT_H
#define BK_REPORT_H

#include "experiments/schema.h"
#include "experiments/text_buffer.h"
#include "io/file.h"
#include "io/json.h"

#define BK_REPORT_PATH 4200

/* --- strings of others (report_text.c) --- */

/* Escaped for text and for quoted attributes; control characters and broken UTF-8 become U+FFFD. */
void bk_html_add(bk_text_buffer *b, const char *s);
/* As a quoted string of a gnuplot script, in which nothing is expanded; what has no place on one line becomes a blank or
 * '?'. */
void bk_gnuplot_add(bk_text_buffer *b, const char *s);
/* A number of a script, "NaN" (which gnuplot leaves out) if it is none that can be drawn. */
void bk_number_add(bk_text_buffer *b, double x);
/* x, or NaN if a logarithmic axis has no place for it. */
double bk_on_log_axis(double x);

/* --- pictures (report_draw.c) --- */

typedef struct bk_picture {
    char name[64]; /* of its files; letters, digits, '_' */
    const char *title;
    bk_text_buffer caption; /* HTML */
    bk_text_buffer script;  /* gnuplot, without terminal and output; nothing: not drawn */
    int width, height;      /* pixels */
    char missing[512];      /* why not, in a sentence */
} bk_picture;

/* Colours that colour-blind people tell apart (Okabe and Ito), as linetypes 1 to 7 of every script. */
void bk_picture_begin(bk_picture *p, int width, int height);
/* A panel of a multiplot: its frame, in parts of the picture from the lower left corner. */
void bk_picture_panel(bk_picture *p, double left, double right, double bottom, double top);
/* Linear axis that has zero on it; logarithmic axis over whole decades around positive lo .. hi. */
void bk_picture_linear(bk_picture *p, char axis, double lo, double hi);
void bk_picture_log(bk_picture *p, char axis, double lo, double hi);
void bk_picture_missing(bk_picture *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bk_picture_free(bk_picture *p);

/* BK_EUNSUP, saying how to install it, if there is no gnuplot. */
bk_status bk_gnuplot_check(bk_error *err) BK_MUST_USE;
/* Writes NAME.gp, NAME.svg and NAME.png into dir. */
bk_status bk_picture_draw(const bk_picture *p, const char *dir, bk_error *err) BK_MUST_USE;
/* The drawn SVG as it can stand inside a page, where ids of other pictures are: ids get the picture's name in front. */
bk_status bk_picture_inline(const bk_picture *p, const char *dir, bk_text_buffer *html, bk_error *err) BK_MUST_USE;
void bk_svg_inline(const char *svg, size_t len, const char *name, bk_text_buffer *html);

/* --- a run folder (report_run.c, report_measure.c) --- */

typedef struct bk_report_run {
    const char *dir;
    char label[128];              /* last part of dir */
    bk_run_config *cfg;           /* NULL: config.yaml says nothing that can be read */
    char *config, *manifest_text; /* as they stand there, or NULL */
    bk_json *summary, *manifest;  /* NULL: not there, or not readable */
    bk_json *fit;                 /* what was fitted had to say; NULL: not there, or not readable */
    bk_json *metrics;             /* array of the lines that can be read */
    bk_json *data;                /* what was measured: brick outliers --json and what it depends on */
    char why_config[512], why_summary[512], why_fit[512], why_metrics[512], why_data[512]; /* sentences about what is not there */
    char why_sums[512]; /* about a file that is not as the run left it */
} bk_report_run;

/* The last part of a path, printable. */
void bk_report_label(const char *dir, char *to, size_t size);
/* BK_EIO if it is no run folder. What is missing or damaged inside it becomes a sentence. */
bk_status bk_report_run_open(bk_report_run *r, const char *dir, bk_error *err) BK_MUST_USE;
void bk_report_run_close(bk_report_run *r);
/* The objects of a .jsonl file, up to the first line that is none: the last one may be in the middle of being written.
 * An absent file has none; `why` says what could not be read. BK_ENOMEM. */
bk_status bk_report_lines(const char *path, bk_json **array, char *why, size_t size, bk_error *err) BK_MUST_USE;
/* Takes RUN/report/data.json if it belongs to the run as it is, else measures with the run's own model, text, rotation
 * and prefix, and keeps that there. What cannot be measured becomes a sentence; BK_ECANCEL, BK_ENOMEM and BK_ENOSPC come
 * back. */
bk_status bk_report_measure(bk_report_run *r, int64_t samples, bk_error *err) BK_MUST_USE;

/* The measurement (report_activations.c). */
#define BK_REPORT_STAGES 3
extern const char *const bk_report_stage_name[BK_REPORT_STAGES];  /* original, rotated, with prefix */
const bk_json *bk_report_stage(const bk_report_run *r, int k);    /* NULL if it was not measured */
int64_t bk_report_whole(const bk_report_run *r, const char *key); /* 1 .. 1000000, 0 if it is none */
/* False, with the reason, if there is nothing to draw from. */
bool bk_report_measured(const bk_report_run *r, bk_picture *p);
/* For captions: why one of the columns is not there; what was measured on. */
void bk_report_say_absent(const bk_report_run *r, bk_picture *p);
void bk_report_say_samples(const bk_report_run *r, bk_picture *p);

/* Pictures of a run (report_maxima.c ...): each has a script afterwards, or a reason why it is missing. */
typedef void (*bk_report_draw)(const bk_report_run *r, bk_picture *p);
void bk_report_maxima(const bk_report_run *r, bk_picture *p);
void bk_report_outliers(const bk_report_run *r, bk_picture *p);
void bk_report_error(const bk_report_run *r, bk_picture *p);
void bk_report_losses(const bk_report_run *r, bk_picture *p);
void bk_report_gradients(const bk_report_run *r, bk_picture *p);

/* --- the page (report_page.c) --- */

typedef struct bk_page {
    bk_text_buffer html;
    const char *dir;
    char prefix[16];   /* of the names of pictures, where several runs share a page */
    bk_json *pictures; /* what was drawn and what not, for --json */
} bk_page;

void bk_page_begin(bk_page *page, const char *title);
void bk_page_heading(bk_page *page, int level, const char *text);
void bk_page_sentence(bk_page *page, const char *text);
void bk_page_folded(bk_page *page, const char *summary, const char *text);
/* Tables: begin with the heads (NULL at the end; those that begin with '#' are numbers), cells in rows, end. */
void bk_page_table(bk_page *page, const char *const *heads);
void bk_page_row(bk_page *page);
void bk_page_cell(bk_page *page, const char *text);
void bk_page_number(bk_page *page, const char *format, double x); /* a dash if it is not finite */
void bk_page_table_end(bk_page *page);
/* Draws it and puts it on the page, or the reason why it is missing. */
bk_status bk_page_picture(bk_page *page, const bk_picture *p, bk_error *err) BK_MUST_USE;
/* Writes index.html. */
bk_status bk_page_end(bk_page *page, bk_error *err) BK_MUST_USE;
void bk_page_free(bk_page *page);

/* Makes the folder, and makes sure that what a report overwrites and removes in it is its own: it has a page of brick's
 * afterwards, which it had before, or else it was empty. BK_EINVAL: it holds files of others. */
bk_status bk_page_claim(const char *dir, bk_error *err) BK_MUST_USE;

/* Values of quant.* that method and scheme would not have by themselves (report_changes.c), "weight.quantizer=adaround, ...": nothing where all are
 * theirs. Of a config that cannot be read: the quantizers of plugins that the manifest names. */
void bk_report_changes(const bk_report_run *r, bk_text_buffer *b);

/* What was fitted (report_fit.c): nothing for a run that fits nothing. */
void bk_report_fit(const bk_report_run *r, bk_page *page);

/* A run, and the results of a sweep, on the page (report_sections.c, report_sweep.c). */
bk_status bk_report_run_section(bk_report_run *r, bk_page *page, int64_t samples, bk_error *err) BK_MUST_USE;
/* A table of several runs, a row each; bk_page_table_end ends it. */
void bk_report_overview_begin(bk_page *page);
void bk_report_overview_row(const bk_report_run *r, bk_page *page);
bk_status bk_report_sweep_section(const char *dir, bk_page *page, bk_error *err) BK_MUST_USE;
bool bk_report_is_sweep(const char *dir);

#endif
