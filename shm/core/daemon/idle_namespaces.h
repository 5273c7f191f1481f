/* idle_namespaces.h - makes room in a full table of namespaces: drops the pages of the namespace
 * that was not used for the longest time.
 *
 * Matches take no lock and send no message; their only trace is the ticks of pages. So the used_ns of a record is
 * a lower bound of its namespace's last use. It is believed after all pages of the namespace were walked, as the
 * tick in a policy is believed after the page's own tick was read (evict.h). A page that is pinned or open is in
 * use now. Walking and dropping are cut into steps. A store or a match between two steps ends them, so a page
 * that is used again is never dropped. */
#pragma once

#include "flush.h"

#define PT_IDLE_RECORDS 16u /* records of the table that can be checked in the time of one page */

enum pt_idle_found {
    PT_IDLE_NOTHING, /* no namespace is idle */
    PT_IDLE_MORE, /* the step is over before everything was done */
    PT_IDLE_DROPPED, /* the namespace in pt_idle has no pages any more */
};

/* Returns the last use of a page. While a page is being written to disk its pins do not count: they are the worker's,
 * or do not matter because the page stays anyway. */
static inline uint64_t pt_page_used(pt_owner *o, uint32_t entry, uint64_t now)
{
    const pt_entry *e = &o->view.entries[entry];
    bool pinned = atomic_load_explicit(&o->view.locks[entry].word, memory_order_relaxed) & PT_PINS;
    if (e->on_list == PT_LIST_OPEN || (pinned && !(e->marks & PT_MARK_ORDERED)))
        return now;
    return pt_correct_tick(o, entry, now);
}

/* Ends the check of the present namespace: it was last used at `used`. */
static inline void pt_idle_used(pt_owner *o, uint64_t used)
{
    o->view.spaces[o->idle.space].used_ns = used;
    o->idle.stage = PT_IDLE_NONE;
}

/* Chooses the namespace with the oldest known use, of those without which their tenants keep their minimum. Returns
 * false if that use is not before `before`. */
static inline bool pt_idle_choose(pt_owner *o, uint64_t before, uint32_t *budget)
{
    const pt_view *v = &o->view;
    pt_idle next = {.stage = PT_IDLE_NONE, .since = before};
    uint32_t s = 0;
    for (; s < v->header->spaces && v->spaces[s].used; s++)
        if (v->spaces[s].listed && v->spaces[s].used_ns < next.since && pt_tenant_spares(o, &v->spaces[s]))
            next = (pt_idle){PT_IDLE_WALK, s, v->spaces[s].first, 0, 0, v->spaces[s].used_ns, 0};
    o->idle = next;
    *budget -= s / PT_IDLE_RECORDS < *budget ? s / PT_IDLE_RECORDS : *budget;
    return next.stage != PT_IDLE_NONE;
}

/* Returns whether the entry still has the same page, on the list of its namespace. */
static inline bool pt_idle_stands(pt_owner *o)
{
    const pt_idle *i = &o->idle;
    const pt_entry *e = &o->view.entries[i->entry];
    if (e->serial != i->serial || e->space != i->space)
        return false;
    enum pt_state state = pt_correct_state(o, i->entry);
    return state == PT_READABLE || state == PT_WRITING || state == PT_ON_DISK;
}

/* Prepares a step: accounts for what happened since the last one. A walk whose page has left begins again. */
static inline void pt_idle_resume(pt_owner *o)
{
    pt_idle *i = &o->idle;
    if (i->stage == PT_IDLE_NONE)
        return;
    const pt_space *s = &o->view.spaces[i->space];
    if (!s->listed || s->used_ns != i->since) {
        i->stage = PT_IDLE_NONE;
    } else if (i->stage == PT_IDLE_WALK && !pt_idle_stands(o)) {
        i->entry = s->first;
        i->used = 0;
    }
}

static inline void pt_idle_walk(pt_owner *o, uint64_t before, uint64_t now, uint32_t *budget)
{
    pt_idle *i = &o->idle;
    for (; i->entry != PT_NONE && *budget; --*budget) {
        uint64_t used = pt_page_used(o, i->entry, now);
        i->used = used > i->used ? used : i->used;
        i->entry = i->used < before ? o->view.entries[i->entry].space_next : PT_NONE;
    }
    if (i->entry != PT_NONE)
        i->serial = o->view.entries[i->entry].serial;
    else if (i->used > i->since)
        pt_idle_used(o, i->used); /* another namespace may be older: they are compared again */
    else
        i->stage = PT_IDLE_DROP;
}

/* Drops pages of the namespace. Returns true if it has no pages any more. A namespace whose pages are being written to
 * disk waits until the other idle ones are done. */
static inline bool pt_idle_drop(pt_owner *o, uint64_t before, uint64_t now, uint32_t *budget)
{
    pt_idle *i = &o->idle;
    const pt_space *s = &o->view.spaces[i->space];
    for (uint32_t entry = s->first, next; entry != PT_NONE && *budget; entry = next, --*budget) {
        next = o->view.entries[entry].space_next;
        uint64_t used = pt_page_used(o, entry, now);
        bool ordered = o->view.entries[entry].marks & PT_MARK_ORDERED;
        if (used >= before || (!ordered && !pt_flush_counted(o, entry, PT_TIER_MEMORY | PT_TIER_DISK, now))) {
            pt_idle_used(o, used >= before ? used : now);
            return false;
        }
        i->pages += !ordered;
        PT_POINT("idle.page");
    }
    if (s->listed && *budget)
        pt_idle_used(o, before - 1);
    return !s->listed;
}

/* Checks about `budget` pages, and drops them if their namespace was not used since `before`. */
static inline enum pt_idle_found pt_idle_step(pt_owner *o, uint64_t before, uint64_t now, uint32_t budget)
{
    pt_idle *i = &o->idle;
    pt_idle_resume(o);
    while (budget) {
        if (i->stage == PT_IDLE_NONE && !pt_idle_choose(o, before, &budget))
            return PT_IDLE_NOTHING;
        if (i->stage == PT_IDLE_WALK)
            pt_idle_walk(o, before, now, &budget);
        if (i->stage == PT_IDLE_DROP && pt_idle_drop(o, before, now, &budget)) {
            i->stage = PT_IDLE_NONE;
            return PT_IDLE_DROPPED;
        }
    }
    return PT_IDLE_MORE;
}
