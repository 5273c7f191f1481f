/* owner.h - the daemon's side: it alone changes entries, dictionary and lists, on one thread.
 *
 * The life of a page:  PT_FREE -> PT_WRITING -> PT_READABLE -> PT_FREE,  or  PT_WRITING -> PT_DOOMED ->
 * PT_FREE. With a disk tier also:  PT_READABLE -> PT_ON_DISK -> PT_WRITING (being read) -> PT_READABLE,  or
 * PT_ON_DISK -> PT_FREE. An entry is on the open list from its reservation until all its writers have released
 * it. After that an eviction policy lists it. */
#pragma once

#include <stdlib.h>

#include "../common/dict.h"
#include "lazy_memory.h"
#include "../common/lists.h"
#include "../common/parts.h"
#include "cadence/cadence.h"
#include "mrc/lookups.h"
#include "mrc/saved_curve.h"
#include "disk_devices.h"

/* The progress of the search for the namespace with the oldest known use (idle_namespaces.h). */
enum pt_idle_stage { PT_IDLE_NONE, PT_IDLE_WALK, PT_IDLE_DROP };

typedef struct {
    enum pt_idle_stage stage;
    uint32_t space;
    uint32_t entry; /* in a walk: the next page; PT_NONE: all were checked */
    uint64_t serial; /* of the next page */
    uint64_t used; /* the latest use of the pages that were checked */
    uint64_t since; /* used_ns of the record when it was chosen: if it has changed, the namespace was used */
    uint32_t pages; /* pages that were dropped */
} pt_idle;

typedef struct {
    pt_view view;
    const pt_policy_kind *kind;
    /* The policies of each tenant. */
    /* pages that lose nothing when they are evicted: they are on disk too, or will not be written */
    pt_policy *ready[PT_TENANTS];
    pt_policy *unwritten[PT_TENANTS]; /* pages that are to be written to the disk tier first */
    pt_tenants tenants;
    pt_cadence *cadence; /* chooses what leaves the arena; NULL: the least recently used page does */
    pt_lookups *lookups; /* what processes look up; NULL: nothing is known of it */
    enum pt_absence absence; /* why the entries that are freed now leave: PT_DROPPED unless they are evicted */
    pt_disk disk;
    pt_lazy lazy;
    pt_idle idle;
    uint64_t left_out, switches; /* pages; changes between the learned order and that of LRU before `cadence` began */
    uint32_t last_reservation;
    bool settled; /* all open entries were settled for the batch that is being processed (reserve.h) */
    uint64_t leased_until; /* until then pages may be listed with a later tick than their own (evict.h) */
    uint64_t leases_checked_ns; /* when pt_end_leases ran last */
    enum pt_reason leaves; /* why pages leave at this time */
} pt_owner;

static inline void pt_owner_end(pt_owner *o)
{
    pt_policies_end(o->kind, o->ready);
    pt_policies_end(o->kind, o->unwritten);
    pt_cadence_destroy(o->cadence);
    o->cadence = NULL;
    pt_lookups_destroy(o->lookups);
    o->lookups = NULL;
    pt_devices_end(&o->disk, o->kind);
    pt_lazy_end(&o->lazy);
}

/* Begins with empty policies. Returns false if memory is short; then everything is already freed. */
static inline bool pt_owner_begin(pt_owner *o, pt_view view, const pt_policy_kind *kind)
{
    *o = (pt_owner){.view = view, .kind = kind, .absence = PT_DROPPED, .tenants = pt_one_tenant()};
    if (pt_policies_begin(kind, view.entry_count, 1, o->ready) &&
        pt_policies_begin(kind, view.entry_count, 1, o->unwritten))
        return true;
    pt_owner_end(o);
    return false;
}

static inline pt_dict pt_dict_in_force(const pt_view *v)
{
    return pt_dict_of(v, atomic_load_explicit(&v->header->dictionary, memory_order_relaxed));
}

/* Returns the parts that were granted, as bits. */
static inline uint32_t pt_granted_bits(const pt_entry *e)
{
    uint32_t bits = 0;
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        bits |= e->writers[part] == PT_NO_WRITER ? 0 : 1u << part;
    return bits;
}

/* Returns the parts whose writer has died or detached, as bits. Engines cannot change this
 * record, unlike the bits in the lock words. */
static inline uint32_t pt_ended_bits(const pt_entry *e)
{
    uint32_t bits = 0;
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        bits |= e->writers[part] == PT_ENDED_WRITER ? 1u << part : 0;
    return bits;
}

/* ---- states ---- */

/* Returns the state of an entry by the fields that engines cannot write to. An entry that is PT_WRITING by
 * these fields may already be PT_READABLE. */
static inline enum pt_state pt_state_by_index(pt_entry *e)
{
    if (e->on_list == PT_LIST_OPEN)
        return pt_tiers(e) & PT_TIER_MEMORY ? PT_WRITING : PT_DOOMED;
    if (e->on_list == PT_LIST_FREE)
        return PT_FREE;
    return pt_tiers(e) & PT_TIER_MEMORY ? PT_READABLE : pt_tiers(e) & PT_TIER_DISK ? PT_ON_DISK : PT_FREE;
}

/* Returns the state of an entry. Engines can write to its lock word. A state that contradicts the index is the fault of
 * an engine and is corrected: otherwise an entry could be freed twice, or be listed without frames. */
static inline enum pt_state pt_correct_state(pt_owner *o, uint32_t entry)
{
    pt_a64 *word = &o->view.locks[entry].word;
    enum pt_state state = pt_load_state(word), must = pt_state_by_index(&o->view.entries[entry]);
    if (state == must || (state == PT_READABLE && must == PT_WRITING))
        return state;
    pt_put_state(word, must);
    return must;
}

/* ---- ticks ---- */

#define PT_TICK_SLACK_NS 1000000000ull

/* Returns the tick of an entry. A tick in the far future would keep its page forever, so it is set to
 * now. (Ticks in the near future are valid: the head of a long prompt has them, because the ticks of its
 * pages increase by one from page to page.) */
static inline uint64_t pt_correct_tick(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_a64 *tick = &o->view.locks[entry].tick;
    uint64_t seen = atomic_load_explicit(tick, memory_order_relaxed);
    if (seen <= now + PT_TICK_SLACK_NS)
        return seen;
    atomic_store_explicit(tick, now, memory_order_relaxed);
    return now;
}

static inline void pt_stamp(pt_owner *o, uint32_t entry, uint64_t tick)
{
    atomic_store_explicit(&o->view.locks[entry].tick, tick, memory_order_relaxed);
}

/* ---- tenants ---- */

static inline uint32_t pt_tenant_of(const pt_owner *o, uint32_t entry) { return o->view.histories[entry].tenant; }

/* The page is one of a namespace: its frames count for the tenant of that from now on. The
 * caller guarantees that it has none. */
static inline void pt_join_tenant(pt_owner *o, uint32_t entry)
{
    o->view.histories[entry].tenant = o->view.spaces[o->view.entries[entry].space].tenant;
}

/* Frees the frames of a page. */
static inline void pt_free_frames(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    o->tenants.frames[pt_tenant_of(o, entry)] -= e->frame_count;
    pt_frame_list_put(&o->view, e);
}

/* ---- the order in which pages are evicted from the arena ---- */

static inline bool pt_wants_writing(const pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    uint32_t frames = pt_frames_for(&o->view, e->size);
    if (!o->disk.open || pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_SKIPPED)
        return false;
    return (o->disk.rule != PT_WRITE_SECOND || e->marks & PT_MARK_TOUCHED) && frames <= o->disk.widest &&
           frames <= pt_most_frames(o->tenants.quotas[pt_tenant_of(o, entry)].disk, o->disk.widest);
}

static inline void pt_list(pt_owner *o, uint32_t entry, uint64_t tick)
{
    uint32_t tenant = pt_tenant_of(o, entry);
    o->kind->add(pt_wants_writing(o, entry) ? o->unwritten[tenant] : o->ready[tenant], entry, tick);
}

/* Returns the policy that lists the entry, or NULL. */
static inline pt_policy *pt_list_of(const pt_owner *o, uint32_t entry)
{
    if (o->kind->lists(o->ready[0], entry))
        return o->ready[pt_tenant_of(o, entry)];
    return o->kind->lists(o->unwritten[0], entry) ? o->unwritten[pt_tenant_of(o, entry)] : NULL;
}

/* Returns false if no policy listed the entry. */
static inline bool pt_unlist(pt_owner *o, uint32_t entry)
{
    pt_policy *list = pt_list_of(o, entry);
    if (list)
        o->kind->remove(list, entry);
    return list != NULL;
}

/* Lists a page again, because it may now belong into the other policy. */
static inline void pt_relist(pt_owner *o, uint32_t entry, uint64_t now)
{
    if (pt_unlist(o, entry))
        pt_list(o, entry, pt_correct_tick(o, entry, now));
}

/* ---- pages in the arena ---- */

/* Returns how often the order of eviction changed between the learned one and that of LRU. */
static inline uint64_t pt_guard_switches(const pt_owner *o)
{
    return o->switches + (o->cadence ? o->cadence->shadow.switches : 0);
}

static inline void pt_forget_returns(pt_owner *o)
{
    o->switches = pt_guard_switches(o);
    pt_cadence_destroy(o->cadence);
    o->cadence = NULL;
}

/* Lets the policy that learns when pages return choose what leaves the arena. `seed` is a secret
 * number. Returns false if memory is short. */
static inline bool pt_learn_returns(pt_owner *o, uint64_t seed)
{
    if (o->cadence)
        return true;
    o->cadence = pt_cadence_create(&o->view, seed, pt_now_ns());
    if (o->cadence)
        pt_cadence_derive(o->cadence, o->view.entries);
    return o->cadence != NULL;
}

static inline void pt_page_enters(pt_owner *o, uint32_t entry)
{
    pt_enter_memory(&o->view, &o->view.entries[entry]);
    if (o->cadence)
        pt_cadence_enter(o->cadence, entry);
}

static inline void pt_page_leaves(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_leave_memory(&o->view, e);
    if (!o->cadence)
        return;
    pt_cadence_unkeep(o->cadence, entry, pt_frames_for(&o->view, e->size));
    pt_cadence_leave(o->cadence, entry);
}

/* Returns whether a page is to be evicted last. One that no match reaches is not. */
static inline bool pt_is_kept(const pt_owner *o, uint32_t entry, uint64_t now)
{
    const pt_cadence *c = o->cadence;
    return c && c->pages[entry].keep && pt_keep_lives(&c->keeps, c->pages[entry].keep, now) && !pt_is_orphan(c, entry);
}

/* ---- freeing entries ---- */

/* Records why a page that was stored, or was to be, is in no tier. Returns what is known of it; NULL: nothing. */
static inline pt_sampled *pt_note_absence(pt_owner *o, const uint8_t *key, enum pt_absence absence)
{
    uint64_t hash = pt_sample_hash(key);
    if (!o->lookups || !pt_is_sampled(hash, o->lookups->order.curve->threshold))
        return NULL;
    pt_sampled *k = pt_order_find(&o->lookups->order, hash);
    if (k)
        k->absence = absence;
    return k;
}

/* Records why a page leaves. One that was dropped would be in no cache, however large. */
static inline void pt_page_left(pt_owner *o, const uint8_t *key)
{
    pt_sampled *k = pt_note_absence(o, key, o->absence);
    if (k && o->absence == PT_DROPPED)
        pt_order_remove(&o->lookups->order, k);
}

/* Frees everything that an entry owns. The caller has already changed the state, so a reader that still finds the entry
 * misses. */
static inline void pt_reclaim(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_free_frames(o, entry);
    PT_POINT("reclaim.frames");
    e->marks = 0;
    pt_page_left(o, e->key);
    if (o->cadence)
        pt_cadence_forget(o->cadence, entry, pt_key_hash(o->cadence, e->key));
    else
        pt_history_clear(&o->view.histories[entry]);
    pt_entry_put(&o->view, entry);
}

static inline void pt_unlink(pt_owner *o, uint32_t entry)
{
    pt_dict_drop(&o->view, pt_dict_in_force(&o->view), entry);
    PT_POINT("unlink.dropped");
    pt_space_remove(&o->view, entry);
}
