/* owner.h - the daemon's side: it alone changes entries, dictionary and lists, on one thread.
 *
 * The life of a page:  PT_FREE -> PT_WRITING -> PT_READABLE -> PT_FREE,  or  PT_WRITING -> PT_DOOMED -> PT_FREE.
 * With a disk tier also:  PT_READABLE -> PT_ON_DISK -> PT_WRITING (being read) -> PT_READABLE,  or  PT_ON_DISK -> PT_FREE.
 * An entry is on the open list from its reservation until all its writers have released it. After that an eviction policy
 * lists it. */
#pragma once

#include <stdlib.h>

#include "../common/dict.h"
#include "lazy_memory.h"
#include "../common/lists.h"
#include "../client/publish.h"
#include "cadence/cadence.h"
#include "eviction_policy.h"

/* Which pages are written to the disk tier. */
enum pt_write_rule {
    PT_WRITE_EVICTED, /* pages that are about to be evicted from the arena */
    PT_WRITE_THROUGH, /* all pages, at once */
    PT_WRITE_SECOND, /* pages that are about to be evicted and were used again after they were stored */
};

/* The disk tier as the daemon sees it. A worker does the I/O; the daemon commands what it writes and drops. */
typedef struct {
    bool open; /* a worker has opened the tier */
    enum pt_write_rule rule;
    uint64_t ordered_frames; /* room that is reserved for pages which are being written */
    uint8_t *drops; /* keys whose copies on disk are useless; not sent to the worker yet */
    uint32_t drop_count, drop_room;
} pt_disk;

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
    pt_policy *ready; /* pages that lose nothing when they are evicted: they are on disk too, or will not be written */
    pt_policy *unwritten; /* pages that are to be written to the disk tier first */
    pt_policy *on_disk; /* pages on disk, whether or not they are in the arena too */
    pt_cadence *cadence; /* chooses what leaves the arena; NULL: the least recently used page does */
    pt_disk disk;
    pt_lazy lazy;
    pt_idle idle;
    uint64_t left_out, switches; /* pages; changes between the learned order and that of LRU before `cadence` began */
    uint32_t last_chain;
    bool settled; /* all open entries were settled for the batch that is being processed (reserve.h) */
    uint64_t leased_until; /* until then pages may be listed with a later tick than their own (evict.h) */
    uint64_t leases_checked_ns; /* when pt_end_leases ran last */
    enum pt_reason leaves; /* why pages leave at this time */
} pt_owner;

static inline void pt_owner_end(pt_owner *o)
{
    pt_policy **all[] = {&o->ready, &o->unwritten, &o->on_disk};
    for (int i = 0; i < 3; i++) {
        if (*all[i])
            o->kind->destroy(*all[i]);
        *all[i] = NULL;
    }
    pt_cadence_destroy(o->cadence);
    o->cadence = NULL;
    free(o->disk.drops);
    o->disk = (pt_disk){0};
    pt_lazy_end(&o->lazy);
}

/* Begins with empty policies. Returns false if memory is short; then everything is already freed. */
static inline bool pt_owner_begin(pt_owner *o, pt_view view, const pt_policy_kind *kind)
{
    *o = (pt_owner){.view = view, .kind = kind};
    o->ready = kind->create(view.entry_count);
    o->unwritten = kind->create(view.entry_count);
    o->on_disk = kind->create(view.entry_count);
    if (o->ready && o->unwritten && o->on_disk)
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

/* Returns the parts whose writer has died or detached, as bits. Engines cannot change this record, unlike the bits in the
 * lock words. */
static inline uint32_t pt_ended_bits(const pt_entry *e)
{
    uint32_t bits = 0;
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        bits |= e->writers[part] == PT_DEAD_WRITER || e->writers[part] == PT_DETACHED_WRITER ? 1u << part : 0;
    return bits;
}

/* ---- states ---- */

/* Returns the state of an entry by the fields that engines cannot write to. An entry that is PT_WRITING by these fields may
 * already be PT_READABLE. */
static inline enum pt_state pt_state_by_index(pt_entry *e)
{
    if (e->on_list == PT_LIST_OPEN)
        return pt_tiers(e) & PT_TIER_MEMORY ? PT_WRITING : PT_DOOMED;
    if (e->on_list == PT_LIST_FREE)
        return PT_FREE;
    return pt_tiers(e) & PT_TIER_MEMORY ? PT_READABLE : pt_tiers(e) & PT_TIER_DISK ? PT_ON_DISK : PT_FREE;
}

/* Returns the state of an entry. Engines can write to its lock word. A state that contradicts the index is the fault of an
 * engine and is corrected: otherwise an entry could be freed twice, or be listed without frames. */
static inline enum pt_state pt_true_state(pt_owner *o, uint32_t entry)
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

/* Returns the tick of an entry. A tick in the far future would keep its page forever, so it is set to now. (Ticks in the
 * near future are valid: the head of a long prompt has them, because the ticks of its pages increase by one from page to
 * page.) */
static inline uint64_t pt_true_tick(pt_owner *o, uint32_t entry, uint64_t now)
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

/* ---- the order in which pages are evicted from the arena ---- */

static inline bool pt_wants_writing(const pt_owner *o, pt_entry *e)
{
    if (!o->disk.open || pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_SKIPPED)
        return false;
    return (o->disk.rule != PT_WRITE_SECOND || e->marks & PT_MARK_TOUCHED) &&
           pt_frames_for(&o->view, e->size) <= o->view.header->disk_frames;
}

static inline void pt_list(pt_owner *o, uint32_t entry, uint64_t tick)
{
    o->kind->add(pt_wants_writing(o, &o->view.entries[entry]) ? o->unwritten : o->ready, entry, tick);
}

/* Returns the policy that lists the entry, or NULL. */
static inline pt_policy *pt_list_of(const pt_owner *o, uint32_t entry)
{
    if (o->kind->lists(o->ready, entry))
        return o->ready;
    return o->kind->lists(o->unwritten, entry) ? o->unwritten : NULL;
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
        pt_list(o, entry, pt_true_tick(o, entry, now));
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

/* Lets the policy that learns when pages return choose what leaves the arena. `seed` is a secret number. Returns false if
 * memory is short. */
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
    return c && c->pages[entry].keep && pt_keep_lives(&c->kept, c->pages[entry].keep, now) && !pt_is_orphan(c, entry);
}

/* ---- freeing entries ---- */

/* Frees everything that an entry owns. The caller has already changed the state, so a reader that still finds the entry
 * misses. */
static inline void pt_reclaim(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_chain_put(&o->view, e);
    PT_POINT("reclaim.frames");
    e->marks = 0;
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
