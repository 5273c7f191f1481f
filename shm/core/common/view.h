/* view.h - the segments as one process has mapped them: pointers, and the arithmetic of their sizes. */
#pragma once

#include <time.h>

#include "lock_word.h"

/* keys between two steps of prefetching: the duration of a memory access divided by that of one key */
#define PT_AHEAD 8u

typedef struct {
    pt_header *header;
    char *status; /* PT_STATUS_BYTES */
    pt_slot *slots;
    pt_space *spaces;
    pt_bucket *buckets[2];
    pt_entry *entries;
    pt_frame *frames;
    pt_history *histories;
    pt_event *events;
    pt_a64 *event_readers;
    uint8_t *learned; /* PT_LEARNED_BYTES */
    pt_counts *counts;
    pt_uses *uses, *retired_uses;
    pt_lock *locks;
    uint8_t *arena;
    /* Copied from the header after it was checked, so that a damaged header cannot lead
     * the process outside of its mappings. */
    uint64_t frame_bytes, at_samples, samples_bytes, curve_bytes;
    uint32_t entry_count, frame_count, bucket_mask, event_count;
    uint8_t *curve; /* curve_bytes */
} pt_view;

typedef struct {
    uint64_t frame_bytes;
    uint32_t frames, entries, spaces;
    pt_reserves reserves;
} pt_geometry;

typedef struct {
    uint64_t index, locks, arena;
} pt_sizes;

static inline uint64_t pt_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline uint64_t pt_round_up(uint64_t bytes) { return (bytes + PT_PAGE - 1) / PT_PAGE * PT_PAGE; }

/* The buckets are at most 2/7 full. (At 4/7 a window of eight buckets overflows once in a million digests, which is too
 * often.) */
static inline uint32_t pt_bucket_count(uint32_t entries)
{
    uint32_t buckets = PT_WINDOW;
    while ((uint64_t)buckets * 2 < entries)
        buckets *= 2;
    return buckets;
}

/* Fills in the fields of a header that follow from the geometry: counts, sizes, offsets. */
static inline void pt_plan(pt_header *h, const pt_geometry *g)
{
    uint64_t at = PT_AT_STATUS + PT_STATUS_BYTES;
    h->frame_bytes = g->frame_bytes;
    h->frames = g->frames;
    h->entries = g->entries;
    h->spaces = g->spaces;
    h->buckets = pt_bucket_count(g->entries);
    h->at_slots = at, at += pt_round_up(PT_SLOTS * sizeof(pt_slot));
    h->at_spaces = at, at += pt_round_up((uint64_t)g->spaces * sizeof(pt_space));
    for (int i = 0; i < 2; i++)
        h->at_buckets[i] = at, at += pt_round_up((uint64_t)h->buckets * sizeof(pt_bucket));
    h->at_entries = at, at += pt_round_up((uint64_t)g->entries * sizeof(pt_entry));
    h->at_frames = at, at += pt_round_up((uint64_t)g->frames * sizeof(pt_frame));
    h->at_histories = at, at += pt_round_up((uint64_t)g->entries * sizeof(pt_history));
    h->at_learned = at, at += PT_LEARNED_BYTES;
    h->reserves = g->reserves;
    h->at_events = at, at += g->reserves.events;
    h->at_curve = at, at += g->reserves.curve;
    h->index_bytes = at;
    h->at_samples = pt_round_up(PT_AT_LOCKS + (uint64_t)g->entries * sizeof(pt_lock));
    h->locks_bytes = h->at_samples + g->reserves.samples;
    h->arena_bytes = (uint64_t)g->frames * g->frame_bytes;
}

static inline bool pt_reserves_are_valid(const pt_reserves *r)
{
    return r->events <= PT_RESERVE_LIMIT && r->curve <= PT_RESERVE_LIMIT && r->samples <= PT_RESERVE_LIMIT &&
           (r->events | r->curve | r->samples) % PT_PAGE == 0;
}

/* Returns the reason why this build cannot use these segments, or NULL. `have` has the sizes of the files. */
static inline const char *pt_unusable_reason(const pt_header *h, const pt_locks_header *l, pt_sizes have)
{
    pt_header plan = {0};
    if (have.index < sizeof(pt_header) || h->magic != PT_MAGIC)
        return "the index is not pagetier's";
    if (h->format != PT_FORMAT || h->header_bytes != sizeof(pt_header))
        return "the index has another format";
    if (have.locks < PT_AT_LOCKS || l->magic != PT_MAGIC || l->format != PT_FORMAT || l->segments_id != h->segments_id)
        return "the lock words belong to another index";
    if (h->frame_bytes < PT_PAGE || (h->frame_bytes & (h->frame_bytes - 1)) || !h->frames || !h->entries ||
        !h->spaces || h->entries == PT_NONE || h->frames == PT_NONE || h->entries > 1u << 30 ||
        h->frames > INT64_MAX / h->frame_bytes || !pt_reserves_are_valid(&h->reserves))
        return "the sizes in the index are invalid";
    pt_plan(&plan, &(pt_geometry){h->frame_bytes, h->frames, h->entries, h->spaces, h->reserves});
    if (plan.index_bytes != h->index_bytes || plan.at_histories != h->at_histories ||
        plan.at_learned != h->at_learned || plan.at_events != h->at_events || plan.at_curve != h->at_curve ||
        plan.at_samples != h->at_samples || plan.buckets != h->buckets || plan.at_frames != h->at_frames ||
        plan.at_entries != h->at_entries || plan.at_buckets[0] != h->at_buckets[0] ||
        plan.at_buckets[1] != h->at_buckets[1] || plan.at_slots != h->at_slots || plan.at_spaces != h->at_spaces ||
        plan.locks_bytes != h->locks_bytes || plan.arena_bytes != h->arena_bytes)
        return "the offsets in the index are invalid";
    if (have.index != plan.index_bytes || have.locks != plan.locks_bytes ||
        (have.arena && have.arena != plan.arena_bytes))
        return "a segment is shorter or longer than the index says";
    return NULL;
}

/* Returns the view of mapped segments. The caller guarantees that the header was filled by pt_plan or accepted by
 * pt_unusable_reason. `arena` may be NULL. */
static inline pt_view pt_view_of(void *index, void *locks, void *arena)
{
    uint8_t *at = index;
    pt_header *h = index;
    return (pt_view){
        .header = h,
        .status = (char *)(at + PT_AT_STATUS),
        .slots = (pt_slot *)(at + h->at_slots),
        .spaces = (pt_space *)(at + h->at_spaces),
        .buckets = {(pt_bucket *)(at + h->at_buckets[0]), (pt_bucket *)(at + h->at_buckets[1])},
        .entries = (pt_entry *)(at + h->at_entries),
        .frames = (pt_frame *)(at + h->at_frames),
        .histories = (pt_history *)(at + h->at_histories),
        .events = (pt_event *)(at + h->at_events),
        .event_readers = &((pt_locks_header *)locks)->event_readers,
        .learned = at + h->at_learned,
        .counts = (pt_counts *)((uint8_t *)locks + PT_AT_COUNTS),
        .uses = ((pt_locks_header *)locks)->uses,
        .retired_uses = &((pt_locks_header *)locks)->retired_uses,
        .locks = (pt_lock *)((uint8_t *)locks + PT_AT_LOCKS),
        .arena = arena,
        .frame_bytes = h->frame_bytes,
        .at_samples = h->at_samples,
        .samples_bytes = h->reserves.samples,
        .curve_bytes = h->reserves.curve,
        .curve = at + h->at_curve,
        .entry_count = h->entries,
        .frame_count = h->frames,
        .bucket_mask = h->buckets - 1,
        .event_count = (uint32_t)(h->reserves.events / sizeof(pt_event)),
    };
}

static inline uint32_t pt_frames_for(const pt_view *v, uint64_t size)
{
    return (uint32_t)((size + v->frame_bytes - 1) / v->frame_bytes);
}

static inline uint8_t pt_tiers(pt_entry *e) { return atomic_load_explicit(&e->tiers, memory_order_relaxed); }

/* Only the daemon writes the tiers, so a plain store suffices. A read-modify-write
 * would wait for all stores before it. */
static inline void pt_put_tiers(pt_entry *e, uint32_t tiers)
{
    atomic_store_explicit(&e->tiers, (uint8_t)tiers, memory_order_relaxed);
}

static inline void pt_prefetch(const void *address) { __builtin_prefetch(address, 0, 3); }
static inline void pt_prefetch_write(const void *address) { __builtin_prefetch(address, 1, 3); }
