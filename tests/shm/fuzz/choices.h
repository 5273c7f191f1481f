/* choices.h - reads the fuzzer's input as choices. After its end all further choices are the first of their kind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at;
    size_t left;
} choices;

static inline uint8_t choose_byte(choices *c)
{
    if (!c->left)
        return 0;
    c->left--;
    return *c->at++;
}

static inline uint64_t choose_number(choices *c, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)choose_byte(c) << 8 * i;
    return number;
}

/* Chooses a number below n, which is at most 65536. */
static inline uint32_t choose(choices *c, uint32_t n)
{
    return (uint32_t)choose_number(c, n > 256 ? 2 : 1) % n;
}

static inline bool choose_one_in(choices *c, uint32_t n) { return choose(c, n) == n - 1; }

/* Chooses a number that is likely to cause an overflow, or any number. */
static inline uint64_t choose_odd(choices *c)
{
    static const uint64_t odd[] = {
        0, 1, UINT32_MAX, UINT32_MAX - 1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63, 1ull << 32, 1u << 30,
    };
    uint32_t kind = choose(c, 16);
    if (kind < sizeof odd / sizeof *odd)
        return odd[kind];
    return choose_number(c, 1 << kind % 4);
}
