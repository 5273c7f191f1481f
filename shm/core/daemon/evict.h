/* evict.h - decides which page leaves the arena first, and evicts it: the coldest that is not pinned, or the one that
 * the policy chose. If it is on disk, a match still finds it there. */
#pragma once

#include "cadence/choose_victim.h"
#include "reservations.h"

enum pt_try_evict { PT_EVICTED, PT_WARMER, PT_NOTHING };

/* Removes a page from the arena. Returns false while it is pinned. The caller guarantees that the page is listed.
 *
 * The state changes first, from PT_READABLE without pins to PT_ON_DISK or PT_FREE in one compare-and-swap: from then on
 * no reader can pin the page, and only then its frames may be given to another page. */
static inline bool pt_drop_page(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    bool stays = pt_tiers(e) & PT_TIER_DISK;
    if (!pt_retire(&o->view.locks[entry].word, PT_READABLE, stays ? PT_ON_DISK : PT_FREE))
        return false;
    PT_POINT("evict.retired");
    pt_unlist(o, entry);
    PT_POINT("evict.unlisted");
    pt_page_leaves(o, entry);
    PT_POINT("evict.left");
    pt_left(o, entry, PT_TIER_MEMORY);
    if (stays) {
        pt_free_frames(o, entry);
        PT_POINT("evict.ondisk");
    } else {
        pt_unlink(o, entry);
        PT_POINT("evict.unlinked");
        pt_reclaim(o, entry);
        PT_POINT("evict.reclaimed");
    }
    return true;
}

/* Evicts a page from the arena. Returns false while it is pinned. */
static inline bool pt_drop_evicted(pt_owner *o, uint32_t entry)
{
    o->absence = PT_EVICTED_FROM_MEMORY;
    bool dropped = pt_drop_page(o, entry);
    o->absence = PT_DROPPED;
    return dropped;
}

static inline void pt_count_evicted(pt_owner *o, uint64_t bytes, bool lost)
{
    pt_daemon_counts *counters = &o->view.header->counters;
    counters->evicted++;
    counters->evicted_bytes += bytes;
    counters->disk_lost += lost;
}

/* Returns the coldest page of those that leave first. But a page that still has to be written to disk stays in favour
 * of one that loses nothing by its eviction, if that one is at least half as cold. */
static inline pt_candidate pt_least_recently_used(const pt_owner *o, uint64_t before, uint64_t now)
{
    pt_candidate ready = pt_first_in_memory(o, o->ready, before);
    pt_candidate unwritten = pt_first_in_memory(o, o->unwritten, before);
    if (ready.precedence != unwritten.precedence)
        return ready.precedence < unwritten.precedence ? ready : unwritten;
    if (unwritten.entry == PT_NONE || ready.tick <= unwritten.tick)
        return ready;
    if (ready.entry == PT_NONE || ready.tick > now)
        return unwritten;
    return now - ready.tick >= (now - unwritten.tick) / 2 ? ready : unwritten;
}

/* Returns a leaf that the policy chose. One that is in no other tier is to be written
 * if it was used after it was listed. */
static inline pt_candidate pt_chosen(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_policy *list = o->ready[pt_tenant_of(o, entry)];
    uint64_t tick = pt_correct_tick(o, entry, now), listed = o->kind->listed(list, entry);
    bool only_here = o->disk.open && !(pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK);
    return (pt_candidate){list, entry, PT_LEAVES, only_here && listed < tick ? listed : tick};
}

/* Chooses the page that is evicted next, of those that were last used before `before`. */
static inline pt_candidate pt_choose_next_to_leave(pt_owner *o, uint64_t before, uint64_t now)
{
    pt_note_full_memory(o);
    uint32_t entry = pt_cadence_chooses(o) ? pt_choose_leaf(o, before, now).entry : PT_NONE;
    if (entry != PT_NONE)
        return pt_chosen(o, entry, now);
    return pt_least_recently_used(o, before, now);
}

static inline void pt_note_use(pt_owner *o, uint32_t entry, uint64_t tick)
{
    pt_entry *e = &o->view.entries[entry];
    e->marks = (uint8_t)((e->marks | PT_MARK_TOUCHED) & ~PT_MARK_SKIPPED);
    pt_unlist(o, entry);
    PT_POINT("evict.warmer");
    pt_list(o, entry, tick);
}

/* Prefetches the scattered memory that the eviction of a page touches: its bucket, its first frame, and where it is
 * remembered. */
static inline void pt_prefetch_rest(const pt_owner *o, const pt_entry *e)
{
    pt_prefetch_write(&pt_dict_in_force(&o->view).buckets[pt_home(&o->view, e->key)]);
    if (e->first_frame < o->view.frame_count)
        pt_prefetch_write(&o->view.frames[e->first_frame]);
    if (o->cadence)
        pt_ghost_prefetch(&o->cadence->ghosts, pt_key_hash(o->cadence, e->key));
    if (o->lookups)
        pt_order_prefetch(&o->lookups->order, pt_sample_hash(e->key));
}

static inline void pt_prefetch_page(const pt_owner *o, uint32_t entry)
{
    if (entry == PT_NONE)
        return;
    pt_prefetch_write(&o->view.entries[entry]);
    pt_prefetch_write(&o->view.entries[entry].list_prev);
    pt_prefetch_write(&o->view.locks[entry]);
    pt_prefetch_write(&o->view.histories[entry]);
}

/* Prefetches the page that is evicted next, after the frames of the present page were given away: the coldest one, or
 * the next leaf, whose entry was prefetched with the present page unless another prompt begins, and the page before
 * it. */
static inline void pt_prefetch_next(const pt_owner *o, pt_policy *list)
{
    uint32_t next = pt_cadence_chooses(o) ? o->cadence->next_leaf : PT_NONE;
    if (next == PT_NONE) {
        pt_prefetch_page(o, pt_coldest_of(o, list).entry);
        return;
    }
    pt_prefetch_rest(o, &o->view.entries[next]);
    pt_prefetch_page(o, pt_parent_of(o->cadence, next));
}

/* Evicts a page if it was last used before `before`, or finds that it was used after it was listed and lists it with
 * its true tick. A pinned page is in use, so it counts as used at `pinned`. */
static inline enum pt_try_evict pt_evict_candidate(pt_owner *o, pt_candidate c, uint64_t before, uint64_t now,
                                                   uint64_t pinned)
{
    if (c.entry == PT_NONE || c.tick >= before)
        return PT_NOTHING;
    if (pt_is_kept(o, c.entry, now)) {
        o->kind->used(c.list, c.entry, now);
        return PT_WARMER;
    }
    pt_prefetch_rest(o, &o->view.entries[c.entry]);
    uint64_t bytes = o->view.entries[c.entry].size, tick = pt_correct_tick(o, c.entry, now);
    uint32_t before_it = pt_used_alike(o->cadence, c.entry);
    bool lost = c.list == o->unwritten[pt_tenant_of(o, c.entry)];
    if (tick <= c.tick && pt_correct_state(o, c.entry) == PT_READABLE && pt_drop_evicted(o, c.entry)) {
        if (o->cadence)
            pt_set_next_leaf(o->cadence, before_it);
        pt_count_evicted(o, bytes, lost);
        pt_prefetch_next(o, c.list);
        return PT_EVICTED;
    }
    /* it reads ticks, not places in a list, and would choose the page again */
    if (tick <= c.tick && pt_cadence_chooses(o))
        pt_stamp(o, c.entry, tick > now ? tick : now);
    pt_note_use(o, c.entry, tick > c.tick ? tick : pinned);
    return PT_WARMER;
}

/* Skipping a pinned page costs 200 ns. If one process had a million pages pinned, every store would skip all of
 * them, and the daemon could not respond to other requests. So pages beyond the first PT_PASSES are listed as if
 * they were used PT_LEASE_NS later (a lease): they are skipped once in that time. Before any store is rejected
 * during that time, pt_end_leases walks all entries in memory order, which costs 5 ns each, and lists those that are
 * no longer pinned with their true ticks. */
#define PT_PASSES 16384u
#define PT_LEASE_NS 5000000000ull

/* Lists pages that are not pinned with their true ticks. */
static inline void pt_list_truly(pt_owner *o, uint64_t now)
{
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        bool pinned = atomic_load_explicit(&o->view.locks[entry].word, memory_order_relaxed) & PT_PINS;
        pt_policy *list = pinned ? NULL : pt_list_of(o, entry);
        if (list)
            o->kind->used(list, entry, pt_correct_tick(o, entry, now));
    }
}

/* Ends the leases of pages that are no longer pinned. Returns false if there are no leases,
 * or if it already ran at this time. */
static inline bool pt_end_leases(pt_owner *o, uint64_t now)
{
    if (o->leased_until <= now || o->leases_checked_ns == now)
        return false;
    o->leases_checked_ns = now;
    pt_list_truly(o, now);
    return true;
}

/* Lets all pages of the tenant that has its maximum go that are kept. Returns false if there are none, or
 * if it already found none at this time. */
static inline bool pt_end_own_keeps(pt_owner *o, uint64_t now)
{
    bool ended = false;
    if (o->tenants.keeps_checked_ns == now)
        return false;
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        if (pt_tenant_of(o, entry) == o->tenants.need.tenant && pt_is_kept(o, entry, now)) {
            pt_cadence_unkeep(o->cadence, entry, pt_frames_for(&o->view, o->view.entries[entry].size));
            ended = true;
        }
    o->tenants.keeps_checked_ns = ended ? 0 : now;
    if (ended)
        pt_list_truly(o, now);
    return ended;
}

/* Lets some pages go that are kept, the oldest keeps first, because nothing else can be evicted. Returns false if no
 * page is kept. An eighth of all is so many that not each store walks all entries. */
static inline bool pt_end_keeps(pt_owner *o, uint64_t now)
{
    uint64_t frames = o->cadence ? pt_kept_frames(&o->cadence->keeps, now) : 0;
    if (!frames || o->tenants.need.own_only)
        return frames && pt_end_own_keeps(o, now);
    pt_keep_at_most(&o->cadence->keeps, frames - (frames + 7) / 8, now);
    pt_list_truly(o, now);
    return true;
}

static inline uint64_t pt_lease(pt_owner *o, uint64_t now)
{
    o->leased_until = now + PT_LEASE_NS;
    return o->leased_until;
}

/* Evicts one page that was last used before `before`. Returns false if there is none. */
static inline bool pt_evict_used_before(pt_owner *o, uint64_t before, uint64_t now)
{
    enum pt_try_evict got;
    uint32_t passed = 0;
    do
        got = pt_evict_candidate(o, pt_choose_next_to_leave(o, before, now), before, now,
                                 passed++ < PT_PASSES ? now : pt_lease(o, now));
    while (got == PT_WARMER);
    return got == PT_EVICTED;
}

/* Does the same, and ends leases and keeps where there is no such page otherwise. */
static inline bool pt_evict_one(pt_owner *o, uint64_t before, uint64_t now)
{
    bool evicted;
    do
        evicted = pt_evict_used_before(o, before, now);
    while (!evicted && (pt_end_leases(o, now) || pt_end_keeps(o, now)));
    return evicted;
}

/* Evicts the page that was offered, or another one if it is in use by now. Returns false if there is none. */
static inline bool pt_evict_offer(pt_owner *o, const pt_offer *offer, uint64_t now)
{
    return pt_evict_candidate(o, pt_chosen(o, offer->entry, now), now, now, now) == PT_EVICTED ||
           pt_evict_one(o, now, now);
}

static inline enum pt_precedence pt_precedence_wholly(const pt_owner *o, const pt_device *d, uint32_t entry)
{
    enum pt_precedence disk = pt_precedence_on_disk(o, d, entry, o->tenants.need);
    enum pt_precedence memory = pt_list_of(o, entry) ? pt_precedence_in_memory(o, entry) : disk;
    return disk > memory ? disk : memory;
}

/* Returns the page of all devices that should leave its device first, and the arena if it is there too. */
static inline pt_candidate pt_first_of_devices(const pt_owner *o, uint64_t before)
{
    pt_candidate first = {NULL, PT_NONE, PT_STAYS, UINT64_MAX};
    for (const pt_device *d = o->disk.devices; d < o->disk.devices + PT_DEVICES; d++) {
        for (uint32_t tenant = 0; d->listed[0] && tenant < o->tenants.count; tenant++) {
            pt_candidate c = pt_coldest_of(o, d->listed[tenant]);
            if (c.entry == PT_NONE || c.tick >= before ||
                (c.precedence = pt_precedence_wholly(o, d, c.entry)) == PT_STAYS)
                continue;
            first = pt_first(first, c);
        }
    }
    return first;
}

/* Frees an entry: evicts the coldest page on disk that was last used before `now` from the disk, and from the arena if
 * it is there too. Returns false if there is none. */
static inline bool pt_evict_wholly(pt_owner *o, uint64_t now)
{
    for (;;) {
        pt_candidate c = pt_first_of_devices(o, now);
        if (c.entry == PT_NONE)
            return false;
        uint64_t bytes = o->view.entries[c.entry].size, tick = pt_correct_tick(o, c.entry, now);
        bool listed = pt_list_of(o, c.entry);
        bool may_go = tick <= c.tick && !pt_is_kept(o, c.entry, now) &&
                      pt_correct_state(o, c.entry) == (listed ? PT_READABLE : PT_ON_DISK);
        if (may_go && (!listed || pt_drop_page(o, c.entry)) && pt_free_evicted(o, c.entry)) {
            PT_POINT("wholly.evicted");
            o->view.header->counters.disk_evicted++;
            o->view.header->counters.disk_evicted_bytes += bytes;
            if (listed)
                pt_count_evicted(o, bytes, false);
            return true;
        }
        o->kind->used(c.list, c.entry, tick > c.tick ? tick : now);
    }
}

/* Frees an entry: evicts a page wholly, or one that is not on disk. Returns false if there is none. */
static inline bool pt_free_some_entry(pt_owner *o, uint64_t now)
{
    enum pt_try_evict got = PT_WARMER;
    if (pt_evict_wholly(o, now))
        return true;
    while (got == PT_WARMER)
        got = pt_evict_candidate(o, pt_first_in_memory(o, o->unwritten, now), now, now, now);
    return got == PT_EVICTED;
}

/* Evicts until `frames` frames are free, at most `limit` pages. Returns how many pages it evicted. */
static inline uint32_t pt_evict_until(pt_owner *o, uint32_t frames, uint32_t limit, uint64_t now)
{
    uint32_t evicted = 0;
    while (evicted < limit && o->view.header->free_frames < frames && pt_evict_one(o, now, now))
        evicted++;
    return evicted;
}

/* Evicts pages of tenants that have more than their maximum, because it was changed; at most `limit`
 * pages. Returns how many pages it evicted. */
static inline uint32_t pt_trim(pt_owner *o, uint32_t limit, uint64_t now)
{
    uint32_t evicted = 0;
    for (uint32_t tenant = 1; tenant < o->tenants.count; tenant++) {
        o->tenants.need = (pt_need){tenant, true};
        o->tenants.keeps_checked_ns = 0;
        while (evicted < limit && pt_is_above(o, tenant) && pt_evict_one(o, now, now))
            evicted++;
    }
    o->tenants.need = PT_NO_NEED;
    return evicted;
}
