/* copy_strided.h - copies bytes between a strided KV cache and the frames of pages, on a
 * few threads of the calling process. */
#pragma once

#include "copy.h"
#include "copy_tables.h"

/* A few tokens of one head that are contiguous in the cache, as they are in the page. */
typedef struct {
    uint64_t address, bytes;
} pt_run;

#define PT_RUNS 64u
#define PT_HEADS 16 /* heads that are copied together */

/* The next byte of a page in the arena. */
typedef struct {
    const uint32_t *frame;
    uint8_t *at;
    uint64_t left; /* bytes left in this frame */
} pt_cursor;

static inline pt_cursor pt_cursor_at(const pt_transfer *t, int64_t page, uint64_t offset)
{
    const uint32_t *frame = t->frames + (uint64_t)page * t->page_frames + offset / t->frame_bytes;
    uint64_t inside = offset % t->frame_bytes;
    return (pt_cursor){frame, t->arena + *frame * t->frame_bytes + inside, t->frame_bytes - inside};
}

static inline void pt_move(uint8_t *inside, uint8_t *memory, uint64_t bytes, enum pt_direction way)
{
    if (way == PT_OUT_OF_ARENA)
        pt_copy_bytes(memory, inside, bytes);
    else
        pt_copy_bytes(inside, memory, bytes);
}

/* Copies `bytes` bytes of the page from the cursor on, frame by frame, and advances the cursor. */
static inline void pt_cursor_copy(const pt_transfer *t, pt_cursor *c, uint8_t *memory, uint64_t bytes,
                                  enum pt_direction way)
{
    for (; bytes > c->left; c->left = t->frame_bytes) {
        pt_move(c->at, memory, c->left, way);
        memory += c->left;
        bytes -= c->left;
        c->at = t->arena + *++c->frame * t->frame_bytes;
    }
    pt_move(c->at, memory, bytes, way);
    c->at += bytes;
    c->left -= bytes;
}

/* Finds the addresses in the cache of the first head's tokens from *from on, and moves
 * *from behind those that it found. */
static inline uint32_t pt_find_runs(const pt_transfer *t, const pt_plane *p, int64_t position, int64_t *from,
                                    int64_t to, pt_run *runs)
{
    int64_t block = (position + *from) / t->block_tokens, slot = (position + *from) % t->block_tokens;
    bool whole = p->token == p->width; /* the tokens of a block are contiguous */
    uint32_t count = 0;
    for (; *from < to && count < PT_RUNS; block++, slot = 0) {
        int64_t left = t->block_tokens - slot < to - *from ? t->block_tokens - slot : to - *from;
        int64_t step = whole ? left : 1;
        uint64_t address = (uint64_t)(p->base + t->blocks[block] * p->block + slot * p->token);
        for (; left && count < PT_RUNS; left -= step, *from += step, address += (uint64_t)p->token)
            runs[count++] = (pt_run){address, (uint64_t)(step * p->width)};
    }
    return count;
}

/* Copies the runs of `count` heads from `head` on; `offset` is the position in the page of head 0's first run. */
static inline void pt_copy_heads(const pt_transfer *t, const pt_plane *p, int64_t page, uint64_t offset, int64_t head,
                                 int64_t count, const pt_run *runs, uint32_t run_count, enum pt_direction way)
{
    pt_cursor cursors[PT_HEADS];
    for (int64_t i = 0; i < count; i++)
        cursors[i] = pt_cursor_at(t, page, offset + (uint64_t)((head + i) * p->page_head));
    for (uint32_t run = 0; run < run_count; run++)
        for (int64_t i = 0; i < count; i++) {
            uint64_t address = runs[run].address + (uint64_t)((head + i) * p->head);
            pt_cursor_copy(t, &cursors[i], (uint8_t *)(uintptr_t)address, runs[run].bytes, way);
        }
}

/* Copies tokens [from, to) of one plane of a page. If the cache stores rows token by token, the copy goes
 * token by token, a few heads at once: the heads of a token are mostly adjacent there, and the processor
 * prefetches what is accessed sequentially, while scattered rows in the page cost little. (Head by head ran at
 * 0.55 to 0.6 of memcpy's speed, this order at 0.95 to 1.0, both through the caches.) If the cache stores
 * whole blocks of a head, the copy goes head by head. */
static inline void pt_copy_tokens(const pt_transfer *t, const pt_plane *p, int64_t page, int64_t from, int64_t to,
                                  enum pt_direction way)
{
    pt_run runs[PT_RUNS];
    int64_t together = p->token == p->width && t->block_tokens > 1 ? 1 : PT_HEADS;
    while (from < to) {
        uint64_t offset = (uint64_t)(p->at + from * p->width);
        uint32_t count = pt_find_runs(t, p, t->pages[page].position, &from, to, runs);
        for (int64_t head = 0; head < p->heads; head += together) {
            int64_t heads = p->heads - head < together ? p->heads - head : together;
            pt_copy_heads(t, p, page, offset, head, heads, runs, count, way);
        }
    }
}

/* The shared state of the copying threads. Threads take pieces of work until none is left, so a thread that
 * starts late or is delayed does less. A piece is some tokens of one plane of a page. The next piece has the
 * next tokens of the plane, or where `alternate` is set the same tokens of the next plane: a store that reads
 * rows of all planes in turn reads sequentially. A load writes these rows, which costs little wherever they
 * are, and reads the page plane by plane. */
typedef struct {
    const pt_transfer *transfer;
    enum pt_direction way;
    bool alternate;
    int64_t pieces; /* into which each plane of a page is cut */
    pt_a64 next;
} pt_pieces;

static inline void pt_copy_piece(const pt_pieces *w, uint64_t number, enum pt_direction way)
{
    const pt_transfer *t = w->transfer;
    int64_t inner = w->alternate ? t->plane_count : w->pieces, outer = w->alternate ? w->pieces : t->plane_count;
    int64_t fast = (int64_t)number % inner, slow = (int64_t)number / inner % outer;
    int64_t page = (int64_t)number / inner / outer;
    int64_t plane = w->alternate ? fast : slow, piece = w->alternate ? slow : fast;
    if (pt_tokens_empty(t, page))
        return;
    int64_t first = t->pages[page].first, tokens = t->pages[page].end - first;
    PT_POINT("strided.piece");
    pt_copy_tokens(t, &t->planes[plane], page, first + tokens * piece / w->pieces,
                   first + tokens * (piece + 1) / w->pieces, way);
}

static void *pt_copy_pieces(void *given)
{
    pt_pieces *w = given;
    uint64_t all = (uint64_t)(w->transfer->page_count * w->transfer->plane_count * w->pieces), number;
    while ((number = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < all) {
        if (w->way == PT_OUT_OF_ARENA)
            pt_copy_piece(w, number, PT_OUT_OF_ARENA);
        else
            pt_copy_piece(w, number, PT_INTO_ARENA);
    }
    pt_copy_fence();
    return NULL;
}

/* Returns the number of bytes that the transfer copies. */
static inline uint64_t pt_transfer_bytes(const pt_transfer *t)
{
    uint64_t row = 0, tokens = 0;
    for (int64_t i = 0; i < t->plane_count; i++)
        row += pt_plane_row(&t->planes[i]);
    for (int64_t i = 0; i < t->page_count; i++)
        tokens += pt_tokens_empty(t, i) ? 0 : (uint64_t)(t->pages[i].end - t->pages[i].first);
    return row * tokens;
}

#ifndef PT_NEAR /* tests have smaller caches */
#define PT_NEAR (1u << 17) /* bytes of the cache */
#define PT_LEAST (1u << 13) /* bytes of a piece */
#endif

/* Returns whether the rows of other planes lie between the tokens of a plane, and its heads do not. */
static inline bool pt_planes_alternate(const pt_transfer *t)
{
    const pt_plane *p = &t->planes[0];
    return t->plane_count > 1 && p->token > 0 && (uint64_t)p->token / 2 >= pt_plane_row(p) &&
           (p->heads == 1 || p->head < p->token);
}

/* Returns into how many pieces each page is cut, if the planes alternate: a piece spans about PT_NEAR bytes of the
 * cache, or more until it has PT_LEAST bytes to copy. On an AMD EPYC, rows of 2 KiB, of which 16 lay beside each other,
 * were stored at 1.15 of memcpy's speed plane by plane, and at 1.4 with pieces of four tokens; pieces of one, two,
 * eight and sixteen tokens were slower than those of four. */
static inline int64_t pt_pieces_of_tokens(const pt_transfer *t)
{
    int64_t near = PT_NEAR / t->planes[0].token, least = PT_LEAST / (int64_t)pt_plane_row(&t->planes[0]), most = 1;
    int64_t together = near > least ? near : least;
    for (int64_t i = 0; i < t->page_count; i++)
        if (!pt_tokens_empty(t, i) && t->pages[i].end - t->pages[i].first > most)
            most = t->pages[i].end - t->pages[i].first;
    return together > 1 ? (most + together - 1) / together : most;
}

#define PT_PIECES 8 /* minimum of pieces per thread: a page of one plane is cut by its tokens */

/* Copies everything that the transfer names on up to `threads` threads, including the calling one; on fewer if threads
 * cannot be created. The caller guarantees that pt_transfer_flaw found nothing, that the pages are pinned or were
 * granted to it, and that the memory of the cache is mapped. */
static inline void pt_transfer_run(const pt_transfer *t, enum pt_direction way, uint32_t threads)
{
    int64_t pairs = t->page_count * t->plane_count;
    uint64_t bytes = pt_transfer_bytes(t);
    if (!bytes)
        return; /* the rows of a plane of which nothing is copied may have any size, also 0 */
    threads = pt_copy_threads(bytes, threads);
    bool alternate = way == PT_INTO_ARENA && pt_planes_alternate(t);
    pt_pieces work = {t, way, alternate, alternate ? pt_pieces_of_tokens(t) : 1, 0};
    if (threads > 1 && pairs && work.pieces * pairs < PT_PIECES * threads)
        work.pieces = (PT_PIECES * threads + pairs - 1) / pairs;
    pt_on_threads(pt_copy_pieces, &work, 0, threads);
}
