/* write_behind.h - write-behind: pages are written to the disk tier, the coldest first, before they are evicted.
 *
 * A page whose write was commanded is listed by no policy, so it cannot be evicted before the worker responds: it is
 * written from where it lies. */
#pragma once

#include "evict.h"

#define PT_READY_LIMIT 4096u /* pages that one call checks, in some hundred microseconds */

typedef struct {
    const pt_owner *owner;
    uint64_t frames, enough;
    uint32_t pages;
} pt_ready_sum;

static inline bool pt_sum_ready(void *context, uint32_t entry)
{
    pt_ready_sum *sum = context;
    sum->frames += sum->owner->view.entries[entry].frame_count;
    return ++sum->pages < PT_READY_LIMIT && sum->frames < sum->enough;
}

/* Returns how many frames can become free before the first unwritten page has to be evicted, counted up to about `enough`. */
static inline uint64_t pt_frames_before_unwritten(const pt_owner *o, uint64_t enough)
{
    pt_candidate unwritten = pt_coldest_of(o, o->unwritten);
    pt_ready_sum sum = {o, o->view.header->free_frames, enough, 0};
    if (unwritten.entry == PT_NONE)
        return enough;
    if (sum.frames < enough)
        o->kind->walk(o->ready, unwritten.tick, pt_sum_ready, &sum);
    return sum.pages < PT_READY_LIMIT ? sum.frames : enough;
}

/* Returns the coldest page that is to be written and was not used since it was listed, or PT_NONE. */
static inline uint32_t pt_coldest_unwritten(pt_owner *o, uint64_t now)
{
    for (;;) {
        pt_candidate c = pt_coldest_of(o, o->unwritten);
        if (c.entry == PT_NONE)
            return PT_NONE;
        uint64_t tick = pt_true_tick(o, c.entry, now);
        if (tick <= c.tick)
            return c.entry;
        pt_note_use(o, c.entry, tick);
    }
}

/* Commands writes: at most `limit` pages and about `frames` frames. Stores the entries in `entries` and returns their number. */
static inline uint32_t pt_start_writes(pt_owner *o, uint64_t frames, uint32_t limit, uint64_t now, uint32_t *entries)
{
    uint32_t count = 0;
    for (uint64_t used = 0; count < limit && used < frames;) {
        uint32_t entry = pt_coldest_unwritten(o, now);
        if (entry == PT_NONE || !pt_disk_make_room(o, o->view.entries[entry].frame_count, now))
            break;
        pt_unlist(o, entry);
        PT_POINT("order.unlisted");
        o->view.entries[entry].marks |= PT_MARK_ORDERED;
        o->disk.ordered_frames += o->view.entries[entry].frame_count;
        used += o->view.entries[entry].frame_count;
        entries[count++] = entry;
        PT_POINT("order.marked");
    }
    return count;
}

enum pt_write_result {
    PT_WRITE_FAILED = 0, /* it will not be tried again */
    PT_WRITE_DONE = 1,
    PT_WRITE_SKIPPED = 2, /* it was excluded from writing after all */
    PT_WRITE_AGAIN = 3, /* no write was attempted */
};

/* Ends a write. `order` is its position among the writes that end together: the first is the first to be evicted from the
 * disk. */
static inline void pt_end_write(pt_owner *o, uint32_t entry, enum pt_write_result result, uint64_t now, uint32_t order)
{
    pt_entry *e = &o->view.entries[entry];
    pt_daemon_counts *counters = &o->view.header->counters;
    if (entry >= o->view.entry_count || !(e->marks & PT_MARK_ORDERED))
        return;
    e->marks &= (uint8_t)~PT_MARK_ORDERED;
    o->disk.ordered_frames -= e->frame_count;
    PT_POINT("order.unmarked");
    if (result == PT_WRITE_DONE && o->disk.open) {
        pt_put_on_disk(o, entry, now + order);
        counters->disk_written++;
        counters->disk_written_bytes += e->size;
    } else if (result == PT_WRITE_FAILED || result == PT_WRITE_SKIPPED) {
        e->marks |= PT_MARK_SKIPPED;
        counters->disk_skipped++;
    }
    pt_list(o, entry, pt_true_tick(o, entry, now));
    PT_POINT("order.relisted");
}
