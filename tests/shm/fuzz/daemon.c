/* daemon.c - a daemon among misbehaving engines, which change the words that they may write, also while the
 * daemon reads them. They publish incomplete pages, release what they were never granted, pin for other
 * processes, stamp any time: everything stays sound, and is free when they have ended. In every other input they
 * write anything at all, states too: then the daemon continues, accesses nothing outside the segments, and the
 * next daemon finds everything in order. */
#include "interference.h"

#include "daemon_acts.h"
#include "damage.h"

static place here;
static bool wild;

static uint32_t choose_entry(place *p) { return choose(&p->choices, PLACE_ENTRIES); }

static uint64_t choose_pin(place *p)
{
    uint32_t engine;
    return 1ull << choose_engine(p, &engine)->slot;
}

static void misbehave(place *p)
{
    const pt_view *v = &p->owner.view;
    uint32_t entry = choose_entry(p);
    pt_lock *lock = &v->locks[entry];
    switch (choose(&p->choices, 7)) {
    case 0:
        pt_part_finish(v, entry, choose(&p->choices, PT_PARTS));
        break;
    case 1:
        pt_part_abandon(v, entry, choose(&p->choices, PT_PARTS));
        break;
    case 2:
        atomic_store(&lock->parts, choose_odd(&p->choices));
        break;
    case 3:
        atomic_store(&lock->tick, choose_odd(&p->choices));
        break;
    case 4:
        atomic_fetch_or(&lock->word, choose_pin(p));
        break;
    case 5:
        damage(p, (area){v->counts, PT_SLOTS * sizeof *v->counts, sizeof *v->counts});
        break;
    default:
        pt_change(&lock->word, PT_WRITING, PT_READABLE);
    }
}

/* Overwrites lock words, states above all: they decide what the daemon does. */
static void scribble(place *p)
{
    const pt_view *v = &p->owner.view;
    pt_a64 *word = &v->locks[choose_entry(p)].word;
    if (choose_one_in(&p->choices, 2)) {
        atomic_store(word, pt_with_state(atomic_load(word), (enum pt_state)choose(&p->choices, PT_ON_DISK + 2)));
        return;
    }
    damage(p, (area){v->locks, PLACE_ENTRIES * sizeof *v->locks, sizeof *v->locks});
}

static void interfere(void) { (wild ? scribble : misbehave)(&here); }

static act *const daemons[] = {
    daemon_reserve, daemon_reserve, daemon_reserve, daemon_fetch, daemon_reap, daemon_keep_only, daemon_settle,
    daemon_settle, daemon_evict, daemon_flush, disk_turns, disk_report, disk_write, disk_answer, disk_damaged,
    disk_questions, daemon_drop_idle,
};
#define DAEMONS (sizeof daemons / sizeof *daemons)

static void daemon_among_others(place *p)
{
    interfere_after = choose_one_in(&p->choices, 2) ? 1 + choose(&p->choices, 64) : 0;
    daemons[choose(&p->choices, DAEMONS)](p);
    interfere_after = 0;
}

/* Engines match only if the words are what they expect: otherwise they would find what was scribbled. */
static void step(place *p)
{
    switch (choose(&p->choices, 4)) {
    case 0:
        interfere();
        break;
    case 1: {
        act *wild_act = wild && choose_one_in(&p->choices, 2) ? engine_end_part : engine_finish_all;
        (wild ? wild_act : acts[choose(&p->choices, ACTS)])(p);
        break;
    }
    default:
        daemon_among_others(p);
    }
    if (!wild)
        expect_sound(&p->owner, "after a step");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    place *p = &here;
    place_begin(p, data, bytes);
    wild = choose_one_in(&p->choices, 2);
    while (p->choices.left)
        step(p);
    if (wild)
        place_adopt(p, place_alive(p));
    expect_sound(&p->owner, "at the end");
    place_end(p);
    return 0;
}
