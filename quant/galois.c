#include "quant/galois.h"

#include <string.h>

/* A polynomial of degree 2 or 3 is irreducible exactly when it has no root. */
static bool has_root(const bk_galois *f)
{
    for (int64_t x = 0; x < f->p; x++) {
        int64_t value = 0;
        for (int64_t i = f->k; i >= 0; i--) value = (value * x + f->modulus[i]) % f->p;
        if (value == 0) return true;
    }
    return false;
}

static void find_modulus(bk_galois *f)
{
    f->modulus[f->k] = 1;
    if (f->k == 1) return; /* arithmetic modulo x is arithmetic modulo p */
    int64_t squares = f->k == 3 ? f->p : 1;
    for (int64_t i = 0;; i++) {
        if (f->k == 3) f->modulus[2] = i % squares;
        f->modulus[0] = i / squares % f->p;
        f->modulus[1] = i / squares / f->p;
        if (!has_root(f)) return; /* there are such polynomials for every p */
    }
}

bool bk_galois_init(bk_galois *f, int64_t q)
{
    if (q < 3 || q % 2 == 0) return false;
    memset(f, 0, sizeof *f);
    f->p = q;
    for (int64_t d = 3; d * d <= q; d += 2) {
        if (q % d == 0) {
            f->p = d;
            break;
        }
    }
    f->q = 1;
    while (f->q < q) {
        f->q *= f->p;
        f->k++;
    }
    if (f->q != q || f->k > 3) return false;
    find_modulus(f);
    return true;
}

static void digits(const bk_galois *f, int64_t e, int64_t d[3])
{
    for (int i = 0; i < 3; i++) {
        d[i] = e % f->p;
        e /= f->p;
    }
}

static int64_t number(const bk_galois *f, const int64_t d[3])
{
    return d[0] + f->p * (d[1] + f->p * d[2]);
}

int64_t bk_galois_sub(const bk_galois *f, int64_t a, int64_t b)
{
    int64_t x[3], y[3];
    digits(f, a, x);
    digits(f, b, y);
    for (int i = 0; i < 3; i++) x[i] = (x[i] + f->p - y[i]) % f->p;
    return number(f, x);
}

int64_t bk_galois_mul(const bk_galois *f, int64_t a, int64_t b)
{
    int64_t x[3], y[3], z[5] = {0};
    digits(f, a, x);
    digits(f, b, y);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) z[i + j] = (z[i + j] + x[i] * y[j]) % f->p;
    for (int64_t i = 4; i >= f->k; i--) { /* x^i = -x^(i-k) (modulus - x^k) */
        int64_t top = z[i];
        z[i] = 0;
        for (int64_t j = 0; j < f->k; j++) z[i - f->k + j] = (z[i - f->k + j] + top * (f->p - f->modulus[j])) % f->p;
    }
    return number(f, z);
}

void bk_galois_character(const bk_galois *f, int8_t *chi)
{
    memset(chi, -1, (size_t)f->q);
    chi[0] = 0;
    for (int64_t x = 1; x < f->q; x++) chi[bk_galois_mul(f, x, x)] = 1;
}
