/* check.h - checks the trees, for the integrity check. */
#pragma once

#include "victim.h"

/* Returns what is wrong with one page, or NULL. `children` are those that name it as their parent. */
static inline const char *pt_cadence_wrong_page(const pt_owner *o, uint32_t entry, uint32_t children)
{
    const pt_cadence_page *p = &o->cadence->pages[entry];
    bool leaf = p->place != PT_NONE;
    if (p->in_memory != !!(pt_tiers(&o->view.entries[entry]) & PT_TIER_MEMORY))
        return "a page is in memory, and the eviction policy does not know it";
    if (p->children != children)
        return "the eviction policy counted the pages after one wrongly";
    if (leaf != (p->in_memory && !p->children))
        return "the eviction policy takes a page for a leaf, or a leaf for none";
    if (leaf && (p->place >= o->cadence->leaf_count || o->cadence->leaves[p->place] != entry))
        return "a page has a wrong place among the leaves";
    return NULL;
}

/* Returns what is wrong with the histories of all pages, or NULL. `seen` has room for one number per entry, all 0. */
static inline const char *pt_history_check(const pt_view *v, uint32_t *seen)
{
    for (uint32_t entry = 0; entry < v->entry_count; entry++) {
        const pt_history *h = &v->histories[entry];
        if (h->parent != PT_NONE && h->parent >= v->entry_count)
            return "the page before one is out of range";
        if (h->class >= PT_CLASSES || h->cadence >= PT_AGES || h->uses > PT_MOST_USES)
            return "a page has a class, a cadence or a number of uses that does not exist";
    }
    for (uint32_t start = 0; start < v->entry_count; start++) {
        uint32_t at = start;
        for (; at != PT_NONE && !seen[at]; at = pt_history_parent(v->histories, at))
            seen[at] = start + 1;
        if (at != PT_NONE && seen[at] == start + 1)
            return "a page is before itself in its prompt";
    }
    return NULL;
}

/* Returns what is wrong with the policy's own memory, or NULL. `children` has room for one number per entry, all 0. */
static inline const char *pt_cadence_check(const pt_owner *o, uint32_t *children)
{
    const char *wrong = NULL;
    uint32_t leaves = 0;
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        uint32_t parent = pt_parent_of(o->cadence, entry);
        if (parent != PT_NONE && o->cadence->pages[entry].in_memory)
            children[parent]++;
        leaves += o->cadence->pages[entry].place != PT_NONE;
    }
    if (leaves != o->cadence->leaf_count)
        wrong = "the eviction policy counted the leaves wrongly";
    for (uint32_t entry = 0; entry < o->view.entry_count && !wrong; entry++)
        wrong = pt_cadence_wrong_page(o, entry, children[entry]);
    return wrong;
}
