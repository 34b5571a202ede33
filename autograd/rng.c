#include "autograd/rng.h"

#include <math.h>

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all bits. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t bk_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return mix(mix(mix(seed) ^ stream) ^ counter);
}

double bk_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (double)(bk_rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

double bk_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    double u = 1.0 - bk_rng_uniform(seed, stream, 2 * counter);
    double v = bk_rng_uniform(seed, stream, 2 * counter + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t bk_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)bk_rng_u64(seed, stream, counter) * n) >> 64);
}
