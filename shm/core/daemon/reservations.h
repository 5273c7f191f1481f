/* reservations.h - what becomes of a page that was being written: to the lists of those that may leave, to the doomed, to the free. */
#pragma once

#include "disk_entries.h"

/* A page of which only the copy in the arena is lost gets an entry of its own again, if there is room for one. */
static inline void pt_rescue(pt_owner *o, uint32_t entry, uint64_t tick)
{
    const pt_entry *e = &o->view.entries[entry];
    pt_stored page = {e->key, e->size, e->space, tick};
    pt_take_off_disk(o, entry);
    PT_POINT("rescue.taken");
    if (!pt_make_on_disk(o, &page))
        pt_drop_later(&o->disk, e->key);
}

/* Takes a page that is being written out of sight; its frames stay until its writers have let go. */
static inline bool pt_doom(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    if (!pt_change(&o->view.locks[entry].word, PT_WRITING, PT_DOOMED))
        return false; /* published in this very moment: then it is whole */
    PT_POINT("doom.marked");
    pt_unlink(o, entry);
    PT_POINT("doom.unlinked");
    pt_leave_memory(&o->view, e);
    PT_POINT("doom.left");
    if (pt_tiers(e) & PT_TIER_DISK)
        pt_rescue(o, entry, pt_true_tick(o, entry, pt_now_ns()));
    PT_POINT("doom.done");
    o->view.header->deeds.doomed++;
    return true;
}

/* True if no writer of the page is left that could want it finished. One that detached counts as left: it stored its part for
 * other ranks, which may still come. The caller guarantees that the page is open. */
static inline bool pt_writers_are_dead(const pt_entry *e)
{
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] != PT_NO_WRITER && e->writers[part] != PT_DEAD_WRITER)
            return false;
    return true;
}

/* What should become of a page that is being written. */
static inline void pt_judge(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    uint64_t parts = atomic_load_explicit(&o->view.locks[entry].parts, memory_order_acquire);
    uint32_t done = pt_done_bits(parts), gone = pt_gone_bits(parts), all = pt_all_parts(e);
    if (gone & ~done)
        pt_doom(o, entry);
    else if ((gone & all) == all) /* the last writer died between its bit and the state */
        pt_change(&o->view.locks[entry].word, PT_WRITING, PT_READABLE);
    else if (pt_writers_are_dead(e)) /* the parts that are done would hold memory until they expire */
        pt_doom(o, entry);
    else if (now > e->expires_ns && pt_doom(o, entry))
        o->view.header->deeds.expired++;
}

/* Moves an open entry on if its writers have: to the policies, to the doomed, to the free. True if it left the list. The bits
 * "let go" are acquired: whatever a writer did to its frames was before what their next owner does. */
static inline bool pt_settle(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_lock *lock = &o->view.locks[entry];
    pt_entry *e = &o->view.entries[entry];
    if (pt_true_state(o, entry) == PT_WRITING)
        pt_judge(o, entry, now);
    enum pt_state state = pt_true_state(o, entry);
    uint64_t word = atomic_load_explicit(&lock->word, memory_order_acquire);
    uint32_t granted = pt_granted_bits(e);
    uint32_t gone = pt_gone_bits(atomic_load_explicit(&lock->parts, memory_order_acquire));
    if (state == PT_WRITING || (gone & granted) != granted || (state == PT_DOOMED && word & PT_PINS))
        return false;
    pt_open_remove(&o->view, entry);
    PT_POINT("settle.closed");
    if (state == PT_READABLE) {
        pt_list(o, entry, pt_true_tick(o, entry, now));
        PT_POINT("settle.listed");
    } else {
        pt_put_state(&lock->word, PT_FREE);
        PT_POINT("settle.freed");
        pt_reclaim(o, entry);
        PT_POINT("settle.reclaimed");
    }
    return true;
}

/* The entry of a key after it was settled, PT_NONE if there is none. If that doomed it, the page may be on disk as
 * another entry. */
static inline uint32_t pt_find_settled(pt_owner *o, const uint8_t *key, uint64_t now)
{
    uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE || o->view.entries[entry].on_list != PT_LIST_OPEN)
        return entry;
    pt_settle(o, entry, now);
    return pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
}

/* Settles open entries, the oldest first, and gives up after `patience` in a row that are not ready. */
static inline void pt_settle_some(pt_owner *o, uint64_t now, uint32_t patience)
{
    pt_header *h = o->view.header;
    for (uint32_t entry = h->open_first, next; entry != PT_NONE && patience; entry = next) {
        next = o->view.entries[entry].list_next;
        if (!pt_settle(o, entry, now))
            patience--;
    }
}

static inline void pt_settle_all(pt_owner *o, uint64_t now) { pt_settle_some(o, now, PT_NONE); }

/* Settles the first `most` open entries and lets those that are not ready stand behind the others: so all get their turn, and
 * none of the turns is long. */
static inline void pt_settle_turn(pt_owner *o, uint64_t now, uint32_t most)
{
    pt_header *h = o->view.header;
    for (uint32_t left = h->open_entries < most ? h->open_entries : most; left && h->open_first != PT_NONE; left--) {
        uint32_t entry = h->open_first;
        if (!pt_settle(o, entry, now)) {
            pt_open_remove(&o->view, entry);
            pt_open_add(&o->view, entry);
        }
    }
}
