/* owner.h - the daemon's side: it alone changes entries, dictionary and lists, on one thread.
 *
 * The life of a page:  PT_FREE -> PT_WRITING -> PT_READABLE -> PT_FREE,  or  PT_WRITING -> PT_DOOMED -> PT_FREE,
 * and with a disk tier  PT_READABLE -> PT_ON_DISK -> PT_WRITING (it is read in) -> PT_READABLE,  or  PT_ON_DISK -> PT_FREE.
 * An entry is on the open list from its reservation until all its writers have let go, and with a policy after that.
 */
#pragma once

#include <stdlib.h>

#include "../common/dict.h"
#include "lazy_memory.h"
#include "../common/lists.h"
#include "../client/publish.h"
#include "eviction_policy.h"

/* Which pages the disk tier is to have. */
enum pt_write_rule {
    PT_WRITE_EVICTED, /* those that are about to leave the arena */
    PT_WRITE_THROUGH, /* all, at once */
    PT_WRITE_SECOND,  /* those that are about to leave, if they were used again after they were stored */
};

/* The disk tier as the daemon sees it: who does the work is told what to write and what to drop. */
typedef struct {
    bool open; /* a worker has it */
    enum pt_write_rule rule;
    uint64_t ordered_frames;      /* room that is promised to pages which are being written */
    uint8_t *drops;               /* keys whose copies on disk are of no use any more; the worker was not told yet */
    uint32_t drop_count, drop_room;
} pt_disk;

/* How far the owner is with the namespace that has the oldest known use (idle_namespaces.h). */
enum pt_idle_stage { PT_IDLE_NONE, PT_IDLE_WALK, PT_IDLE_DROP };

typedef struct {
    enum pt_idle_stage stage;
    uint32_t space;
    uint32_t entry;  /* of a walk: the page that is next; PT_NONE: all were seen */
    uint64_t serial; /* of that page */
    uint64_t used;   /* the latest use of the pages that were seen */
    uint64_t since;  /* the record's used_ns when it was chosen: another one, and it was used meanwhile */
    uint32_t pages;  /* that were dropped */
} pt_idle;

typedef struct {
    pt_view view;
    const pt_policy_kind *kind;
    pt_policy *ready;     /* pages that lose nothing by leaving the arena: they are on disk too, or are not to be */
    pt_policy *unwritten; /* pages that the disk tier is to have first */
    pt_policy *on_disk;   /* pages on disk, in the arena too or not */
    pt_disk disk;
    pt_lazy lazy;
    pt_idle idle;
    uint32_t last_chain;
    bool settled;          /* all that is open, for the batch that is being answered (reserve.h) */
    uint64_t leased_until; /* until then pages may be listed as used later than they were (evict.h) */
    uint64_t looked_at;    /* when they were last looked through */
} pt_owner;

static inline void pt_owner_end(pt_owner *o)
{
    pt_policy **all[] = {&o->ready, &o->unwritten, &o->on_disk};
    for (int i = 0; i < 3; i++) {
        if (*all[i])
            o->kind->destroy(*all[i]);
        *all[i] = NULL;
    }
    free(o->disk.drops);
    o->disk = (pt_disk){0};
    pt_lazy_end(&o->lazy);
}

/* False if memory is short; then it is ended already. */
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

/* The parts that somebody was granted. */
static inline uint32_t pt_granted_bits(const pt_entry *e)
{
    uint32_t bits = 0;
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        bits |= e->writers[part] == PT_NO_WRITER ? 0 : 1u << part;
    return bits;
}

/* ---- states ---- */

/* What an entry must be by all that engines can not write to; one that is being written may be whole by now. */
static inline enum pt_state pt_state_by_index(pt_entry *e)
{
    if (e->on_list == PT_LIST_OPEN)
        return pt_tiers(e) & PT_TIER_MEMORY ? PT_WRITING : PT_DOOMED;
    if (e->on_list == PT_LIST_FREE)
        return PT_FREE;
    return pt_tiers(e) & PT_TIER_MEMORY ? PT_READABLE : pt_tiers(e) & PT_TIER_DISK ? PT_ON_DISK : PT_FREE;
}

/* The state of an entry. Engines write to its word: a state that can not be is an engine's fault, and is put right, or an
 * entry could come free twice, or be listed and have no frames. */
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

/* A tick from the far future would keep its page for ever: it counts as now. (The near future is the head of a long
 * prompt, whose pages are one tick apart.) */
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

/* ---- the order in which pages leave the arena ---- */

static inline bool pt_wants_writing(const pt_owner *o, pt_entry *e)
{
    if (!o->disk.open || pt_tiers(e) & PT_TIER_DISK || e->marks & PT_MARK_SPARED)
        return false;
    return (o->disk.rule != PT_WRITE_SECOND || e->marks & PT_MARK_TOUCHED) &&
           pt_frames_for(&o->view, e->size) <= o->view.header->disk_frames;
}

static inline void pt_list(pt_owner *o, uint32_t entry, uint64_t tick)
{
    o->kind->add(pt_wants_writing(o, &o->view.entries[entry]) ? o->unwritten : o->ready, entry, tick);
}

/* The list that has the entry, NULL if none has. */
static inline pt_policy *pt_list_of(const pt_owner *o, uint32_t entry)
{
    if (o->kind->lists(o->ready, entry))
        return o->ready;
    return o->kind->lists(o->unwritten, entry) ? o->unwritten : NULL;
}

/* False if no list had it. */
static inline bool pt_unlist(pt_owner *o, uint32_t entry)
{
    pt_policy *list = pt_list_of(o, entry);
    if (list)
        o->kind->remove(list, entry);
    return list != NULL;
}

/* A listed page has become another's to write, or nobody's. */
static inline void pt_list_anew(pt_owner *o, uint32_t entry, uint64_t now)
{
    if (pt_unlist(o, entry))
        pt_list(o, entry, pt_true_tick(o, entry, now));
}

/* ---- letting go ---- */

/* Gives back all that an entry owns. State first: from here on a reader that still finds the entry misses. */
static inline void pt_reclaim(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_chain_put(&o->view, e);
    PT_POINT("reclaim.frames");
    e->marks = 0;
    pt_entry_put(&o->view, entry);
}

static inline void pt_unlink(pt_owner *o, uint32_t entry)
{
    pt_dict_drop(&o->view, pt_dict_in_force(&o->view), entry);
    PT_POINT("unlink.dropped");
    pt_space_remove(&o->view, entry);
}
