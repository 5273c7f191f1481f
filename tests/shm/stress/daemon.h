/* daemon.h - the daemon's loop: it responds, evicts, flushes, reaps, is replaced by a new
 * daemon, and checks its structures. */
#pragma once

#include "client.h"
#include "tier.h"

#define SLOW (sizeof BUILT_WITH == sizeof "tsan" ? 4 : 1) /* TSan slows down everything else by this factor */
#define CHECK_EVERY_NS (SLOW * 2000000ull)
/* for every second adoption; the ones between take longer, as a disk needs time */
#define ADOPT_EVERY_NS (SLOW * 1500000ull)

typedef struct {
    world *world;
    pt_owner owner;
    rng random;
    client ghost; /* a process of its own that stores at full speed, on the daemon's thread */
    tier tiers[TIERS];
    uint64_t next_check, next_adopt;
    uint64_t adoptions;
} service;

/* Attaches a process that never existed before; returns its slot. */
static inline uint32_t attach_new(pt_owner *o, world *w)
{
    uint32_t number = 1 + atomic_fetch_add(&w->processes, 1);
    pt_process p = {.pid = number, .started = number, .name = "stress"};
    uint32_t slot = pt_attach(o, &p, pt_now_ns());
    if (slot == PT_NONE)
        finding("no slot is free");
    return slot;
}

/* Draws quotas, and the eviction policy of a new daemon: LRU, or the one that learns, which
 * may choose before it has learned. */
static inline void service_draw_policy(service *s)
{
    if (rng_one_in(&s->random, 2))
        world_draw_quotas(&s->owner, &s->random);
    if (rng_one_in(&s->random, 2))
        return;
    if (!pt_learn_returns(&s->owner, rng_next(&s->random)))
        finding("memory is short");
    pt_note_full_memory(&s->owner);
    s->owner.cadence->learned = s->owner.cadence->full_pages && rng_below(&s->random, 4);
}

/* Responds to a store, which may say what comes before its pages, truly or not. */
static inline void service_reserve(service *s, mailbox *m)
{
    uint8_t key[PT_KEY_BYTES];
    pt_prompt prompt = {.parent = rng_one_in(&s->random, 2) ? key : NULL};
    page_key(1 + rng_below(&s->random, IDS), key);
    m->request.now = pt_now_ns();
    m->request.prompt_kind = (enum pt_prompt_kind)rng_below(&s->random, 3);
    m->request.prompts = &prompt;
    m->request.prompt_count = 1;
    pt_reserve(&s->owner, &m->request, m->keys, m->sizes, m->count, m->answers);
}

static inline void service_fetch(service *s, mailbox *m)
{
    m->request.now = pt_now_ns();
    pt_reader readers[PT_DEVICES];
    for (uint32_t d = 0; d < PT_DEVICES; d++)
        readers[d] = (pt_reader){m->request.slot, UINT64_MAX, 0};
    pt_fetch(&s->owner, &m->request, readers, NULL, m->keys, m->count, m->answers);
    for (uint32_t d = 0; d < TIERS; d++)
        tier_expect_granted(&s->tiers[d], &s->owner, m->answers, m->count);
}

static inline void service_damaged(service *s, mailbox *m)
{
    for (uint32_t i = 0; i < m->count; i++)
        pt_disk_damaged(&s->owner, rng_below(&s->random, TIERS), m->keys + i * PT_KEY_BYTES, pt_now_ns());
}

/* Ends the requests of a process that died: it no longer waits for responses. */
static inline void service_end_requests(service *s, uint32_t slot)
{
    for (uint32_t i = 0; i < BOXES; i++) {
        mailbox *m = &s->world->boxes[i];
        uint32_t question = atomic_load(&m->question);
        if (question >= RESERVE && question <= DAMAGED && m->slot == slot)
            atomic_store(&m->question, NOTHING);
    }
}

static inline void service_reap(service *s, mailbox *m)
{
    service_end_requests(s, m->slot);
    pt_reap(&s->owner, m->slot, pt_now_ns());
    expect_sound(&s->owner, "after a death");
    tier *t = &s->tiers[rng_below(&s->random, TIERS)];
    if (device_of(t, &s->owner)->open && rng_one_in(&s->random, 2)) /* the process was its worker, too */
        tier_close(t, &s->owner);
}

static inline void service_rebirth(service *s, mailbox *m)
{
    service_reap(s, m);
    m->slot = attach_new(&s->owner, s->world);
}

static inline void service_answer_all(service *s)
{
    static void (*const answers[])(service *, mailbox *) = {
        [RESERVE] = service_reserve, [FETCH] = service_fetch, [DAMAGED] = service_damaged,
        [REBORN] = service_rebirth, [BURY] = service_reap};
    for (uint32_t i = 0; i < BOXES; i++) {
        mailbox *m = &s->world->boxes[i];
        uint32_t question = atomic_load_explicit(&m->question, memory_order_acquire);
        if (question == NOTHING)
            continue;
        answers[question](s, m);
        atomic_store_explicit(&m->question, NOTHING, memory_order_release);
    }
}

/* Stores pages as fast as the machine can. */
static inline void service_churn(service *s)
{
    uint32_t id = page_with_parts(&s->random, 1);
    uint64_t now = pt_now_ns();
    pt_request r = {.slot = s->ghost.session->slot,
                    .space = page_space(id),
                    .parts = 1,
                    .now = now,
                    .expires_ns = now + 1000000};
    uint8_t key[PT_KEY_BYTES];
    page_key(id, key);
    pt_answer a = reserve_page(&s->owner, &r, key, page_size(id));
    if (a.outcome == PT_GRANTED)
        client_publish(&s->ghost, a.entry, id, 0, r.expires_ns);
    if (a.outcome == PT_REFUSED_FULL)
        sched_yield(); /* everything is pinned by threads that wait for this core */
}

static inline void service_act(service *s)
{
    uint64_t now = pt_now_ns();
    uint32_t chance = rng_below(&s->random, 256);
    if (chance < 16)
        pt_settle_all(&s->owner, now);
    else if (chance < 48)
        pt_evict_until(&s->owner, FRAMES / 2, 1 + rng_below(&s->random, 8), now);
    else if (chance < 49)
        pt_flush(&s->owner, rng_below(&s->random, SPACES + 1) - 1, (uint8_t)rng_below(&s->random, 4), now);
    else if (chance < 50)
        pt_idle_step(&s->owner, now, now, 1 + rng_below(&s->random, 64));
    else if (chance < 112)
        tier_act(&s->tiers[rng_below(&s->random, TIERS)], &s->owner, &s->random);
    else
        service_churn(s);
}

/* Replaces the daemon between two requests, by one or by three daemons in a row. */
static inline void service_take_over(service *s)
{
    for (uint32_t n = 1 + 2 * rng_below(&s->random, 2); n; n--) {
        for (tier *t = s->tiers; t < s->tiers + TIERS; t++) {
            tier_take_drops(t, &s->owner);
            t->ordered = 0;
        }
        pt_owner_end(&s->owner);
        s->owner = world_adopt(s->world, pt_taken_slots(&s->owner.view));
        service_draw_policy(s);
        s->adoptions++;
    }
}

static inline bool service_time_for(uint64_t *next, uint64_t every)
{
    uint64_t now = pt_now_ns();
    if (now < *next)
        return false;
    *next = now + every;
    return true;
}

static inline void service_check(service *s)
{
    expect_sound(&s->owner, "between two requests");
    for (tier *t = s->tiers; t < s->tiers + TIERS; t++)
        tier_expect_same(t, &s->owner);
}

static inline void service_step(service *s)
{
    service_answer_all(s);
    service_act(s);
    if (service_time_for(&s->next_adopt, s->adoptions % 2 ? ADOPT_EVERY_NS : 4 * ADOPT_EVERY_NS))
        service_take_over(s);
    if (service_time_for(&s->next_check, CHECK_EVERY_NS))
        service_check(s);
}
