/* place.h - shared by all fuzzers: tiny segments that are formatted for each input, a clock that depends only on
 * the input, and three attached engines. */
#pragma once

#define FINDING_END() abort()

#include "client.h"
#include "choices.h"
#include "client/match_groups.h"

#define PLACE_ENTRIES 24u
#define PLACE_FRAMES 20u
#define PLACE_IDS 28u
#define PLACE_PINS 8u /* frames that an engine may pin: few enough for some matches to end there */
#define ENGINES 3u
#define DEVICES 2u /* of the disk */
#define GRANTS 48u
#define PINNED 6u

/* A part that an engine was granted and has not released. */
typedef struct {
    uint32_t entry, part, engine;
    uint64_t serial;
} grant;

/* Pages that an engine has pinned. */
typedef struct {
    uint32_t engine, count;
    uint32_t entries[PROMPT];
    uint64_t serials[PROMPT];
} pinned;

typedef struct {
    world *world;
    pt_owner owner;
    pt_session engines[ENGINES];
    choices choices;
    grant grants[GRANTS];
    pinned pins[PINNED];
    uint32_t grant_count, pin_count, processes;
} place;

/* The build renames clock_gettime to place_clock: an input always does the same. */
static uint64_t place_now;

int place_clock(clockid_t clock, struct timespec *now)
{
    (void)clock;
    place_now += 100;
    *now = (struct timespec){(time_t)(place_now / 1000000000), (long)(place_now % 1000000000)};
    return 0;
}

static inline void place_adopt(place *p, uint64_t alive)
{
    pt_owner_end(&p->owner);
    p->owner = world_adopt(p->world, alive);
}

static inline void place_attach(place *p, uint32_t engine)
{
    uint32_t number = ++p->processes;
    pt_process process = {.pid = number, .started = number, .token = number, .name = "fuzzed"};
    p->engines[engine].slot = pt_attach(&p->owner, &process, pt_now_ns());
    p->engines[engine].counts = &p->owner.view.counts[p->engines[engine].slot];
}

/* Makes an engine forget all its pins, as a new engine has none. */
static inline void place_forget(pt_session *s)
{
    memset(s->own_pins, 0, PLACE_ENTRIES * sizeof *s->own_pins);
    s->frames = 0;
}

static inline void place_segments(place *p)
{
    if (!p->world) {
        p->world = world_new_with(1, PLACE_ENTRIES, PLACE_FRAMES, (pt_reserves){.events = PT_PAGE});
        for (uint32_t i = 0; i < ENGINES; i++)
            session_begin(&p->engines[i], p->world, 0);
        return;
    }
    memset(p->world->index, 0, p->world->sizes.index - PT_PAGE - PT_LEARNED_BYTES + sizeof(pt_learned));
    memset(p->world->locks, 0, p->world->sizes.locks);
    pt_format(p->world->index, p->world->locks,
              &(pt_geometry){FRAME, PLACE_FRAMES, PLACE_ENTRIES, SPACES, {.events = PT_PAGE}}, 1, "fuzzed");
    world_name_spaces(p->world);
}

static inline void place_begin(place *p, const uint8_t *data, size_t bytes)
{
    place_now = 1000000000000ull;
    place_segments(p);
    atomic_store(&((pt_header *)p->world->index)->pin_frames, PLACE_PINS);
    p->choices = (choices){data, bytes};
    p->grant_count = p->pin_count = p->processes = 0;
    place_adopt(p, 0);
    for (uint32_t i = 0; i < ENGINES; i++) {
        place_forget(&p->engines[i]);
        place_attach(p, i);
    }
    atomic_store(p->owner.view.event_readers, 1);
    pt_serve_events(&p->owner.view);
}

static inline uint64_t place_alive(const place *p)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < ENGINES; i++)
        bits |= 1ull << p->engines[i].slot;
    return bits;
}

static inline pt_session *choose_engine(place *p, uint32_t *engine)
{
    *engine = choose(&p->choices, ENGINES);
    return &p->engines[*engine];
}

/* Ends all processes: everything must return. */
static inline void place_end(place *p)
{
    for (uint32_t device = 0; device < DEVICES; device++)
        pt_disk_close(&p->owner, device, pt_now_ns()); /* the worker does not respond to its commands any more */
    for (uint32_t i = 0; i < ENGINES; i++)
        pt_reap(&p->owner, p->engines[i].slot, pt_now_ns());
    expect_all_returned(&p->owner);
}
