/* disk_history.h - what is known of a page's uses, as its record on disk keeps it: what it was when the page was
 * written.
 *
 * The bytes may be damaged on disk: numbers are limited, and a link to the page before goes
 * through the same check as that of a store. */
#pragma once

#include "choose_victim.h"

#define PT_CLIMB 65536u /* steps up the trees that a request may take, beyond the number of its pages */

typedef struct {
    uint8_t parent[PT_KEY_BEGIN]; /* the beginning of the key of the page before it; zeros: not known, or the first */
    uint32_t depth; /* as in pt_history */
    uint8_t cadence, uses, growth, hint; /* hint: reserved */
} pt_disk_history;
_Static_assert(sizeof(pt_disk_history) == 24, "the record on disk has this size");
_Static_assert(offsetof(pt_disk_history, parent) == 0, "disk_histories() fetches it there");

/* Returns what the disk is to keep of a page. */
static inline pt_disk_history pt_describe_history(const pt_view *v, uint32_t entry)
{
    const pt_history *h = &v->histories[entry];
    uint8_t growth = (uint8_t)pt_growth_of_class(h->class);
    pt_disk_history kept = {.depth = h->depth, .cadence = h->cadence, .uses = h->uses, .growth = growth};
    uint32_t parent = pt_history_parent(v->histories, entry);
    if (parent != PT_NONE)
        memcpy(kept.parent, v->entries[parent].key, sizeof kept.parent);
    return kept;
}

/* Gives a page that the disk reports what was known of it, unless more is known by
 * now. It was last used `age_ns` ago. */
static inline void pt_restore_history(pt_owner *o, uint32_t entry, const pt_disk_history *kept, uint64_t age_ns,
                                      uint64_t now)
{
    pt_history *h = &o->view.histories[entry];
    h->depth = h->depth ? h->depth : kept->depth & PT_MOST_DEPTH;
    if (h->seen || h->uses || !kept->uses)
        return;
    uint8_t growth = kept->growth < PT_GROWTHS ? kept->growth : 0;
    h->uses = kept->uses < PT_MOST_USES ? kept->uses : PT_MOST_USES;
    h->cadence = kept->cadence < PT_AGES ? kept->cadence : 0;
    h->class = o->cadence ? pt_class_of(&o->cadence->returns, h->cadence, h->uses, growth, PT_HINT_NONE) : growth;
    h->seen = pt_moment(now - (age_ns < now ? age_ns : now));
}

/* Links a page on disk to the one before it, if that one is in a tier. */
static inline void pt_restore_link(pt_owner *o, const uint8_t *key, const pt_disk_history *kept)
{
    static const uint8_t none[PT_KEY_BEGIN];
    pt_dict d = pt_dict_in_force(&o->view);
    if (!o->cadence || !memcmp(kept->parent, none, sizeof none))
        return;
    uint32_t entry = pt_dict_find(&o->view, d, key), parent = pt_dict_find_begin(&o->view, d, kept->parent);
    if (entry != PT_NONE && pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK)
        pt_cadence_link(o->cadence, entry, parent);
}
