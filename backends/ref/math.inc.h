/* Products, sums and element-wise kernels. */

KERNEL(gemm)
{
    const REAL *A = a->a, *B = a->b;
    REAL *C = a->c;
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            double sum = a->beta ? (double)C[i * a->ldc + j] : 0;
            for (int64_t l = 0; l < a->k; l++) {
                double x = a->ta ? A[l * a->lda + i] : A[i * a->lda + l];
                double y = a->tb ? B[j * a->ldb + l] : B[l * a->ldb + j];
                sum += x * y;
            }
            C[i * a->ldc + j] = (REAL)sum;
        }
    return BK_OK;
}

KERNEL(bias_fwd)
{
    const REAL *b = a->b;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->rows * a->cols; i++) y[i] += b[i % a->cols];
    return BK_OK;
}

KERNEL(bias_bwd)
{
    const REAL *dy = a->dy;
    REAL *db = a->db;
    for (int64_t c = 0; c < a->cols; c++) {
        double sum = 0;
        for (int64_t r = 0; r < a->rows; r++) sum += dy[r * a->cols + c];
        db[c] += (REAL)sum;
    }
    return BK_OK;
}

KERNEL(add)
{
    const REAL *p = a->a, *q = a->b;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = p[i] + q[i];
    return BK_OK;
}

KERNEL(axpy)
{
    const REAL *x = a->x;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (REAL)(y[i] + a->alpha * x[i]);
    return BK_OK;
}

KERNEL(fill)
{
    REAL *x = a->x;
    for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)a->value;
    return BK_OK;
}

KERNEL(scale)
{
    REAL *x = a->x;
    for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)(x[i] * a->alpha);
    return BK_OK;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

KERNEL(swiglu_fwd)
{
    const REAL *gate = a->gate, *up = a->up;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (REAL)(gate[i] * sigmoid(gate[i]) * up[i]);
    return BK_OK;
}

/* silu'(x) = sigmoid(x) (1 + x (1 - sigmoid(x))) */
KERNEL(swiglu_bwd)
{
    const REAL *gate = a->gate, *up = a->up, *dy = a->dy;
    REAL *dgate = a->dgate, *dup = a->dup;
    for (int64_t i = 0; i < a->n; i++) {
        double x = gate[i], g = sigmoid(x);
        if (dgate) dgate[i] += (REAL)(dy[i] * (double)up[i] * g * (1 + x * sigmoid(-x)));
        if (dup) dup[i] += (REAL)(dy[i] * x * g);
    }
    return BK_OK;
}

KERNEL(mul)
{
    const REAL *p = a->a, *q = a->b;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (REAL)((a->accumulate ? (double)y[i] : 0) + (double)p[i] * q[i]);
    return BK_OK;
}

KERNEL(quotient_fwd)
{
    const REAL *p = a->a, *q = a->b;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (REAL)(a->alpha * p[i] / q[i]);
    return BK_OK;
}

KERNEL(quotient_bwd)
{
    const REAL *p = a->a, *q = a->b, *dy = a->dy;
    REAL *da = a->da, *db = a->db;
    for (int64_t i = 0; i < a->n; i++) {
        if (da) da[i] += (REAL)(a->alpha * dy[i] / q[i]);
        if (db) db[i] -= (REAL)(a->alpha * dy[i] * p[i] / ((double)q[i] * q[i]));
    }
    return BK_OK;
}

KERNEL(logistic_fwd)
{
    const REAL *x = a->x;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (REAL)(sigmoid(x[i]) / sigmoid((REAL)a->at));
    return BK_OK;
}

KERNEL(logistic_bwd)
{
    const REAL *x = a->x, *dy = a->dy;
    REAL *dx = a->dx;
    for (int64_t i = 0; i < a->n; i++) dx[i] += (REAL)(dy[i] * sigmoid(x[i]) * sigmoid(-x[i]) / sigmoid((REAL)a->at));
    return BK_OK;
}

KERNEL(embedding_fwd)
{
    const REAL *table = a->table;
    REAL *y = a->y;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->ids[i] < 0 || a->ids[i] >= a->vocab) return BK_EINVAL;
        for (int64_t c = 0; c < a->cols; c++) y[i * a->cols + c] = table[a->ids[i] * a->cols + c];
    }
    return BK_OK;
}

KERNEL(embedding_bwd)
{
    const REAL *dy = a->dy;
    REAL *dtable = a->dtable;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->ids[i] < 0 || a->ids[i] >= a->vocab) return BK_EINVAL;
        for (int64_t c = 0; c < a->cols; c++) dtable[a->ids[i] * a->cols + c] += dy[i * a->cols + c];
    }
    return BK_OK;
}

/* Entry (i, j) of the Sylvester matrix: the sign is the parity of the bits that i and j share. */
static double sylvester(int64_t i, int64_t j) { return __builtin_parityll((unsigned long long)(i & j)) ? -1 : 1; }

/* By the definition, entry by entry: O(n^2) per row, nothing shared with butterflies. */
KERNEL(hadamard)
{
    const int64_t block = a->base * a->pow2;
    const double norm = 1 / sqrt((double)block);
    const REAL *h = a->h;
    for (int64_t r = 0; r < a->rows * a->blocks; r++) {
        const REAL *x = (const REAL *)a->x + r * block;
        REAL *y = (REAL *)a->y + r * block;
        for (int64_t i = 0; i < block; i++) {
            double sum = 0;
            for (int64_t j = 0; j < block; j++) {
                int64_t p = i / a->pow2, q = j / a->pow2;
                double outer = !h ? 1 : a->transpose ? h[q * a->base + p] : h[p * a->base + q];
                sum += outer * sylvester(i % a->pow2, j % a->pow2) * x[j];
            }
            y[i] = (REAL)((a->accumulate ? (double)y[i] : 0) + sum * norm);
        }
    }
    return BK_OK;
}

KERNEL(rotate_heads)
{
    const int64_t d = a->dim, per = a->heads / a->kv_heads;
    for (int64_t r = 0; r < a->rows * a->heads; r++) {
        const REAL *m = (const REAL *)a->m + r % a->heads / per * d * d, *x = (const REAL *)a->x + r * d;
        REAL *y = (REAL *)a->y + r * d;
        for (int64_t j = 0; j < d; j++) {
            double sum = a->accumulate ? (double)y[j] : 0;
            for (int64_t i = 0; i < d; i++) sum += (double)x[i] * (a->transpose ? m[j * d + i] : m[i * d + j]);
            y[j] = (REAL)sum;
        }
    }
    return BK_OK;
}
