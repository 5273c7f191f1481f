/* page.h - the properties of a page as functions of its id: key, size, parts, namespace and all bytes.
 *
 * The keys are difficult ones. The pages of a cluster have one home, so that most are displaced and move
 * all the time (the first cluster lies around the end of the table). They have only five tags, so that
 * readers often pin and compare the wrong page. Yet no window overflows, in whatever order keys come.
 * (dictionary.c tests dictionaries that overflow.) */
#pragma once

#include "report.h"

#define FRAME 4096u
#define PAGE_MAX (3u * FRAME)
#define SPACES 3u
#define CLUSTERS 4u
#define IDS 132u /* the pages that all clients write and read: ids 1..IDS */
#define KEPT 8u /* promises of the keeper, each for one of its own KEPT_IDS pages, ids from KEPT_BASE on */
#define KEPT_IDS 8u
#define KEPT_BASE 1000u
_Static_assert((IDS + KEPT * KEPT_IDS) / CLUSTERS <= PT_WINDOW * PT_BUCKET_SLOTS, "no window overflows");

static inline uint64_t page_chance(uint32_t id, uint32_t salt)
{
    rng r = {(uint64_t)id << 32 | salt};
    return rng_next(&r);
}

static inline void page_key(uint32_t id, uint8_t *key)
{
    uint64_t home = id % CLUSTERS * PT_WINDOW - 3;
    uint64_t words[4] = {home, page_chance(id, 2) % 5, page_chance(id, 3), id};
    memcpy(key, words, PT_KEY_BYTES);
}

static inline uint32_t page_id(const uint8_t *key) { return (uint32_t)pt_key_word(key, 3); }

static inline uint64_t page_size(uint32_t id)
{
    uint64_t chance = page_chance(id, 5);
    return 8 * (1 + chance % (chance >> 60 < 13 ? 32 : PAGE_MAX / 8));
}

static inline uint32_t page_parts(uint32_t id) { return id >= KEPT_BASE ? 1 : 1 + id % 3; }
static inline uint32_t page_space(uint32_t id) { return page_chance(id, 6) % SPACES; }

/* Draws a page with so many parts from the common ones. */
static inline uint32_t page_with_parts(rng *r, uint32_t parts)
{
    return 3 * (1 + rng_below(r, IDS / 3 - 1)) + parts - 1;
}

/* Returns where a part's bytes begin; they end where the next part's begin. */
static inline uint64_t page_part_at(uint32_t id, uint32_t part)
{
    return page_size(id) / 8 * part / page_parts(id) * 8;
}

/* Each word names its page and its position, so that foreign bytes can be identified. */
static inline uint64_t page_word(uint32_t id, uint64_t at) { return (uint64_t)id << 32 | at; }

static inline void page_fill(uint8_t *memory, uint32_t id, uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at += 8) {
        uint64_t word = page_word(id, at);
        memcpy(memory + at, &word, 8);
    }
}

static inline void page_expect(const uint8_t *memory, uint32_t id, uint64_t bytes)
{
    for (uint64_t at = 0, word; at < bytes; at += 8) {
        memcpy(&word, memory + at, 8);
        if (word != page_word(id, at))
            finding("page %u, byte %lu: contains byte %lu of page %lu", id, (unsigned long)at,
                    (unsigned long)(word & 0xffffffff), (unsigned long)(word >> 32));
    }
}

/* Copies the beginning of a pinned page out of the arena, and expects exactly its bytes. */
static inline void page_verify(const pt_view *v, uint32_t entry, uint32_t id, uint64_t bytes, uint8_t *memory)
{
    pt_job job = {entry, memory, 0, bytes};
    if (!pt_job_fits(v, &job))
        finding("page %u: it is not in the frames of entry %u", id, entry);
    pt_copy(v, &job, 1, PT_OUT_OF_ARENA, 1);
    page_expect(memory, id, bytes);
}

/* Writes granted bytes: first bytes that belong to no page, so that a client that reads too early sees them. */
static inline void page_write_range(const pt_view *v, uint32_t entry, uint32_t id, uint64_t from, uint64_t to,
                                    uint8_t *memory)
{
    pt_job job = {entry, memory + from, from, to - from};
    memset(memory + from, 0xee, to - from);
    pt_copy(v, &job, 1, PT_INTO_ARENA, 1);
    page_fill(memory, id, from, to);
    pt_copy(v, &job, 1, PT_INTO_ARENA, 1);
}

static inline void page_write(const pt_view *v, uint32_t entry, uint32_t id, uint32_t part, uint8_t *memory)
{
    page_write_range(v, entry, id, page_part_at(id, part), page_part_at(id, part + 1), memory);
}

/* Writes a whole page, as the disk's worker does. */
static inline void page_write_whole(const pt_view *v, uint32_t entry, uint32_t id, uint8_t *memory)
{
    page_write_range(v, entry, id, 0, page_size(id), memory);
}
