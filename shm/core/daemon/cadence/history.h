/* history.h - what is known of the uses of each page, in the index: a new daemon uses it.
 *
 * It is no part of what a page is served by, so it has no checksum. An adoption accepts what can be true: a page before
 * another one is in a tier, and no page is before itself. Wrong numbers cost a wrong order of eviction. */
#pragma once

#include "../../common/view.h"
#include "return_times.h"

#define PT_MOMENT_NS (1000000000ull / 1024) /* the unit of moments, which wrap around after 48 days */
#define PT_MOST_USES 7u
#define PT_LASTS_MOST 15u /* a hint holds for at most about nine hours */
#define PT_MOST_DEPTH ((1u << 24) - 1)

/* Returns the moment of a time; it is never 0. */
static inline uint32_t pt_moment(uint64_t now) { return (uint32_t)(now / PT_MOMENT_NS) | 1; }

/* Forgets everything, because the page left all tiers. Pages that name it as their parent know it by its life. */
static inline void pt_history_clear(pt_history *h)
{
    *h = (pt_history){.parent = PT_NONE, .place = PT_NONE, .life = h->life + 1};
}

/* Returns the page before this one in its prompt, or PT_NONE if it is not known or left all tiers. */
static inline uint32_t pt_history_parent(const pt_history *all, uint32_t entry)
{
    const pt_history *h = &all[entry];
    return h->parent != PT_NONE && all[h->parent].life == h->parent_life ? h->parent : PT_NONE;
}

/* Resets what cannot be true, and what is derived. */
static inline void pt_history_accept(pt_history *h, uint32_t now)
{
    bool known = h->class < PT_CLASSES && h->cadence < PT_AGES && h->uses <= PT_MOST_USES &&
                 h->lasts <= PT_LASTS_MOST && (int32_t)(now - h->seen) >= 0;
    if (!known)
        h->class = h->cadence = h->uses = h->lasts = h->seen = 0;
    h->keep = h->device = h->children = 0;
    h->place = PT_NONE;
    h->in_memory = h->named = false;
}

/* Cuts a link to a page that is not in a tier. */
static inline void pt_history_accept_link(const pt_view *v, uint32_t entry)
{
    pt_history *h = &v->histories[entry];
    bool there = h->parent < v->entry_count && pt_tiers(&v->entries[entry]) && pt_tiers(&v->entries[h->parent]);
    if (!there || pt_history_parent(v->histories, entry) == PT_NONE)
        h->parent = PT_NONE;
}

/* Cuts the links by which a page would come before itself: such pages would never be leaves. `seen` has
 * room for one number per entry, all 0. */
static inline void pt_history_cut_circles(const pt_view *v, uint32_t *seen)
{
    for (uint32_t start = 0; start < v->entry_count; start++) {
        uint32_t below = PT_NONE, at = start;
        for (; at != PT_NONE && !seen[at]; below = at, at = pt_history_parent(v->histories, at))
            seen[at] = start + 1;
        if (at != PT_NONE && below != PT_NONE && seen[at] == start + 1)
            v->histories[below].parent = PT_NONE;
    }
}

/* Accepts what an earlier daemon left of the pages that were adopted. `seen` has
 * room for one number per entry, all 0. */
static inline void pt_histories_adopt(const pt_view *v, uint32_t *seen, uint64_t now)
{
    for (uint32_t entry = 0; entry < v->entry_count; entry++)
        pt_history_accept(&v->histories[entry], pt_moment(now));
    for (uint32_t entry = 0; entry < v->entry_count; entry++)
        pt_history_accept_link(v, entry);
    pt_history_cut_circles(v, seen);
}
