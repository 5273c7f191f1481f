/* stress.c - the lock-free paths in one process, with threads in place of processes, so
 * that a sanitizer sees everything. */
#include "daemon.h"
#include "pauses.h"
#include "roles.h"

/* The clients. Threads with the same process share a session. */
static const struct {
    uint32_t process;
    bool mortal;
    role_step *step; /* NULL: the keeper */
} cast[] = {
    {0, false, NULL},
    {1, false, reader_step},
    {1, false, reader_step},
    {2, false, any_step},
    {2, false, any_step},
    {3, true, reader_step},
    {4, true, writer_step},
    {6, true, fetcher_step},
    {5, true, any_step},
};
#define CAST (sizeof cast / sizeof cast[0])
#define PROCESSES 7u
_Static_assert(CAST <= BOXES, "each client has a mailbox of its own");

static pt_session sessions[PROCESSES], ghost;
static client clients[CAST];

static void *live(void *given)
{
    client *c = given;
    client_live(c, cast[c - clients].step);
    atomic_fetch_sub(&c->world->running, 1);
    return NULL;
}

static void begin(service *s, pthread_t *threads)
{
    session_begin(&ghost, s->world, attach_new(&s->owner, s->world));
    s->ghost = (client){.world = s->world, .session = &ghost, .random = rng_stream(s->world->seed, CAST)};
    for (uint32_t i = 0; i < PROCESSES; i++)
        session_begin(&sessions[i], s->world, attach_new(&s->owner, s->world));
    atomic_store(&s->world->running, CAST);
    for (uint32_t i = 0; i < CAST; i++) {
        clients[i] = (client){.world = s->world, .session = &sessions[cast[i].process], .box = &s->world->boxes[i],
                              .mortal = cast[i].mortal, .random = rng_stream(s->world->seed, i)};
        pthread_create(&threads[i], NULL, live, &clients[i]);
    }
}

static tally end(service *s, pthread_t *threads)
{
    tally all = s->ghost.did;
    for (uint32_t i = 0; i < CAST; i++) {
        pthread_join(threads[i], NULL);
        for (uint32_t n = 0; n < sizeof all / sizeof(uint64_t); n++)
            ((uint64_t *)&all)[n] += ((uint64_t *)&clients[i].did)[n];
    }
    for (uint32_t i = 0; i < TIERS; i++)
        tier_close(&s->tiers[i], &s->owner);
    expect_all_returned(&s->owner);
    pt_owner_end(&s->owner);
    for (uint32_t i = 0; i < PROCESSES; i++)
        session_end(&sessions[i]);
    session_end(&ghost);
    return all;
}

int main(int count, char **arguments)
{
    run r = run_begin("stress", count, arguments);
    world *w = world_new(r.seed, ENTRIES, FRAMES);
    service s = {.world = w, .owner = world_adopt(w, 0), .random = rng_stream(r.seed, 1000), .tiers = NEW_TIERS};
    /* the daemon's thread is stopped most often */
    pthread_t threads[CAST + 3] = {[CAST] = pthread_self(), pthread_self(), pthread_self()};
    pauser p = {0};
    begin(&s, threads);
    pauser_begin(&p, threads, CAST + 3, rng_stream(r.seed, 1001));
    while (atomic_load(&w->running)) {
        service_step(&s);
        if (run_over(&r))
            atomic_store(&w->stop, true);
    }
    pauser_end(&p);
    pt_daemon_counts counters = s.owner.view.header->counters;
    tally all = end(&s, threads);
    run_end(&r,
            "%lu matches, %lu pages, %lu stored, %lu fetched, %lu lost, %lu evicted, %lu written to disk, %lu deaths, "
            "%lu adoptions,",
            all.matches, all.pages, all.stored, all.fetched, all.lost, counters.evicted,
            s.tiers[0].written + s.tiers[1].written, all.deaths, s.adoptions);
    return 0;
}
