/* crash.c - real processes on the same shared memory, killed at any instruction: daemons all the time, engines
 * now and then. After each death of a daemon another one adopts the segments while the engines continue. After
 * that everything must be sound, and every page that was readable must be found, with exactly its bytes. Promises
 * must hold for all engines all the time. */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "daemon.h"
#include "roles.h"

#define ENGINES 5u

static role_step *const roles[ENGINES] = {NULL /* the keeper: never killed */, reader_step, any_step, writer_step,
                                          any_step};

typedef struct {
    pid_t pid;
    uint32_t slot;
} engine;

typedef struct {
    world *world;
    rng random;
    client *clients; /* of the engines, in shared memory: their counters outlive the engines */
    engine engines[ENGINES];
    pt_session session; /* of the supervisor, which checks what each daemon left */
    uint8_t memory[PAGE_MAX];
    uint64_t daemons, dead_engines, survived;
} supervisor;

/* ---- processes ---- */

static pid_t fork_mortal(void)
{
    pid_t pid = fork();
    if (pid < 0)
        finding("fork: %s", strerror(errno));
    if (!pid)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void kill_now(pid_t pid, const char *name)
{
    int status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        finding("%s ended without being killed, status %x", name, (unsigned)status);
}

static void engine_start(supervisor *s, uint32_t i)
{
    engine *e = &s->engines[i];
    client *c = &s->clients[i];
    tally before = c->did;
    pt_session session;
    session_begin(&session, s->world, e->slot);
    *c = (client){.world = s->world, .session = &session, .box = &s->world->boxes[i], .did = before};
    c->random = rng_stream(s->world->seed, rng_below(&s->random, UINT32_MAX));
    e->pid = fork_mortal();
    if (!e->pid) {
        mprotect(s->world->index, s->world->sizes.index, PROT_READ);
        client_live(c, roles[i]);
        _exit(0);
    }
    session_end(&session);
}

/* The life of a daemon from its start, which is an adoption too, to its death. It stores pages itself, so
 * these are half written when it dies. */
_Noreturn static void daemon_life(supervisor *s, uint64_t alive)
{
    pt_session ghost;
    service d = {.world = s->world, .owner = world_adopt(s->world, alive), .tiers = NEW_TIERS};
    d.random = rng_stream(s->world->seed, rng_below(&s->random, UINT32_MAX));
    service_draw_policy(&d);
    session_begin(&ghost, s->world, attach_new(&d.owner, s->world));
    d.ghost = (client){.world = s->world, .session = &ghost, .random = d.random};
    for (uint32_t i = 0; i < TIERS; i++)
        tier_exchange(&d.tiers[i], &d.random);
    for (;;)
        service_step(&d);
}

/* ---- what must survive ---- */

static uint64_t engines_alive(const supervisor *s)
{
    uint64_t alive = 1ull << s->session.slot;
    for (uint32_t i = 0; i < ENGINES; i++)
        alive |= s->engines[i].pid ? 1ull << s->engines[i].slot : 0;
    return alive;
}

/* Notes the serials of the readable pages, by number; 0 for the others. No daemon lives at this time. */
static void note_readable(supervisor *s, uint64_t *serials)
{
    const pt_view *v = &s->session.view;
    uint8_t key[PT_KEY_BYTES];
    for (uint32_t number = 0; number < PAGES; number++) {
        page_key(id_of(number), key);
        serials[number] = 0;
        for (uint32_t entry = 0; entry < v->entry_count; entry++)
            if (pt_load_state(&v->locks[entry].word) == PT_READABLE && pt_same_key(v->entries[entry].key, key))
                serials[number] = v->entries[entry].serial;
    }
}

static void expect_found(supervisor *s, uint32_t id, uint64_t serial)
{
    uint8_t key[PT_KEY_BYTES];
    uint32_t entry;
    uint64_t found = 0;
    pt_matched to = {&entry, &found, 0, 0};
    page_key(id, key);
    pt_match(&s->session, key, 1, &to);
    if (!to.count) {
        if (serial)
            finding("page %u was readable before the adoption and is gone after it", id);
        return;
    }
    page_verify(&s->session.view, entry, id, page_size(id), s->memory);
    pt_release(&s->session, &entry, 1);
    if (serial && found != serial)
        finding("page %u has another serial after the adoption", id);
    s->survived += serial != 0;
}

static bool holds_nothing(const void *context, uint64_t serial)
{
    (void)context, (void)serial;
    return false;
}

/* Ends the requests that the dead daemon did not respond to. Their clients have no grants: what was granted
 * to them belongs to the lost response. */
static void end_lost_requests(supervisor *s, pt_owner *o)
{
    for (uint32_t i = 0; i < ENGINES; i++) {
        mailbox *m = &s->world->boxes[i];
        uint32_t question = atomic_load(&m->question);
        if (question == NOTHING)
            continue;
        if (question != DAMAGED) /* a client that reports damage may still have the part that it has to abandon */
            pt_release_unlisted_parts(o, m->slot, holds_nothing, NULL);
        m->lost = true;
        atomic_store_explicit(&m->question, NOTHING, memory_order_release);
    }
}

static void adopt_and_check(supervisor *s)
{
    uint64_t serials[PAGES];
    note_readable(s, serials);
    pt_owner o = world_adopt(s->world, engines_alive(s));
    expect_sound(&o, "after the adoption");
    for (uint32_t number = 0; number < PAGES; number++)
        expect_found(s, id_of(number), serials[number]);
    end_lost_requests(s, &o);
    for (uint32_t i = 0; i < ENGINES; i++)
        if (!s->engines[i].pid)
            s->engines[i].slot = attach_new(&o, s->world);
    pt_owner_end(&o);
    for (uint32_t i = 0; i < ENGINES; i++)
        if (!s->engines[i].pid)
            engine_start(s, i);
}

/* ---- a round: a daemon lives for some milliseconds, and an engine may die during that time ---- */

static uint32_t kill_engine(supervisor *s)
{
    uint32_t i = 1 + rng_below(&s->random, ENGINES - 1);
    if (!s->engines[i].pid)
        return s->engines[i].slot;
    kill_now(s->engines[i].pid, "an engine");
    s->engines[i].pid = 0;
    s->dead_engines++;
    return s->engines[i].slot;
}

static void report_death(world *w, uint32_t slot)
{
    w->boxes[ENGINES].slot = slot;
    atomic_store_explicit(&w->boxes[ENGINES].question, BURY, memory_order_release);
}

static void daemon_round(supervisor *s)
{
    uint64_t alive = engines_alive(s);
    pid_t pid = fork_mortal();
    if (!pid)
        daemon_life(s, alive);
    usleep(rng_below(&s->random, 3000));
    if (rng_one_in(&s->random, 3)) {
        report_death(s->world, kill_engine(s));
        usleep(rng_below(&s->random, 1000));
    }
    kill_now(pid, "a daemon");
    s->daemons++;
    atomic_store(&s->world->boxes[ENGINES].question, NOTHING);
    if (rng_one_in(&s->random, 3))
        kill_engine(s);
}

static void finish(supervisor *s)
{
    service last = {.world = s->world,
                    .owner = world_adopt(s->world, engines_alive(s)),
                    .random = s->random,
                    .tiers = NEW_TIERS};
    uint32_t living = ENGINES;
    last.ghost = (client){.world = s->world, .session = &s->session, .random = s->random};
    atomic_store(&s->world->stop, true);
    while (living) {
        int status;
        service_step(&last);
        if (waitpid(-1, &status, WNOHANG) <= 0)
            continue;
        if (status)
            finding("an engine ended with status %x", (unsigned)status);
        living--;
    }
    for (uint32_t i = 0; i < TIERS; i++)
        tier_close(&last.tiers[i], &last.owner);
    expect_all_returned(&last.owner);
    pt_owner_end(&last.owner);
}

static void begin(supervisor *s)
{
    pt_owner o = world_adopt(s->world, 0);
    session_begin(&s->session, s->world, attach_new(&o, s->world));
    for (uint32_t i = 0; i < ENGINES; i++)
        s->engines[i].slot = attach_new(&o, s->world);
    pt_owner_end(&o);
    for (uint32_t i = 0; i < ENGINES; i++)
        engine_start(s, i);
}

int main(int count, char **arguments)
{
    run r = run_begin("crash", count, arguments);
    supervisor s = {.world = world_new(r.seed, ENTRIES, FRAMES), .random = rng_stream(r.seed, 0)};
    s.clients = shared_memory(pt_round_up(ENGINES * sizeof *s.clients));
    begin(&s);
    while (!run_over(&r)) {
        daemon_round(&s);
        adopt_and_check(&s);
    }
    finish(&s);
    uint64_t matches = 0;
    for (uint32_t i = 0; i < ENGINES; i++)
        matches += s.clients[i].did.matches;
    run_end(&r, "%lu daemons and %lu engines killed, %lu pages survived, %lu matches,", s.daemons, s.dead_engines,
            s.survived, matches);
    session_end(&s.session);
    return 0;
}
