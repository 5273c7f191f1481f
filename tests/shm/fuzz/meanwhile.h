/* meanwhile.h - another process writes while a function is at work: before its n-th look at a shared word. Comes before
 * all headers of the core. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* n, counted down; 0: nobody writes. */
static uint32_t meanwhile_looks;

static void meanwhile(void);

static inline void meanwhile_look(void)
{
    if (meanwhile_looks && !--meanwhile_looks)
        meanwhile();
}

#undef atomic_load_explicit
#define atomic_load_explicit(word, order) (meanwhile_look(), __c11_atomic_load(word, order))
#undef atomic_fetch_or_explicit
#define atomic_fetch_or_explicit(word, bits, order) (meanwhile_look(), __c11_atomic_fetch_or(word, bits, order))
#undef atomic_compare_exchange_strong_explicit
#define atomic_compare_exchange_strong_explicit(word, seen, wanted, won, lost) \
    (meanwhile_look(), __c11_atomic_compare_exchange_strong(word, seen, wanted, won, lost))
