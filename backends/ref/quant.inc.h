/* Fake-quantizers. Whatever decides a code is computed in REAL, as every backend does; sums and gradients are in double. */

typedef struct code {
    double c; /* clamped, with the zero point still in it; NaN if x is */
    int in;   /* inside the clip mask */
    int same; /* of a group too narrow to quantize: always in, and the step does not count */
} code;

static code clip_level(double level, double zero, int qmin, int qmax)
{
    double u = level + zero;
    return (code){u < qmin ? qmin : u > qmax ? qmax : u, u >= qmin && u <= qmax, 0};
}

static code clip(REAL quotient, double zero, int qmin, int qmax) { return clip_level(rint((double)quotient), zero, qmin, qmax); }

static int32_t code_int(double c) { return isnan(c) ? 0 : (int32_t)c; }

/* Zero point of parameter k as it enters: rounded and clamped. */
static double stored_zero(const REAL *z, int64_t k, int qmin, int qmax) { return z ? clip(z[k], 0, qmin, qmax).c : 0; }

/* What a gradient check keeps of every element, so that rounding and clipping stand still while inputs move.
 * In the mask: y = x + rho s with rho = c - z - x/s of the recording (kept: NaN). Outside: y = (c - z) s with z moving as the raw zero point
 * does: z = raw + rho with rho = z - raw of the recording (kept: c). */
typedef struct frozen {
    bk_freeze mode;
    REAL *rho, *kept;
} frozen;

static frozen frozen_of(bk_freeze mode, void *memory, int64_t n)
{
    return (frozen){mode, memory, mode == BK_FREEZE_OFF ? NULL : (REAL *)memory + n};
}

/* Output element i. `moved`: by how much a rounding parameter moves a level; its rounding stands still, it does not. */
static REAL fake(frozen f, int64_t i, double x, double s, code q, double zero, double raw, double moved)
{
    if (f.mode == BK_FREEZE_REPLAY) return (REAL)(isnan(f.kept[i]) ? x + (f.rho[i] + moved) * s : (f.kept[i] - (raw + f.rho[i])) * s);
    if (f.mode == BK_FREEZE_RECORD) {
        f.rho[i] = (REAL)(q.same ? 0 : q.in ? q.c - zero - x / s - moved : zero - raw);
        f.kept[i] = (REAL)(q.in ? NAN : q.c);
    }
    return (REAL)((q.c - zero) * s);
}

/* What a rounding parameter does to a level: by how much it moves it, and the derivative of that. */
typedef struct nudge {
    double by, slope;
} nudge;

/* h = clamp(1.2 sigmoid(v) - 0.1, 0, 1) */
static nudge soft_round(double v)
{
    double g = sigmoid(v), h = 1.2 * g - 0.1;
    return h <= 0 ? (nudge){0, 0} : h >= 1 ? (nudge){1, 0} : (nudge){h, 1.2 * g * sigmoid(-v)};
}

static nudge nudge_of(bk_rounding rounding, const REAL *v, int64_t i)
{
    return !v ? (nudge){0, 0} : rounding == BK_ROUND_SOFT ? soft_round(v[i]) : (nudge){v[i], 1};
}

/* x / s as a level */
static double level_of(bk_rounding rounding, REAL quotient, nudge v)
{
    return rounding == BK_ROUND_SOFT ? floor((double)quotient) + v.by : rint((double)(REAL)(quotient + v.by));
}

KERNEL(fakequant_fwd)
{
    const int64_t n = a->rows * a->cols, groups = a->cols / a->group;
    const REAL *x = a->x, *s = a->s, *z = a->z, *v = a->v;
    const frozen f = frozen_of(a->freeze, a->frozen, n);
    REAL *y = a->y;
    for (int64_t i = 0; i < n; i++) {
        int64_t k = a->per_row ? i / a->group : i / a->group % groups;
        double zero = stored_zero(z, k, a->qmin, a->qmax);
        nudge d = nudge_of(a->rounding, v, i);
        code q = clip_level(level_of(a->rounding, x[i] / s[k], d), zero, a->qmin, a->qmax);
        if (a->codes) a->codes[i] = code_int(q.c);
        if (y) y[i] = fake(f, i, x[i], s[k], q, zero, z ? z[k] : 0, d.by);
    }
    return BK_OK;
}

KERNEL(fakequant_bwd)
{
    const int64_t groups = a->cols / a->group, params = a->per_row ? a->rows * groups : groups;
    const REAL *x = a->x, *s = a->s, *z = a->z, *v = a->v, *dy = a->dy;
    for (int64_t k = 0; k < params; k++) {
        double zero = stored_zero(z, k, a->qmin, a->qmax), ds = 0, dz = 0;
        for (int64_t r = a->per_row ? k / groups : 0; r < (a->per_row ? k / groups + 1 : a->rows); r++)
            for (int64_t c = 0; c < a->group; c++) {
                int64_t i = r * a->cols + k % groups * a->group + c;
                nudge d = nudge_of(a->rounding, v, i);
                code q = clip_level(level_of(a->rounding, x[i] / s[k], d), zero, a->qmin, a->qmax);
                ds += dy[i] * (q.c - zero - (q.in ? (double)x[i] / s[k] : 0));
                dz -= q.in ? 0 : (double)dy[i] * s[k];
                if (a->dx && q.in) ((REAL *)a->dx)[i] += dy[i];
                if (a->dv && q.in) ((REAL *)a->dv)[i] += (REAL)(dy[i] * d.slope * s[k]);
            }
        if (a->ds) ((REAL *)a->ds)[k] += (REAL)ds;
        if (a->dz) ((REAL *)a->dz)[k] += (REAL)dz;
    }
    return BK_OK;
}

KERNEL(round_penalty_fwd)
{
    const REAL *v = a->v;
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) sum += 1 - pow(fabs(2 * soft_round(v[i]).by - 1), a->beta);
    *(REAL *)a->loss = (REAL)(a->lambda * sum);
    return BK_OK;
}

KERNEL(round_penalty_bwd)
{
    const REAL *v = a->v;
    const double g = a->lambda * *(const REAL *)a->dloss;
    for (int64_t i = 0; i < a->n; i++) {
        nudge h = soft_round(v[i]);
        double t = 2 * h.by - 1;
        ((REAL *)a->dv)[i] -= (REAL)(g * a->beta * copysign(pow(fabs(t), a->beta - 1), t) * 2 * h.slope);
    }
    return BK_OK;
}

/* Step and zero point of one group whose range is measured on the spot. */
typedef struct dynamic {
    REAL low, high, top; /* min, max, max|x| */
    REAL s, z;
    REAL gamma, beta;    /* as they count: 1 where they leave no range */
    int learns;          /* the factors decide s */
    int same;            /* too narrow to quantize: all of it becomes +-max|x| */
    int symmetric;
    double levels;       /* Q */
} dynamic;

static dynamic measure(const REAL *x, int64_t n, int symmetric, int bounded, int qmin, int qmax, const REAL *gamma, const REAL *beta)
{
    dynamic d = {.low = x[0], .high = x[0], .symmetric = symmetric, .levels = qmax - qmin, .learns = 1};
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < d.low) d.low = x[i];
        if (x[i] > d.high) d.high = x[i];
    }
    d.top = (REAL)abs_max(x, n);
    d.gamma = gamma ? *gamma : 1;
    d.beta = beta ? *beta : 1;
    if (symmetric ? d.gamma <= 0 : (double)d.gamma * d.high - (double)d.beta * d.low <= 0) d.gamma = d.beta = 1, d.learns = 0;
    if (symmetric) {
        d.s = d.top > 0 ? (REAL)(2.0 * d.gamma * d.top / d.levels) : 1;
        return d;
    }
    const REAL range = d.high - d.low;
    d.s = (REAL)(((double)d.gamma * d.high - (double)d.beta * d.low) / d.levels);
    d.same = range == 0 || range < (REAL)1e-5 * d.top || d.s == 0;
    if (d.same) d.s = d.top > 0 ? d.top : 1;
    d.z = (REAL)-rint((double)((d.same ? d.low : d.beta * d.low) / d.s));
    if (bounded) d.z = d.z < qmin ? qmin : d.z > qmax ? qmax : d.z;
    return d;
}

/* The largest magnitude of a symmetric group falls exactly on Q / (2 gamma), on every machine. */
static code dynamic_code(const dynamic *d, REAL x, int qmin, int qmax)
{
    if (!d->symmetric) {
        code q = clip(x / d->s, d->z, qmin, qmax);
        return (code){q.c, q.in || d->same, d->same};
    }
    REAL scaled = d->top > 0 ? x / d->top * ((REAL)d->levels / (2 * d->gamma)) : 0;
    return clip(scaled, 0, qmin, qmax);
}

KERNEL(dynquant_fwd)
{
    const int64_t n = a->rows * a->cols;
    const frozen f = frozen_of(a->freeze, a->frozen, n);
    const REAL *x = a->x;
    REAL *y = a->y;
    for (int64_t g = 0; g < n / a->group; g++) {
        dynamic d = measure(x + g * a->group, a->group, a->symmetric, a->bounded, a->qmin, a->qmax, a->gamma, a->beta);
        if (a->freeze == BK_FREEZE_RECORD) f.kept[n + g] = d.z;
        if (a->freeze == BK_FREEZE_REPLAY) d.z = f.kept[n + g];
        for (int64_t i = g * a->group; i < (g + 1) * a->group; i++) {
            code q = dynamic_code(&d, x[i], a->qmin, a->qmax);
            if (a->codes) a->codes[i] = code_int(q.c);
            if (y) y[i] = fake(f, i, x[i], d.s, q, d.z, d.z, 0);
        }
        if (a->step) ((REAL *)a->step)[g] = d.s;
        if (a->zero) ((REAL *)a->zero)[g] = d.z;
    }
    return BK_OK;
}

/* Adds the gradient of an extreme value to dx in equal parts at all places that hold it; of a magnitude also, with the other
 * sign, at -extreme. */
static void share(const REAL *x, REAL *dx, int64_t n, REAL extreme, int magnitude, double gradient)
{
    int64_t ties = 0;
    for (int64_t i = 0; i < n; i++) ties += x[i] == extreme || (magnitude && x[i] == -extreme);
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == extreme) dx[i] += (REAL)(gradient / (double)ties);
        else if (magnitude && x[i] == -extreme) dx[i] -= (REAL)(gradient / (double)ties);
    }
}

KERNEL(dynquant_bwd)
{
    double dgamma = 0, dbeta = 0;
    for (int64_t g = 0; g < a->rows * a->cols / a->group; g++) {
        const REAL *x = (const REAL *)a->x + g * a->group, *dy = (const REAL *)a->dy + g * a->group;
        REAL *dx = a->dx ? (REAL *)a->dx + g * a->group : NULL;
        dynamic d = measure(x, a->group, a->symmetric, a->bounded, a->qmin, a->qmax, a->gamma, a->beta);
        double G = 0;
        for (int64_t i = 0; i < a->group; i++) {
            code q = dynamic_code(&d, x[i], a->qmin, a->qmax);
            double steps = !d.symmetric ? (double)x[i] / d.s : d.top > 0 ? (double)x[i] / d.top * d.levels / (2 * d.gamma) : 0;
            G += dy[i] * (q.c - d.z - (q.in ? steps : 0));
            if (dx && q.in) dx[i] += dy[i];
        }
        if (d.same) continue;
        if (a->symmetric) {
            if (dx && d.top > 0) share(x, dx, a->group, d.top, 1, G * 2 * d.gamma / d.levels);
            if (d.learns) dgamma += G * 2 * d.top / d.levels;
        } else {
            if (dx) share(x, dx, a->group, d.high, 0, G * d.gamma / d.levels);
            if (dx) share(x, dx, a->group, d.low, 0, -G * d.beta / d.levels);
            if (d.learns) dgamma += G * d.high / d.levels, dbeta -= G * d.low / d.levels;
        }
    }
    if (a->dgamma) *(REAL *)a->dgamma += (REAL)dgamma;
    if (a->dbeta) *(REAL *)a->dbeta += (REAL)dbeta;
    return BK_OK;
}
