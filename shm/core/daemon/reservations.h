/* reservations.h - the end of a reservation: the page becomes evictable, or is doomed and then free. */
#pragma once

#include "disk_entries.h"

/* Keeps a page of which only the copy in the arena is lost: it gets another entry if the index has room for one. */
static inline void pt_rescue(pt_owner *o, uint32_t entry, uint64_t tick)
{
    const pt_entry *e = &o->view.entries[entry];
    pt_stored page = {e->key, e->size, e->space, tick, o->view.histories[entry].device, pt_slots_of(o, entry)};
    pt_take_off_disk(o, entry);
    PT_POINT("rescue.taken");
    if (!pt_make_on_disk(o, &page))
        pt_drop_later(pt_device_of(o, entry), e->key);
}

/* Dooms a page that is being written. It leaves the dictionary; its frames stay
 * until its writers have released them. */
static inline bool pt_doom(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    if (!pt_change(&o->view.locks[entry].word, PT_WRITING, PT_DOOMED))
        return false; /* published at this very moment: then the page is complete */
    PT_POINT("doom.marked");
    /* Now no writer can publish the page. Its key leaves, so that the page can be stored again while this entry waits
     * for its writers. */
    pt_unlink(o, entry);
    PT_POINT("doom.unlinked");
    pt_page_leaves(o, entry);
    PT_POINT("doom.left");
    /* The copy on disk is whole, and this entry can no longer lead to it. */
    if (pt_tiers(e) & PT_TIER_DISK)
        pt_rescue(o, entry, pt_correct_tick(o, entry, pt_now_ns()));
    PT_POINT("doom.done");
    o->view.header->counters.doomed++;
    return true;
}

/* Returns whether the page has no writer left that could want it finished: all of them have died or detached. The
 * caller guarantees that the page is open. */
static inline bool pt_writers_have_ended(const pt_entry *e)
{
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] != PT_NO_WRITER && e->writers[part] != PT_ENDED_WRITER)
            return false;
    return true;
}

/* Decides what happens to a page that is being written: dooms it, publishes it, or leaves it to its writers. */
static inline void pt_judge(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    uint64_t parts = atomic_load_explicit(&o->view.locks[entry].parts, memory_order_acquire);
    uint32_t done = pt_done_bits(parts), gone = pt_gone_bits(parts) | pt_ended_bits(e), all = pt_all_parts(e);
    if (gone & ~done)
        pt_doom(o, entry);
    else if ((gone & all) == all) /* the last writer died between its part bit and the state */
        pt_change(&o->view.locks[entry].word, PT_WRITING, PT_READABLE);
    else if (pt_writers_have_ended(e)) /* otherwise the finished parts would occupy memory until they expire */
        pt_doom(o, entry);
    else if (now > e->expires_ns && pt_doom(o, entry))
        o->view.header->counters.expired++;
}

/* Moves an open entry on when its writers have released it: a readable page goes to a policy, a doomed page is freed.
 * Returns true if the entry left the open list. The "released" bits are read with acquire: everything that a writer did
 * to its frames happens before what their next owner does. */
static inline bool pt_settle(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_lock *lock = &o->view.locks[entry];
    pt_entry *e = &o->view.entries[entry];
    if (pt_correct_state(o, entry) == PT_WRITING)
        pt_judge(o, entry, now);
    enum pt_state state = pt_correct_state(o, entry);
    uint64_t word = atomic_load_explicit(&lock->word, memory_order_acquire);
    uint32_t granted = pt_granted_bits(e);
    uint32_t gone = pt_gone_bits(atomic_load_explicit(&lock->parts, memory_order_acquire)) | pt_ended_bits(e);
    if (state == PT_WRITING || (gone & granted) != granted || (state == PT_DOOMED && word & PT_PINS))
        return false;
    pt_open_remove(&o->view, entry);
    PT_POINT("settle.closed");
    if (state == PT_READABLE) {
        pt_list(o, entry, pt_correct_tick(o, entry, now));
        pt_came(o, entry, PT_TIER_MEMORY, PT_EVENT_STORED);
        PT_POINT("settle.listed");
    } else {
        pt_put_state(&lock->word, PT_FREE);
        PT_POINT("settle.freed");
        pt_reclaim(o, entry);
        PT_POINT("settle.reclaimed");
    }
    return true;
}

/* Returns the entry of a key after it was settled, or PT_NONE. The dictionary is searched twice because settling may
 * doom the entry, and the page may then be on disk as another entry. */
static inline uint32_t pt_find_settled(pt_owner *o, const uint8_t *key, uint64_t now)
{
    uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE || o->view.entries[entry].on_list != PT_LIST_OPEN)
        return entry;
    pt_settle(o, entry, now);
    return pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
}

/* Settles open entries, the oldest first. Stops after `patience` entries that are not ready. */
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

/* Settles the first `most` open entries and moves those that are not ready to the end of the list. So every
 * entry is reached in time, and no call takes long. */
static inline void pt_settle_first(pt_owner *o, uint64_t now, uint32_t most)
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
