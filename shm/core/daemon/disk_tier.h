/* disk_tier.h - the disk tier opens, reports what it contains, and closes. While it is closed the index is the same as
 * without a disk. */
#pragma once

#include "write_behind.h"

/* Records that the page of one entry is no longer on disk. A page that was only on disk is doomed, which waits for readers
 * that have it pinned. */
static inline void pt_disk_forget(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    enum pt_state state = pt_true_state(o, entry);
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
            pt_list(o, entry, pt_true_tick(o, entry, now));
        break;
    default:
        break;
    }
}

/* Closes the tier with everything that it contained: its worker died, or never existed. */
static inline void pt_disk_close(pt_owner *o, uint64_t now)
{
    o->disk.open = false;
    o->disk.drop_count = 0;
    o->disk.ordered_frames = 0;
    atomic_store_explicit(&o->view.header->disk_complete, 0, memory_order_relaxed);
    pt_stop_events(&o->view); /* it would be an event for each page */
    PT_POINT("close.begun");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_disk_forget(o, entry, now);
    PT_POINT("close.forgotten");
    o->view.header->disk_frames = 0;
    PT_POINT("close.done");
    pt_settle_all(o, now);
}

/* Records that all pages of the tier were reported, which was done without events: readers have to locate all pages again. */
static inline void pt_disk_complete(pt_owner *o)
{
    atomic_store_explicit(&o->view.header->disk_complete, 1, memory_order_relaxed);
    pt_stop_events(&o->view);
}

/* Opens a tier with room for `frames` frames. It is empty until its worker reports pages. A tier that was open before is
 * closed first. */
static inline void pt_disk_open(pt_owner *o, uint64_t frames, enum pt_write_rule rule, uint64_t now)
{
    if (o->disk.open)
        pt_disk_close(o, now);
    o->view.header->disk_frames = frames;
    PT_POINT("open.sized");
    o->disk.open = true;
    o->disk.rule = rule;
    o->disk.drop_count = 0;
    PT_POINT("open.empty");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_relist(o, entry, now);
}

/* Changes the write rule. Pages that were excluded from writing before are considered again. */
static inline void pt_disk_set_rule(pt_owner *o, enum pt_write_rule rule, uint64_t now)
{
    o->disk.rule = rule;
    PT_POINT("rule.set");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        o->view.entries[entry].marks &= (uint8_t)~PT_MARK_SKIPPED;
        pt_relist(o, entry, now);
    }
}

/* Reduces the capacity of the tier by `frames`, because it has less room than it reported. Evicts the pages that no longer
 * fit. */
static inline void pt_disk_shrink(pt_owner *o, uint64_t frames, uint64_t now)
{
    pt_header *h = o->view.header;
    h->disk_frames -= frames < h->disk_frames ? frames : h->disk_frames;
    while (h->disk_used_frames + o->disk.ordered_frames > h->disk_frames && pt_disk_evict_one(o, now))
        ;
    PT_POINT("shrink.evicted");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_relist(o, entry, now); /* some pages may be too large for the disk now */
}

typedef struct {
    uint64_t pages, bytes, skipped;
} pt_sum;

/* Counts the pages in memory that still have to be written, including those that are being written, and in `skipped` the
 * pages that are only in memory and will not be written. */
static inline pt_sum pt_unwritten(pt_owner *o)
{
    pt_sum sum = {0, 0, 0};
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        pt_entry *e = &o->view.entries[entry];
        if (pt_true_state(o, entry) != PT_READABLE || pt_tiers(e) & PT_TIER_DISK)
            continue;
        bool wanted = e->marks & PT_MARK_ORDERED || pt_wants_writing(o, e);
        sum.pages += wanted;
        sum.bytes += wanted ? e->size : 0;
        sum.skipped += !wanted;
    }
    return sum;
}

/* Adds one page that the tier reports. Returns false if the index has no room for it, or if the tier contains too much:
 * then the caller has to drop the page from the disk. Its tick may come from another boot: a tick in the future counts as
 * now. */
static inline bool pt_disk_report(pt_owner *o, const pt_stored *page, uint64_t now)
{
    pt_view *v = &o->view;
    uint32_t entry = pt_dict_find(v, pt_dict_in_force(v), page->key);
    uint64_t tick = page->tick < now ? page->tick : now;
    pt_entry *e = &v->entries[entry];
    if (entry != PT_NONE && e->size != page->size)
        return false;
    if (entry != PT_NONE && (pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_ORDERED))
        return true; /* known already, or being written: a drop would arrive after the write */
    if (!pt_disk_make_room(o, pt_frames_for(v, page->size), now))
        return false;
    if (entry == PT_NONE && v->header->free_entry == PT_NONE && !pt_evict_wholly(o, now))
        return false; /* the pages that were reported before are colder */
    if (entry == PT_NONE)
        return pt_make_on_disk(o, &(pt_stored){page->key, page->size, page->space, tick});
    pt_put_on_disk(o, entry, tick);
    PT_POINT("report.known");
    pt_relist(o, entry, now);
    return true;
}

/* Drops a page from the disk, whatever its state. Returns false if it was not on disk. */
static inline bool pt_disk_drop(pt_owner *o, const uint8_t *key, uint64_t now)
{
    uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE || !(pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK))
        return false;
    pt_drop_later(&o->disk, key);
    PT_POINT("drop.noted");
    o->leaves = PT_EVENT_LOST;
    pt_disk_forget(o, entry, now);
    o->leaves = PT_EVENT_EVICTED;
    PT_POINT("drop.forgotten");
    return true;
}

/* Drops a page that turned out to be damaged on disk, or missing. The caller guarantees that its bytes in the arena are
 * never published. */
static inline void pt_disk_damaged(pt_owner *o, const uint8_t *key, uint64_t now)
{
    o->view.header->counters.disk_damaged += pt_disk_drop(o, key, now);
}
