/* owner.h - the daemon's side: it alone changes entries, dictionary and lists, on one thread.
 *
 * The life of a page:  PT_FREE -> PT_WRITING -> PT_READABLE -> PT_FREE,  or  PT_WRITING -> PT_DOOMED -> PT_FREE.
 * An entry is on the open list from its reservation until all its writers have let go, and with the policy after that.
 */
#pragma once

#include "dict.h"
#include "lists.h"
#include "part.h"
#include "policy.h"

typedef struct {
    pt_view view;
    const pt_policy_kind *kind;
    pt_policy *policy;
} pt_owner;

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

/* Gives back all that an entry owns. State first: from here on a reader that still finds the entry misses. */
static inline void pt_reclaim(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_chain_put(&o->view, e);
    e->tiers = 0;
    pt_entry_put(&o->view, entry);
}

static inline void pt_unlink(pt_owner *o, uint32_t entry)
{
    pt_dict_drop(&o->view, pt_dict_in_force(&o->view), entry);
    pt_space_remove(&o->view, entry);
}

/* Takes a page that is being written out of sight; its frames stay until its writers have let go. */
static inline bool pt_doom(pt_owner *o, uint32_t entry)
{
    if (!pt_change(&o->view.locks[entry].word, PT_WRITING, PT_DOOMED))
        return false; /* published in this very moment: then it is whole */
    pt_unlink(o, entry);
    o->view.header->deeds.doomed++;
    return true;
}

/* What should become of a page that is being written. */
static inline void pt_judge(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    uint64_t parts = atomic_load_explicit(&o->view.locks[entry].parts, memory_order_acquire);
    uint32_t done = pt_done_bits(parts), gone = pt_gone_bits(parts), all = pt_all_parts(e);
    if (gone & ~done)
        pt_doom(o, entry);
    else if ((gone & all) == all) /* the last writer died between its bit and the state */
        pt_change(&o->view.locks[entry].word, PT_WRITING, PT_READABLE);
    else if (now > e->expires_ns && pt_doom(o, entry))
        o->view.header->deeds.expired++;
}

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

/* Moves an open entry on if its writers have: to the policy, to the doomed, to the free. True if it left the list. */
static inline bool pt_settle(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_lock *lock = &o->view.locks[entry];
    pt_entry *e = &o->view.entries[entry];
    if (pt_load_state(&lock->word) == PT_WRITING)
        pt_judge(o, entry, now);
    uint64_t word = atomic_load_explicit(&lock->word, memory_order_acquire);
    enum pt_state state = pt_state_of(word);
    uint32_t granted = pt_granted_bits(e);
    uint32_t gone = pt_gone_bits(atomic_load_explicit(&lock->parts, memory_order_acquire));
    if (state == PT_WRITING || (gone & granted) != granted || (state == PT_DOOMED && word & PT_PINS))
        return false;
    pt_open_remove(&o->view, entry);
    if (state == PT_READABLE) {
        o->kind->add(o->policy, entry, pt_true_tick(o, entry, now));
    } else {
        pt_change(&lock->word, state, PT_FREE);
        pt_reclaim(o, entry);
    }
    return true;
}

/* Settles open entries, the oldest first, and gives up after `patience` in a row that are not ready. */
static inline void pt_settle_some(pt_owner *o, uint64_t now, uint32_t patience)
{
    pt_header *h = o->view.header;
    for (uint32_t entry = h->open_first, next; entry != PT_NONE && patience; entry = next) {
        next = o->view.entries[entry].list_next;
        if (!pt_settle(o, entry, now))
            patience--;
    }
}

static inline void pt_settle_all(pt_owner *o, uint64_t now) { pt_settle_some(o, now, PT_NONE); }
