/* strided.c - gather and scatter over random tables, against a loop over bytes. Arena and cache are exactly as large as
 * necessary, so ASan sees every access beside them, and they are compared as a whole. */
#define PT_COPY_SHARE 512u /* few bytes are enough for several threads */
#define PT_NEAR 512u
#define PT_LEAST 64u
#include "report.h"

#include "client/copy_strided.h"

#define PLANES 6u
#define PAGES 5u
#define BLOCKS 80u
#define FRAMES 4096u
#define DETERMINED 60u /* tables */

enum { PLANE, BLOCK, TOKEN, HEAD, DIMENSIONS };

typedef struct {
    rng random;
    pt_transfer t;
    pt_plane planes[PLANES];
    pt_tokens pages[PAGES];
    int32_t blocks[BLOCKS];
    uint32_t frames[FRAMES];
    uint8_t skip[PAGES];
    uint32_t page_tokens, cache_blocks;
    uint64_t cache_bytes, arena_bytes, copied;
    uint8_t *cache, *cache_then, *arena_then;
} trial;

static uint32_t one_of(trial *x, const uint32_t *values, uint32_t count)
{
    return values[rng_below(&x->random, count)];
}
#define ONE_OF(x, ...) one_of(x, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

/* The numbers below count in random order. */
static void shuffle(trial *x, uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = rng_below(&x->random, i + 1);
        numbers[i] = numbers[at];
        numbers[at] = i;
    }
}

static void fill(trial *x, uint8_t *at, uint64_t bytes)
{
    uint64_t some = 0;
    for (uint64_t i = 0; i < bytes; i++, some >>= 8)
        at[i] = (uint8_t)(some = i % 8 ? some : rng_next(&x->random));
}

static uint8_t *memory(trial *x, uint64_t bytes)
{
    uint8_t *got = malloc(bytes ? bytes : 1);
    if (!got)
        finding("memory is short");
    fill(x, got, bytes);
    return got;
}

static uint8_t *copy_of(const uint8_t *from, uint64_t bytes)
{
    uint8_t *got = malloc(bytes ? bytes : 1);
    if (!got)
        finding("memory is short");
    return memcpy(got, from, bytes);
}

/* Pages whose tokens follow each other in the table of blocks; the first page may begin before the table. */
static void make_pages(trial *x)
{
    int64_t tokens = x->page_tokens, at = 0, behind = 0;
    x->t.page_count = rng_below(&x->random, PAGES + 1);
    for (int64_t i = 0; i < x->t.page_count; i++, at += tokens) {
        int64_t a = rng_below(&x->random, x->page_tokens + 1), b = rng_below(&x->random, x->page_tokens + 1);
        bool all = rng_one_in(&x->random, 2);
        int64_t first = all ? 0 : (a < b ? a : b), end = all ? tokens : (a < b ? b : a);
        if (!i)
            at = rng_one_in(&x->random, 2) ? -first : rng_below(&x->random, 60);
        x->pages[i] = (pt_tokens){at, first, end};
        x->skip[i] = rng_one_in(&x->random, 4);
        behind = at + tokens;
    }
    x->t.block_count = (behind + x->t.block_tokens - 1) / x->t.block_tokens;
    x->t.skip = rng_one_in(&x->random, 2) ? x->skip : NULL;
}

/* A table of some of the cache's blocks. Returns false if there are too many. */
static bool make_blocks(trial *x)
{
    x->cache_blocks = (uint32_t)x->t.block_count + rng_below(&x->random, 4) + 1;
    if (x->cache_blocks > BLOCKS)
        return false;
    shuffle(x, (uint32_t *)x->blocks, x->cache_blocks);
    return true;
}

/* The planes in the cache: dimensions in any order, gaps between them, sometimes the
 * blocks from the last to the first. */
static void make_cache(trial *x, uint32_t heads, uint32_t width)
{
    uint32_t order[DIMENSIONS];
    uint64_t sizes[] = {(uint64_t)x->t.plane_count, x->cache_blocks, (uint64_t)x->t.block_tokens, heads};
    int64_t strides[DIMENSIONS];
    uint64_t bytes = width;
    shuffle(x, order, DIMENSIONS);
    for (uint32_t i = 0; i < DIMENSIONS; i++) {
        bytes += rng_one_in(&x->random, 4) ? rng_below(&x->random, 40) : 0;
        strides[order[i]] = (int64_t)bytes;
        bytes *= sizes[order[i]];
    }
    x->cache_bytes = bytes;
    x->cache = memory(x, bytes);
    bool backwards = rng_one_in(&x->random, 8);
    for (int64_t i = 0; i < x->t.plane_count; i++) {
        pt_plane *p = &x->planes[i];
        p->base = (int64_t)(uintptr_t)x->cache + i * strides[PLANE] +
                  (backwards ? (x->cache_blocks - 1) * strides[BLOCK] : 0);
        p->block = backwards ? -strides[BLOCK] : strides[BLOCK];
        p->token = strides[TOKEN];
        p->head = strides[HEAD];
    }
}

/* The planes in the page: one after the other, with heads of other ranks before and after those of this one. */
static uint64_t make_planes(trial *x, uint32_t *most_heads, uint32_t *most_width)
{
    uint64_t at = 0;
    uint32_t width = ONE_OF(x, 1, 3, 16, 64, 256, 1152);
    bool alike = rng_one_in(&x->random, 2);
    x->t.plane_count = rng_below(&x->random, PLANES + 1);
    for (int64_t i = 0; i < x->t.plane_count; i++) {
        uint32_t heads = rng_below(&x->random, width < 100 ? 20 : 5) + 1, all = heads + rng_below(&x->random, 3);
        width = alike ? width : ONE_OF(x, 1, 3, 16, 64);
        uint64_t page_head = (uint64_t)x->page_tokens * width;
        x->planes[i] = (pt_plane){.at = (int64_t)(at + rng_below(&x->random, all - heads + 1) * page_head),
                                  .page_head = (int64_t)page_head, .heads = heads, .width = width};
        at = (at + all * page_head + 15) / 16 * 16;
        *most_heads = heads > *most_heads ? heads : *most_heads;
        *most_width = width > *most_width ? width : *most_width;
    }
    return at;
}

static bool make_arena(trial *x, uint64_t page_bytes)
{
    pt_transfer *t = &x->t;
    t->frame_bytes = rng_one_in(&x->random, 2) ? 4096 : rng_below(&x->random, 9000) + 100;
    t->page_frames = (page_bytes + t->frame_bytes - 1) / t->frame_bytes;
    t->page_bytes = rng_one_in(&x->random, 2) ? page_bytes : t->page_frames * t->frame_bytes;
    t->frame_count = t->page_frames * (uint64_t)t->page_count + rng_below(&x->random, 3);
    if (t->frame_count > FRAMES)
        return false;
    shuffle(x, x->frames, (uint32_t)t->frame_count);
    x->arena_bytes = t->frame_count * t->frame_bytes;
    t->arena = memory(x, x->arena_bytes);
    return true;
}

/* Makes random tables. Returns false if they became too large. */
static bool make(trial *x)
{
    uint32_t heads = 1, width = 1;
    x->t = (pt_transfer){.frames = x->frames, .planes = x->planes, .pages = x->pages, .blocks = x->blocks};
    x->t.block_tokens = ONE_OF(x, 1, 7, 16, 48);
    x->page_tokens = ONE_OF(x, 5, 16, 48);
    make_pages(x);
    if (!make_blocks(x) || !make_arena(x, make_planes(x, &heads, &width)))
        return false;
    make_cache(x, heads, width);
    x->cache_then = copy_of(x->cache, x->cache_bytes);
    x->arena_then = copy_of(x->t.arena, x->arena_bytes);
    return true;
}

static void unmake(trial *x)
{
    free(x->t.arena);
    free(x->cache);
    free(x->arena_then);
    free(x->cache_then);
    x->t.arena = x->cache = x->arena_then = x->cache_then = NULL;
}

/* Copies one row by the tables, in the copies that were made before. */
static void row_then(trial *x, const pt_plane *p, int64_t page, int64_t token, int64_t head, enum pt_direction way)
{
    const pt_transfer *t = &x->t;
    int64_t flat = x->pages[page].position + token, block = x->blocks[flat / t->block_tokens];
    int64_t address = p->base + block * p->block + flat % t->block_tokens * p->token + head * p->head;
    uint8_t *memory = x->cache_then + (address - (int64_t)(uintptr_t)x->cache);
    uint64_t offset = (uint64_t)(p->at + head * p->page_head + token * p->width);
    for (int64_t i = 0; i < p->width; i++, offset++) {
        uint32_t frame = x->frames[(uint64_t)page * t->page_frames + offset / t->frame_bytes];
        uint8_t *inside = x->arena_then + frame * t->frame_bytes + offset % t->frame_bytes;
        *(way == PT_INTO_ARENA ? inside : memory + i) = *(way == PT_INTO_ARENA ? memory + i : inside);
    }
    x->copied += (uint64_t)p->width;
}

static void transfer_then(trial *x, enum pt_direction way)
{
    for (int64_t page = 0; page < x->t.page_count; page++)
        for (int64_t plane = 0; plane < x->t.plane_count && !(x->t.skip && x->skip[page]); plane++)
            for (int64_t head = 0; head < x->planes[plane].heads; head++)
                for (int64_t token = x->pages[page].first; token < x->pages[page].end; token++)
                    row_then(x, &x->planes[plane], page, token, head, way);
}

static void expect_transfer(trial *x, enum pt_direction way)
{
    const char *name = way == PT_INTO_ARENA ? "gather" : "scatter";
    uint64_t before = x->copied;
    transfer_then(x, way);
    pt_transfer_run(&x->t, way, rng_below(&x->random, 5));
    if (pt_transfer_bytes(&x->t) != x->copied - before)
        finding("%s: %lu bytes instead of %lu", name, (unsigned long)pt_transfer_bytes(&x->t),
                (unsigned long)(x->copied - before));
    if (memcmp(x->t.arena, x->arena_then, x->arena_bytes) != 0)
        finding("%s: the arena differs", name);
    if (memcmp(x->cache, x->cache_then, x->cache_bytes) != 0)
        finding("%s: the cache differs", name);
}

static void expect_no_flaw(const trial *x)
{
    pt_flaw flaw = pt_transfer_flaw(&x->t);
    if (flaw.why)
        finding("%s[%ld]: %s, but nothing is wrong", flaw.table, (long)flaw.row, flaw.why);
}

static void overwrite_cache(trial *x)
{
    fill(x, x->cache, x->cache_bytes);
    memcpy(x->cache_then, x->cache, x->cache_bytes);
}

/* Makes one number wrong, of those that lead to bytes that the validation knows. Tables that it
 * accepts must stay within those bytes. */
static void spoil(trial *x)
{
    static const int64_t numbers[] =
        {-1, 0, 1, 2, 4, 15, 17, 100, 5000, INT32_MAX, INT64_MAX, INT64_MIN, INT64_MAX / 2, -100};
    pt_tokens *page = &x->pages[rng_below(&x->random, (uint32_t)x->t.page_count)];
    pt_plane *plane = &x->planes[rng_below(&x->random, (uint32_t)x->t.plane_count)];
    int64_t *places[] = {&page->position, &page->first, &page->end, &plane->at, &plane->page_head};
    int64_t *place = places[rng_below(&x->random, 5)], number = numbers[rng_below(&x->random, 14)];
    *place = rng_one_in(&x->random, 2) ? number : (int64_t)((uint64_t)*place + (uint64_t)number);
    if (rng_one_in(&x->random, 8))
        x->frames[rng_below(&x->random, (uint32_t)x->t.frame_count)] = (uint32_t)(x->t.frame_count +
                                                                                  (uint64_t)number % 3);
}

static bool harmless(trial *x)
{
    if (!x->t.page_count || !x->t.plane_count)
        return true;
    spoil(x);
    if (pt_transfer_flaw(&x->t).why)
        return false;
    pt_transfer_run(&x->t, PT_INTO_ARENA, 1);
    pt_transfer_run(&x->t, PT_OUT_OF_ARENA, 1);
    return true;
}

int main(int count, char **arguments)
{
    run r = run_begin("strided", count, arguments);
    trial x = {.random = rng_stream(r.seed, 0)};
    uint64_t tables = 0, refused = 0;
    for (; tables < DETERMINED || !run_over(&r); unmake(&x)) {
        if (!make(&x))
            continue;
        expect_no_flaw(&x);
        expect_transfer(&x, PT_INTO_ARENA);
        overwrite_cache(&x);
        expect_transfer(&x, PT_OUT_OF_ARENA);
        refused += !harmless(&x);
        if (++tables == DETERMINED)
            run_determined(&r, "%lu tables: %lu bytes, %lu invalid ones rejected", tables, x.copied, refused);
    }
    run_end(&r, "%lu tables, %lu MiB, %lu invalid ones rejected,", tables, x.copied >> 20, refused);
    return 0;
}
