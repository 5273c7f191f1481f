/* lock_word.h - the one atomic word of an entry: 56 pin bits and 8 bits of state.
 *
 * Pins and state share one word, so that reading the state and pinning the page are one atomic step. A pin that found
 * the entry readable keeps it readable: the state leaves PT_READABLE only by a compare-and-swap of the whole word
 * without pins. A page stays readable while it is written to disk. When it is evicted after that, its state becomes
 * PT_ON_DISK instead of PT_FREE. When it is read from disk, its state goes through PT_WRITING back to PT_READABLE. */
#pragma once

#include "layout.h"

enum pt_state {
    PT_FREE = 0, /* owns nothing */
    PT_WRITING = 1, /* granted; the frames belong to the writers */
    PT_READABLE = 2, /* all parts are published */
    /* will never be readable; not in the dictionary; its frames are freed when the writers have released them */
    PT_DOOMED = 3,
    /* has no frames; the bytes are in the disk tier. The key may be read under a pin, as for a readable page */
    PT_ON_DISK = 4,
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

/* Sets the pin bit of a slot and returns the word as it was before. Acquire: everything that the daemon and the
 * writers wrote before they changed the state is visible after it. (tests/models/orders/pin_order.pml proves
 * which memory orders the word needs.) */
static inline uint64_t pt_pin(pt_a64 *word, uint32_t slot)
{
    return atomic_fetch_or_explicit(word, 1ull << slot, memory_order_acq_rel);
}

/* Clears the pin bit of a slot. Release: the reads made under the pin end before the daemon sees the bit cleared. */
static inline void pt_unpin(pt_a64 *word, uint32_t slot)
{
    atomic_fetch_and_explicit(word, ~(1ull << slot), memory_order_release);
}

/* Changes the state and keeps the pins. Returns false if the state is not (or no longer) `from`. Release: a
 * process that pins the page in its new state sees what was written before. Pins in between are
 * read-modify-writes and preserve that order. */
static inline bool pt_change(pt_a64 *word, enum pt_state from, enum pt_state to)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (pt_state_of(seen) == from)
        if (atomic_compare_exchange_weak_explicit(word, &seen, pt_with_state(seen, to), memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* Sets the state, whatever it was, and keeps the pins. The caller must be the only one that
 * may change the state at this time. */
static inline void pt_put_state(pt_a64 *word, enum pt_state to)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(word, &seen, pt_with_state(seen, to), memory_order_acq_rel,
                                                  memory_order_relaxed))
        ;
}

/* Moves an unpinned entry out of `from`. It is the daemon's only way out of PT_READABLE, and from PT_ON_DISK to
 * PT_FREE. Returns false if the entry is pinned. Acquire: pairs with pt_unpin. All reads under any pin have ended, even
 * if another pin was set and cleared after that one, because the word is only changed by read-modify-writes. */
static inline bool pt_retire(pt_a64 *word, enum pt_state from, enum pt_state to)
{
    uint64_t unpinned = pt_with_state(0, from);
    return atomic_compare_exchange_strong_explicit(word, &unpinned, pt_with_state(0, to), memory_order_acq_rel,
                                                   memory_order_relaxed);
}
