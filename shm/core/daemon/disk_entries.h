/* disk_entries.h - the entries of pages on disk: made, told to go, kept where their copy in the arena is lost.
 *
 * What is on disk is in the index, and what leaves the index leaves the disk: its key is put on the list of drops, which the
 * worker gets with the next thing that it is told.
 */
#pragma once

#include "owner.h"

/* A drop that can not be remembered leaves a copy on disk that nobody finds; the worker's own cap still holds. */
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
}

/* The page is not on disk any more. */
static inline void pt_take_off_disk(pt_owner *o, uint32_t entry)
{
    o->kind->remove(o->on_disk, entry);
    PT_POINT("offdisk.unlisted");
    pt_leave_disk(&o->view, &o->view.entries[entry]);
}

/* The page shall not be on disk any more. */
static inline void pt_drop_from_disk(pt_owner *o, uint32_t entry)
{
    pt_take_off_disk(o, entry);
    PT_POINT("offdisk.counted");
    pt_drop_later(&o->disk, o->view.entries[entry].key);
}

/* What is known of a page on disk. */
typedef struct {
    const uint8_t *key;
    uint64_t size;
    uint32_t space;
    uint64_t tick;
} pt_stored;

/* Makes the entry of a page that is on disk alone; false if there is no room in the index. The caller guarantees that the
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
    memcpy(e->key, page->key, PT_KEY_BYTES);
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

/* Frees the entry of a page that is on disk alone and shall not be; false while a reader looks at it. The caller guarantees
 * that pt_true_state is PT_ON_DISK. */
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

/* The page that should leave the disk next leaves it; false if none can. What is being read in or looked at stays. */
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
            e->marks |= PT_MARK_SPARED; /* written again it would drive out a warmer one, and so on without end */
            pt_list_anew(o, entry, now);
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
            o->view.header->deeds.disk_evicted++;
            o->view.header->deeds.disk_evicted_bytes += bytes;
            return true;
        }
        o->kind->used(o->on_disk, entry, now);
        patience--;
    }
    return false;
}

/* True if the disk has room for so many frames more, if need be after evicting. */
static inline bool pt_disk_make_room(pt_owner *o, uint32_t frames, uint64_t now)
{
    const pt_header *h = o->view.header;
    if (o->disk.ordered_frames + frames > h->disk_frames)
        return false; /* whatever leaves */
    while (h->disk_used_frames + o->disk.ordered_frames + frames > h->disk_frames)
        if (!pt_disk_evict_one(o, now))
            return false;
    return true;
}
