/* RMSNorm and rotary positions. */

KERNEL(rmsnorm_fwd)
{
    const REAL *gain = a->w;
    REAL *rstd = a->rstd;
    for (int64_t r = 0; r < a->rows; r++) {
        const REAL *x = (const REAL *)a->x + r * a->cols;
        REAL *y = (REAL *)a->y + r * a->cols;
        double square = 0;
        for (int64_t c = 0; c < a->cols; c++) square += (double)x[c] * x[c];
        double inv = 1 / sqrt(square / (double)a->cols + a->eps);
        for (int64_t c = 0; c < a->cols; c++) y[c] = (REAL)(x[c] * inv * gain[c]);
        rstd[r] = (REAL)inv;
    }
    return BK_OK;
}

/* With g = dy w and q = rstd: dx = q g - x q^3 mean(g x);  dw = sum over rows of dy x q. */
KERNEL(rmsnorm_bwd)
{
    const REAL *X = a->x, *DY = a->dy, *gain = a->w, *rstd = a->rstd;
    for (int64_t r = 0; a->dx && r < a->rows; r++) {
        const REAL *x = X + r * a->cols, *dy = DY + r * a->cols;
        REAL *dx = (REAL *)a->dx + r * a->cols;
        double q = rstd[r], gx = 0;
        for (int64_t c = 0; c < a->cols; c++) gx += (double)dy[c] * gain[c] * x[c];
        for (int64_t c = 0; c < a->cols; c++)
            dx[c] += (REAL)(q * dy[c] * gain[c] - x[c] * q * q * q * gx / (double)a->cols);
    }
    for (int64_t c = 0; a->dw && c < a->cols; c++) {
        double sum = 0;
        for (int64_t r = 0; r < a->rows; r++) sum += (double)DY[r * a->cols + c] * X[r * a->cols + c] * rstd[r];
        ((REAL *)a->dw)[c] += (REAL)sum;
    }
    return BK_OK;
}

KERNEL(rope)
{
    const int64_t half = a->dim / 2;
    for (int64_t r = 0; r < a->batch * a->tokens * a->heads; r++) {
        const REAL *x = (const REAL *)a->x + r * a->dim;
        const REAL *cs = (const REAL *)a->table + (a->pos0 + r / a->heads % a->tokens) * a->dim, *sn = cs + half;
        REAL *y = (REAL *)a->y + r * a->dim;
        for (int64_t i = 0; i < half; i++) {
            double turn = a->inverse ? -(double)sn[i] : (double)sn[i];
            double first = (double)x[i] * cs[i] - x[i + half] * turn, second = (double)x[i + half] * cs[i] + x[i] * turn;
            y[i] = (REAL)((a->accumulate ? (double)y[i] : 0) + first);
            y[i + half] = (REAL)((a->accumulate ? (double)y[i + half] : 0) + second);
        }
    }
    return BK_OK;
}
