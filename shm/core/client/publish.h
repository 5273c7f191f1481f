/* publish.h - what a writer does with a granted page: finish its part, or give it up. No message: the bits are read by
 * the other writers and by the daemon. */
#pragma once

#include "session.h"

/* True if the slot was granted a part of this filling. */
static inline bool pt_writes(const pt_entry *e, uint32_t slot)
{
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] == slot)
            return true;
    return false;
}

static inline uint64_t pt_gone_bit(uint32_t part) { return 1ull << (32 + part); }

/* Lets go of a part without finishing it: the page is doomed, its frames come back when all writers have let go.
 * The caller guarantees that it was granted the part, has not let go of it, and touches the frames no more. Release: what it
 * wrote to them comes before what their next owner writes. */
static inline void pt_part_abandon(const pt_view *v, uint32_t entry, uint32_t part)
{
    atomic_fetch_or_explicit(&v->locks[entry].parts, pt_gone_bit(part), memory_order_acq_rel);
    PT_POINT("part.abandoned");
}

/* Finishes a part; the last one makes the page readable. False if the page was doomed meanwhile.
 * The bit "let go" comes last: until it is set the daemon does not reuse the entry, so that no slow writer can publish
 * another page than its own. The caller guarantees the same as for pt_part_abandon.
 * "Done" releases this part's bytes and acquires those of the parts that were done before: so the last one, who publishes,
 * passes all of them on. "Let go" releases, for whoever gets the frames next (tests/models/orders/parts_order.pml). */
static inline bool pt_part_finish(const pt_view *v, uint32_t entry, uint32_t part)
{
    pt_lock *lock = &v->locks[entry];
    uint32_t all = pt_all_parts(&v->entries[entry]);
    PT_POINT("part.whole");
    uint64_t parts = atomic_fetch_or_explicit(&lock->parts, 1ull << part, memory_order_acq_rel) | 1ull << part;
    PT_POINT("part.done");
    if ((pt_done_bits(parts) & all) == all)
        pt_change(&lock->word, PT_WRITING, PT_READABLE);
    PT_POINT("part.published");
    enum pt_state state = pt_load_state(&lock->word);
    atomic_fetch_or_explicit(&lock->parts, pt_gone_bit(part), memory_order_acq_rel);
    PT_POINT("part.gone");
    return state == PT_READABLE || state == PT_WRITING;
}
