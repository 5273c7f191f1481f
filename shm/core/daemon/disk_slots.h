/* disk_slots.h - the slots of its device that each page on disk takes, which may be fewer than its bytes would fill.
 * Room is always reserved for all of them, and what a page did not need is free when its write ends. */
#pragma once

#include "owner.h"

/* Notes how many slots a page takes on its device; 0: as many as its bytes fill. Must not change while it is there. */
static inline void pt_note_slots(pt_owner *o, uint32_t entry, uint32_t slots)
{
    if (o->disk.taken)
        o->disk.taken[entry] = slots;
}

/* Returns how many slots a page takes that is said to take `taken`: never more than its bytes fill, and no fewer where
 * slots are those of a frame. */
static inline uint32_t pt_slots_taken(const pt_owner *o, const pt_device *d, uint64_t bytes, uint32_t taken)
{
    uint32_t most = pt_slots_for(o->view.header, d, bytes);
    return d->slot_bytes && taken && taken < most ? taken : most;
}

/* Returns how many slots a page on disk takes. */
static inline uint32_t pt_slots_of(const pt_owner *o, uint32_t entry)
{
    const pt_device *d = &o->disk.devices[o->view.histories[entry].device % PT_DEVICES];
    return pt_slots_taken(o, d, o->view.entries[entry].size, o->disk.taken ? o->disk.taken[entry] : 0);
}

/* Counts the slots of a page on disk as used. `slots` is negative if the page leaves. */
static inline void pt_use_slots(pt_owner *o, uint32_t entry, int64_t slots)
{
    pt_header *h = o->view.header;
    pt_device *d = &o->disk.devices[o->view.histories[entry].device % PT_DEVICES];
    h->disk_used_frames -= pt_frames_of_slots(h, d, d->used_slots);
    d->used_slots += (uint64_t)slots;
    h->disk_used_frames += pt_frames_of_slots(h, d, d->used_slots);
    d->used_of[pt_tenant_of(o, entry)] += (uint64_t)slots;
    o->view.spaces[o->view.entries[entry].space].disk_stored += (uint64_t)slots * pt_slot_bytes(h, d);
}
