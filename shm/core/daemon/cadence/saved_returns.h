/* saved_returns.h - what was learned of all pages, saved in the index after each round, so that
 * a new daemon need not learn it again.
 *
 * The record has a checksum, as a daemon may die while it writes. A build with other tables does
 * not know the layout and learns again. */
#pragma once

#include "../../common/entry_checksum.h"
#include "return_times.h"

#define PT_LEARNED_VERSION 1ull /* raised when the meaning of the tables changes, and not their size */

typedef struct {
    uint64_t layout; /* PT_LEARNED_LAYOUT */
    uint64_t checksum; /* of everything after it; 0: being written */
    uint64_t full_pages;
    pt_returns returns;
} pt_learned;
_Static_assert(sizeof(pt_learned) <= PT_LEARNED_BYTES, "what is learned fits into its place");
#define PT_LEARNED_LAYOUT (PT_LEARNED_VERSION << 32 | sizeof(pt_learned))

static inline uint64_t pt_learned_checksum(const pt_learned *l)
{
    const uint8_t *at = (const uint8_t *)&l->full_pages, *end = (const uint8_t *)(l + 1);
    uint64_t checksum = 1, word;
    for (; at < end; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        checksum = pt_checksum_add(checksum, word);
    }
    return checksum ? checksum : 1;
}

/* Takes some 100 microseconds. */
static inline void pt_learned_save(pt_learned *l, const pt_returns *t, uint32_t full_pages)
{
    l->checksum = 0;
    atomic_signal_fence(memory_order_seq_cst); /* a daemon that dies in between leaves a record without a checksum */
    l->layout = PT_LEARNED_LAYOUT;
    l->full_pages = full_pages;
    l->returns = *t;
    atomic_signal_fence(memory_order_seq_cst);
    l->checksum = pt_learned_checksum(l);
}

/* Copies what an earlier daemon saved. Returns false if nothing was saved that this build knows. */
static inline bool pt_learned_restore(const pt_learned *l, pt_returns *t)
{
    if (l->layout != PT_LEARNED_LAYOUT || !l->checksum || l->checksum != pt_learned_checksum(l))
        return false;
    *t = l->returns;
    return true;
}
