/* cadence.h - an eviction policy that learns when pages return.
 *
 * Pages form trees: each knows the page before it in its prompt and how many of those after it are in memory. Only a
 * leaf is evicted, so no page leaves before one that is useless without it. The victim is the leaf with the lowest
 * index (return_times.h) of a few that are drawn at random, and of the newest prompt's own. Nothing is kept sorted:
 * ticks are read at that moment, so readers send no message.
 *
 * It learns from stores: a page of a store's prompt that a reader has used since the last one has returned. What was
 * learned of a page stays for a while after it left (ghosts.h). Where least recently used would hit more, it steps
 * back (shadow_lru.h); before the memory was full once, too.
 *
 * What is known of each page lies in the index (history.h), and so does what was learned (saved_returns.h): a new
 * daemon only derives the leaves. The rest is private: the guard, and what is remembered of pages that left. */
#pragma once

#include "../../common/dict.h"
#include "ghosts.h"
#include "history.h"
#include "keeps.h"
#include "saved_returns.h"
#include "shadow_lru.h"

#define PT_CANDIDATES 32u
#define PT_UNDRAWN 16u /* pages of one prompt that leave after one draw */
#define PT_CUT 8u /* pages that are left out together */
/* uses after which a page is stored in the room of one that was unused for much longer */
#define PT_RETURNED_OFTEN 6u
#define PT_MUCH_LONGER 4u /* times the time since its last use */
/* the time at risk of one slice of all pages is added up at once, so that no request waits long */
#define PT_SLICES 64u
#define PT_GHOST_SAMPLE 8u /* of the sets of ghosts, one of so many adds up */

typedef pt_history pt_cadence_page;

/* What a request says of the pages that it uses. */
typedef struct {
    uint8_t growth; /* a step of how many pages it appends */
    uint8_t hint, lasts; /* what it knows of their session, and for how long, as in pt_history */
} pt_said;

typedef struct {
    pt_cadence_page *pages; /* in the index */
    pt_learned *saved; /* in the index */
    uint32_t *leaves, leaf_count, entries;
    pt_lock *locks;
    uint64_t seeds[2]; /* of the hash of keys: no client can choose keys that meet in one bucket */
    uint64_t random;
    uint32_t climb; /* steps up the trees that the present request may still take */
    uint32_t newest; /* the last page of the newest prompt */
    uint32_t orphans; /* pages in memory that no match reaches */
    /* the page before the last one that was evicted, if both were used alike, and its life then */
    uint32_t next_leaf, next_leaf_life;
    uint32_t undrawn_left; /* how many more of them may leave without a draw */
    uint64_t stored, next_slice; /* pages */
    /* pages stored in this round by clients that do not say which page is before which, less all other pages */
    int64_t promptless_stores;
    uint32_t slice, full_pages; /* full_pages: in memory when it was full; 0: it was not */
    uint32_t swept[PT_SLICES]; /* the moments when the slices were added up last */
    uint32_t began, round_ended; /* moments of the first store and of the last round's end */
    bool learned;
    pt_returns returns;
    pt_shadow shadow;
    pt_ghosts ghosts;
    pt_keeps keeps;
} pt_cadence;

static inline void pt_cadence_destroy(pt_cadence *c)
{
    if (!c)
        return;
    free(c->leaves);
    pt_shadow_end(&c->shadow);
    pt_ghosts_end(&c->ghosts);
    free(c);
}

/* Resumes from what an earlier daemon saved, if anything. */
static inline void pt_cadence_resume(pt_cadence *c, uint32_t now)
{
    if (!pt_learned_restore(c->saved, &c->returns))
        return;
    c->full_pages = (uint32_t)(c->saved->full_pages < c->entries ? c->saved->full_pages : c->entries);
    c->learned = c->full_pages;
    if (c->learned)
        pt_shadow_resize(&c->shadow, c->full_pages);
    for (uint32_t slice = 0; slice < PT_SLICES; slice++)
        c->swept[slice] = now; /* the time before is part of the tables, or no daemon ran */
}

static inline uint64_t pt_mixed(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Returns NULL if memory is short. */
static inline pt_cadence *pt_cadence_create(const pt_view *v, uint64_t seed, uint64_t now)
{
    pt_cadence *c = calloc(1, sizeof *c);
    uint32_t entries = v->entry_count;
    if (!c)
        return NULL;
    *c = (pt_cadence){.entries = entries,
                      .locks = v->locks,
                      .seeds = {seed, pt_mixed(~seed)},
                      .random = seed | 1,
                      .newest = PT_NONE,
                      .next_leaf = PT_NONE};
    pt_returns_begin(&c->returns);
    c->pages = v->histories;
    c->saved = (pt_learned *)v->learned;
    c->leaves = malloc(entries * sizeof *c->leaves);
    bool remembers = pt_ghosts_begin(&c->ghosts, entries);
    bool shadows = pt_shadow_begin(&c->shadow, entries / PT_SHADOW_SHARE + 1);
    if (!c->leaves || !remembers || !shadows) {
        pt_cadence_destroy(c);
        return NULL;
    }
    pt_cadence_resume(c, pt_moment(now));
    return c;
}

/* Returns a hash of a key, for tables that any key may enter. */
static inline uint64_t pt_key_hash(const pt_cadence *c, const uint8_t *key)
{
    return pt_mixed(pt_mixed(pt_key_word(key, 0) ^ c->seeds[0]) + (pt_key_word(key, 1) ^ c->seeds[1]));
}

/* ---- times ---- */

/* Returns the seconds between two moments, of which the first is the earlier one. */
static inline float pt_seconds_between(uint32_t from, uint32_t to) { return (float)(uint32_t)(to - from) / 1024; }

static inline uint64_t pt_tick_of(const pt_cadence *c, uint32_t entry)
{
    return atomic_load_explicit(&c->locks[entry].tick, memory_order_relaxed);
}

/* Returns the step of a hint's time to live. */
static inline uint8_t pt_lasts(uint64_t ttl_ns)
{
    uint8_t lasts = 0;
    while (lasts < PT_LASTS_MOST && (1000000000ull << lasts) < ttl_ns)
        lasts++;
    return lasts;
}

/* Returns the class of a page at a moment: a hint that has expired does not count any more. */
static inline uint16_t pt_class_in_force(const pt_cadence_page *p, uint32_t now)
{
    bool expired = pt_hint_of_class(p->class) && pt_seconds_between(p->seen, now) > (float)(1u << p->lasts);
    return expired ? pt_class_with(p->class, PT_HINT_NONE) : p->class;
}

/* ---- the trees ---- */

static inline void pt_leaf_add(pt_cadence *c, uint32_t entry)
{
    c->pages[entry].place = c->leaf_count;
    c->leaves[c->leaf_count++] = entry;
}

static inline void pt_leaf_remove(pt_cadence *c, uint32_t entry)
{
    uint32_t at = c->pages[entry].place, last = c->leaves[--c->leaf_count];
    c->leaves[at] = last;
    c->pages[last].place = at;
    c->pages[entry].place = PT_NONE;
}

/* Returns the page before this one in its prompt, or PT_NONE if it is not known or left all tiers. */
static inline uint32_t pt_parent_of(const pt_cadence *c, uint32_t entry)
{
    return pt_history_parent(c->pages, entry);
}

/* Returns whether the page before it left all tiers: then no match reaches it. */
static inline bool pt_is_orphan(const pt_cadence *c, uint32_t entry)
{
    return c->pages[entry].parent != PT_NONE && pt_parent_of(c, entry) == PT_NONE;
}

static inline void pt_child_enters(pt_cadence *c, uint32_t parent)
{
    pt_cadence_page *p = &c->pages[parent];
    if (!p->children++ && p->place != PT_NONE)
        pt_leaf_remove(c, parent);
}

static inline void pt_child_leaves(pt_cadence *c, uint32_t parent)
{
    pt_cadence_page *p = &c->pages[parent];
    if (!--p->children && p->in_memory)
        pt_leaf_add(c, parent);
}

/* Climbs from `below` and returns whether `entry` is above it in its tree, or may be: a request takes a limited number
 * of steps, which this spends. */
static inline bool pt_climb_to(pt_cadence *c, uint32_t entry, uint32_t below)
{
    while (below != PT_NONE && below != entry && c->climb) {
        below = pt_parent_of(c, below);
        c->climb--;
    }
    return below != PT_NONE;
}

/* Records which page comes before this one. A client may say that two pages are before each other: the second link is
 * ignored, because pages in a circle are no leaves and would never leave. */
static inline void pt_cadence_link(pt_cadence *c, uint32_t entry, uint32_t parent)
{
    pt_cadence_page *p = &c->pages[entry];
    if (parent == PT_NONE || parent == entry || pt_parent_of(c, entry) != PT_NONE)
        return;
    if (p->named && pt_climb_to(c, entry, parent))
        return;
    c->orphans -= p->in_memory && pt_is_orphan(c, entry);
    c->pages[parent].named = true;
    p->parent = parent;
    p->parent_life = c->pages[parent].life;
    if (p->in_memory)
        pt_child_enters(c, parent);
}

/* The page's bytes enter the arena. */
static inline void pt_cadence_enter(pt_cadence *c, uint32_t entry)
{
    pt_cadence_page *p = &c->pages[entry];
    p->in_memory = true;
    c->orphans += pt_is_orphan(c, entry);
    if (!p->children)
        pt_leaf_add(c, entry);
    if (pt_parent_of(c, entry) != PT_NONE)
        pt_child_enters(c, p->parent);
}

/* The page is not kept any more. */
static inline void pt_cadence_unkeep(pt_cadence *c, uint32_t entry, uint32_t frames)
{
    pt_cadence_page *p = &c->pages[entry];
    if (p->keep)
        c->keeps.records[p->keep].frames -= frames;
    p->keep = 0;
}

/* The page's bytes leave the arena. */
static inline void pt_cadence_leave(pt_cadence *c, uint32_t entry)
{
    pt_cadence_page *p = &c->pages[entry];
    p->in_memory = false;
    c->orphans -= pt_is_orphan(c, entry);
    if (p->place != PT_NONE)
        pt_leaf_remove(c, entry);
    if (pt_parent_of(c, entry) != PT_NONE)
        pt_child_leaves(c, p->parent);
    if (c->newest == entry)
        c->newest = pt_parent_of(c, entry);
}

/* The page left all tiers, and its entry is free. */
static inline void pt_cadence_forget(pt_cadence *c, uint32_t entry, uint64_t hash)
{
    pt_cadence_page *p = &c->pages[entry];
    if (p->in_memory)
        pt_cadence_leave(c, entry);
    if (p->seen)
        pt_ghost_put(&c->ghosts, hash,
                        (pt_ghost){pt_ghost_print(hash), p->seen, p->class, p->cadence, p->uses});
    c->orphans += p->children;
    pt_history_clear(p);
}

/* Derives the trees of all pages in memory from their histories. */
static inline void pt_cadence_derive(pt_cadence *c, pt_entry *entries)
{
    for (uint32_t entry = 0; entry < c->entries; entry++) {
        pt_cadence_page *p = &c->pages[entry];
        p->in_memory = pt_tiers(&entries[entry]) & PT_TIER_MEMORY;
        p->children = p->keep = 0;
        p->place = PT_NONE;
    }
    for (uint32_t entry = 0; entry < c->entries; entry++) {
        uint32_t parent = pt_parent_of(c, entry);
        if (parent == PT_NONE)
            continue;
        c->pages[parent].named = true;
        c->pages[parent].children += c->pages[entry].in_memory;
    }
    for (uint32_t entry = 0; entry < c->entries; entry++) {
        c->orphans += c->pages[entry].in_memory && pt_is_orphan(c, entry);
        if (c->pages[entry].in_memory && !c->pages[entry].children)
            pt_leaf_add(c, entry);
    }
}
