/* slot_tables.h - checks the tokens and blocks that the pages of a transfer use, before there are frames for it. */
#pragma once

#include "copy_tables.h"

#include <stdlib.h>

enum pt_slots_flaw { PT_SLOTS_SOUND, PT_SLOTS_OUTSIDE_PAGE, PT_SLOTS_OUTSIDE_TABLE };

/* Checks that all tokens lie within pages of `page_tokens` tokens, and those that are
 * copied within the table of blocks. */
static inline enum pt_slots_flaw pt_slots_flaw(const pt_transfer *t, int64_t page_tokens)
{
    int64_t tokens;
    if (__builtin_mul_overflow(t->block_count, t->block_tokens, &tokens))
        tokens = INT64_MAX;
    for (int64_t i = 0; i < t->page_count; i++) {
        const pt_tokens *p = &t->pages[i];
        if (p->first < 0 || p->end < p->first || p->end > page_tokens)
            return PT_SLOTS_OUTSIDE_PAGE;
        if (!pt_tokens_empty(t, i) && (p->position < -p->first || p->position > tokens - p->end))
            return PT_SLOTS_OUTSIDE_TABLE;
    }
    return PT_SLOTS_SOUND;
}

/* The tokens of a page in the table of blocks. */
typedef struct {
    int64_t from, to;
} pt_slot_range;

static inline int pt_range_order(const void *one, const void *other)
{
    int64_t a = ((const pt_slot_range *)one)->from, b = ((const pt_slot_range *)other)->from;
    return (a > b) - (a < b);
}

/* Writes the tokens of all pages that are copied, in their order in the table, and returns how many pages these are.
 * The caller guarantees that pt_slots_flaw() has found nothing, and room for all pages. */
static inline int64_t pt_slot_ranges(const pt_transfer *t, pt_slot_range *ranges)
{
    int64_t count = 0;
    bool in_order = true;
    for (int64_t i = 0; i < t->page_count; i++) {
        const pt_tokens *p = &t->pages[i];
        if (pt_tokens_empty(t, i))
            continue;
        ranges[count] = (pt_slot_range){p->position + p->first, p->position + p->end};
        in_order &= !count || ranges[count - 1].from <= ranges[count].from;
        count++;
    }
    if (!in_order)
        qsort(ranges, (size_t)count, sizeof *ranges, pt_range_order);
    return count;
}

/* Returns whether all blocks that the pages use are in 0 .. blocks-1. *block is the highest of them, -1 if there is
 * none; after false it is one that does not exist. */
static inline bool pt_blocks_exist(const pt_transfer *t, const pt_slot_range *ranges, int64_t count, int64_t blocks,
                                   int64_t *block)
{
    int64_t highest = *block = -1;
    for (int64_t i = 0; i < count; i++)
        for (int64_t at = ranges[i].from / t->block_tokens; at <= (ranges[i].to - 1) / t->block_tokens; at++) {
            *block = t->blocks[at];
            if (*block < 0 || *block >= blocks)
                return false;
            highest = *block > highest ? *block : highest;
        }
    *block = highest;
    return true;
}

/* Returns whether two pages have a token in common. */
static inline bool pt_ranges_overlap(const pt_slot_range *ranges, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (ranges[i].from < ranges[i - 1].to)
            return true;
    return false;
}

/* Returns a block that is at two places of the table which the pages use, -1 if there is none.
 * The pages do not overlap, but two may share a place, and all blocks exist. `seen` has a bit for
 * each block up to the highest, all clear. */
static inline int64_t pt_repeated_block(const pt_transfer *t, const pt_slot_range *ranges, int64_t count, uint8_t *seen)
{
    int64_t last = -1;
    for (int64_t i = 0; i < count; i++)
        for (int64_t at = ranges[i].from / t->block_tokens; at <= (ranges[i].to - 1) / t->block_tokens; at++) {
            int64_t block = t->blocks[at];
            if (at == last)
                continue;
            if (seen[block / 8] & 1 << block % 8)
                return block;
            seen[block / 8] |= (uint8_t)(1 << block % 8);
            last = at;
        }
    return -1;
}
