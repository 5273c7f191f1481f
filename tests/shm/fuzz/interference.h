/* interference.h - lets another process write while a function runs: before its n-th read of a shared word. Include it
 * before all headers of the core. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* n, counted down; 0: no process writes. */
static uint32_t interfere_after;

static void interfere(void);

static inline void count_access(void)
{
    if (interfere_after && !--interfere_after)
        interfere();
}

#undef atomic_load_explicit
#define atomic_load_explicit(word, order) (count_access(), __c11_atomic_load(word, order))
#undef atomic_fetch_or_explicit
#define atomic_fetch_or_explicit(word, bits, order) (count_access(), __c11_atomic_fetch_or(word, bits, order))
#undef atomic_compare_exchange_strong_explicit
#define atomic_compare_exchange_strong_explicit(word, seen, wanted, won, lost) \
    (count_access(), __c11_atomic_compare_exchange_strong(word, seen, wanted, won, lost))
