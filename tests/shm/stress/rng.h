/* rng.h - repeatable random numbers: splitmix64, one stream for each thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint32_t rng_below(rng *r, uint32_t n) { return (uint32_t)((rng_next(r) >> 32) * n >> 32); }
static inline bool rng_one_in(rng *r, uint32_t n) { return rng_below(r, n) == 0; }

static inline rng rng_stream(uint64_t seed, uint32_t stream)
{
    rng r = {seed * 0x100000001b3ull + stream};
    rng_next(&r);
    return r;
}
