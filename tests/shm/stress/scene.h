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

static inline void key_of(const char *name, uint8_t *key)
{
    memset(key, 0, PT_KEY_BYTES);
    memcpy(key, name, strlen(name));
}

static inline uint32_t attach(pt_owner *o, uint32_t number)
{
    return pt_attach(o, &(pt_process){.pid = number, .started = number, .name = "life"}, NOON);
}

static inline scene scene_in(world *w)
{
    scene s = {.world = w, .now = NOON};
    s.owner = world_adopt(s.world, 0);
    session_begin(&s.one, s.world, attach(&s.owner, 1));
    session_begin(&s.other, s.world, attach(&s.owner, 2));
    return s;
}

static inline scene scene_new(uint32_t entries, uint32_t frames) { return scene_in(world_new(1, entries, frames)); }

static inline void scene_end(scene *s)
{
    expect_all_returned(&s->owner);
    pt_owner_end(&s->owner);
    session_end(&s->one);
    session_end(&s->other);
    world_end(s->world);
}

static inline uint64_t later(scene *s) { return s->now += 10; }

static inline pt_request request(scene *s, const pt_session *session)
{
    return (pt_request){.slot = session->slot, .parts = 1, .now = later(s), .expires_ns = s->now + TTL};
}

static inline pt_answer ask(scene *s, const pt_session *session, const char *name, uint64_t size, uint32_t part,
                            uint32_t parts)
{
    pt_request r = request(s, session);
    uint8_t key[PT_KEY_BYTES];
    r.part = part;
    r.parts = parts;
    key_of(name, key);
    pt_answer a = reserve_page(&s->owner, &r, key, size);
    expect_sound(&s->owner, "after a reservation");
    return a;
}

static inline bool there(pt_session *session, const char *name)
{
    uint8_t key[PT_KEY_BYTES];
    uint32_t entry = PT_NONE;
    uint64_t serial;
    pt_matched to = {&entry, &serial, 0, 0};
    key_of(name, key);
    pt_match(session, key, 1, &to);
    pt_release(session, &entry, to.count);
    return to.count;
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

/* Returns whether a session can pin a page that was stored before. */
static inline bool repin(pt_session *session, const pt_answer *a)
{
    return pt_repin(session, &a->entry, &a->serial, 1);
}

static inline uint64_t used(const scene *s) { return s->owner.view.header->used_frames; }

/* ---- test cases: CASE(name, entries, frames) or DISK_CASE(name, entries, frames, frames on disk, rule), and the steps
 * with the scene `s` that was made for them ---- */

typedef struct {
    void (*steps)(scene *);
    uint32_t entries, frames;
    uint64_t disk_frames; /* 0: no disk */
    enum pt_write_rule rule;
} scene_case;

static scene_case cases[32];
static uint32_t case_count;

#define CASE(name, entries, frames) DISK_CASE(name, entries, frames, 0, PT_WRITE_EVICTED)
#define DISK_CASE(name, ...)                                   \
    static void name(scene *s);                                \
    __attribute__((constructor)) static void add_##name(void)  \
    {                                                          \
        cases[case_count++] = (scene_case){name, __VA_ARGS__}; \
    }                                                          \
    static void name(scene *s)

static inline void run_case(const scene_case *c)
{
    scene s = scene_new(c->entries, c->frames);
    if (c->disk_frames)
        pt_disk_open(&s.owner, 0, c->disk_frames, c->rule, s.now);
    c->steps(&s);
    for (uint32_t device = 0; c->disk_frames && device < PT_DEVICES; device++)
        pt_disk_close(&s.owner, device, later(&s));
    expect_sound(&s.owner, "after a case");
    scene_end(&s);
}

/* The main function of a driver that consists of cases. */
static inline int run_cases(const char *driver, int count, char **arguments)
{
    run r = run_begin(driver, count, arguments);
    for (uint32_t i = 0; i < case_count; i++)
        run_case(&cases[i]);
    run_end(&r, "%u cases,", case_count);
    return 0;
}
