/* Steps fitted to weights, and GPTQ, row by row and column by column. */

static REAL full_step(REAL m, int bits)
{
    const REAL half = (REAL)((1 << bits) - 1) / 2;
    REAL s = m / half;
    while (s > 0 && m / s < half) s = (REAL)(sizeof(REAL) == sizeof(float) ? (double)nextafterf((float)s, 0) : nextafter(s, 0));
    return s;
}

typedef struct fitted {
    REAL s, z;
} fitted;

static fitted step_of(const bk_fit_steps_args *f, REAL lo, REAL hi)
{
    fitted g = {0, 0};
    const REAL m = (REAL)fmax(fabs((double)lo), fabs((double)hi)), levels = (REAL)((1 << f->bits) - 1);
    if (f->symmetric) {
        g.s = f->restricted ? m / (REAL)((1 << (f->bits - 1)) - 1) : full_step(m, f->bits);
    } else if (lo == hi) {
        g.s = m;
        g.z = lo < 0;
    } else {
        lo = lo < 0 ? lo : 0, hi = hi > 0 ? hi : 0;
        g.s = hi / levels - lo / levels;
        if (g.s > 0) g.z = (REAL)rint((double)(-lo / g.s));
    }
    if (!(g.s > 1e-30)) g.s = 1;
    return g;
}

/* Code of w; clip() is that of fakequant. */
static double code_of(const bk_fit_steps_args *f, fitted g, double w)
{
    const int qmin = f->symmetric ? -(1 << (f->bits - 1)) : 0;
    return clip((REAL)w / g.s, g.z, qmin, qmin + (1 << f->bits) - 1).c;
}

static fitted fit(const bk_fit_steps_args *f, const double *w)
{
    double lo = w[0], hi = w[0], least = INFINITY;
    for (int64_t i = 1; i < f->group; i++) lo = fmin(lo, w[i]), hi = fmax(hi, w[i]);
    fitted best = step_of(f, (REAL)lo, (REAL)hi);
    for (int k = 0; f->clip && k < 80; k++) {
        fitted g = step_of(f, (REAL)((1 - k / 100.0) * lo), (REAL)((1 - k / 100.0) * hi));
        double error = 0;
        for (int64_t i = 0; i < f->group; i++) error += pow(fabs((code_of(f, g, w[i]) - g.z) * g.s - w[i]), 2.4);
        if (error < least) least = error, best = g;
    }
    return best;
}

static void keep_fitted(const bk_fit_steps_args *f, int64_t at, fitted g)
{
    ((REAL *)f->step)[at] = g.s;
    if (f->zero) ((REAL *)f->zero)[at] = g.z;
}

KERNEL(fit_steps)
{
    double *row = w->base;
    const int64_t groups = a->cols / a->group;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t i = 0; i < a->cols; i++) row[i] = ((const REAL *)a->w)[r * a->cols + i];
        for (int64_t g = 0; g < groups; g++) keep_fitted(a, r * groups + g, fit(a, row + g * a->group));
    }
    return BK_OK;
}

KERNEL(gptq)
{
    const int64_t cols = a->f.cols, group = a->f.group, groups = cols / group;
    double *row = w->base;
    for (int64_t r = 0; r < a->f.rows; r++) {
        REAL *out = (REAL *)a->w + r * cols;
        a->loss[r] = 0;
        for (int64_t i = 0; i < cols; i++) row[i] = out[a->order ? a->order[i] : i];
        for (int64_t i = 0; i < cols; i++) {
            const int64_t column = a->order ? a->order[i] : i, at = r * groups + (a->refit ? i : column) / group;
            if (a->refit && i % group == 0) keep_fitted(&a->f, at, fit(&a->f, row + i));
            const fitted g = {((REAL *)a->f.step)[at], a->f.zero ? ((REAL *)a->f.zero)[at] : 0};
            const double c = code_of(&a->f, g, row[i]);
            out[column] = (REAL)((c - g.z) * g.s);
            const double error = (row[i] - out[column]) / (a->u ? a->u[i * cols + i] : 1);
            a->loss[r] += error * error / 2;
            if (a->codes) a->codes[r * cols + column] = code_int(c);
            for (int64_t j = i + 1; a->u && j < cols; j++) row[j] -= error * a->u[i * cols + j];
        }
    }
    return BK_OK;
}
