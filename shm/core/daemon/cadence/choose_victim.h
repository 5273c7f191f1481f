/* choose_victim.h - which page leaves: the leaf with the lowest index of a few that are drawn. */
#pragma once

#include "learning.h"
#include "../quota_order.h"

/* Returns whether the policy chooses: it has learned, and does not follow LRU. */
static inline bool pt_cadence_chooses(const pt_owner *o)
{
    return o->cadence && o->cadence->learned && !o->cadence->shadow.follows;
}

/* Returns what a page is worth: its index at its age. A page that no match reaches is worth nothing. */
static inline float pt_worth(const pt_cadence *c, uint32_t entry, uint64_t now)
{
    const pt_cadence_page *p = &c->pages[entry];
    uint64_t tick = pt_tick_of(c, entry);
    float gap = pt_seconds_between(p->seen, pt_moment(now)), age = now > tick ? (float)(now - tick) / 1e9f : 0;
    uint16_t class = pt_class_in_force(p, pt_moment(now));
    return pt_is_orphan(c, entry) ? -1 : c->returns.index[class][pt_age_bin(age < gap ? age : gap)];
}

/* Corrects the tick of a leaf and returns whether it may leave: it is evictable by its tenant's quota too, loses
 * nothing by it, was last used before `before`, is not pinned and not kept. */
static inline bool pt_qualify_leaf(pt_owner *o, uint32_t entry, uint64_t before, uint64_t now)
{
    return o->kind->lists(o->ready[0], entry) && pt_precedence_in_memory(o, entry) <= o->tenants.latest &&
           pt_correct_tick(o, entry, now) < before && !pt_is_kept(o, entry, now) &&
           !(atomic_load_explicit(&o->view.locks[entry].word, memory_order_relaxed) & PT_PINS);
}

static inline uint32_t pt_draw_leaf(pt_cadence *c)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return c->leaves[(c->random >> 32) * c->leaf_count >> 32];
}

#define PT_MORE_DRAWS 8u

typedef struct {
    uint32_t entry;
    float worth;
} pt_offer;

static inline void pt_offer_leaf(pt_owner *o, uint32_t entry, uint64_t before, uint64_t now, pt_offer *best)
{
    if (!pt_qualify_leaf(o, entry, before, now))
        return;
    float worth = pt_worth(o->cadence, entry, now);
    bool colder = best->entry != PT_NONE && pt_tick_of(o->cadence, entry) < pt_tick_of(o->cadence, best->entry);
    if (best->entry == PT_NONE || worth < best->worth || (worth == best->worth && colder))
        *best = (pt_offer){entry, worth};
}

/* Offers some leaves that are drawn, or all if there are few. */
static inline void pt_offer_some(pt_owner *o, uint64_t before, uint64_t now, pt_offer *best)
{
    pt_cadence *c = o->cadence;
    uint32_t draws[PT_CANDIDATES], count = c->leaf_count < PT_CANDIDATES ? c->leaf_count : PT_CANDIDATES;
    for (uint32_t i = 0; i < count; i++) {
        draws[i] = count == c->leaf_count ? c->leaves[i] : pt_draw_leaf(c);
        __builtin_prefetch(&c->pages[draws[i]]);
        __builtin_prefetch(&c->locks[draws[i]]);
    }
    for (uint32_t i = 0; i < count; i++) /* a leaf is worth nothing if the page before it left */
        if (c->pages[draws[i]].parent != PT_NONE)
            __builtin_prefetch(&c->pages[c->pages[draws[i]].parent]);
    for (uint32_t i = 0; i < count; i++)
        pt_offer_leaf(o, draws[i], before, now, best);
}

/* Returns the page before this one if both were last used by the same stores, or PT_NONE. */
static inline uint32_t pt_used_alike(const pt_cadence *c, uint32_t entry)
{
    uint32_t before = c ? pt_parent_of(c, entry) : PT_NONE;
    if (before == PT_NONE || c->pages[before].seen != c->pages[entry].seen ||
        c->pages[before].class != c->pages[entry].class)
        return PT_NONE;
    return before;
}

/* A page was evicted. The page before it is worth the same if both were used alike,
 * so it leaves next without a draw. */
static inline void pt_set_next_leaf(pt_cadence *c, uint32_t before)
{
    c->next_leaf = before;
    c->next_leaf_life = before == PT_NONE ? 0 : c->pages[before].life;
}

/* Takes the page that leaves without a draw, if it is a leaf that may leave, and no page waits to leave first. */
static inline uint32_t pt_take_next_leaf(pt_owner *o, uint64_t before, uint64_t now)
{
    pt_cadence *c = o->cadence;
    uint32_t entry = c->next_leaf;
    c->next_leaf = PT_NONE;
    bool leaf = entry != PT_NONE && c->undrawn_left && !c->orphans && c->pages[entry].life == c->next_leaf_life &&
                c->pages[entry].place != PT_NONE;
    if (!leaf || !pt_qualify_leaf(o, entry, before, now))
        return PT_NONE;
    c->undrawn_left--;
    return entry;
}

/* Chooses the leaf that is worth least, of all or of some that are drawn, and of the newest prompt's last page. Where
 * most leaves are kept or protected, it draws again. */
static inline pt_offer pt_choose_leaf(pt_owner *o, uint64_t before, uint64_t now)
{
    pt_cadence *c = o->cadence;
    bool first = !o->tenants.need.own_only && pt_tenant_above(o) != PT_NOBODY;
    o->tenants.latest = first ? PT_LEAVES_FIRST : PT_LEAVES;
    pt_offer best = {pt_take_next_leaf(o, before, now), 0};
    if (best.entry != PT_NONE)
        return (pt_offer){best.entry, pt_worth(c, best.entry, now)};
    c->undrawn_left = PT_UNDRAWN - 1;
    pt_offer_some(o, before, now, &best);
    bool again = c->keeps.used || o->tenants.count > 1;
    for (uint32_t more = again ? PT_MORE_DRAWS : 0; more && best.entry == PT_NONE && c->leaf_count > PT_CANDIDATES;
         more--)
        pt_offer_some(o, before, now, &best);
    if (c->newest != PT_NONE && c->pages[c->newest].place != PT_NONE)
        pt_offer_leaf(o, c->newest, before, now, &best);
    return best;
}

/* Records that the memory is full: from now on it is known how many pages it holds. A tenant that
 * has its maximum says nothing of that. */
static inline void pt_note_full_memory(pt_owner *o)
{
    if (!o->cadence || o->cadence->full_pages || o->tenants.need.own_only)
        return;
    o->cadence->full_pages = (uint32_t)o->view.header->pages;
    pt_shadow_resize(&o->cadence->shadow, o->cadence->full_pages);
}
