/* disk_entries.h - the entries of pages on disk: created, evicted, and kept when only the copy in the arena is lost.
 *
 * Every page on disk has an entry. When such an entry is freed, the page leaves the disk, too: its key is added to the list
 * of drops, which the worker receives with its next command. */
#pragma once

#include "events.h"

/* Adds a key to the list of drops. A drop that cannot be remembered leaves a copy on disk that no match finds. The cap
 * holds nevertheless, because the worker enforces it, too. */
static inline void pt_drop_later(pt_disk *d, const uint8_t *key)
{
    if (d->drop_count == d->drop_room) {
        uint32_t room = d->drop_room ? 2 * d->drop_room : 64;
        uint8_t *drops = realloc(d->drops, (size_t)room * PT_KEY_BYTES);
        if (!drops)
            return;
        d->drops = drops;
        d->drop_room = room;
    }
    memcpy(d->drops + (size_t)d->drop_count++ * PT_KEY_BYTES, key, PT_KEY_BYTES);
}

static inline void pt_put_on_disk(pt_owner *o, uint32_t entry, uint64_t tick)
{
    pt_enter_disk(&o->view, &o->view.entries[entry]);
    PT_POINT("ondisk.counted");
    o->kind->add(o->on_disk, entry, tick);
    if (atomic_load_explicit(&o->view.header->disk_complete, memory_order_relaxed))
        pt_came(o, entry, PT_TIER_DISK, PT_EVENT_WRITTEN);
}

/* Records that the page is no longer on disk. */
static inline void pt_take_off_disk(pt_owner *o, uint32_t entry)
{
    o->kind->remove(o->on_disk, entry);
    PT_POINT("offdisk.unlisted");
    pt_leave_disk(&o->view, &o->view.entries[entry]);
    pt_left(o, entry, PT_TIER_DISK);
}

/* Removes the page from the disk: records that it is no longer there and lists its key as a drop for the worker. */
static inline void pt_drop_from_disk(pt_owner *o, uint32_t entry)
{
    pt_take_off_disk(o, entry);
    PT_POINT("offdisk.counted");
    pt_drop_later(&o->disk, o->view.entries[entry].key);
}

/* What is known about a page on disk. */
typedef struct {
    const uint8_t *key;
    uint64_t size;
    uint32_t space;
    uint64_t tick;
} pt_stored;

/* Creates the entry of a page that is only on disk. Returns false if the index has no room. The caller guarantees that the
 * key is not in the dictionary. */
static inline bool pt_make_on_disk(pt_owner *o, const pt_stored *page)
{
    const pt_view *v = &o->view;
    pt_dict d = pt_dict_in_force(v);
    if (v->header->free_entry == PT_NONE || !pt_dict_has_room(v, d, page->key))
        return false;
    uint32_t entry = pt_entry_take(v);
    PT_POINT("ondisk.taken");
    pt_entry *e = &v->entries[entry];
    pt_put_key(e, page->key);
    e->serial = v->header->next_serial++;
    e->size = page->size;
    e->space = page->space;
    e->parts = 1;
    e->division = 0;
    e->chain = 0;
    atomic_store_explicit(&v->locks[entry].parts, 0, memory_order_relaxed);
    pt_stamp(o, entry, page->tick);
    PT_POINT("ondisk.filled");
    pt_put_state(&v->locks[entry].word, PT_ON_DISK);
    PT_POINT("ondisk.stated");
    pt_dict_add(v, d, entry);
    PT_POINT("ondisk.named");
    pt_space_add(v, entry);
    pt_put_on_disk(o, entry, page->tick);
    PT_POINT("ondisk.made");
    return true;
}

/* Frees the entry of a page that is only on disk, and drops the page from the disk. Returns false while a reader has the
 * entry pinned. The caller guarantees that pt_true_state is PT_ON_DISK. */
static inline bool pt_free_on_disk(pt_owner *o, uint32_t entry)
{
    if (!pt_retire(&o->view.locks[entry].word, PT_ON_DISK, PT_FREE))
        return false;
    PT_POINT("freedisk.retired");
    pt_drop_from_disk(o, entry);
    pt_unlink(o, entry);
    PT_POINT("freedisk.unlinked");
    pt_reclaim(o, entry);
    PT_POINT("freedisk.reclaimed");
    return true;
}

/* Evicts the coldest page from the disk. Returns false if no page can be evicted. A page that is being read from disk, or
 * whose entry a reader has pinned, stays. */
static inline bool pt_disk_evict_one(pt_owner *o, uint64_t now)
{
    uint64_t listed, tick;
    for (uint32_t patience = 64; patience;) {
        uint32_t entry = o->kind->coldest(o->on_disk, &listed);
        if (entry == PT_NONE)
            return false;
        pt_entry *e = &o->view.entries[entry];
        uint64_t bytes = e->size;
        if ((tick = pt_true_tick(o, entry, now)) > listed) {
            o->kind->used(o->on_disk, entry, tick);
            continue;
        }
        bool gone = false;
        switch (pt_true_state(o, entry)) {
        case PT_READABLE:
            pt_drop_from_disk(o, entry);
            e->marks |= PT_MARK_SKIPPED; /* written again, it would evict a warmer page, which would be written again, and so on */
            pt_relist(o, entry, now);
            gone = true;
            break;
        case PT_ON_DISK:
            gone = pt_free_on_disk(o, entry);
            break;
        default:
            break;
        }
        if (gone) {
            PT_POINT("diskevict.gone");
            o->view.header->counters.disk_evicted++;
            o->view.header->counters.disk_evicted_bytes += bytes;
            return true;
        }
        o->kind->used(o->on_disk, entry, now);
        patience--;
    }
    return false;
}

/* Returns whether the disk has room for `frames` more frames. Evicts pages from the disk if necessary: this is the disk's
 * own eviction at its cap. */
static inline bool pt_disk_make_room(pt_owner *o, uint32_t frames, uint64_t now)
{
    const pt_header *h = o->view.header;
    if (o->disk.ordered_frames + frames > h->disk_frames)
        return false; /* too large for the disk, or no room until the writes in progress have ended */
    while (h->disk_used_frames + o->disk.ordered_frames + frames > h->disk_frames)
        if (!pt_disk_evict_one(o, now))
            return false;
    return true;
}
