/* Finite fields GF(p^k) of odd order, k <= 3, small enough for tables: what Paley's constructions need.
 * The element of number e = d0 + d1 p + d2 p^2 is the polynomial d0 + d1 x + d2 x^2 modulo `modulus`. */
#ifndef BK_GALOIS_H
#define BK_GALOIS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bk_galois {
    int64_t q, p, k;    /* q = p^k */
    int64_t modulus[4]; /* coefficients, constant term first, modulus[k] = 1 */
} bk_galois;

/* False when q is no power of an odd prime with an exponent up to 3. Otherwise fills `f`: of the irreducible polynomials of degree k it takes
 * the first one, the coefficient of x counting slowest, then the constant, then that of x^2. */
bool bk_galois_init(bk_galois *f, int64_t q);
int64_t bk_galois_sub(const bk_galois *f, int64_t a, int64_t b);
int64_t bk_galois_mul(const bk_galois *f, int64_t a, int64_t b);
/* The quadratic character of every element: chi[0] = 0, +1 for nonzero squares, -1 for the rest. */
void bk_galois_character(const bk_galois *f, int8_t *chi);

#endif
