/* disk_tier.h - the disk tier comes, says what it holds, and goes. Without it the index is what it is without a disk. */
#pragma once

#include "write_behind.h"

/* The page of one entry is not on disk any more. What was on disk alone is doomed: that waits for readers that look. */
static inline void pt_disk_forget(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    enum pt_state state = pt_true_state(o, entry);
    e->marks &= (uint8_t)~(PT_MARK_ORDERED | PT_MARK_SPARED);
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

/* The tier is gone, with all that it held: its worker has died, or was never there. */
static inline void pt_disk_close(pt_owner *o, uint64_t now)
{
    o->disk.open = false;
    o->disk.drop_count = 0;
    o->disk.ordered_frames = 0;
    PT_POINT("close.begun");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_disk_forget(o, entry, now);
    PT_POINT("close.forgotten");
    o->view.header->disk_frames = 0;
    PT_POINT("close.done");
    pt_settle_all(o, now);
}

/* A tier with room for `frames` frames is there, empty until it reports. Another one that was there is gone. */
static inline void pt_disk_open(pt_owner *o, uint64_t frames, enum pt_write_rule rule, uint64_t now)
{
    if (o->disk.open)
        pt_disk_close(o, now);
    o->view.header->disk_frames = frames;
    PT_POINT("open.told");
    o->disk.open = true;
    o->disk.rule = rule;
    o->disk.drop_count = 0;
    PT_POINT("open.empty");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_list_anew(o, entry, now);
}

/* Another rule from now on. Pages that were spared before are considered again. */
static inline void pt_disk_set_rule(pt_owner *o, enum pt_write_rule rule, uint64_t now)
{
    o->disk.rule = rule;
    PT_POINT("rule.set");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        o->view.entries[entry].marks &= (uint8_t)~PT_MARK_SPARED;
        pt_list_anew(o, entry, now);
    }
}

/* The tier turned out to have less room than it said: what is too much leaves it. */
static inline void pt_disk_shrink(pt_owner *o, uint64_t frames, uint64_t now)
{
    pt_header *h = o->view.header;
    h->disk_frames -= frames < h->disk_frames ? frames : h->disk_frames;
    while (h->disk_used_frames + o->disk.ordered_frames > h->disk_frames && pt_disk_evict_one(o, now))
        ;
    PT_POINT("shrink.evicted");
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        pt_list_anew(o, entry, now); /* some are too large for it now */
}

typedef struct {
    uint64_t pages, bytes, spared;
} pt_sum;

/* The pages that are still to be written, those that are being written among them; and those in memory alone that will not
 * be. */
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
        sum.spared += !wanted;
    }
    return sum;
}

/* One page that the tier holds; false if the index can not have it, or the tier holds too much: then it has to leave the
 * disk. Its tick may be of another boot: what lies ahead counts as now. */
static inline bool pt_disk_report(pt_owner *o, const pt_stored *page, uint64_t now)
{
    pt_view *v = &o->view;
    uint32_t entry = pt_dict_find(v, pt_dict_in_force(v), page->key);
    uint64_t tick = page->tick < now ? page->tick : now;
    pt_entry *e = &v->entries[entry];
    if (entry != PT_NONE && e->size != page->size)
        return false;
    if (entry != PT_NONE && (pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_ORDERED))
        return true; /* known, or about to be: a drop would come after the write */
    if (!pt_disk_make_room(o, pt_frames_for(v, page->size), now))
        return false;
    if (entry == PT_NONE && v->header->free_entry == PT_NONE && !pt_evict_wholly(o, now))
        return false; /* those that were told before are colder */
    if (entry == PT_NONE)
        return pt_make_on_disk(o, &(pt_stored){page->key, page->size, page->space, tick});
    pt_put_on_disk(o, entry, tick);
    PT_POINT("report.known");
    pt_list_anew(o, entry, now);
    return true;
}

/* A page shall not be on disk any more, whatever it is doing. False if it was not there. */
static inline bool pt_disk_drop(pt_owner *o, const uint8_t *key, uint64_t now)
{
    uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE || !(pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK))
        return false;
    pt_drop_later(&o->disk, key);
    PT_POINT("drop.noted");
    pt_disk_forget(o, entry, now);
    PT_POINT("drop.forgotten");
    return true;
}

/* A page turned out to be damaged on disk, or not to be there. The caller guarantees that nothing of it in the arena is ever
 * published. */
static inline void pt_disk_damaged(pt_owner *o, const uint8_t *key, uint64_t now)
{
    o->view.header->deeds.disk_damaged += pt_disk_drop(o, key, now);
}
