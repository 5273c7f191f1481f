/* attach.c - the sizes and offsets in the headers of index and lock words, against the sizes of their files. Headers
 * that are accepted must describe tables inside the files, computed in numbers that cannot overflow. */
#include "place.h"

typedef unsigned __int128 wide;

typedef struct {
    const char *what;
    wide at, count, bytes;
} table;

static void expect_inside(const table *t, wide from, wide end)
{
    if (t->at < from || t->at + t->count * t->bytes > end)
        finding("%s extend beyond their segment", t->what);
}

static void expect_within(const pt_header *h, pt_sizes have)
{
    const table tables[] = {
        {"slots", h->at_slots, PT_SLOTS, sizeof(pt_slot)},
        {"namespaces", h->at_spaces, h->spaces, sizeof(pt_space)},
        {"buckets", h->at_buckets[0], h->buckets, sizeof(pt_bucket)},
        {"the other buckets", h->at_buckets[1], h->buckets, sizeof(pt_bucket)},
        {"entries", h->at_entries, h->entries, sizeof(pt_entry)},
        {"frames", h->at_frames, h->frames, sizeof(pt_frame)},
        {"histories", h->at_histories, h->entries, sizeof(pt_history)},
        {"what was learned", h->at_learned, 1, PT_LEARNED_BYTES},
        {"the ring of events", h->at_events, 1, h->reserves.events},
        {"the curve", h->at_curve, 1, h->reserves.curve},
    };
    wide end = PT_AT_STATUS + PT_STATUS_BYTES;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        expect_inside(&tables[i], end, have.index);
        end = tables[i].at + tables[i].count * tables[i].bytes;
    }
    expect_inside(&(table){"lock words", PT_AT_LOCKS, h->entries, sizeof(pt_lock)}, PT_AT_LOCKS, have.locks);
    expect_inside(&(table){"samples", h->at_samples, 1, h->reserves.samples},
                  PT_AT_LOCKS + (wide)h->entries * sizeof(pt_lock), have.locks);
    if (have.arena && (wide)h->frames * h->frame_bytes != have.arena)
        finding("%u frames of %lu bytes in an arena of %lu", h->frames, h->frame_bytes, have.arena);
    if (!h->buckets || h->buckets & (h->buckets - 1))
        finding("%u buckets are not a power of two", h->buckets);
}

/* Chooses mostly valid sizes, and changes some fields. */
static void choose_header(choices *c, pt_header *h, pt_locks_header *l, pt_sizes *have)
{
    uint64_t frame_bytes = choose_one_in(c, 4) ? choose_odd(c) : 1ull << choose(c, 64);
    pt_geometry g = {frame_bytes,
                     (uint32_t)choose_odd(c),
                     (uint32_t)choose_odd(c) & 0x3fffffff,
                     (uint32_t)choose_odd(c),
                     {choose_odd(c) & ~4095ull, choose_one_in(c, 2) ? 4096 : 0, choose(c, 3) * 4096}};
    *h = (pt_header){.magic = PT_MAGIC, .format = PT_FORMAT, .header_bytes = sizeof *h, .segments_id = 1};
    *l = (pt_locks_header){.magic = PT_MAGIC, .format = PT_FORMAT, .segments_id = 1};
    pt_plan(h, &g);
    *have = (pt_sizes){h->index_bytes, h->locks_bytes, h->arena_bytes};
    for (uint32_t left = choose(c, 4); left; left--) {
        uint64_t number = choose_odd(c);
        uint32_t at = choose(c, offsetof(pt_header, incarnation) - 8);
        memcpy((uint8_t *)h + at, &number, 1u << choose(c, 4));
    }
    if (choose_one_in(c, 8))
        ((uint64_t *)have)[choose(c, 3)] = choose_odd(c);
    if (choose_one_in(c, 8))
        ((uint64_t *)l)[choose(c, 3)] = choose_odd(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static pt_header h;
    pt_locks_header l;
    pt_sizes have;
    choices c = {data, bytes};
    choose_header(&c, &h, &l, &have);
    if (!pt_unusable_reason(&h, &l, have))
        expect_within(&h, have);
    return 0;
}
