/* client.h - one thread of an attached process: it matches, verifies, reserves and writes. */
#pragma once

#include "world.h"

typedef struct {
    uint64_t matches, pages, stored, fetched, lost, deaths, promises;
} tally;

typedef struct {
    world *world;
    pt_session *session; /* shared by the threads of one process */
    mailbox *box;
    bool mortal; /* may die; it is the only thread of its process */
    rng random;
    tally did;
    uint8_t memory[PAGE_MAX];
} client;

/* The pages of a prompt. The first `promised` of them are on the list of promises; none of these may be missed. */
typedef struct {
    uint32_t count, promised, found, reach;
    uint32_t ids[PROMPT], cells[PROMPT], entries[PROMPT];
    uint64_t terms[PROMPT], serials[PROMPT];
    uint8_t keys[PROMPT * PT_KEY_BYTES];
} prompt;

static inline void session_begin(pt_session *s, const world *w, uint32_t slot)
{
    s->view = world_view(w);
    s->slot = slot;
    s->counts = &s->view.counts[slot];
    s->frames = 0;
    s->bounded = false;
    pthread_mutex_init(&s->lock, NULL);
    s->own_pins = calloc(s->view.entry_count, sizeof *s->own_pins);
}

static inline void session_end(pt_session *s)
{
    pthread_mutex_destroy(&s->lock);
    free(s->own_pins);
}

/* ---- requests to the daemon ---- */

/* Sends a request and waits for the response. Returns false if the daemon died with the response. */
static inline bool client_ask(client *c, enum question question)
{
    c->box->slot = c->session->slot;
    c->box->lost = false;
    atomic_store_explicit(&c->box->question, question, memory_order_release);
    while (atomic_load_explicit(&c->box->question, memory_order_acquire) != NOTHING)
        sched_yield();
    return !c->box->lost;
}

/* Ends this process with everything that it has pinned or reserved; another process takes its place. */
static inline void client_die(client *c)
{
    client_ask(c, REBORN);
    session_end(c->session);
    session_begin(c->session, c->world, c->box->slot);
    c->did.deaths++;
}

static inline bool client_reserve(client *c, const uint32_t *ids, uint32_t count, uint32_t part)
{
    mailbox *m = c->box;
    m->count = count;
    m->request =
        (pt_request){.slot = c->session->slot, .space = page_space(ids[0]), .part = part, .parts = page_parts(ids[0])};
    m->request.expires_ns = pt_now_ns() + 300000 * (1 + rng_below(&c->random, 30));
    for (uint32_t i = 0; i < count; i++) {
        page_key(ids[i], m->keys + i * PT_KEY_BYTES);
        m->sizes[i] = page_size(ids[i]);
    }
    return client_ask(c, RESERVE);
}

/* The client acts as the disk's worker: the pages to be read are granted to the client itself. */
static inline bool client_fetch(client *c, const uint32_t *ids, uint32_t count, enum question question)
{
    mailbox *m = c->box;
    m->count = count;
    m->request = (pt_request){.slot = c->session->slot, .parts = 1};
    m->request.expires_ns = pt_now_ns() + 300000 * (1 + rng_below(&c->random, 30));
    for (uint32_t i = 0; i < count; i++)
        page_key(ids[i], m->keys + i * PT_KEY_BYTES);
    return client_ask(c, question);
}

/* ---- reading ---- */

static inline void prompt_add(prompt *p, uint32_t id)
{
    page_key(id, p->keys + p->count * PT_KEY_BYTES);
    p->ids[p->count++] = id;
}

static inline void prompt_add_promised(prompt *p, world *w, uint32_t cell)
{
    uint64_t term = atomic_load_explicit(&w->kept[cell].term, memory_order_acquire);
    if (!(term & 1))
        return;
    p->cells[p->promised] = cell;
    p->terms[p->promised++] = term;
    prompt_add(p, atomic_load_explicit(&w->kept[cell].id, memory_order_relaxed));
}

/* Checks a match. A miss is wrong if the first page that was not found was promised before the match and still is. */
static inline void client_matched(client *c, const prompt *p)
{
    if (p->reach < p->found || p->reach > p->count)
        finding("of %u pages %u were found, with a reach of %u", p->count, p->found, p->reach);
    c->did.matches++;
    c->did.pages += p->found;
    if (p->found >= p->promised)
        return;
    if (atomic_load_explicit(&c->world->kept[p->cells[p->found]].term, memory_order_acquire) == p->terms[p->found])
        finding("page %u was missed while it was stored and pinned", p->ids[p->found]);
}

/* Locates the pages of a prompt. A page that was promised before, and still is, is in memory: it is pinned. */
static inline void client_locate(client *c, const prompt *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        uint8_t tiers = pt_locate(&c->session->view, p->keys + i * PT_KEY_BYTES);
        if (tiers & ~(PT_TIER_MEMORY | PT_TIER_DISK))
            finding("page %u is located in tiers %u", p->ids[i], tiers);
        if (i < p->promised && !(tiers & PT_TIER_MEMORY) &&
            atomic_load_explicit(&c->world->kept[p->cells[i]].term, memory_order_acquire) == p->terms[i])
            finding("page %u is not located in memory while it is stored and pinned", p->ids[i]);
    }
}

static inline void client_match(client *c, prompt *p)
{
    pt_matched to = {p->entries, p->serials, 0, 0};
    pt_match(c->session, p->keys, p->count, &to);
    p->found = to.count;
    p->reach = to.reach;
    pt_sample_lookup(c->session, p->keys, p->reach, p->count, rng_below(&c->random, SPACES));
    client_matched(c, p);
}

static inline void client_glance(client *c, const prompt *p)
{
    for (uint32_t i = 0; i < p->found; i++) {
        if (c->session->view.entries[p->entries[i]].serial != p->serials[i])
            finding("page %u: entry %u was filled again under a pin", p->ids[i], p->entries[i]);
        page_verify(&c->session->view, p->entries[i], p->ids[i], 8, c->memory);
    }
}

static inline void client_verify(client *c, const prompt *p)
{
    client_glance(c, p);
    for (uint32_t i = 0; i < p->found; i++)
        page_verify(&c->session->view, p->entries[i], p->ids[i], page_size(p->ids[i]), c->memory);
}

static inline void client_release(client *c, const prompt *p) { pt_release(c->session, p->entries, p->found); }

/* ---- one process passes a match to another ---- */

static inline void client_hand_over(client *c, const prompt *p)
{
    handover *h = &c->world->handovers[rng_below(&c->random, HANDOVERS)];
    if (atomic_exchange_explicit(&h->busy, 1, memory_order_acquire))
        return;
    h->count = p->found;
    memcpy(h->ids, p->ids, sizeof h->ids);
    memcpy(h->entries, p->entries, sizeof h->entries);
    memcpy(h->serials, p->serials, sizeof h->serials);
    atomic_store_explicit(&h->busy, 0, memory_order_release);
}

static inline void client_take_over(client *c, prompt *p)
{
    handover *h = &c->world->handovers[rng_below(&c->random, HANDOVERS)];
    if (atomic_exchange_explicit(&h->busy, 1, memory_order_acquire))
        return;
    memcpy(p->ids, h->ids, sizeof h->ids);
    memcpy(p->entries, h->entries, sizeof h->entries);
    memcpy(p->serials, h->serials, sizeof h->serials);
    p->count = h->count;
    atomic_store_explicit(&h->busy, 0, memory_order_release);
    p->found = pt_repin(c->session, p->entries, p->serials, p->count);
}

/* ---- writing ---- */

/* Writes a part and finishes it. Returns false if the page was doomed: by another writer of it, or
 * because it took longer than `expires_ns`. */
static inline bool client_publish(client *c, uint32_t entry, uint32_t id, uint32_t part, uint64_t expires_ns)
{
    page_write(&c->session->view, entry, id, part, c->memory);
    bool stored = pt_part_finish(&c->session->view, entry, part);
    *(stored ? &c->did.stored : &c->did.lost) += 1;
    if (!stored && page_parts(id) == 1 && pt_now_ns() < expires_ns)
        finding("page %u was lost, though it was written in time", id);
    return stored;
}

static inline void client_publish_fetched(client *c, uint32_t entry, uint32_t id, uint64_t expires_ns)
{
    page_write_whole(&c->session->view, entry, id, c->memory);
    bool stored = pt_part_finish(&c->session->view, entry, 0);
    *(stored ? &c->did.fetched : &c->did.lost) += 1;
    if (!stored && pt_now_ns() < expires_ns)
        finding("page %u was lost, though it was read in time", id);
}
