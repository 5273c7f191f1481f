/* small_index.h - the daemon's index in ordinary memory: one frame is one page, and no bytes are copied. */
#pragma once

#include <stdio.h>
#include <time.h>

#include "core/client/publish.h"
#include "core/daemon/adopt.h"
#include "core/daemon/integrity.h"
#include "core/daemon/lru.h"
#include "core/daemon/reserve.h"

static inline void *zeroed(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return memory ? memset(memory, 0, bytes) : NULL;
}

static inline bool open_geometry(pt_owner *o, const pt_geometry *geometry)
{
    pt_header plan = {0};
    pt_plan(&plan, geometry);
    void *index = zeroed(plan.index_bytes), *locks = zeroed(plan.locks_bytes);
    if (!index || !locks)
        return false;
    pt_format(index, locks, geometry, 1, "replay");
    if (!pt_owner_begin(o, pt_view_of(index, locks, NULL), &pt_lru) || !pt_adopt(o, 0))
        return false;
    o->view.spaces[0].used = 1;
    return true;
}

static inline bool open_index_with(pt_owner *o, uint32_t pages, bool learns, pt_reserves reserves)
{
    pt_geometry geometry = {4096, pages, pages, 4, reserves};
    return open_geometry(o, &geometry) && (!learns || pt_learn_returns(o, 88172645463325252ull));
}

static inline bool open_index(pt_owner *o, uint32_t pages, bool learns)
{
    return open_index_with(o, pages, learns, (pt_reserves){0});
}

static inline void key_of(int32_t page, uint8_t *key)
{
    memset(key, 0, PT_KEY_BYTES);
    for (int word = 0; word < 2; word++) {
        uint64_t mixed = ((uint64_t)page * 2 + (uint64_t)word + 1) * 0x9e3779b97f4a7c15ull;
        mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
        mixed ^= mixed >> 32;
        memcpy(key + 8 * word, &mixed, 8);
    }
}

static inline void close_index(pt_owner *o)
{
    void *index = o->view.header, *locks = (char *)o->view.locks - PT_AT_LOCKS;
    pt_owner_end(o);
    free(index);
    free(locks);
}

/* Returns the CPU time of this thread. */
static inline double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct {
    const int64_t *starts; /* of the requests in `pages`; one more than requests */
    const int32_t *pages; /* numbers of the pages of each prompt, head first */
    const double *seconds; /* of the requests */
    const uint8_t *hints; /* an enum pt_hint of each request; NULL: none */
    int64_t requests;
} trace;

typedef struct {
    int64_t hits, stored, left_out, followed; /* pages; followed: requests while the policy followed LRU */
    int64_t hits_in_memory, written; /* pages; written: to disk */
    int64_t findings; /* of the integrity check at the end */
    double store_seconds; /* CPU time of all stores */
} outcome;

/* Uses the pages of the prompt that are there, up to the first one that is not. Returns their number. */
static inline uint32_t match(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now)
{
    uint32_t hits = 0, entry;
    while (hits < count && (entry = pt_entry_of(o, keys + hits * (size_t)PT_KEY_BYTES)) != PT_NONE &&
           pt_correct_state(o, entry) == PT_READABLE)
        hits++;
    for (uint32_t at = 0; at < hits; at++)
        pt_stamp(o, pt_entry_of(o, keys + at * (size_t)PT_KEY_BYTES), now + hits - at);
    return hits;
}

/* Stores the pages of the request's one prompt, and counts what came of it. */
static inline void reserve(pt_owner *o, pt_request *r, const uint8_t *keys, uint32_t count, outcome *out)
{
    uint64_t *sizes = malloc(count * sizeof *sizes);
    pt_answer *answers = malloc(count * sizeof *answers);
    r->parts = r->reservation = r->prompt_count = 1;
    r->prompt_kind = PT_PROMPT_KNOWN;
    r->expires_ns = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = 4096;
    double began = thread_seconds();
    pt_reserve(o, r, keys, sizes, count, answers);
    out->store_seconds += thread_seconds() - began;
    for (uint32_t i = 0; i < count; i++) {
        if (answers[i].outcome == PT_GRANTED)
            pt_part_finish(&o->view, answers[i].entry, 0);
        out->stored += answers[i].outcome == PT_GRANTED;
        out->left_out += answers[i].outcome == PT_LEFT_OUT;
    }
    free(sizes);
    free(answers);
}
