/* page_code.h - compresses pages of 16-bit floats without loss, in blocks of 64 KiB, from frames and into frames.
 *
 * A block is: its mode in one byte, the length of what follows in three, and that. The mode is 0 for the bytes as they
 * are, or the width of an exponent code, chosen from a sample of the block: nothing needs to know the type of a page. A
 * block that would not save a twentieth is stored raw. Blocks follow each other, and zeros may follow the last one. */
#pragma once

#include "exponent_code_avx2.h"

#define PT_BLOCK_BYTES 65536u
#define PT_BLOCK_HEAD_BYTES 4u
#define PT_LEAST_SAVING 20u /* a block or a page must become shorter by one part of so many */
#define PT_BASES_TRIED 4u   /* of a column, for codes of 3 bits: the largest values of a column are often few */
#define PT_SAMPLE_BYTES ((PT_BLOCK_BYTES / PT_GROUP_BYTES * 2 / PT_SAMPLED_ROWS + 1) * PT_COLUMNS)

/* A frame, or a part of one. */
typedef struct {
    uint8_t *at;
    uint64_t bytes;
} pt_piece;

/* A page: the first `bytes` bytes of its frames, which have at least as many. */
typedef struct {
    const pt_piece *frames;
    uint64_t bytes;
} pt_framed_page;

/* Where a page is read or written. */
typedef struct {
    const pt_piece *frame;
    uint64_t offset;
} pt_page_place;

/* How a block is coded, and the bytes that this is expected to take. Width 0: raw. */
typedef struct {
    uint32_t width, bytes;
    uint8_t bases[PT_COLUMNS];
} pt_block_plan;

static inline uint64_t pt_most_bytes(uint64_t bytes) { return bytes - bytes / PT_LEAST_SAVING; }

static inline void pt_set_bases(const uint8_t *highest, uint32_t below, uint8_t *bases)
{
    for (uint32_t c = 0; c < PT_COLUMNS; c++)
        bases[c] = (uint8_t)(highest[c] > below ? highest[c] - below : 0);
}

/* Takes over a width into the plan if it is expected to need fewer bytes. */
static inline void pt_consider(const pt_exponent_coder *coder, enum pt_width width, const uint8_t *sample,
                               uint32_t rows, const uint8_t *highest, uint32_t groups, pt_block_plan *plan)
{
    uint8_t least[PT_COLUMNS], misses[PT_COLUMNS], bases[PT_COLUMNS], best[PT_COLUMNS] = {0};
    uint8_t span = (1u << width) - 2;
    uint32_t total = 0, tried = width == PT_WIDTH_3 ? PT_BASES_TRIED : 1;
    memset(least, 255, sizeof least);
    for (uint32_t below = span; below < span + tried; below++) {
        pt_set_bases(highest, below, bases);
        coder->misses(sample, rows, bases, span, misses);
        for (uint32_t c = 0; c < PT_COLUMNS; c++) {
            best[c] = misses[c] < least[c] ? bases[c] : best[c];
            least[c] = misses[c] < least[c] ? misses[c] : least[c];
        }
    }
    for (uint32_t c = 0; c < PT_COLUMNS; c++)
        total += least[c];
    uint32_t bytes = pt_code_bytes(width, groups) + total * PT_SAMPLED_ROWS;
    if (bytes < plan->bytes) {
        *plan = (pt_block_plan){.width = width, .bytes = bytes};
        memcpy(plan->bases, best, sizeof best);
    }
}

static inline pt_block_plan pt_plan_block(const pt_exponent_coder *coder, const uint8_t *block, uint32_t bytes)
{
    uint8_t highest[PT_COLUMNS], sample[PT_SAMPLE_BYTES];
    pt_block_plan plan = {.bytes = (uint32_t)pt_most_bytes(bytes)};
    uint32_t groups = bytes / PT_GROUP_BYTES;
    if (!groups || bytes % PT_GROUP_BYTES)
        return plan;
    coder->highest(block, groups, highest);
    uint32_t rows = coder->sample(block, groups, sample);
    pt_consider(coder, PT_WIDTH_3, sample, rows, highest, groups, &plan);
    pt_consider(coder, PT_WIDTH_4, sample, rows, highest, groups, &plan);
    pt_consider(coder, PT_WIDTH_6, sample, rows, highest, groups, &plan);
    return plan;
}

static inline void pt_write_head(uint8_t *out, uint32_t mode, uint64_t bytes)
{
    uint32_t head = mode | (uint32_t)bytes << 8;
    memcpy(out, &head, sizeof head);
}

/* Writes a block and returns its end, NULL if there is no room. */
static inline uint8_t *pt_compress_block(const pt_exponent_coder *coder, const uint8_t *block, uint32_t bytes,
                                         uint8_t *out, uint64_t room)
{
    const pt_block_plan plan = pt_plan_block(coder, block, bytes);
    uint8_t *begin = out + PT_BLOCK_HEAD_BYTES, *end = NULL;
    if (plan.width && room >= PT_BLOCK_HEAD_BYTES + PT_COLUMNS) {
        uint64_t left = room - PT_BLOCK_HEAD_BYTES, most = pt_most_bytes(bytes) < left ? pt_most_bytes(bytes) : left;
        memcpy(begin, plan.bases, PT_COLUMNS);
        end = coder->encode((enum pt_width)plan.width, block, bytes / PT_GROUP_BYTES, begin, begin + most);
    }
    if (end) {
        pt_write_head(out, plan.width, (uint64_t)(end - begin));
        return end;
    }
    if (room < PT_BLOCK_HEAD_BYTES + bytes)
        return NULL;
    pt_write_head(out, 0, bytes);
    memcpy(begin, block, bytes);
    return begin + bytes;
}

/* Copies the next bytes of a page out of its frames, or into them, and moves on. */
enum pt_copy_way { PT_FROM_FRAMES, PT_TO_FRAMES };
static inline void pt_copy_frames(pt_page_place *place, enum pt_copy_way way, uint8_t *memory, uint64_t bytes)
{
    while (bytes) {
        uint64_t left = place->frame->bytes - place->offset, some = bytes < left ? bytes : left;
        uint8_t *at = place->frame->at + place->offset;
        memcpy(way == PT_FROM_FRAMES ? memory : at, way == PT_FROM_FRAMES ? at : memory, some);
        memory += some, bytes -= some, place->offset += some;
        if (place->offset == place->frame->bytes)
            *place = (pt_page_place){place->frame + 1, 0};
    }
}

/* Returns the next bytes of a page where they are, and moves on; NULL if they are in several frames. */
static inline uint8_t *pt_whole_block(pt_page_place *place, uint64_t bytes)
{
    if (place->frame->bytes - place->offset < bytes)
        return NULL;
    uint8_t *block = place->frame->at + place->offset;
    place->offset += bytes;
    if (place->offset == place->frame->bytes)
        *place = (pt_page_place){place->frame + 1, 0};
    return block;
}

/* Compresses a page. Returns the bytes that were written to `out`; 0 if they would be more than `room`. */
static inline uint64_t pt_compress_page(const pt_exponent_coder *coder, const pt_framed_page *page, uint8_t *out,
                                        uint64_t room)
{
    uint8_t gathered[PT_BLOCK_BYTES], *at = out;
    pt_page_place place = {page->frames, 0};
    for (uint64_t left = page->bytes; left;) {
        uint32_t bytes = left < PT_BLOCK_BYTES ? (uint32_t)left : PT_BLOCK_BYTES;
        const uint8_t *block = pt_whole_block(&place, bytes);
        if (!block)
            pt_copy_frames(&place, PT_FROM_FRAMES, gathered, bytes);
        at = pt_compress_block(coder, block ? block : gathered, bytes, at, room - (uint64_t)(at - out));
        if (!at)
            return 0;
        left -= bytes;
    }
    return (uint64_t)(at - out);
}

static inline bool pt_expand_block(const pt_exponent_coder *coder, uint32_t mode, const uint8_t *in, uint64_t coded,
                                   uint8_t *block, uint32_t bytes)
{
    if (mode == 0 && coded == bytes)
        memcpy(block, in, bytes);
    else if ((mode == PT_WIDTH_3 || mode == PT_WIDTH_4 || mode == PT_WIDTH_6) && bytes % PT_GROUP_BYTES == 0)
        return coder->decode((enum pt_width)mode, in, coded, bytes / PT_GROUP_BYTES, block);
    else
        return false;
    return true;
}

/* Fills the frames of a page from what pt_compress_page wrote, and zeros after it. Returns false if `in` has something
 * else. Nothing outside of `in` and of the page is touched, whatever `in` has, also if another process changes it. */
static inline bool pt_expand_page(const pt_exponent_coder *coder, const uint8_t *in, uint64_t length,
                                  const pt_framed_page *page)
{
    uint8_t scattered[PT_BLOCK_BYTES];
    pt_page_place place = {page->frames, 0};
    const uint8_t *end = in + length;
    for (uint64_t left = page->bytes; left;) {
        uint32_t head, bytes = left < PT_BLOCK_BYTES ? (uint32_t)left : PT_BLOCK_BYTES;
        if ((uint64_t)(end - in) < PT_BLOCK_HEAD_BYTES)
            return false;
        memcpy(&head, in, sizeof head);
        in += PT_BLOCK_HEAD_BYTES;
        uint8_t *block = pt_whole_block(&place, bytes);
        if ((uint64_t)(end - in) < head >> 8
            || !pt_expand_block(coder, head & 255, in, head >> 8, block ? block : scattered, bytes))
            return false;
        if (!block)
            pt_copy_frames(&place, PT_TO_FRAMES, scattered, bytes);
        in += head >> 8, left -= bytes;
    }
    for (; in < end; in++)
        if (*in)
            return false;
    return true;
}
