/* cadence_integrity.h - checks the trees, for the integrity check. */
#pragma once

#include "choose_victim.h"

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
        if (h->class >= PT_CLASSES || h->cadence >= PT_AGES || h->uses > PT_MOST_USES || h->lasts > PT_LASTS_MOST)
            return "a page has a class, a cadence, a number of uses or a time of its hint that does not exist";
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

/* Returns what is wrong with the frames that are counted for keeps, or NULL. */
static inline const char *pt_cadence_wrong_keeps(const pt_owner *o)
{
    uint32_t frames[PT_KEEPS] = {0};
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        if (o->cadence->pages[entry].keep)
            frames[o->cadence->pages[entry].keep] += pt_frames_for(&o->view, o->view.entries[entry].size);
    for (uint32_t number = 1; number < PT_KEEPS; number++)
        if (o->cadence->keeps.records[number].frames != frames[number])
            return "the eviction policy counted the frames of kept pages wrongly";
    return NULL;
}

/* Returns what is wrong with the policy's own memory, or NULL. `children` has room for one number per entry, all 0. */
static inline const char *pt_cadence_check(const pt_owner *o, uint32_t *children)
{
    const char *wrong = pt_cadence_wrong_keeps(o);
    uint32_t leaves = 0, orphans = 0;
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        uint32_t parent = pt_parent_of(o->cadence, entry);
        if (parent != PT_NONE && o->cadence->pages[entry].in_memory)
            children[parent]++;
        leaves += o->cadence->pages[entry].place != PT_NONE;
        orphans += o->cadence->pages[entry].in_memory && pt_is_orphan(o->cadence, entry);
    }
    if (leaves != o->cadence->leaf_count || orphans != o->cadence->orphans)
        wrong = "the eviction policy counted the leaves, or the pages that no match reaches, wrongly";
    for (uint32_t entry = 0; entry < o->view.entry_count && !wrong; entry++)
        wrong = pt_cadence_wrong_page(o, entry, children[entry]);
    return wrong;
}
