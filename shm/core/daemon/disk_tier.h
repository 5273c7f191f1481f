/* disk_tier.h - the disk tier opens, reports what it contains, and closes. While it is closed the index is the same as
 * without a disk. */
#pragma once

#include "write_behind.h"

/* Records that the page of one entry is no longer on disk. A page that was only on disk is doomed, which
 * waits for readers that have it pinned. */
static inline void pt_disk_forget(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    enum pt_state state = pt_correct_state(o, entry);
    e->marks &= (uint8_t)~(PT_MARK_ORDERED | PT_MARK_SKIPPED);
    if (pt_tiers(e) & PT_TIER_DISK)
        pt_take_off_disk(o, entry);
    pt_unlist(o, entry);
    switch (state) {
    case PT_ON_DISK:
        memset(e->writers, PT_NO_WRITER, sizeof e->writers);
        pt_put_state(&o->view.locks[entry].word, PT_DOOMED);
        PT_POINT("forget.doomed");
        pt_unlink(o, entry);
        PT_POINT("forget.unlinked");
        pt_open_add(&o->view, entry);
        PT_POINT("forget.opened");
        break;
    case PT_READABLE:
        if (e->on_list != PT_LIST_OPEN)
            pt_list(o, entry, pt_correct_tick(o, entry, now));
        break;
    default:
        break;
    }
}

/* Considers all pages for writing, also those that were excluded before. */
static inline void pt_reconsider_all(pt_owner *o, uint64_t now)
{
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        o->view.entries[entry].marks &= (uint8_t)~PT_MARK_SKIPPED;
        pt_relist(o, entry, now);
    }
}

/* Changes the write rule. Pages that were excluded from writing before are considered again. */
static inline void pt_disk_set_rule(pt_owner *o, enum pt_write_rule rule, uint64_t now)
{
    o->disk.rule = rule;
    PT_POINT("rule.set");
    pt_reconsider_all(o, now);
}

/* Closes a device with everything that it contained: its worker died, or never existed.
 * The other devices keep their pages. */
static inline void pt_disk_close(pt_owner *o, uint32_t device, uint64_t now)
{
    pt_device *d = &o->disk.devices[device];
    d->open = d->complete = false;
    d->slots = 0;
    d->drop_count = 0;
    d->ordered_slots = 0;
    memset(d->ordered_of, 0, sizeof d->ordered_of);
    pt_disk_measure(&o->disk, o->view.header);
    pt_stop_events(&o->view); /* it would be an event for each page */
    PT_POINT("close.begun");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        const pt_entry *e = &o->view.entries[entry];
        bool written = pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK || e->marks & PT_MARK_ORDERED;
        if (written ? pt_device_of(o, entry) == d : !o->disk.open)
            pt_disk_forget(o, entry, now);
        else
            pt_relist(o, entry, now); /* it may be too large for the devices that are left */
    }
    PT_POINT("close.forgotten");
    pt_settle_all(o, now);
}

/* Records that all pages on a device were reported, which was done without events:
 * readers have to locate all pages again. */
static inline void pt_disk_complete(pt_owner *o, uint32_t device)
{
    o->disk.devices[device].complete = o->disk.devices[device].open;
    pt_disk_measure(&o->disk, o->view.header);
    pt_stop_events(&o->view);
}

/* Says that a device stores pages in slots of so many bytes, of which a page may need fewer than its bytes would fill;
 * 0: of a frame, all of which a page needs. The caller guarantees that the device is closed, and that no slot is larger
 * than a frame. Returns false if memory is short. */
static inline bool pt_disk_divide(pt_owner *o, uint32_t device, uint32_t slot_bytes)
{
    if (slot_bytes && !o->disk.taken && !(o->disk.taken = calloc(o->view.entry_count, sizeof *o->disk.taken)))
        return false;
    o->disk.devices[device].slot_bytes = slot_bytes;
    return true;
}

/* Opens a device with room for `slots` slots. It is empty until its worker reports pages. If it was open before, it
 * is closed first. Returns false if memory is short. */
static inline bool pt_disk_open(pt_owner *o, uint32_t device, uint64_t slots, enum pt_write_rule rule, uint64_t now)
{
    pt_device *d = &o->disk.devices[device];
    if (d->open)
        pt_disk_close(o, device, now);
    if (!pt_policies_begin(o->kind, o->view.entry_count, o->tenants.count, d->listed))
        return false;
    d->slots = slots;
    d->open = true;
    d->complete = false;
    d->drop_count = 0;
    pt_disk_measure(&o->disk, o->view.header);
    PT_POINT("open.sized");
    o->disk.rule = rule;
    PT_POINT("open.empty");
    pt_reconsider_all(o, now);
    return true;
}

/* Reduces the capacity of a device by `slots`, because it has less room than it reported. Evicts the pages that no
 * longer fit. What cannot leave now, or is being written, keeps its slots: the worker has them, or refuses the write,
 * and then the device shrinks again. */
static inline void pt_disk_shrink(pt_owner *o, uint32_t device, uint64_t slots, uint64_t now)
{
    pt_device *d = &o->disk.devices[device];
    d->slots -= slots < d->slots ? slots : d->slots;
    while (d->used_slots + d->ordered_slots > d->slots &&
           pt_disk_evict_one(o, d, (pt_need){PT_EVERYBODY, false}, now))
        ;
    if (d->slots < d->used_slots + d->ordered_slots)
        d->slots = d->used_slots + d->ordered_slots;
    pt_disk_measure(&o->disk, o->view.header);
    PT_POINT("shrink.evicted");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_relist(o, entry, now); /* some pages may be too large for the disk now */
}

typedef struct {
    uint64_t pages, bytes, skipped;
} pt_sum;

/* Counts the pages in memory that still have to be written, including those that are being written, and in `skipped`
 * the pages that are only in memory and will not be written. */
static inline pt_sum pt_unwritten(pt_owner *o)
{
    pt_sum sum = {0, 0, 0};
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        pt_entry *e = &o->view.entries[entry];
        if (pt_correct_state(o, entry) != PT_READABLE || pt_tiers(e) & PT_TIER_DISK)
            continue;
        bool wanted = e->marks & PT_MARK_ORDERED || pt_wants_writing(o, entry);
        sum.pages += wanted;
        sum.bytes += wanted ? e->size : 0;
        sum.skipped += !wanted;
    }
    return sum;
}

/* Adds one page that a device reports. Returns false if the index has no room for it, if the device contains too much,
 * or if the page is on another device: then the caller has to drop the page from this one. Its tick may come from
 * another boot: a tick in the future counts as now. */
static inline bool pt_disk_report(pt_owner *o, const pt_stored *page, uint64_t now)
{
    pt_view *v = &o->view;
    pt_device *d = &o->disk.devices[page->device];
    if (!d->open)
        return false;
    uint32_t entry = pt_dict_find(v, pt_dict_in_force(v), page->key);
    uint64_t tick = page->tick < now ? page->tick : now;
    pt_entry *e = &v->entries[entry];
    if (entry != PT_NONE && e->size != page->size)
        return false;
    if (entry != PT_NONE && (pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_ORDERED))
        return pt_device_of(o, entry) == d; /* known already, or being written: a drop would arrive after the write */
    uint32_t tenant = v->spaces[page->space].tenant;
    if (!pt_disk_make_room(o, d, tenant, pt_slots_taken(o, d, page->size, page->slots), now))
        return false;
    o->tenants.need = (pt_need){tenant, false};
    bool room = entry != PT_NONE || v->header->free_entry != PT_NONE || pt_evict_wholly(o, now);
    o->tenants.need = PT_NO_NEED;
    if (!room)
        return false; /* no page on disk can leave: each of them is pinned or kept */
    if (entry == PT_NONE)
        return pt_make_on_disk(o, &(pt_stored){page->key, page->size, page->space, tick, page->device, page->slots});
    v->histories[entry].device = page->device;
    pt_note_slots(o, entry, page->slots);
    pt_put_on_disk(o, entry, tick);
    PT_POINT("report.known");
    pt_relist(o, entry, now);
    return true;
}

/* Drops a page from a device, whatever its state. Returns false if it was not there. */
static inline bool pt_disk_drop(pt_owner *o, uint32_t device, const uint8_t *key, uint64_t now)
{
    pt_device *d = &o->disk.devices[device];
    uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE || !(pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK) || pt_device_of(o, entry) != d)
        return false;
    pt_drop_later(d, key);
    PT_POINT("drop.noted");
    o->leaves = PT_EVENT_LOST;
    pt_disk_forget(o, entry, now);
    o->leaves = PT_EVENT_EVICTED;
    PT_POINT("drop.forgotten");
    return true;
}

/* Drops a page that turned out to be damaged on disk, or missing. The caller guarantees that its bytes in the arena are
 * never published. */
static inline void pt_disk_damaged(pt_owner *o, uint32_t device, const uint8_t *key, uint64_t now)
{
    o->view.header->counters.disk_damaged += pt_disk_drop(o, device, key, now);
}
