/* copy_tables.h - the tables of a transfer between a strided KV cache and pages in the arena, and their validation.
 *
 * A plane is K or V (or both, a latent, scales, an opaque state) of one layer: rows of `width` bytes for
 * each block, token of the block and head. In the page, consecutive tokens are `width` bytes apart and
 * consecutive heads `page_head` bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t base;               /* address of block 0, token 0, first head of this rank */
    int64_t block, token, head; /* strides in the cache */
    int64_t at; /* offset in the page of the first head of this rank */
    int64_t page_head; /* stride in the page from head to head */
    int64_t heads, width; /* what is copied: `heads` heads of `width` bytes for each token */
} pt_plane;

/* Tokens [first, end) of a page. Its token 0 is token `position` of the flat table of blocks. `position` is negative
 * if the page begins before the table. */
typedef struct {
    int64_t position, first, end;
} pt_tokens;

typedef struct {
    uint8_t *arena;
    uint64_t frame_bytes, frame_count;
    uint64_t page_bytes; /* planes must lie within it */
    const uint32_t *frames; /* a row of `page_frames` frames for each page */
    uint64_t page_frames;
    const pt_plane *planes;
    const pt_tokens *pages;
    const int32_t *blocks;
    const uint8_t *skip; /* 1: skip this page; NULL: copy all pages */
    int64_t plane_count, page_count, block_count;
    int64_t block_tokens;
} pt_transfer;

/* An error in a table, printed as "TABLE ROW: WHY", without the row if it is negative. */
typedef struct {
    const char *table, *why;
    int64_t row;
} pt_flaw;

static inline bool pt_tokens_empty(const pt_transfer *t, int64_t page)
{
    return (t->skip && t->skip[page]) || t->pages[page].first == t->pages[page].end;
}

static inline uint64_t pt_plane_row(const pt_plane *p) { return (uint64_t)p->heads * (uint64_t)p->width; }

static inline const char *pt_frames_flaw(const pt_transfer *t, int64_t page)
{
    for (uint64_t i = 0; t->frames && i < t->page_frames; i++)
        if (t->frames[(uint64_t)page * t->page_frames + i] >= t->frame_count)
            return "a frame lies outside the arena";
    return NULL;
}

/* Checks the blocks of a page and raises *highest to their largest number. */
static inline const char *pt_blocks_flaw(const pt_transfer *t, int64_t page, int64_t *highest)
{
    const pt_tokens *p = &t->pages[page];
    int64_t from, to;
    if (__builtin_add_overflow(p->position, p->first, &from) || __builtin_add_overflow(p->position, p->end, &to))
        return "a position beyond 64 bits";
    if (from < 0)
        return "begins before the table of blocks";
    if ((to - 1) / t->block_tokens >= t->block_count)
        return "ends behind the table of blocks";
    for (int64_t i = from / t->block_tokens; i <= (to - 1) / t->block_tokens; i++) {
        if (t->blocks[i] < 0)
            return "uses a block with a negative number";
        *highest = t->blocks[i] > *highest ? t->blocks[i] : *highest;
    }
    return NULL;
}

static inline const char *pt_page_flaw(const pt_transfer *t, int64_t page, int64_t *highest)
{
    const pt_tokens *p = &t->pages[page];
    if (p->first < 0)
        return "the first token is negative";
    if (p->end < p->first)
        return "ends before its first token";
    if (pt_tokens_empty(t, page))
        return NULL;
    const char *why = pt_frames_flaw(t, page);
    return why ? why : pt_blocks_flaw(t, page, highest);
}

/* Checks a plane against the page. At most the first `end` tokens of a page are copied. */
static inline const char *pt_plane_page_flaw(const pt_transfer *t, const pt_plane *p, int64_t end)
{
    int64_t run, heads, limit;
    if (p->heads < 1 || p->width < 1)
        return "heads and width are at least 1";
    if (p->at < 0 || p->page_head < 0)
        return "at and page_head are not negative";
    if (__builtin_mul_overflow(end, p->width, &run) || __builtin_mul_overflow(p->heads - 1, p->page_head, &heads) ||
        __builtin_add_overflow(p->at, heads, &limit) || __builtin_add_overflow(limit, run, &limit))
        return "its bytes in the page exceed 64 bits";
    if (p->heads > 1 && p->page_head < run)
        return "its heads overlap in the page";
    return end && (uint64_t)limit > t->page_bytes ? "reaches beyond the page" : NULL;
}

/* Adds steps * stride to the lowest or highest address of a plane. Returns true if that overflows. */
static inline bool pt_stretch(int64_t steps, int64_t stride, int64_t *low, int64_t *high)
{
    int64_t far, *side = stride < 0 ? low : high;
    return __builtin_mul_overflow(steps, stride, &far) || __builtin_add_overflow(*side, far, side);
}

/* Checks a plane against memory; `highest` is the largest number of a block that is used. */
static inline const char *pt_plane_cache_flaw(const pt_transfer *t, const pt_plane *p, int64_t highest)
{
    int64_t low = p->base, high = p->base;
    if (pt_stretch(highest, p->block, &low, &high) || pt_stretch(t->block_tokens - 1, p->token, &low, &high) ||
        pt_stretch(p->heads - 1, p->head, &low, &high) || __builtin_add_overflow(high, p->width, &high))
        return "its addresses in the cache exceed 64 bits";
    return low < 1 ? "its addresses in the cache are invalid" : NULL;
}

/* Checks everything that can be checked before a byte is copied. `why` of the result is NULL if the
 * tables are valid. The caller guarantees that the tables are as long as the transfer says, and checks
 * the frames itself if t->frames is NULL. */
static inline pt_flaw pt_transfer_flaw(const pt_transfer *t)
{
    int64_t highest = -1, end = 0;
    const char *why = NULL;
    if (t->block_tokens < 1)
        return (pt_flaw){"block_tokens", "at least 1", -1};
    for (int64_t i = 0; i < t->page_count; i++) {
        if ((why = pt_page_flaw(t, i, &highest)))
            return (pt_flaw){"pages", why, i};
        if (!pt_tokens_empty(t, i) && t->pages[i].end > end)
            end = t->pages[i].end;
    }
    for (int64_t i = 0; i < t->plane_count; i++) {
        why = pt_plane_page_flaw(t, &t->planes[i], end);
        if (!why && highest >= 0)
            why = pt_plane_cache_flaw(t, &t->planes[i], highest);
        if (why)
            return (pt_flaw){"planes", why, i};
    }
    return (pt_flaw){NULL, NULL, -1};
}
