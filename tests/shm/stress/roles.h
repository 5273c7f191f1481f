/* roles.h - what the clients of a stress test do all the time: reader, writer, fetcher,
 * keeper. Each step releases everything. */
#pragma once

#include "grouping.h"

static inline void linger(client *c)
{
    uint32_t chance = rng_below(&c->random, 1024);
    if (chance < 32)
        sched_yield();
    else if (chance < 34)
        usleep(100 * (1 + rng_below(&c->random, 20)));
}

/* Returns whether a mortal client should die now. */
static inline bool dies_now(client *c) { return c->mortal && rng_one_in(&c->random, 4000); }

/* ---- reader ---- */

static inline prompt reader_prompt(client *c)
{
    prompt p = {0};
    for (uint32_t n = rng_below(&c->random, 3); n; n--)
        prompt_add_promised(&p, c->world, rng_below(&c->random, KEPT));
    for (uint32_t n = rng_below(&c->random, PROMPT - 2) + !p.count; n; n--)
        prompt_add(&p, 1 + rng_below(&c->random, IDS));
    return p;
}

static inline void reader_match(client *c, prompt *p)
{
    static void (*const ways[])(client *, prompt *) = {client_match, client_match, client_match_windowed,
                                                       client_match_snapshots};
    *p = reader_prompt(c);
    client_locate(c, p);
    ways[rng_below(&c->random, 4)](c, p);
}

static inline void reader_step(client *c)
{
    prompt p = {0};
    if (rng_one_in(&c->random, 8))
        client_take_over(c, &p);
    else
        reader_match(c, &p);
    client_glance(c, &p);
    if (dies_now(c)) {
        client_die(c);
        return;
    }
    if (p.found && rng_one_in(&c->random, 8))
        client_hand_over(c, &p);
    linger(c);
    client_verify(c, &p);
    client_release(c, &p);
}

/* ---- writer ---- */

static inline void writer_answer(client *c, const pt_answer *a, uint32_t id, uint32_t part)
{
    if (a->outcome != PT_GRANTED)
        return;
    linger(c);
    if (rng_one_in(&c->random, 32))
        pt_part_abandon(&c->session->view, a->entry, part);
    else
        client_publish(c, a->entry, id, part, c->box->request.expires_ns);
}

static inline void writer_step(client *c)
{
    uint32_t parts = rng_one_in(&c->random, 2) ? 1 : 1 + rng_below(&c->random, 3), part = rng_below(&c->random, parts);
    uint32_t count = 1 + rng_below(&c->random, BATCH), ids[BATCH];
    pt_answer answers[BATCH];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = page_with_parts(&c->random, parts);
    if (!client_reserve(c, ids, count, part))
        return;
    memcpy(answers, c->box->answers, sizeof answers);
    for (uint32_t i = 0; i < count; i++) {
        if (dies_now(c)) {
            client_die(c);
            return;
        }
        writer_answer(c, &answers[i], ids[i], part);
    }
}

/* ---- reader from disk ---- */

/* Reports that the bytes on disk are wrong, before or after it abandons its part: both orders are possible. */
static inline void fetcher_report(client *c, uint32_t entry, uint32_t id)
{
    bool first = rng_one_in(&c->random, 2);
    if (first)
        pt_part_abandon(&c->session->view, entry, 0);
    client_fetch(c, &id, 1, DAMAGED);
    if (!first)
        pt_part_abandon(&c->session->view, entry, 0);
}

static inline void fetcher_answer(client *c, const pt_answer *a, uint32_t id, uint64_t expires_ns)
{
    if (a->outcome != PT_GRANTED)
        return;
    linger(c);
    if (rng_one_in(&c->random, 16) || c->session->view.entries[a->entry].size != page_size(id))
        fetcher_report(c, a->entry, id);
    else if (rng_one_in(&c->random, 16))
        pt_part_abandon(&c->session->view, a->entry, 0);
    else
        client_publish_fetched(c, a->entry, id, expires_ns);
}

static inline void fetcher_step(client *c)
{
    uint32_t count = 1 + rng_below(&c->random, 3), ids[BATCH];
    pt_answer answers[BATCH];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = 1 + rng_below(&c->random, IDS);
    if (!client_fetch(c, ids, count, FETCH))
        return;
    uint64_t expires_ns = c->box->request.expires_ns;
    memcpy(answers, c->box->answers, sizeof answers);
    for (uint32_t i = 0; i < count; i++) {
        if (dies_now(c)) {
            client_die(c);
            return;
        }
        fetcher_answer(c, &answers[i], ids[i], expires_ns);
    }
}

static inline void any_step(client *c)
{
    static void (*const steps[])(client *) = {reader_step, writer_step, fetcher_step};
    steps[rng_below(&c->random, 3)](c);
}

/* ---- keeper: stores a page, pins it, and promises that it can be found ---- */

typedef struct {
    client *client;
    prompt pinned[KEPT];
} keeper;

static inline bool keeper_store(client *c, uint32_t id)
{
    if (!client_reserve(c, &id, 1, 0))
        return false;
    const pt_answer *a = &c->box->answers[0];
    if (a->outcome != PT_GRANTED)
        return a->outcome == PT_PRESENT;
    return client_publish(c, a->entry, id, 0, c->box->request.expires_ns);
}

static inline void keeper_promise(keeper *k, uint32_t cell)
{
    client *c = k->client;
    promise *kept = &c->world->kept[cell];
    uint32_t id = KEPT_BASE + KEPT_IDS * cell + rng_below(&c->random, KEPT_IDS);
    prompt p = {0};
    prompt_add(&p, id);
    if (!keeper_store(c, id))
        return;
    client_match(c, &p);
    client_verify(c, &p);
    if (!p.found)
        return; /* evicted already */
    k->pinned[cell] = p;
    atomic_store_explicit(&kept->id, id, memory_order_relaxed);
    atomic_fetch_add_explicit(&kept->term, 1, memory_order_release);
    c->did.promises++;
}

static inline void keeper_end_promise(keeper *k, uint32_t cell)
{
    atomic_fetch_add_explicit(&k->client->world->kept[cell].term, 1, memory_order_release);
    client_verify(k->client, &k->pinned[cell]);
    client_release(k->client, &k->pinned[cell]);
    k->pinned[cell].found = 0;
}

static inline void keeper_step(keeper *k)
{
    uint32_t cell = rng_below(&k->client->random, KEPT);
    if (!k->pinned[cell].found)
        keeper_promise(k, cell);
    else if (cell >= KEPT_TO_THE_END)
        keeper_end_promise(k, cell);
    linger(k->client);
}

static inline void keeper_end(keeper *k)
{
    for (uint32_t cell = 0; cell < KEPT; cell++)
        if (k->pinned[cell].found)
            keeper_end_promise(k, cell);
}

/* ---- the life of a client ---- */

typedef void role_step(client *);

/* Repeats a step, or the keeper's if there is none, until the world stops. */
static inline void client_live(client *c, role_step *step)
{
    keeper k = {.client = c};
    while (!atomic_load_explicit(&c->world->stop, memory_order_relaxed))
        if (step)
            step(c);
        else
            keeper_step(&k);
    keeper_end(&k);
}
