/* publish.h - a writer finishes its part of a granted page. It sends no message: the other
 * writers and the daemon read the bits. */
#pragma once

#include "../common/parts.h"

/* Returns whether the slot was granted a part of this filling. */
static inline bool pt_was_granted(const pt_entry *e, uint32_t slot)
{
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] == slot)
            return true;
    return false;
}

/* Finishes a part; the last one makes the page readable. Returns false if the page was doomed in the meantime.
 *
 * There are three steps. First the "done" bit: it releases the bytes of this part and acquires those of the parts that
 * were done before, so the writer that sets the last bit, and publishes, passes all of them on. Then, if all parts are
 * done, the state becomes PT_READABLE. The "released" bit comes last: until it is set the daemon does not reuse the
 * entry, so a slow writer cannot publish another page than its own. It releases, for the next owner of the frames
 * (tests/models/orders/parts_order.pml proves both orders). The caller guarantees the same as for pt_part_abandon. */
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
