/* cadence.h - an eviction policy that learns when pages return.
 *
 * Pages form trees: each knows the page before it in its prompt and how many of those after it are in memory. Only a leaf is
 * evicted, so no page leaves before one that is useless without it. The victim is the leaf with the lowest index
 * (return_times.h) of a few that are drawn at random, and of the newest prompt's own. Nothing is kept sorted: ticks are
 * read at that moment, so readers send no message.
 *
 * It learns from stores: a page of a store's chain that a reader has used since the last one has returned. What was learned
 * of a page stays for a while after it left (departed.h). Where least recently used would hit more, it steps back
 * (shadow_lru.h); before the memory was full once, too.
 *
 * All memory is private to the daemon. After an adoption the trees grow again with the stores. */
#pragma once

#include "../../common/dict.h"
#include "departed.h"
#include "return_times.h"
#include "shadow_lru.h"

#define PT_CANDIDATES 32u
#define PT_SLICES 64u /* the time at risk of one slice of all pages is added up at once, so that no request waits long */
#define PT_DEPARTED_SAMPLE 8u /* of the sets of departed pages, one of so many adds up */
#define PT_MOMENT_NS (1000000000ull / 1024) /* the unit of moments, which wrap around after 48 days */

typedef struct {
    uint32_t parent, parent_life; /* entry, and its life then; PT_NONE: not known, or the first of its prompt */
    uint32_t life; /* changes when the entry is freed */
    uint32_t place; /* among the leaves; PT_NONE if it is not one */
    uint32_t children; /* in memory */
    uint32_t seen; /* the moment when a store last used it; 0: never */
    uint32_t stamped; /* the low bits of its tick then */
    uint8_t class, cadence, uses;
    bool in_memory : 1;
    bool named : 1; /* a page named it as its parent in this life */
} pt_cadence_page;
_Static_assert(sizeof(pt_cadence_page) == 32, "two pages to a cache line");

typedef struct {
    pt_cadence_page *pages;
    uint32_t *leaves, leaf_count, entries;
    pt_lock *locks;
    uint64_t seed; /* of the hash of keys: no client can choose keys that meet in one bucket */
    uint64_t random;
    uint32_t climb; /* steps up the trees that the present request may still take */
    uint32_t newest; /* the last page of the newest prompt */
    uint64_t stored, next_slice; /* pages */
    uint32_t slice, full_pages; /* full_pages: in memory when it was full; 0: it was not */
    uint32_t swept[PT_SLICES]; /* the moments when the slices were added up last */
    uint32_t began, round_ended; /* moments of the first store and of the last round's end */
    bool learned;
    pt_returns returns;
    pt_shadow shadow;
    pt_departed departed;
} pt_cadence;

static inline void pt_cadence_destroy(pt_cadence *c)
{
    if (!c)
        return;
    free(c->pages);
    free(c->leaves);
    pt_shadow_end(&c->shadow);
    pt_departed_end(&c->departed);
    free(c);
}

/* Returns NULL if memory is short. */
static inline pt_cadence *pt_cadence_create(uint32_t entries, pt_lock *locks, uint64_t seed)
{
    pt_cadence *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (pt_cadence){.entries = entries, .locks = locks, .seed = seed, .random = seed | 1, .newest = PT_NONE};
    pt_returns_begin(&c->returns);
    c->pages = calloc(entries, sizeof *c->pages);
    c->leaves = malloc(entries * sizeof *c->leaves);
    bool remembers = pt_departed_begin(&c->departed, entries);
    bool shadows = pt_shadow_begin(&c->shadow, entries / PT_SHADOW_SHARE + 1);
    if (!c->pages || !c->leaves || !remembers || !shadows) {
        pt_cadence_destroy(c);
        return NULL;
    }
    for (uint32_t entry = 0; entry < entries; entry++)
        c->pages[entry].parent = c->pages[entry].place = PT_NONE;
    return c;
}

static inline uint64_t pt_mixed(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Returns a hash of a key, for tables that any key may enter. */
static inline uint64_t pt_key_hash(const pt_cadence *c, const uint8_t *key)
{
    return pt_mixed(pt_mixed(pt_key_word(key, 0) ^ c->seed) + (pt_key_word(key, 1) ^ pt_mixed(~c->seed)));
}

/* ---- times ---- */

/* Returns the moment of a time; it is never 0. */
static inline uint32_t pt_moment(uint64_t now) { return (uint32_t)(now / PT_MOMENT_NS) | 1; }

/* Returns the seconds between two moments, of which the first is the earlier one. */
static inline float pt_seconds_between(uint32_t from, uint32_t to) { return (float)(uint32_t)(to - from) / 1024; }

static inline uint64_t pt_tick_of(const pt_cadence *c, uint32_t entry)
{
    return atomic_load_explicit(&c->locks[entry].tick, memory_order_relaxed);
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
    const pt_cadence_page *p = &c->pages[entry];
    return p->parent != PT_NONE && c->pages[p->parent].life == p->parent_life ? p->parent : PT_NONE;
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

/* Returns whether `entry` is above `below` in its tree, or may be: a request takes a limited number of steps. */
static inline bool pt_may_be_above(pt_cadence *c, uint32_t entry, uint32_t below)
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
    if (p->named && pt_may_be_above(c, entry, parent))
        return;
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
    if (!p->children)
        pt_leaf_add(c, entry);
    if (pt_parent_of(c, entry) != PT_NONE)
        pt_child_enters(c, p->parent);
}

/* The page's bytes leave the arena. */
static inline void pt_cadence_leave(pt_cadence *c, uint32_t entry)
{
    pt_cadence_page *p = &c->pages[entry];
    p->in_memory = false;
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
        pt_departed_put(&c->departed, hash,
                        (pt_departed_page){pt_departed_print(hash), p->seen, p->class, p->cadence, p->uses, 0});
    *p = (pt_cadence_page){.parent = PT_NONE, .place = PT_NONE, .life = p->life + 1};
}
