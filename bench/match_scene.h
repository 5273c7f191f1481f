/* match_scene.h - an index, the processes that are attached to it, and prompts that were stored: what the programs that
 * count and time matches have in common. One of them defines scene_memory, which returns memory for a segment (0: the
 * index, 1: the locks), filled with zeros. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/publish.h"
#include "client/sample.h"
#include "daemon/adopt.h"
#include "daemon/lru.h"
#include "daemon/reserve.h"

#define FRAME 4096u
#define ENTRIES 8192u
#define MOST_PAGES 512u
#define PROCESSES 2u
#define TTL (1ull << 40)

typedef struct {
    pt_owner owner;
    pt_session sessions[PROCESSES];
    uint64_t keys; /* that were made */
    uint64_t random;
} scene;

static void *scene_memory(int number, uint64_t bytes);

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void new_keys(scene *s, uint8_t *keys, uint32_t count)
{
    for (uint64_t word = 0; word < count * (uint64_t)PT_KEY_BYTES / 8; word++) {
        uint64_t value = pt_mixed(++s->keys);
        memcpy(keys + word * 8, &value, 8);
    }
}

static void store(scene *s, const uint8_t *keys, uint32_t count)
{
    static uint64_t sizes[MOST_PAGES];
    static pt_answer answers[MOST_PAGES];
    pt_request r = {.slot = s->sessions[0].slot, .parts = 1, .now = pt_now_ns()};
    r.expires_ns = r.now + TTL;
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = FRAME;
    pt_reserve(&s->owner, &r, keys, sizes, count, answers);
    for (uint32_t i = 0; i < count; i++)
        must(answers[i].outcome == PT_GRANTED && pt_part_finish(&s->owner.view, answers[i].entry, 0), "not stored");
}

/* Stores prompts of 1 to 40 pages. When the index is full, older ones leave, and entries are scattered as in an old
 * index. */
static void churn(scene *s, uint32_t pages)
{
    uint8_t keys[40 * PT_KEY_BYTES];
    for (uint32_t done = 0, count; done < pages; done += count) {
        s->random = pt_mixed(s->random + 1);
        count = 1 + (uint32_t)(s->random % 40);
        new_keys(s, keys, count);
        store(s, keys, count);
    }
}

static void attach(scene *s, uint32_t number)
{
    pt_session *session = &s->sessions[number];
    pt_process process = {.pid = number + 1, .started = 1, .token = number + 1, .name = "bench"};
    session->view = s->owner.view;
    session->slot = pt_attach(&s->owner, &process, pt_now_ns());
    session->counts = &session->view.counts[session->slot];
    session->own_pins = calloc(ENTRIES, sizeof *session->own_pins);
    must(session->own_pins && !pthread_mutex_init(&session->lock, NULL), "memory is short");
}

static void begin(scene *s)
{
    pt_geometry g = {FRAME, ENTRIES, ENTRIES, 4, {0, 0, PT_SAMPLES_BYTES}};
    pt_header plan = {0};
    pt_plan(&plan, &g);
    void *index = scene_memory(0, plan.index_bytes), *locks = scene_memory(1, plan.locks_bytes);
    pt_format(index, locks, &g, 1, "bench");
    pt_view v = pt_view_of(index, locks, NULL);
    v.spaces[0].used = 1;
    v.spaces[0].first = PT_NONE;
    must(pt_owner_begin(&s->owner, v, &pt_lru) && pt_adopt(&s->owner, 0), "memory is short");
    for (uint32_t number = 0; number < PROCESSES; number++)
        attach(s, number);
}

/* The pages that a match has pinned. */
typedef struct {
    uint32_t entries[MOST_PAGES];
    uint64_t serials[MOST_PAGES];
    uint32_t count;
} pinned;

/* Matches a prompt that is cached as a whole or not at all. */
static void match(pt_session *s, const uint8_t *keys, uint32_t pages, pinned *pins)
{
    pt_matched to = {pins->entries, pins->serials, 0, 0};
    pt_look_up(s, keys, pages, &to);
    must(!to.count || to.count == pages, "a part of the prefix was found");
    pins->count = to.count;
}

static void match_and_release(pt_session *s, const uint8_t *keys, uint32_t pages)
{
    pinned pins;
    match(s, keys, pages, &pins);
    pt_release(s, pins.entries, pins.count);
}
