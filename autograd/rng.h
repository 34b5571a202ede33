/* Counter-based random numbers: a value depends on (seed, stream, counter) alone, so order and threads cannot change it. */
#ifndef BK_RNG_H
#define BK_RNG_H

#include <stdint.h>

/* Streams in use, so that no two purposes share numbers. */
typedef enum { BK_RNG_R1 = 1, BK_RNG_R2, BK_RNG_SAMPLES, BK_RNG_SHUFFLE, BK_RNG_SYNTH, BK_RNG_TEST, BK_RNG_CHECK, BK_RNG_OFFQ,
               BK_RNG_OFFQ_KEYS, BK_RNG_OFFQ_DOWN, BK_RNG_RETRACT, BK_RNG_ROWS } bk_rng_stream;

uint64_t bk_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
double bk_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter);          /* [0, 1) */
double bk_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter);           /* N(0, 1), Box-Muller */
uint64_t bk_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n); /* 0 .. n-1, n > 0 */

#endif
