/* Causal grouped-query attention with prefix keys. Keys are numbered 0 .. P+T-1, the prefix first. */

typedef struct span {
    int64_t first, last; /* real keys that a token sees; every prefix key comes in addition */
} span;

static span visible(const bk_attention_fwd_args *f, int64_t t)
{
    int64_t first = f->window > 0 && t - f->window + 1 > 0 ? t - f->window + 1 : 0;
    return (span){first, t};
}

static int sees(const bk_attention_fwd_args *f, int64_t t, int64_t j)
{
    span s = visible(f, t);
    return j < f->prefix || (j - f->prefix >= s.first && j - f->prefix <= s.last);
}

/* Row j of keys or values, which lie apart for prefix [Hkv,P,d] and text [B,T,Hkv,d]. */
static const REAL *key_row(const bk_attention_fwd_args *f, const void *prefix, const void *text, int64_t b, int64_t kv, int64_t j)
{
    if (j < f->prefix) return (const REAL *)prefix + (kv * f->prefix + j) * f->dim;
    return (const REAL *)text + ((b * f->tokens + j - f->prefix) * f->kv_heads + kv) * f->dim;
}

static double dot(const REAL *x, const REAL *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
    return sum;
}

/* log-sum-exp of the scores of query row q over the keys that token t sees */
static double log_sum_exp(const bk_attention_fwd_args *f, const REAL *q, const void *keys, int64_t b, int64_t kv, int64_t t)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < f->prefix + f->tokens; j++) {
        if (!sees(f, t, j)) continue;
        double s = f->scale * dot(q, key_row(f, f->prefix_k, keys, b, kv, j), f->dim);
        if (s <= top) sum += exp(s - top);
        else sum = sum * exp(top - s) + 1, top = s;
    }
    return top + log(sum);
}

KERNEL(attention_fwd)
{
    double *row = w->base;
    for (int64_t r = 0; r < a->batch * a->tokens * a->heads; r++) {
        int64_t h = r % a->heads, t = r / a->heads % a->tokens, b = r / a->heads / a->tokens;
        int64_t kv = h / (a->heads / a->kv_heads);
        const REAL *q = (const REAL *)a->q + r * a->dim;
        double lse = log_sum_exp(a, q, a->k, b, kv, t);
        for (int64_t i = 0; i < a->dim; i++) row[i] = 0;
        for (int64_t j = 0; j < a->prefix + a->tokens; j++) {
            if (!sees(a, t, j)) continue;
            double p = exp(a->scale * dot(q, key_row(a, a->prefix_k, a->k, b, kv, j), a->dim) - lse);
            const REAL *v = key_row(a, a->prefix_v, a->v, b, kv, j);
            for (int64_t i = 0; i < a->dim; i++) row[i] += p * v[i];
        }
        for (int64_t i = 0; i < a->dim; i++) ((REAL *)a->o)[r * a->dim + i] = (REAL)row[i];
        ((REAL *)a->lse)[(b * a->heads + h) * a->tokens + t] = (REAL)lse;
    }
    return BK_OK;
}

/* Probability p of key j for query row r (b, t, h) and gradient ds of its score: ds = p (do.v - do.o). */
typedef struct score_grad {
    double p, ds;
} score_grad;

static score_grad score_backward(const bk_attention_bwd_args *a, int64_t r, int64_t j)
{
    const bk_attention_fwd_args *f = &a->f;
    int64_t h = r % f->heads, t = r / f->heads % f->tokens, b = r / f->heads / f->tokens;
    int64_t kv = h / (f->heads / f->kv_heads);
    const REAL *q = (const REAL *)f->q + r * f->dim, *go = (const REAL *)a->d_o + r * f->dim;
    double lse = ((const REAL *)f->lse)[(b * f->heads + h) * f->tokens + t];
    double p = exp(f->scale * dot(q, key_row(f, f->prefix_k, f->k, b, kv, j), f->dim) - lse);
    double dp = dot(go, key_row(f, f->prefix_v, f->v, b, kv, j), f->dim);
    return (score_grad){p, p * (dp - dot(go, (const REAL *)f->o + r * f->dim, f->dim))};
}

static void attention_dq(const bk_attention_bwd_args *a, double *row)
{
    const bk_attention_fwd_args *f = &a->f;
    for (int64_t r = 0; r < f->batch * f->tokens * f->heads; r++) {
        int64_t t = r / f->heads % f->tokens, b = r / f->heads / f->tokens, kv = r % f->heads / (f->heads / f->kv_heads);
        for (int64_t i = 0; i < f->dim; i++) row[i] = 0;
        for (int64_t j = 0; j < f->prefix + f->tokens; j++) {
            if (!sees(f, t, j)) continue;
            double ds = score_backward(a, r, j).ds;
            const REAL *k = key_row(f, f->prefix_k, f->k, b, kv, j);
            for (int64_t i = 0; i < f->dim; i++) row[i] += f->scale * ds * k[i];
        }
        for (int64_t i = 0; i < f->dim; i++) ((REAL *)a->dq)[r * f->dim + i] += (REAL)row[i];
    }
}

/* Real key number j of kv row n (b, j, kv): sums over the group's query heads and the tokens that see it. Prefix rows are constants. */
static void attention_dkv(const bk_attention_bwd_args *a, double *dk, double *dv)
{
    const bk_attention_fwd_args *f = &a->f;
    int64_t ratio = f->heads / f->kv_heads;
    for (int64_t n = 0; n < f->batch * f->tokens * f->kv_heads; n++) {
        int64_t kv = n % f->kv_heads, j = f->prefix + n / f->kv_heads % f->tokens, b = n / f->kv_heads / f->tokens;
        for (int64_t i = 0; i < f->dim; i++) dk[i] = dv[i] = 0;
        for (int64_t t = 0; t < f->tokens; t++) {
            if (!sees(f, t, j)) continue;
            for (int64_t h = kv * ratio; h < (kv + 1) * ratio; h++) {
                int64_t r = (b * f->tokens + t) * f->heads + h;
                score_grad g = score_backward(a, r, j);
                const REAL *q = (const REAL *)f->q + r * f->dim, *go = (const REAL *)a->d_o + r * f->dim;
                for (int64_t i = 0; i < f->dim; i++) dk[i] += f->scale * g.ds * q[i], dv[i] += g.p * go[i];
            }
        }
        for (int64_t i = 0; i < f->dim; i++) {
            if (a->dk) ((REAL *)a->dk)[n * f->dim + i] += (REAL)dk[i];
            if (a->dv) ((REAL *)a->dv)[n * f->dim + i] += (REAL)dv[i];
        }
    }
}

KERNEL(attention_bwd)
{
    double *row = w->base;
    if (a->dq) attention_dq(a, row);
    if (a->dk || a->dv) attention_dkv(a, row, row + a->f.dim);
    return BK_OK;
}

KERNEL(score_err)
{
    const bk_attention_fwd_args *f = &a->f;
    for (int64_t r = 0; r < f->batch * f->tokens * f->heads; r++) {
        int64_t t = r / f->heads % f->tokens, b = r / f->heads / f->tokens, kv = r % f->heads / (f->heads / f->kv_heads);
        const REAL *q = (const REAL *)f->q + r * f->dim;
        double lse = log_sum_exp(f, q, f->k, b, kv, t), lse2 = log_sum_exp(f, q, a->k2, b, kv, t);
        for (int64_t j = 0; j < f->prefix + f->tokens; j++) {
            if (!sees(f, t, j)) continue;
            double p = exp(f->scale * dot(q, key_row(f, f->prefix_k, f->k, b, kv, j), f->dim) - lse);
            double p2 = exp(f->scale * dot(q, key_row(f, f->prefix_k, a->k2, b, kv, j), f->dim) - lse2);
            a->err[kv] += (p - p2) * (p - p2);
        }
    }
    return BK_OK;
}
