/* flush.h - removes pages on request: of one namespace or all, from one tier or both. */
#pragma once

#include "evict.h"

typedef struct {
    uint32_t dropped, kept;
} pt_flushed;

/* Flushes one page. Returns whether the page has left these tiers. A page that is pinned, being
 * stored or being written to disk stays. */
static inline bool pt_flush_page(pt_owner *o, uint32_t entry, uint8_t tiers, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    if (pt_correct_state(o, entry) == PT_ON_DISK)
        return pt_free_on_disk(o, entry);
    if (tiers & PT_TIER_DISK && pt_tiers(e) & PT_TIER_DISK) {
        pt_drop_from_disk(o, entry);
        PT_POINT("flush.off_disk");
        if (o->disk.rule == PT_WRITE_THROUGH)
            e->marks |= PT_MARK_SKIPPED; /* otherwise it would be written again at once */
        pt_relist(o, entry, now);
        o->view.header->counters.disk_flushed++;
    }
    if (!(tiers & PT_TIER_MEMORY))
        return !(e->marks & PT_MARK_ORDERED);
    return pt_list_of(o, entry) && pt_drop_page(o, entry);
}

static inline bool pt_flush_means(pt_owner *o, uint32_t entry, uint8_t tiers)
{
    pt_entry *e = &o->view.entries[entry];
    return (pt_tiers(e) & tiers) || (tiers & PT_TIER_DISK && e->marks & PT_MARK_ORDERED);
}

/* Flushes one page and counts it. */
static inline bool pt_flush_counted(pt_owner *o, uint32_t entry, uint8_t tiers, uint64_t now)
{
    pt_daemon_counts *counters = &o->view.header->counters;
    bool only_disk = !(pt_tiers(&o->view.entries[entry]) & PT_TIER_MEMORY);
    o->leaves = PT_EVENT_FLUSHED;
    bool gone = pt_flush_page(o, entry, tiers, now);
    o->leaves = PT_EVENT_EVICTED;
    PT_POINT("flush.page");
    counters->flushed += gone && tiers & PT_TIER_MEMORY && !only_disk;
    counters->disk_flushed += gone && only_disk;
    return gone;
}

static inline pt_flushed pt_flush_space(pt_owner *o, pt_space *space, uint8_t tiers, uint64_t now)
{
    pt_flushed done = {0, 0};
    for (uint32_t entry = space->first, next; entry != PT_NONE; entry = next) {
        next = o->view.entries[entry].space_next;
        if (pt_flush_means(o, entry, tiers))
            *(pt_flush_counted(o, entry, tiers, now) ? &done.dropped : &done.kept) += 1;
    }
    return done;
}

/* Overwrites frames that were just freed and that no process can read or write any more. The list of a freed entry
 * is gone, so `frames` has what it was. */
static inline void pt_overwrite(const pt_view *v, const uint32_t *frames, uint32_t count)
{
    for (uint32_t i = 0; v->arena && i < count; i++)
        memset(v->arena + frames[i] * v->frame_bytes, 0, v->frame_bytes);
}

/* Removes one page from all tiers and overwrites its bytes in memory. Returns whether it has left them. `frames`
 * has room for every frame of the arena. */
static inline bool pt_forget_page(pt_owner *o, uint32_t entry, uint32_t *frames, uint64_t now)
{
    const pt_entry *e = &o->view.entries[entry];
    uint32_t count = 0;
    for (uint32_t frame = e->first_frame; count < e->frame_count; frame = o->view.frames[frame].next)
        frames[count++] = frame;
    if (!pt_flush_counted(o, entry, PT_TIER_MEMORY | PT_TIER_DISK, now))
        return false;
    pt_overwrite(&o->view, frames, count);
    return true;
}

/* Removes pages from all tiers and overwrites their bytes in memory. Pages in use stay; they are counted in
 * `kept`. Returns false if memory is short. */
static inline bool pt_forget(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now, pt_flushed *done)
{
    uint32_t *frames = malloc((size_t)o->view.frame_count * sizeof *frames);
    pt_settle_all(o, now);
    for (uint32_t i = 0; frames && i < count; i++) {
        uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), keys + (size_t)i * PT_KEY_BYTES);
        if (entry != PT_NONE)
            *(pt_forget_page(o, entry, frames, now) ? &done->dropped : &done->kept) += 1;
    }
    free(frames);
    return frames;
}

/* Removes the pages of one namespace (PT_NONE: of all) from `tiers`. Pages in use stay; they are counted in `kept`. */
static inline pt_flushed pt_flush(pt_owner *o, uint32_t space, uint8_t tiers, uint64_t now)
{
    pt_flushed all = {0, 0};
    pt_settle_all(o, now);
    for (uint32_t s = 0; s < o->view.header->spaces; s++) {
        if ((space != PT_NONE && s != space) || !o->view.spaces[s].used)
            continue;
        pt_flushed done = pt_flush_space(o, &o->view.spaces[s], tiers, now);
        all.dropped += done.dropped;
        all.kept += done.kept;
    }
    return all;
}
