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

/* Returns the frames of a tenant's ready pages that were used before `before`, with `free`
 * more, counted up to about `enough`. */
static inline uint64_t pt_count_ready(const pt_owner *o, uint32_t tenant, uint64_t before, uint64_t free,
                                      uint64_t enough)
{
    pt_ready_sum sum = {o, free, enough, 0};
    if (sum.frames < enough)
        o->kind->walk(o->ready[tenant], before, pt_sum_ready, &sum);
    return sum.pages < PT_READY_LIMIT ? sum.frames : enough;
}

/* Returns how many frames can become free for any tenant before the first unwritten page has to be evicted, counted as
 * above. Pages that a minimum protects do not become free. */
static inline uint64_t pt_all_before_unwritten(const pt_owner *o, uint64_t enough)
{
    uint64_t frames = o->view.header->free_frames, before = UINT64_MAX;
    for (uint32_t tenant = 0; tenant < o->tenants.count; tenant++) {
        pt_candidate unwritten = pt_coldest_of(o, o->unwritten[tenant]);
        before = unwritten.tick < before ? unwritten.tick : before;
    }
    if (before == UINT64_MAX)
        return enough;
    for (uint32_t tenant = 0; tenant < o->tenants.count && frames < enough; tenant++) {
        uint64_t ready = pt_count_ready(o, tenant, before, 0, enough - frames), spare = pt_spare_frames(o, tenant);
        frames += ready < spare ? ready : spare;
    }
    return frames;
}

/* Returns how many frames a tenant can get before the first of its own unwritten pages
 * has to be evicted, counted as above. */
static inline uint64_t pt_own_before_unwritten(const pt_owner *o, uint32_t tenant, uint64_t enough)
{
    uint64_t most = o->tenants.most[tenant], used = o->tenants.frames[tenant], free = o->view.header->free_frames;
    uint64_t left = most > used ? most - used : 0;
    uint64_t before = pt_coldest_of(o, o->unwritten[tenant]).tick;
    return most == UINT64_MAX || before == UINT64_MAX
               ? enough
               : pt_count_ready(o, tenant, before, left < free ? left : free, enough);
}

/* Returns how many frames can become free for a tenant before the first unwritten page has to be
 * evicted, counted up to about `enough`. */
static inline uint64_t pt_frames_before_unwritten(const pt_owner *o, uint32_t tenant, uint64_t enough)
{
    uint64_t all = pt_all_before_unwritten(o, enough);
    uint64_t own = pt_own_before_unwritten(o, tenant, enough);
    return own < all ? own : all;
}

/* Marks the tenants that are about to evict unwritten pages because of their maximum: `ahead` frames of the
 * whole arena are to be free or written, and as large a share of theirs. Their pages are written first from
 * now on. Returns whether there is one. */
static inline bool pt_mark_hurries(pt_owner *o, uint64_t ahead)
{
    bool any = false;
    for (uint32_t tenant = 1; tenant < o->tenants.count; tenant++) {
        uint64_t part = (uint64_t)(o->tenants.quotas[tenant].memory.most * (double)ahead);
        any |= o->tenants.hurries[tenant] = pt_own_before_unwritten(o, tenant, part) < part;
    }
    return any;
}

/* Returns the unwritten page that should be written next, of all tenants but those in `shut`. */
static inline pt_candidate pt_next_unwritten(const pt_owner *o, uint32_t shut)
{
    pt_candidate first = {NULL, PT_NONE, PT_STAYS, UINT64_MAX};
    for (uint32_t tenant = 0; tenant < o->tenants.count; tenant++) {
        pt_candidate c = pt_coldest_of(o, o->unwritten[tenant]);
        if (c.entry == PT_NONE || shut >> tenant & 1)
            continue;
        c.precedence = o->tenants.hurries[tenant] ? PT_LEAVES_FIRST : PT_LEAVES;
        first = pt_first(first, c);
    }
    return first;
}

/* Returns the coldest page that is to be written and was not used since it was listed, of all
 * tenants but those in `shut`, or PT_NONE. Lists those that were used with their true ticks. */
static inline uint32_t pt_choose_unwritten(pt_owner *o, uint32_t shut, uint64_t now)
{
    for (;;) {
        pt_candidate c = pt_next_unwritten(o, shut);
        if (c.entry == PT_NONE)
            return PT_NONE;
        uint64_t tick = pt_correct_tick(o, c.entry, now);
        if (tick <= c.tick)
            return c.entry;
        pt_note_use(o, c.entry, tick);
    }
}

/* Commands writes to a device: at most `limit` pages and about `frames` frames. Stores the entries
 * in `entries` and returns their number. */
static inline uint32_t pt_start_writes(pt_owner *o, uint32_t device, uint64_t frames, uint32_t limit, uint64_t now,
                                       uint32_t *entries)
{
    pt_device *d = &o->disk.devices[device];
    uint32_t count = 0, shut = 0; /* shut: tenants for whose pages the device has no room */
    for (uint64_t used = 0; count < limit && used < frames;) {
        uint32_t entry = pt_choose_unwritten(o, shut, now), tenant = entry == PT_NONE ? 0 : pt_tenant_of(o, entry);
        if (entry == PT_NONE)
            break;
        uint32_t slots = pt_slots_for(o->view.header, d, o->view.entries[entry].size);
        if (!pt_disk_make_room(o, d, tenant, slots, now)) {
            shut |= 1u << tenant;
            continue;
        }
        /* No policy lists the page until the worker responds, so its frames stay while the worker reads them. */
        pt_unlist(o, entry);
        PT_POINT("order.unlisted");
        o->view.entries[entry].marks |= PT_MARK_ORDERED;
        /* The room is reserved now: writes in progress count against the cap of the device as pages on disk do. */
        o->view.histories[entry].device = (uint8_t)device;
        pt_note_slots(o, entry, 0);
        d->ordered_slots += slots;
        d->ordered_of[tenant] += slots;
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

/* Notes how many slots a page takes whose write ends next. */
static inline void pt_note_written(pt_owner *o, uint32_t entry, uint32_t slots)
{
    if (entry < o->view.entry_count && o->view.entries[entry].marks & PT_MARK_ORDERED)
        pt_note_slots(o, entry, slots);
}

/* Ends a write. `order` is its position among the writes that end together: the first is the
 * first to be evicted from the disk. */
static inline void pt_end_write(pt_owner *o, uint32_t entry, enum pt_write_result result, uint64_t now, uint32_t order)
{
    pt_entry *e = &o->view.entries[entry];
    pt_daemon_counts *counters = &o->view.header->counters;
    if (entry >= o->view.entry_count || !(e->marks & PT_MARK_ORDERED))
        return;
    /* The reserved room is returned first. A page that was written takes it again as a page on disk. */
    e->marks &= (uint8_t)~PT_MARK_ORDERED;
    uint32_t slots = pt_slots_for(o->view.header, pt_device_of(o, entry), e->size);
    pt_device_of(o, entry)->ordered_slots -= slots;
    pt_device_of(o, entry)->ordered_of[pt_tenant_of(o, entry)] -= slots;
    PT_POINT("order.unmarked");
    if (result == PT_WRITE_DONE && pt_device_of(o, entry)->open) {
        pt_put_on_disk(o, entry, now + order);
        counters->disk_written++;
        counters->disk_written_bytes += e->size;
    } else if (result == PT_WRITE_FAILED || result == PT_WRITE_SKIPPED) {
        e->marks |= PT_MARK_SKIPPED;
        *(result == PT_WRITE_FAILED ? &counters->disk_failed : &counters->disk_skipped) += 1;
    }
    /* It can be evicted again, by the tick of its last use: readers may have used it while it was written. */
    pt_list(o, entry, pt_correct_tick(o, entry, now));
    PT_POINT("order.relisted");
}
