/* ghosts.h - what is remembered of pages that left: enough to know them when they return, and to learn that they did.
 *
 * A table of sets with four records each. A new record replaces the one in its set that was seen least recently. Two
 * keys differ by 32 bits of a hash: a mistake costs a wrong guess about one page. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "../huge_table.h"

#define PT_GHOST_WAYS 4u
#define PT_GHOST_A_PAGE 4u
#define PT_GHOST_BYTES (64u << 20)

typedef struct {
    uint32_t print; /* of the key */
    uint32_t seen; /* 0: no record */
    uint16_t class;
    uint8_t cadence, uses;
} pt_ghost;

typedef struct {
    pt_ghost *pages;
    uint32_t sets;
} pt_ghosts;

/* Returns false if memory is short. */
static inline bool pt_ghosts_begin(pt_ghosts *d, uint32_t entries)
{
    uint64_t records = (uint64_t)entries * PT_GHOST_A_PAGE, most = PT_GHOST_BYTES / sizeof *d->pages;
    d->sets = (uint32_t)((records < most ? records : most) / PT_GHOST_WAYS);
    d->pages = calloc((size_t)d->sets * PT_GHOST_WAYS, sizeof *d->pages);
    pt_advise_huge(d->pages, (size_t)d->sets * PT_GHOST_WAYS * sizeof *d->pages);
    return d->pages != NULL;
}

static inline void pt_ghosts_end(pt_ghosts *d) { free(d->pages); }

static inline uint32_t pt_ghost_set(const pt_ghosts *d, uint64_t hash)
{
    return (uint32_t)((hash & UINT32_MAX) * d->sets >> 32);
}

/* Prefetches the set of a page, which may lie in two cache lines. */
static inline void pt_ghost_prefetch(const pt_ghosts *d, uint64_t hash)
{
    const pt_ghost *set = &d->pages[(size_t)pt_ghost_set(d, hash) * PT_GHOST_WAYS];
    __builtin_prefetch(set, 1, 3);
    __builtin_prefetch((const char *)(set + PT_GHOST_WAYS) - 1, 1, 3);
}

static inline uint32_t pt_ghost_print(uint64_t hash) { return (uint32_t)(hash >> 32); }

/* Returns the record of a page, or NULL. */
static inline pt_ghost *pt_ghost_find(const pt_ghosts *d, uint64_t hash)
{
    pt_ghost *set = &d->pages[(size_t)pt_ghost_set(d, hash) * PT_GHOST_WAYS];
    for (uint32_t i = 0; i < PT_GHOST_WAYS; i++)
        if (set[i].seen && set[i].print == pt_ghost_print(hash))
            return &set[i];
    return NULL;
}

/* Returns whether a record was seen before another one, or is none. Moments wrap around (history.h). */
static inline bool pt_ghost_is_older(const pt_ghost *one, const pt_ghost *other)
{
    return other->seen && (!one->seen || (int32_t)(one->seen - other->seen) < 0);
}

static inline void pt_ghost_put(pt_ghosts *d, uint64_t hash, pt_ghost page)
{
    pt_ghost *set = &d->pages[(size_t)pt_ghost_set(d, hash) * PT_GHOST_WAYS];
    pt_ghost *to = pt_ghost_find(d, hash);
    for (uint32_t i = to ? PT_GHOST_WAYS : 0; i < PT_GHOST_WAYS; i++)
        to = !to || pt_ghost_is_older(&set[i], to) ? &set[i] : to;
    *to = page;
}
