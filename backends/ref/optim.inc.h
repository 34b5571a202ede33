/* Optimizer and whole-array kernels. */

KERNEL(adamw)
{
    REAL *p = a->p, *m = a->m, *v = a->v;
    const REAL *g = a->g;
    double fix1 = 1 - pow(a->beta1, (double)a->t), fix2 = 1 - pow(a->beta2, (double)a->t);
    for (int64_t i = 0; i < a->n; i++) {
        double m1 = a->beta1 * m[i] + (1 - a->beta1) * g[i], v1 = a->beta2 * v[i] + (1 - a->beta2) * g[i] * g[i];
        double p1 = p[i] * (1 - a->lr * a->wd);
        m[i] = (REAL)m1;
        v[i] = (REAL)v1;
        p[i] = (REAL)(p1 - a->lr / fix1 * m1 / (sqrt(v1 / fix2) + a->eps));
    }
    return BK_OK;
}

KERNEL(signsgd)
{
    REAL *p = a->p;
    const REAL *g = a->g;
    for (int64_t i = 0; i < a->n; i++) p[i] = (REAL)(p[i] - a->lr * ((g[i] > 0) - (g[i] < 0)));
    return BK_OK;
}

KERNEL(clamp)
{
    REAL *p = a->p;
    const REAL lo = (REAL)a->lo, hi = (REAL)a->hi;
    for (int64_t i = 0; i < a->n; i++) p[i] = p[i] < lo ? lo : p[i] > hi ? hi : p[i];
    return BK_OK;
}

KERNEL(floor)
{
    REAL *p = a->p;
    const REAL *lo = a->lo;
    for (int64_t i = 0; i < a->n; i++)
        if (p[i] < lo[i]) p[i] = lo[i], *a->count += 1;
    return BK_OK;
}

KERNEL(sumsq)
{
    *a->sum = dot(a->x, a->x, a->n);
    return BK_OK;
}

KERNEL(finite)
{
    const REAL *x = a->x;
    *a->first = -1;
    for (int64_t i = 0; i < a->n; i++)
        if (!isfinite(x[i])) {
            *a->first = (double)i;
            break;
        }
    return BK_OK;
}

KERNEL(absmax)
{
    for (int64_t r = 0; r < a->rows; r++) ((REAL *)a->out)[r] = (REAL)abs_max((const REAL *)a->x + r * a->cols, a->cols);
    return BK_OK;
}

KERNEL(minmax)
{
    const int64_t groups = a->cols / a->group, params = a->per_row ? a->rows * groups : groups;
    const REAL *x = a->x;
    REAL *lo = a->lo, *hi = a->hi;
    for (int64_t i = 0; !a->accumulate && i < params; i++) lo[i] = INFINITY, hi[i] = -INFINITY;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        int64_t k = i / a->group;
        if (!a->per_row) k %= groups;
        if (x[i] < lo[k]) lo[k] = x[i];
        if (x[i] > hi[k]) hi[k] = x[i];
    }
    return BK_OK;
}

KERNEL(sqerr)
{
    const REAL *p = a->a, *q = a->b;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        double d = (double)p[i] - q[i];
        a->err[i % a->cols / a->group] += d * d;
    }
    return BK_OK;
}

KERNEL(rowdot)
{
    for (int64_t r = 0; r < a->rows; r++)
        a->out[r] = dot((const REAL *)a->a + r * a->cols, (const REAL *)a->b + r * a->cols, a->cols);
    return BK_OK;
}
