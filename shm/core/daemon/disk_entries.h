/* disk_entries.h - the entries of pages on disk: created, evicted, and kept when only the copy in the arena is lost.
 *
 * Every page on disk has an entry. When such an entry is freed, the page leaves the disk, too: its key is added to the
 * list of drops, which the worker receives with its next command. */
#pragma once

#include "events.h"
#include "quota_order.h"

/* Adds a key to the list of drops. A drop that cannot be remembered leaves a copy on disk that no match finds. The cap
 * holds nevertheless, because the worker enforces it, too. */
static inline void pt_drop_later(pt_device *d, const uint8_t *key)
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

/* Returns the device that a page is on, or is being written to. */
static inline pt_device *pt_device_of(pt_owner *o, uint32_t entry)
{
    return &o->disk.devices[o->view.histories[entry].device % PT_DEVICES];
}

/* Records that the page is on the device that its history names. */
static inline void pt_put_on_disk(pt_owner *o, uint32_t entry, uint64_t tick)
{
    pt_entry *e = &o->view.entries[entry];
    pt_device *d = pt_device_of(o, entry);
    pt_enter_disk(&o->view, e);
    d->pages++;
    d->bytes += e->size;
    pt_use_slots(o, entry, pt_slots_of(o, entry));
    PT_POINT("ondisk.counted");
    o->kind->add(d->listed[pt_tenant_of(o, entry)], entry, tick);
    if (d->complete)
        pt_came(o, entry, PT_TIER_DISK, PT_EVENT_WRITTEN);
}

/* Records that the page is no longer on disk. */
static inline void pt_take_off_disk(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_device *d = pt_device_of(o, entry);
    o->kind->remove(d->listed[pt_tenant_of(o, entry)], entry);
    PT_POINT("offdisk.unlisted");
    d->pages--;
    d->bytes -= e->size;
    pt_use_slots(o, entry, -(int64_t)pt_slots_of(o, entry));
    pt_leave_disk(&o->view, e);
    pt_left(o, entry, PT_TIER_DISK);
}

/* Removes the page from the disk: records that it is no longer there and lists its key as a drop for the worker. */
static inline void pt_drop_from_disk(pt_owner *o, uint32_t entry)
{
    pt_take_off_disk(o, entry);
    PT_POINT("offdisk.counted");
    pt_drop_later(pt_device_of(o, entry), o->view.entries[entry].key);
}

/* What is known about a page on disk. */
typedef struct {
    const uint8_t *key;
    uint64_t size;
    uint32_t space;
    uint64_t tick;
    uint8_t device;
    uint32_t slots; /* 0: as many as its bytes fill */
} pt_stored;

/* Creates the entry of a page that is only on disk. Returns false if the index has no room. The caller guarantees
 * that the key is not in the dictionary. */
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
    pt_put_serial(e, v->header->next_serial++);
    e->size = page->size;
    e->space = page->space;
    e->parts = 1;
    e->division = 0;
    e->reservation = 0;
    atomic_store_explicit(&v->locks[entry].parts, 0, memory_order_relaxed);
    o->view.histories[entry].device = page->device;
    pt_note_slots(o, entry, page->slots);
    pt_join_tenant(o, entry);
    pt_stamp(o, entry, page->tick);
    PT_POINT("ondisk.filled");
    /* The record is complete before the state says so, and the key comes last, as for a store (reserve.h). */
    pt_put_state(&v->locks[entry].word, PT_ON_DISK);
    PT_POINT("ondisk.stated");
    pt_dict_add(v, d, entry);
    PT_POINT("ondisk.named");
    pt_space_add(v, entry);
    pt_put_on_disk(o, entry, page->tick);
    PT_POINT("ondisk.made");
    return true;
}

/* Frees the entry of a page that is only on disk, and drops the page from the disk. Returns false while a reader has
 * the entry pinned. The caller guarantees that pt_correct_state is PT_ON_DISK. */
static inline bool pt_free_on_disk(pt_owner *o, uint32_t entry)
{
    if (!pt_retire(&o->view.locks[entry].word, PT_ON_DISK, PT_FREE))
        return false;
    PT_POINT("freedisk.retired");
    /* The state is PT_FREE: a reader that still finds the key misses. */
    pt_drop_from_disk(o, entry);
    pt_unlink(o, entry);
    PT_POINT("freedisk.unlinked");
    pt_reclaim(o, entry);
    PT_POINT("freedisk.reclaimed");
    return true;
}

/* Does the same for a page that the disk evicts. */
static inline bool pt_free_evicted(pt_owner *o, uint32_t entry)
{
    o->absence = PT_EVICTED_FROM_DISK;
    bool freed = pt_free_on_disk(o, entry);
    o->absence = PT_DROPPED;
    return freed;
}

/* Evicts the coldest page from a device, of those that the quotas let go. Returns false if no page can be evicted. A
 * page that is being read from disk, or whose entry a reader has pinned, stays. */
static inline bool pt_disk_evict_one(pt_owner *o, pt_device *d, pt_need need, uint64_t now)
{
    uint64_t tick;
    for (uint32_t patience = 64; patience;) {
        pt_candidate c = pt_first_on_disk(o, d, need, UINT64_MAX);
        uint32_t entry = c.entry;
        if (entry == PT_NONE)
            return false;
        pt_entry *e = &o->view.entries[entry];
        uint64_t bytes = e->size;
        if ((tick = pt_correct_tick(o, entry, now)) > c.tick) {
            o->kind->used(c.list, entry, tick);
            continue;
        }
        bool gone = false;
        switch (pt_correct_state(o, entry)) {
        case PT_READABLE:
            pt_drop_from_disk(o, entry);
            /* written again, it would evict a warmer page, which would be written again, and so on */
            e->marks |= PT_MARK_SKIPPED;
            pt_relist(o, entry, now);
            gone = true;
            break;
        case PT_ON_DISK:
            gone = pt_free_evicted(o, entry);
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
        o->kind->used(c.list, entry, now);
        patience--;
    }
    return false;
}

/* Returns how many slots of a device may leave for a tenant, at most: its own, and what others have above their
 * minimum. Pages that cannot leave at this time, because they are being read or stored, count as well. */
static inline uint64_t pt_slots_to_gain(const pt_owner *o, const pt_device *d, uint32_t tenant)
{
    uint64_t slots = d->used_of[tenant];
    for (uint32_t other = 0; d->listed[0] && other < o->tenants.count; other++) {
        pt_candidate c = pt_coldest_of(o, d->listed[other]);
        if (other == tenant || c.entry == PT_NONE ||
            pt_precedence_on_disk(o, d, c.entry, (pt_need){tenant, false}) == PT_STAYS)
            continue;
        uint64_t spare = pt_slots_on(d, other) - pt_least_frames(o->tenants.quotas[other].disk, d->slots);
        slots += spare < d->used_of[other] ? spare : d->used_of[other];
    }
    return slots;
}

/* Evicts pages from a device until it has room for `slots` more slots of a tenant: this is the disk's own eviction at
 * its cap, or at the tenant's maximum. Returns false, and evicts no more, once it is clear that there will not be
 * enough. */
static inline bool pt_disk_make_room(pt_owner *o, pt_device *d, uint32_t tenant, uint32_t slots, uint64_t now)
{
    uint64_t most = pt_most_after(pt_slots_on(d, tenant), slots,
                                  pt_most_frames(o->tenants.quotas[tenant].disk, d->slots));
    if (d->ordered_of[tenant] + slots > most)
        return false; /* too large for the tenant, or no room until the writes in progress have ended */
    for (;;) {
        bool own_only = pt_slots_on(d, tenant) + slots > most;
        uint64_t taken = d->used_slots + d->ordered_slots + slots;
        if (!own_only && taken <= d->slots)
            return true;
        if (taken > d->slots + pt_slots_to_gain(o, d, tenant))
            return false; /* the same for the device */
        if (!pt_disk_evict_one(o, d, (pt_need){tenant, own_only}, now))
            return false;
    }
}
