/* lock_word.h - the one atomic word of an entry: 56 pin bits, 8 bits of state.
 *
 * Pin and state are one word so that "is it readable?" and "now it is mine" are one step.  A pin that found the entry
 * readable keeps it readable: the only way out of PT_READABLE is a compare-and-swap of the whole word without pins.
 * A page that is written to disk stays readable meanwhile; evicted then, it goes to PT_ON_DISK instead of PT_FREE, and from
 * there through PT_WRITING back to PT_READABLE when it is read in.
 */
#pragma once

#include "layout.h"

enum pt_state {
    PT_FREE = 0,     /* owns nothing */
    PT_WRITING = 1,  /* granted; frames belong to its writers */
    PT_READABLE = 2, /* whole */
    PT_DOOMED = 3,   /* will never be whole; out of the dictionary, frames wait for their writers to let go */
    PT_ON_DISK = 4,  /* no frames; the disk tier has it. Its key is safe to read under a pin, like that of a readable one */
};
#define PT_STATE_SHIFT 56
#define PT_PINS ((1ull << PT_STATE_SHIFT) - 1)

static inline enum pt_state pt_state_of(uint64_t word) { return (enum pt_state)(word >> PT_STATE_SHIFT); }

static inline uint64_t pt_with_state(uint64_t word, enum pt_state state)
{
    return (word & PT_PINS) | ((uint64_t)state << PT_STATE_SHIFT);
}

static inline enum pt_state pt_load_state(pt_a64 *word)
{
    return pt_state_of(atomic_load_explicit(word, memory_order_acquire));
}

/* Returns the word as it was. Acquire: what the daemon and the writers wrote before the state is seen after it. (Which orders
 * the word needs, one by one: tests/models/orders/pin_order.pml.) */
static inline uint64_t pt_pin(pt_a64 *word, uint32_t slot)
{
    return atomic_fetch_or_explicit(word, 1ull << slot, memory_order_acq_rel);
}

/* Release: the reads made under the pin end before the daemon sees the bit gone. */
static inline void pt_unpin(pt_a64 *word, uint32_t slot)
{
    atomic_fetch_and_explicit(word, ~(1ull << slot), memory_order_release);
}

/* Changes the state and leaves the pins as they are; false if the state was another by then. Release: who pins the page in its
 * new state sees what was written of it; pins in between are read-modify-writes and pass that on. */
static inline bool pt_change(pt_a64 *word, enum pt_state from, enum pt_state to)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (pt_state_of(seen) == from)
        if (atomic_compare_exchange_weak_explicit(word, &seen, pt_with_state(seen, to), memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* Puts the state, whatever it was, and leaves the pins as they are. The caller alone may change it now. */
static inline void pt_put_state(pt_a64 *word, enum pt_state to)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(word, &seen, pt_with_state(seen, to), memory_order_acq_rel,
                                                  memory_order_relaxed))
        ;
}

/* The daemon's way out of PT_READABLE, and from PT_ON_DISK to PT_FREE: only if nobody holds a pin. Acquire: pairs with
 * pt_unpin. What was read under any pin has been read, even if another one was set and taken back after it: the word is only
 * ever changed by read-modify-writes. */
static inline bool pt_retire(pt_a64 *word, enum pt_state from, enum pt_state to)
{
    uint64_t unpinned = pt_with_state(0, from);
    return atomic_compare_exchange_strong_explicit(word, &unpinned, pt_with_state(0, to), memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static inline uint32_t pt_done_bits(uint64_t parts) { return (uint32_t)parts; }
static inline uint32_t pt_gone_bits(uint64_t parts) { return (uint32_t)(parts >> 32); }
static inline uint32_t pt_all_parts(const pt_entry *entry)
{
    return entry->parts >= 32 ? 0xffffffffu : (1u << entry->parts) - 1;
}
