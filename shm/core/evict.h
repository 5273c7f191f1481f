/* evict.h - making room: the coldest page that nobody has pinned leaves. */
#pragma once

#include "owner.h"

enum pt_try_evict { PT_EVICTED, PT_WARMER, PT_NOTHING };

static inline bool pt_drop_page(pt_owner *o, uint32_t entry)
{
    if (!pt_retire(&o->view.locks[entry].word, PT_FREE))
        return false;
    o->kind->remove(o->policy, entry);
    pt_unlink(o, entry);
    pt_reclaim(o, entry);
    return true;
}

static inline void pt_count_evicted(pt_owner *o, uint64_t bytes)
{
    o->view.header->deeds.evicted++;
    o->view.header->deeds.evicted_bytes += bytes;
}

/* Evicts the coldest page if it was last used before `before`, or learns that it is warmer than listed.
 * A pinned page is in use, so it counts as used now. */
static inline enum pt_try_evict pt_evict_step(pt_owner *o, uint64_t before, uint64_t now)
{
    uint64_t listed;
    uint32_t entry = o->kind->coldest(o->policy, &listed);
    if (entry == PT_NONE || listed >= before)
        return PT_NOTHING;
    uint64_t bytes = o->view.entries[entry].size, tick = pt_true_tick(o, entry, now);
    if (tick <= listed && pt_drop_page(o, entry)) {
        pt_count_evicted(o, bytes);
        return PT_EVICTED;
    }
    o->kind->used(o->policy, entry, tick > listed ? tick : now);
    return PT_WARMER;
}

/* Evicts one page that was last used before `before`; false if there is none. */
static inline bool pt_evict_one(pt_owner *o, uint64_t before, uint64_t now)
{
    enum pt_try_evict got;
    do
        got = pt_evict_step(o, before, now);
    while (got == PT_WARMER);
    return got == PT_EVICTED;
}

/* Evicts until `frames` are free, at most `limit` pages; returns how many it evicted. */
static inline uint32_t pt_evict_until(pt_owner *o, uint32_t frames, uint32_t limit, uint64_t now)
{
    uint32_t evicted = 0;
    while (evicted < limit && o->view.header->free_frames < frames && pt_evict_one(o, now, now))
        evicted++;
    return evicted;
}

/* Drops the pages of one namespace, PT_NONE for all; what is pinned or being written stays and is counted. */
typedef struct {
    uint32_t dropped, kept;
} pt_flushed;

static inline pt_flushed pt_flush(pt_owner *o, uint32_t space, uint64_t now)
{
    pt_flushed done = {0, 0};
    pt_settle_all(o, now);
    for (uint32_t s = 0; s < o->view.header->spaces; s++) {
        if (space != PT_NONE && s != space)
            continue;
        for (uint32_t entry = o->view.spaces[s].used ? o->view.spaces[s].first : PT_NONE, next; entry != PT_NONE; entry = next) {
            next = o->view.entries[entry].space_next;
            bool listed = o->kind->lists(o->policy, entry);
            *(listed && pt_drop_page(o, entry) ? &done.dropped : &done.kept) += 1;
        }
    }
    o->view.header->deeds.flushed += done.dropped;
    return done;
}
