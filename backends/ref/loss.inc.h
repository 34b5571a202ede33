/* Reconstruction losses and cross entropy. */

/* The three tokens of sample `s` with the largest mean |target|, the earlier one first among equals; -1 where there are fewer. */
typedef struct skipped {
    int64_t token[3];
} skipped;

static double abs_mean(const REAL *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs((double)x[i]);
    return sum / (double)n;
}

static skipped largest_three(const REAL *target, int64_t tokens, int64_t cols)
{
    skipped best = {{-1, -1, -1}};
    for (int k = 0; k < 3; k++) {
        double top = -1;
        for (int64_t t = 0; t < tokens; t++) {
            if (t == best.token[0] || t == best.token[1]) continue;
            double mean = abs_mean(target + t * cols, cols);
            if (mean > top) top = mean, best.token[k] = t;
        }
    }
    return best;
}

static double abs_max(const REAL *x, int64_t n)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs((double)x[i]));
    return top;
}

static double clamp10(double x) { return x > 10 ? 10 : x < -10 ? -10 : x; }

/* What one token adds to the loss, and its gradient g [cols] += times dloss. Every kind is a mean: `share` is 1 / what is counted. */
static double token_loss(bk_loss_kind kind, int64_t cols, const REAL *p, const REAL *t, double share, double dloss, REAL *g)
{
    double sum = 0;
    if (kind == BK_LOSS_COSINE) {
        double pt = 0, pp = 0, tt = 0;
        for (int64_t c = 0; c < cols; c++) pt += (double)p[c] * t[c], pp += (double)p[c] * p[c], tt += (double)t[c] * t[c];
        double norm = sqrt(pp) * sqrt(tt);
        if (norm == 0) return 0;
        for (int64_t c = 0; g && c < cols; c++) g[c] -= (REAL)(dloss * share * (t[c] - pt / pp * p[c]) / norm);
        return -share * pt / norm;
    }
    double unit = kind == BK_LOSS_NORMALIZED_MSE ? abs_max(t, cols) : 1;
    if (unit == 0) unit = 1;
    for (int64_t c = 0; c < cols; c++) {
        int clamp = kind == BK_LOSS_CLAMP_MSE;
        double pred = clamp ? clamp10(p[c]) : p[c] / unit, target = clamp ? clamp10(t[c]) : t[c] / unit;
        int passes = !clamp || (p[c] <= 10 && p[c] >= -10);
        sum += (pred - target) * (pred - target);
        if (g && passes) g[c] += (REAL)(dloss * share * 2 * (pred - target) / unit);
    }
    return share * sum;
}

/* The loss; with g, its gradient times dloss is added there. */
static double loss_all(bk_loss_kind kind, int64_t samples, int64_t tokens, int64_t cols, const REAL *pred, const REAL *target, double dloss,
                       REAL *g)
{
    double rows = (double)(samples * tokens), share = kind == BK_LOSS_COSINE ? 1 / rows : 1 / (rows * (double)cols);
    double loss = kind == BK_LOSS_COSINE ? 1 : 0;
    for (int64_t s = 0; s < samples; s++) {
        const skipped none = {{-1, -1, -1}};
        skipped skip = kind == BK_LOSS_SKIP_MSE ? largest_three(target + s * tokens * cols, tokens, cols) : none;
        for (int64_t t = 0; t < tokens; t++) {
            int64_t at = (s * tokens + t) * cols;
            if (t == skip.token[0] || t == skip.token[1] || t == skip.token[2]) continue;
            loss += token_loss(kind, cols, pred + at, target + at, share, dloss, g ? g + at : NULL);
        }
    }
    return loss;
}

KERNEL(loss_fwd)
{
    *(REAL *)a->loss = (REAL)loss_all(a->kind, a->samples, a->tokens, a->cols, a->pred, a->target, 0, NULL);
    return BK_OK;
}

KERNEL(loss_bwd)
{
    loss_all(a->kind, a->samples, a->tokens, a->cols, a->pred, a->target, *(const REAL *)a->dloss, a->dpred);
    return BK_OK;
}

KERNEL(xent_fwd)
{
    for (int64_t r = 0; r < a->rows; r++) {
        const REAL *z = (const REAL *)a->logits + r * a->cols;
        if (a->target[r] < 0 || a->target[r] >= a->cols) return BK_EINVAL;
        double top = z[0], sum = 0;
        for (int64_t c = 1; c < a->cols; c++) top = fmax(top, z[c]);
        for (int64_t c = 0; c < a->cols; c++) sum += exp(z[c] - top);
        double lse = top + log(sum);
        ((REAL *)a->nll)[r] = (REAL)(lse - z[a->target[r]]);
        ((REAL *)a->lse)[r] = (REAL)lse;
    }
    return BK_OK;
}

/* dlogits += dnll (softmax - onehot) */
KERNEL(xent_bwd)
{
    const REAL *lse = a->lse, *dnll = a->dnll;
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->target[r] < 0 || a->target[r] >= a->cols) return BK_EINVAL;
        const REAL *z = (const REAL *)a->logits + r * a->cols;
        REAL *g = (REAL *)a->dlogits + r * a->cols;
        for (int64_t c = 0; c < a->cols; c++) g[c] += (REAL)(dnll[r] * (exp((double)z[c] - lse[r]) - (c == a->target[r])));
    }
    return BK_OK;
}
