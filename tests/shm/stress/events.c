/* events.c - two readers of the ring of events follow a daemon that stores, writes, evicts, flushes and dies. The ring
 * has fewer places than a round has events, so that readers miss some. After each round the daemon rests, and what each
 * reader believes of each page must be true. */
#include "client/event_reader.h"
#include "world.h"

#define READERS 2u
#define AT_ONCE 128u

typedef struct {
    world *world;
    uint32_t slot;
    uint8_t believed[IDS + 1]; /* the tiers of each page */
    _Atomic uint64_t round; /* the last round after which the reader knew everything */
    uint64_t seen, missed;
} reader;

static _Atomic uint64_t round_now;
static _Atomic bool stop;

static void locate_one(reader *r, const pt_view *v, uint32_t id)
{
    uint8_t key[PT_KEY_BYTES];
    page_key(id, key);
    r->believed[id] = pt_locate(v, key);
}

static void expect_whole(const pt_seen_event *event)
{
    uint8_t key[PT_KEY_BYTES];
    uint32_t id = page_id(event->key);
    page_key(id, key);
    if (!id || id > IDS || memcmp(key, event->key, PT_KEY_BYTES) || (event->what & 0xff) == 0)
        finding("an event of page %u has a key of several events", id);
}

/* Reads once. Returns whether there was nothing to read. */
static bool read_once(reader *r, const pt_view *v, pt_event_reader *state)
{
    pt_seen_event events[AT_ONCE];
    uint32_t count = AT_ONCE;
    pt_want_events(v, r->slot);
    switch (pt_read_events(v, state, events, &count)) {
    case PT_EVENTS_OFF:
        return false;
    case PT_EVENTS_MISSED:
        r->missed++;
        for (uint32_t id = 1; id <= IDS; id++)
            locate_one(r, v, id);
        return false;
    case PT_EVENTS_READ:
        break;
    }
    for (uint32_t i = 0; i < count; i++) {
        expect_whole(&events[i]);
        locate_one(r, v, page_id(events[i].key));
    }
    r->seen += count;
    return !count;
}

static void *reads(void *given)
{
    reader *r = given;
    pt_view v = world_view(r->world);
    pt_event_reader state = {0};
    while (!atomic_load(&stop)) {
        uint64_t round = atomic_load(&round_now);
        if (read_once(r, &v, &state) && round % 2)
            atomic_store(&r->round, round);
    }
    return NULL;
}

/* ---- the daemon ---- */

static void store_one(pt_owner *o, rng *r, uint32_t slot)
{
    uint32_t id = 1 + rng_below(r, IDS);
    uint8_t key[PT_KEY_BYTES];
    pt_request request = {.slot = slot,
                          .space = page_space(id),
                          .parts = 1,
                          .now = pt_now_ns(),
                          .expires_ns = UINT64_MAX};
    page_key(id, key);
    pt_answer a = reserve_page(o, &request, key, page_size(id));
    if (a.outcome == PT_GRANTED && !rng_one_in(r, 8))
        pt_part_finish(&o->view, a.entry, 0);
    else if (a.outcome == PT_GRANTED)
        pt_part_abandon(&o->view, a.entry, 0);
    if (rng_one_in(r, 2))
        pt_settle_all(o, pt_now_ns());
}

static void write_some(pt_owner *o, rng *r)
{
    uint32_t entries[8], count = pt_start_writes(o, 0, FRAMES, 1 + rng_below(r, 8), pt_now_ns(), entries);
    for (uint32_t i = 0; i < count; i++)
        pt_end_write(o, entries[i], rng_one_in(r, 4) ? PT_WRITE_AGAIN : PT_WRITE_DONE, pt_now_ns(), i);
    o->disk.devices[0].drop_count = 0;
}

static void exchange_disk(pt_owner *o, rng *r)
{
    if (o->disk.open && rng_one_in(r, 2)) {
        pt_disk_close(o, 0, pt_now_ns());
        return;
    }
    pt_disk_open(o, 0, FRAMES, PT_WRITE_THROUGH, pt_now_ns());
    for (uint32_t id = 1; id <= IDS; id += 1 + rng_below(r, 8)) {
        uint8_t key[PT_KEY_BYTES];
        page_key(id, key);
        pt_disk_report(o, &(pt_stored){key, page_size(id), page_space(id), pt_now_ns(), 0, 0}, pt_now_ns());
    }
    o->disk.devices[0].drop_count = 0;
    pt_disk_complete(o, 0);
}

static void drop_one(pt_owner *o, rng *r)
{
    uint8_t key[PT_KEY_BYTES];
    page_key(1 + rng_below(r, IDS), key);
    pt_disk_damaged(o, 0, key, pt_now_ns());
}

/* Dies after a page was retired, and before that was recorded. Another daemon adopts the segments. */
static void die(pt_owner *o, const world *w, rng *r)
{
    uint32_t entry = rng_below(r, ENTRIES);
    if (pt_list_of(o, entry))
        pt_retire(&o->view.locks[entry].word, PT_READABLE, PT_FREE);
    pt_owner_end(o);
    *o = world_adopt(w, UINT64_MAX);
}

static void act(pt_owner *o, const world *w, rng *r, uint32_t slot)
{
    uint32_t kind = rng_below(r, 512);
    if (kind < 320)
        store_one(o, r, slot);
    else if (kind < 400)
        write_some(o, r);
    else if (kind < 490)
        pt_evict_until(o, FRAMES, 1 + rng_below(r, 4), pt_now_ns());
    else if (kind < 496)
        pt_flush(o, rng_below(r, SPACES), (uint8_t)(1 + rng_below(r, 3)), pt_now_ns());
    else if (kind < 498)
        exchange_disk(o, r);
    else if (kind < 500)
        die(o, w, r);
    else if (kind < 502)
        pt_end_reader(&o->view, UINT64_MAX);
    else
        drop_one(o, r);
    if (rng_one_in(r, 4))
        pt_serve_events(&o->view);
}

static void expect_true(const reader *r, pt_owner *o)
{
    for (uint32_t id = 1; id <= IDS; id++) {
        uint8_t key[PT_KEY_BYTES], tiers = 0;
        page_key(id, key);
        uint32_t entry = pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
        if (entry != PT_NONE)
            tiers = pt_tiers(&o->view.entries[entry]);
        if (r->believed[id] != tiers)
            finding("a reader believes that page %u is in tiers %u, and it is in %u", id, r->believed[id], tiers);
    }
}

/* Returns whether all readers had nothing to read in a round. */
static bool all_reached(const reader *readers, uint64_t round)
{
    for (uint32_t i = 0; i < READERS; i++)
        if (atomic_load(&readers[i].round) != round)
            return false;
    return true;
}

/* Rests until all readers know everything. Their slots may have been taken from them, and then nothing is recorded
 * before the daemon serves them. What it records for one of them another one reads, although that one had nothing to
 * read before: so a second round follows, in which nothing is recorded. */
static void rest(reader *readers, pt_owner *o)
{
    pt_settle_all(o, pt_now_ns());
    uint64_t served = atomic_load(&round_now) + 1, quiet = served + 2;
    atomic_store(&round_now, served);
    while (!all_reached(readers, served)) {
        pt_serve_events(&o->view);
        sched_yield();
    }
    atomic_store(&round_now, quiet);
    while (!all_reached(readers, quiet))
        sched_yield();
    for (uint32_t i = 0; i < READERS; i++)
        expect_true(&readers[i], o);
    atomic_store(&round_now, quiet + 1);
}

int main(int count, char **arguments)
{
    run r = run_begin("events", count, arguments);
    rng random = rng_stream(r.seed, 0);
    world *w = world_new(r.seed, ENTRIES, FRAMES);
    pt_owner o = world_adopt(w, 0);
    uint32_t slot = pt_attach(&o, &(pt_process){.pid = 1, .started = 1, .name = "engine"}, pt_now_ns());
    reader readers[READERS] = {0};
    pthread_t threads[READERS];
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i].world = w;
        readers[i].slot = pt_attach(&o, &(pt_process){.pid = 2 + i, .started = 1, .name = "reader"}, pt_now_ns());
        pthread_create(&threads[i], NULL, reads, &readers[i]);
    }
    uint64_t rounds = 0;
    for (; run_seconds(&r) < r.seconds; rounds++) {
        for (uint32_t left = rng_below(&random, 600); left; left--)
            act(&o, w, &random, slot);
        rest(readers, &o);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    if (o.disk.open)
        pt_disk_close(&o, 0, pt_now_ns());
    run_end(&r, "%lu rounds, %lu events read, %lu times missed,", (unsigned long)rounds,
            (unsigned long)(readers[0].seen + readers[1].seen), (unsigned long)(readers[0].missed + readers[1].missed));
    pt_owner_end(&o);
    world_end(w);
    return 0;
}
