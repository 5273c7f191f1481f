/* lru.h - exact least recently used: a four-way heap by tick.
 *
 * A list would be exact only if every use moved its entry, and uses are not reported. With a heap the evictor takes
 * the smallest listed tick, reads the true one and sinks the entry to its place. As no listed tick is later than the
 * true one, an entry whose two ticks agree is the coldest of all. Four children are 48 bytes, so sinking through a
 * million entries costs 15 cache lines. */
#pragma once

#include <stdlib.h>

#include "eviction_policy.h"
#include "huge_table.h"

typedef struct __attribute__((packed, aligned(4))) {
    uint64_t tick;
    uint32_t entry;
} pt_lru_item;
_Static_assert(sizeof(pt_lru_item) == 12, "with the list of its leaves a page costs at most 96 bytes in all lists");

struct pt_policy {
    uint32_t count, entries;
    bool is_sibling; /* another policy owns `place` */
    uint32_t *place; /* position of each entry in its heap, PT_NONE if it is not listed */
    /* the heap begins at the fourth item, so that the children of half the items share a cache line */
    pt_lru_item *memory, *heap;
};

static inline void pt_lru_set(pt_policy *p, uint32_t at, pt_lru_item item)
{
    p->heap[at] = item;
    p->place[item.entry] = at;
}

static inline void pt_lru_rise(pt_policy *p, uint32_t at, pt_lru_item item)
{
    for (uint32_t parent; at && p->heap[parent = (at - 1) / 4].tick > item.tick; at = parent)
        pt_lru_set(p, at, p->heap[parent]);
    pt_lru_set(p, at, item);
}

static inline uint32_t pt_lru_least_child(const pt_policy *p, uint32_t at)
{
    uint32_t first = 4 * at + 1, least = first;
    for (uint32_t child = first + 1; child < first + 4 && child < p->count; child++)
        if (p->heap[child].tick < p->heap[least].tick)
            least = child;
    return least;
}

static inline void pt_lru_sink(pt_policy *p, uint32_t at, pt_lru_item item)
{
    for (uint32_t child; (child = 4 * at + 1) < p->count; at = child) {
        for (uint32_t i = 0; i < 16 && 4 * child + 1 + i < p->count; i += 5) /* the children of all children */
            pt_prefetch_write(&p->heap[4 * child + 1 + i]);
        child = pt_lru_least_child(p, at);
        if (p->heap[child].tick >= item.tick)
            break;
        pt_lru_set(p, at, p->heap[child]);
    }
    pt_lru_set(p, at, item);
}

static inline void pt_lru_move(pt_policy *p, uint32_t at, pt_lru_item item)
{
    if (at && p->heap[(at - 1) / 4].tick > item.tick)
        pt_lru_rise(p, at, item);
    else
        pt_lru_sink(p, at, item);
}

static void pt_lru_destroy(pt_policy *p)
{
    free(p->memory);
    if (!p->is_sibling)
        free(p->place);
    free(p);
}

static pt_policy *pt_lru_create(uint32_t entries, pt_policy *sibling)
{
    pt_policy *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->entries = entries;
    p->is_sibling = sibling;
    p->place = sibling ? sibling->place : malloc(entries * sizeof *p->place);
    p->memory = aligned_alloc(64, (entries / 16 + 2) * 16 * sizeof *p->memory);
    if (!p->place || !p->memory) {
        pt_lru_destroy(p);
        return NULL;
    }
    pt_advise_huge(p->place, sibling ? 0 : entries * sizeof *p->place);
    pt_advise_huge(p->memory, (entries / 16 + 2) * 16 * sizeof *p->memory);
    p->heap = p->memory + 3;
    if (!sibling)
        memset(p->place, 0xff, entries * sizeof *p->place);
    return p;
}

static void pt_lru_add(pt_policy *p, uint32_t entry, uint64_t tick)
{
    pt_lru_rise(p, p->count++, (pt_lru_item){tick, entry});
}

static void pt_lru_remove(pt_policy *p, uint32_t entry)
{
    uint32_t at = p->place[entry];
    pt_lru_item last = p->heap[--p->count];
    p->place[entry] = PT_NONE;
    if (last.entry != entry)
        pt_lru_move(p, at, last);
}

static void pt_lru_used(pt_policy *p, uint32_t entry, uint64_t tick)
{
    pt_lru_move(p, p->place[entry], (pt_lru_item){tick, entry});
}

static uint32_t pt_lru_coldest(const pt_policy *p, uint64_t *tick)
{
    if (!p->count)
        return PT_NONE;
    *tick = p->heap[0].tick;
    return p->heap[0].entry;
}

static uint64_t pt_lru_listed(const pt_policy *p, uint32_t entry) { return p->heap[p->place[entry]].tick; }

/* Walks a subtree of the heap. No entry below another one is colder, so the walk ends at
 * the first entry that is too warm. */
static bool pt_lru_walk_from(const pt_policy *p, uint32_t at, uint64_t before, pt_see *see, void *context)
{
    if (at >= p->count || p->heap[at].tick >= before)
        return true;
    bool more = see(context, p->heap[at].entry);
    for (uint32_t child = 4 * at + 1; more && child <= 4 * at + 4; child++)
        more = pt_lru_walk_from(p, child, before, see, context);
    return more;
}

static void pt_lru_walk(const pt_policy *p, uint64_t before, pt_see *see, void *context)
{
    pt_lru_walk_from(p, 0, before, see, context);
}

static bool pt_lru_lists(const pt_policy *p, uint32_t entry) { return p->place[entry] != PT_NONE; }
static uint32_t pt_lru_count(const pt_policy *p) { return p->count; }

static const char *pt_lru_check(const pt_policy *p)
{
    for (uint32_t at = 0; at < p->count; at++) {
        if (p->place[p->heap[at].entry] != at)
            return "an entry's place in the LRU heap is wrong";
        if (at && p->heap[(at - 1) / 4].tick > p->heap[at].tick)
            return "the LRU heap is out of order";
    }
    return NULL;
}

static const pt_policy_kind pt_lru = {
    .name = "lru",
    .create = pt_lru_create,
    .destroy = pt_lru_destroy,
    .add = pt_lru_add,
    .remove = pt_lru_remove,
    .used = pt_lru_used,
    .coldest = pt_lru_coldest,
    .listed = pt_lru_listed,
    .walk = pt_lru_walk,
    .lists = pt_lru_lists,
    .count = pt_lru_count,
    .check = pt_lru_check,
};
