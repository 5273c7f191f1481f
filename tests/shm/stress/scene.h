/* scene.h - a daemon, two engines and as few pages as necessary, for tests that go step by step. */
#pragma once

#include "client.h"

#define EXPECT(truth) \
    do \
        if (!(truth)) \
            finding("%s, line %d: not true: %s", __func__, __LINE__, #truth); \
    while (0)

#define NOON (1ull << 62) /* the time of all tests: no real clock makes anything expire */
#define TTL 1000ull

/* Segments, a daemon, and two engines. */
typedef struct {
    world *world;
    pt_owner owner;
    pt_session one, other;
    uint64_t now;
} scene;

static inline uint32_t attach(pt_owner *o, uint32_t number)
{
    return pt_attach(o, &(pt_process){.pid = number, .started = number, .name = "life"}, NOON);
}

static inline scene scene_new(uint32_t entries, uint32_t frames)
{
    scene s = {.world = world_new(1, entries, frames), .now = NOON};
    s.owner = world_adopt(s.world, 0);
    session_begin(&s.one, s.world, attach(&s.owner, 1));
    session_begin(&s.other, s.world, attach(&s.owner, 2));
    return s;
}

static inline void scene_end(scene *s)
{
    expect_all_returned(&s->owner);
    pt_owner_end(&s->owner);
    session_end(&s->one);
    session_end(&s->other);
    world_end(s->world);
}

static inline pt_answer ask(scene *s, const pt_session *session, const char *name, uint64_t size, uint32_t part, uint32_t parts)
{
    uint64_t now = s->now += 10;
    pt_request r = {.slot = session->slot, .part = part, .parts = parts, .now = now, .expires_ns = now + TTL};
    uint8_t key[PT_KEY_BYTES] = {0};
    pt_answer a;
    strncpy((char *)key, name, sizeof key - 1);
    pt_reserve(&s->owner, &r, key, &size, 1, &a);
    expect_sound(&s->owner, "after a reservation");
    return a;
}

static inline bool there(pt_session *session, const char *name)
{
    uint8_t key[PT_KEY_BYTES] = {0};
    uint32_t entry;
    uint64_t serial;
    pt_matched to = {&entry, &serial, 0, 0};
    strncpy((char *)key, name, sizeof key - 1);
    pt_match(session, key, 1, &to);
    if (!to.count)
        return false;
    pt_release(session, &entry, 1);
    return true;
}

static inline void settle(scene *s, uint64_t now)
{
    pt_settle_all(&s->owner, now);
    expect_sound(&s->owner, "after settling");
}

static inline bool finish(const scene *s, const pt_answer *a, uint32_t part)
{
    return pt_part_finish(&s->one.view, a->entry, part);
}

/* Stores a page of one part. */
static inline pt_answer store(scene *s, const char *name)
{
    pt_answer a = ask(s, &s->one, name, FRAME, 0, 1);
    EXPECT(a.outcome == PT_GRANTED && finish(s, &a, 0));
    return a;
}

static inline uint64_t used(const scene *s) { return s->owner.view.header->used_frames; }
