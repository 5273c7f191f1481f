/* world.h - the segments, and what the processes of a test share: mailboxes and promises. Nothing here depends on
 * whether the "processes" are threads or real ones: everything is shared memory at the same address. */
#pragma once

#include <sys/mman.h>

#include "daemon/fetch.h"
#include "daemon/idle_namespaces.h"
#include "daemon/quotas.h"
#include "daemon/lru.h"
#include "daemon/reserve.h"
#include "client/locate.h"
#include "client/match.h"
#include "client/publish.h"
#include "client/sample.h"
#include "page.h"

#define ENTRIES 112u
#define FRAMES 80u
#define BOXES 16u
#define BATCH 8u
#define KEPT_TO_THE_END 4u /* number of promises that are kept until the end */
#define HANDOVERS 4u
#define PROMPT 6u
#define WINDOW_NS 3600000000000ull /* of the curve */

/* The requests of clients to the daemon, in place of the socket. One request at a time. */
enum question { NOTHING, RESERVE, FETCH, DAMAGED, REBORN, BURY };

typedef struct {
    _Atomic uint32_t question; /* NOTHING: the response is there */
    bool lost; /* the response died with the daemon */
    uint32_t slot; /* of the client, or of a dead process; after REBORN the new one */
    uint32_t count;
    pt_request request;
    uint8_t keys[BATCH * PT_KEY_BYTES];
    uint64_t sizes[BATCH];
    pt_answer answers[BATCH];
} mailbox;

/* A promise: "this page is stored and pinned". While `term` stays at one odd number every match must find the page. */
typedef struct {
    _Atomic uint64_t term;
    _Atomic uint32_t id;
} promise;

/* What one engine process matched, for another one to pin. */
typedef struct {
    _Atomic uint32_t busy;
    uint32_t count;
    uint32_t ids[PROMPT], entries[PROMPT];
    uint64_t serials[PROMPT];
} handover;

typedef struct {
    void *index, *locks, *arena;
    pt_sizes sizes;
    uint64_t seed;
    mailbox boxes[BOXES];
    promise kept[KEPT];
    handover handovers[HANDOVERS];
    _Atomic bool stop;
    _Atomic uint32_t running;
    _Atomic uint32_t processes; /* number of processes so far */
} world;

/* Maps shared memory between two guard pages. */
static inline void *shared_memory(uint64_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes + 2 * PT_PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + PT_PAGE, bytes, PROT_READ | PROT_WRITE))
        finding("memory is short");
    return memory + PT_PAGE;
}

static inline void shared_memory_end(void *memory, uint64_t bytes)
{
    munmap((uint8_t *)memory - PT_PAGE, bytes + 2 * PT_PAGE);
}

static inline pt_view world_view(const world *w) { return pt_view_of(w->index, w->locks, w->arena); }

static inline void world_name_spaces(const world *w)
{
    pt_view v = world_view(w);
    for (uint32_t s = 0; s < SPACES; s++) {
        v.spaces[s].first = PT_NONE;
        v.spaces[s].used = 1;
        v.spaces[s].page_tokens = 1;
        v.spaces[s].digest[0] = (uint8_t)(s + 1);
    }
}

static inline world *world_new_with(uint64_t seed, uint32_t entries, uint32_t frames, pt_reserves reserves)
{
    pt_geometry g = {FRAME, frames, entries, SPACES, reserves};
    pt_header plan = {0};
    world *w = shared_memory(pt_round_up(sizeof *w));
    pt_plan(&plan, &g);
    w->seed = seed;
    w->sizes = (pt_sizes){plan.index_bytes, plan.locks_bytes, plan.arena_bytes};
    w->index = shared_memory(plan.index_bytes);
    w->locks = shared_memory(plan.locks_bytes);
    w->arena = shared_memory(plan.arena_bytes);
    pt_format(w->index, w->locks, &g, seed, "stress");
    if (pt_unusable_reason(w->index, w->locks, w->sizes))
        finding("new segments: %s", pt_unusable_reason(w->index, w->locks, w->sizes));
    world_name_spaces(w);
    return w;
}

static inline world *world_new(uint64_t seed, uint32_t entries, uint32_t frames)
{
    return world_new_with(seed, entries, frames, (pt_reserves){PT_PAGE, PT_CURVE_BYTES, PT_SAMPLES_BYTES});
}

static inline void world_end(world *w)
{
    shared_memory_end(w->index, w->sizes.index);
    shared_memory_end(w->locks, w->sizes.locks);
    shared_memory_end(w->arena, w->sizes.arena);
    shared_memory_end(w, pt_round_up(sizeof *w));
}

/* Gives each namespace but the first a tenant of its own, with random quotas. */
static inline void world_draw_quotas(pt_owner *o, rng *r)
{
    pt_quota quotas[SPACES] = {PT_NO_QUOTA};
    uint8_t tenants[SPACES];
    for (uint32_t s = 0; s < SPACES; s++) {
        double least = (double)rng_below(r, 5) / 10, most = least + (double)rng_below(r, 7) / 10;
        double disk = (double)rng_below(r, 5) / 10;
        tenants[s] = (uint8_t)s;
        if (s)
            quotas[s] = (pt_quota){{least, most < 0.95 ? most + 0.05 : 1}, {disk, rng_one_in(r, 2) ? 1 : disk + 0.05}};
    }
    if (!pt_set_quotas(o, quotas, SPACES, tenants, pt_now_ns()))
        finding("memory is short");
}

/* Lets a daemon take the segments over. `alive`: bits of the slots whose process lives. */
static inline pt_owner world_adopt(const world *w, uint64_t alive)
{
    pt_owner o;
    if (!pt_owner_begin(&o, world_view(w), &pt_lru) || !pt_adopt(&o, alive))
        finding("memory is short");
    if (pt_has_curve(&o.view) && !(o.lookups = pt_lookups_create(&o.view, WINDOW_NS)))
        finding("memory is short");
    return o;
}

/* Reserves one page with its size. */
static inline pt_answer reserve_page(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t size)
{
    pt_answer a;
    pt_reserve(o, r, key, &size, 1, &a);
    return a;
}

static inline uint32_t listed(const pt_owner *o)
{
    uint32_t count = 0;
    for (uint32_t tenant = 0; tenant < o->tenants.count; tenant++) {
        count += o->kind->count(o->ready[tenant]) + o->kind->count(o->unwritten[tenant]);
        for (uint32_t d = 0; d < PT_DEVICES; d++)
            count += o->disk.devices[d].listed[0] ? o->kind->count(o->disk.devices[d].listed[tenant]) : 0;
    }
    return count;
}

/* Expects that everything is free again. The caller guarantees that no process has anything pinned or reserved. */
static inline void expect_all_returned(pt_owner *o)
{
    pt_header *h = o->view.header;
    pt_settle_all(o, UINT64_MAX / 2);
    if (h->open_entries)
        finding("at the end: %u reservations are open", h->open_entries);
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        if (atomic_load(&o->view.locks[entry].word) & PT_PINS)
            finding("at the end: entry %u is pinned", entry);
    expect_sound(o, "at the end");
    pt_flushed flushed = pt_flush(o, PT_NONE, PT_TIER_MEMORY | PT_TIER_DISK, pt_now_ns());
    expect_sound(o, "after the flush");
    if (flushed.kept || h->pages || h->bytes || h->used_frames || h->free_frames != h->frames ||
        h->free_entries != h->entries || h->disk_pages || h->disk_used_frames || listed(o))
        finding("after the flush: %u pages kept, %lu pages, %lu bytes, %lu frames used, %u entries free", flushed.kept,
                (unsigned long)h->pages, (unsigned long)h->bytes, (unsigned long)h->used_frames, h->free_entries);
}
