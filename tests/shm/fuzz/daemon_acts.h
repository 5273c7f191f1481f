/* daemon_acts.h - the actions of the daemon: requests, deaths, passing time, disks that open, change and close. */
#pragma once

#include "daemon/cadence/hints.h"
#include "daemon/disk_tier.h"
#include "engine_acts.h"
#include "daemon/fetch.h"

static inline void grants_add(place *p, uint32_t engine, uint32_t part, const pt_answer *answers, uint32_t count)
{
    for (uint32_t i = 0; i < count && p->grant_count < GRANTS; i++)
        if (answers[i].outcome == PT_GRANTED)
            p->grants[p->grant_count++] = (grant){answers[i].entry, part, engine, answers[i].serial};
}

/* Tells whether an engine knows of a grant; others are released in its name. */
static inline bool grants_hold(const void *context, uint64_t serial)
{
    const place *p = context;
    for (uint32_t i = 0; i < p->grant_count; i++)
        if (p->grants[i].serial == serial)
            return true;
    return false;
}

/* Switches the policy that learns when pages return on and off, and lets it choose without having learned. */
static inline void learn_sometimes(place *p, uint32_t run)
{
    if (run % 16 == 15)
        pt_forget_returns(&p->owner);
    else if (run % 4)
        pt_learn_returns(&p->owner, run);
    if (!p->owner.cadence)
        return;
    pt_note_full_memory(&p->owner);
    p->owner.cadence->learned = p->owner.cadence->full_pages;
}

/* Says something of pages. */
static inline void hint_sometimes(place *p, uint32_t run, const uint8_t *keys, uint32_t count)
{
    uint64_t now = pt_now_ns();
    pt_keep_request r = {run % 3, run % 5 ? PT_NONE : run % SPACES,
                         now + (run % 2 ? 1000000ull * (run % 512) : PT_LEASE_NS), run % (PLACE_FRAMES + 1)};
    if (run % 3 == 0)
        pt_keep_pages(&p->owner, &r, keys, count, now);
    if (run % 11 == 0)
        pt_unkeep_pages(&p->owner, &r, keys, count, now);
    if (run % 5 == 0)
        pt_hint_pages(&p->owner, (enum pt_hint)(run % PT_HINTS), (uint8_t)(run % 16), keys, count, now);
    if (run % 13 == 0 && p->owner.cadence)
        pt_keep_at_most(&p->owner.cadence->keeps, r.most_frames / 2, now);
}

static inline pt_request choose_request(place *p, uint32_t engine, uint32_t parts)
{
    uint64_t now = pt_now_ns();
    pt_request r = {.slot = p->engines[engine].slot, .space = choose(&p->choices, SPACES), .parts = parts, .now = now};
    r.part = choose(&p->choices, parts);
    r.division = choose_one_in(&p->choices, 8);
    r.expires_ns = now + 1000000 * choose(&p->choices, 256);
    r.reservation = ++p->owner.last_reservation;
    /* not a choice, as the kind of prompt: it would change the meaning of the corpora */
    learn_sometimes(p, r.reservation);
    r.prompt_kind = r.reservation % 8 ? PT_PROMPT_KNOWN : (enum pt_prompt_kind)(r.reservation / 8 % 3);
    return r;
}

/* Chooses the number of parts, mostly one: otherwise hardly any page would ever be complete. */
static inline uint32_t choose_parts(place *p)
{
    uint32_t kind = choose(&p->choices, 8);
    return kind == 7 ? 1 + choose(&p->choices, PT_PARTS) : kind >= 5 ? kind - 3 : 1;
}

static inline void daemon_reserve(place *p)
{
    uint8_t keys[BATCH * PT_KEY_BYTES];
    uint64_t sizes[BATCH];
    pt_answer answers[BATCH];
    uint32_t engine, count = 1 + choose(&p->choices, BATCH), parts = choose_parts(p);
    choose_engine(p, &engine);
    pt_request r = choose_request(p, engine, parts);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = choose_id(p);
        page_key(id, keys + i * PT_KEY_BYTES);
        sizes[i] = choose_one_in(&p->choices, 16) ? choose_odd(&p->choices) : page_size(id);
    }
    pt_prompt prompts[] = {{.parent = keys + (count - 1) * PT_KEY_BYTES}, {.begin = count / 2, .parent = keys}};
    r.prompts = prompts;
    r.prompt_count = count > 1 ? 2 : 1;
    r.hint = (uint8_t)(r.reservation / 2 % PT_HINTS); /* no choices either */
    r.lasts = (uint8_t)(r.reservation % 16);
    r.keep = r.reservation % 7 == 0;
    pt_reserve(&p->owner, &r, keys, sizes, count, answers);
    hint_sometimes(p, r.reservation, keys, count);
    grants_add(p, engine, r.part, answers, count);
}

static inline void daemon_fetch(place *p)
{
    uint8_t keys[PROMPT * PT_KEY_BYTES];
    pt_answer answers[PROMPT];
    uint32_t engine, count = choose_keys(p, keys);
    choose_engine(p, &engine);
    pt_request r = choose_request(p, engine, 1);
    uint64_t most = choose(&p->choices, PLACE_FRAMES);
    pt_reader readers[PT_DEVICES] = {{r.slot, most ? most : UINT64_MAX, 0}, {r.slot, most / 2, 0}};
    uint64_t sizes[PROMPT];
    uint32_t spaces[PROMPT];
    pt_located located = {{r.slot, most ? most : UINT64_MAX, 0}, sizes, spaces};
    for (uint32_t i = 0; i < count; i++) { /* no choices, as above */
        sizes[i] = (r.reservation + i) % 4 ? page_size(page_id(pt_nth_key(keys, i))) : 0;
        spaces[i] = r.space;
    }
    pt_fetch(&p->owner, &r, readers, r.reservation % 3 ? NULL : &located, keys, count, answers);
    for (uint32_t i = 0; i < count; i++)
        if (answers[i].outcome == PT_GRANTED_TO_FLEET)
            answers[i].outcome = PT_GRANTED;
    grants_add(p, engine, 0, answers, count);
}

/* A process dies or detaches, with everything that it has; another one takes its place. */
static inline void daemon_reap(place *p)
{
    uint32_t engine;
    pt_session *s = choose_engine(p, &engine);
    for (uint32_t i = p->grant_count; i-- > 0;)
        if (p->grants[i].engine == engine)
            p->grants[i] = p->grants[--p->grant_count];
    for (uint32_t i = p->pin_count; i-- > 0;)
        if (p->pins[i].engine == engine)
            p->pins[i] = p->pins[--p->pin_count];
    place_forget(s);
    pt_reap(&p->owner, s->slot, pt_now_ns());
    place_attach(p, engine);
}

static inline void daemon_keep_only(place *p)
{
    uint32_t engine;
    pt_release_unlisted_parts(&p->owner, choose_engine(p, &engine)->slot, grants_hold, p);
    pt_settle_all(&p->owner, pt_now_ns());
}

static inline void daemon_restart(place *p) { place_adopt(p, place_alive(p)); }

static inline void daemon_settle(place *p)
{
    if (choose_one_in(&p->choices, 4))
        place_now += 1000000ull * choose(&p->choices, 256);
    pt_settle_all(&p->owner, pt_now_ns());
}

static inline void daemon_evict(place *p)
{
    uint32_t frames = choose(&p->choices, PLACE_FRAMES + 1);
    pt_evict_until(&p->owner, frames, choose(&p->choices, 8), pt_now_ns());
}

static inline void daemon_flush(place *p)
{
    uint32_t space = choose(&p->choices, SPACES + 1);
    pt_flush(&p->owner, space < SPACES ? space : PT_NONE, (uint8_t)choose(&p->choices, 4), pt_now_ns());
}

static inline void daemon_drop_idle(place *p)
{
    uint64_t now = pt_now_ns(), idle = 1000000ull * choose(&p->choices, 4);
    pt_idle_step(&p->owner, idle < now ? now - idle : 0, now, choose(&p->choices, 16));
}

/* ---- the disk ---- */

/* Returns the device that acts now. It is not a choice: it would change the meaning of the corpora. */
static inline uint32_t turn_of_device(const place *p) { return p->owner.last_reservation / 3 % DEVICES; }

/* Shrinks a device. A page that is being read or written cannot be evicted at once, and keeps its room. */
static inline void disk_shrinks(place *p)
{
    pt_disk_shrink(&p->owner, turn_of_device(p), choose(&p->choices, 8), pt_now_ns());
}

static inline void disk_turns(place *p)
{
    uint64_t now = pt_now_ns();
    switch (choose(&p->choices, 4)) {
    case 0:
        pt_disk_close(&p->owner, turn_of_device(p), now);
        break;
    case 1:
        disk_shrinks(p);
        break;
    case 2:
        pt_disk_set_rule(&p->owner, (enum pt_write_rule)choose(&p->choices, 3), now);
        break;
    default:
        pt_disk_open(&p->owner, turn_of_device(p), choose(&p->choices, 2 * PLACE_FRAMES),
                     (enum pt_write_rule)choose(&p->choices, 3), now);
    }
}

static inline void disk_report(place *p)
{
    uint8_t key[PT_KEY_BYTES];
    for (uint32_t left = 1 + choose(&p->choices, 16); left && p->owner.disk.open; left--) {
        uint32_t id = choose_id(p);
        pt_stored page = {key, page_size(id), choose(&p->choices, SPACES), 0, (uint8_t)turn_of_device(p), 0};
        page.tick = choose_one_in(&p->choices, 4) ? choose_odd(&p->choices) : pt_now_ns();
        page_key(id, key);
        pt_disk_report(&p->owner, &page, pt_now_ns());
    }
}

static inline void disk_write(place *p)
{
    uint32_t entries[8], limit = 1 + choose(&p->choices, 8), count = 0;
    if (p->owner.disk.open)
        count = pt_start_writes(&p->owner, turn_of_device(p), 1 + choose(&p->choices, PLACE_FRAMES), limit, pt_now_ns(),
                                entries);
    for (uint32_t i = 0; i < count; i++)
        if (!choose_one_in(&p->choices, 4))
            pt_end_write(&p->owner, entries[i], (enum pt_write_result)choose(&p->choices, 4), pt_now_ns(), i);
}

/* Responds to a command of any time, or to none. */
static inline void disk_answer(place *p)
{
    uint32_t entry = choose_one_in(&p->choices, 8) ? (uint32_t)choose_odd(&p->choices)
                                                   : choose(&p->choices, PLACE_ENTRIES);
    pt_end_write(&p->owner, entry, (enum pt_write_result)choose(&p->choices, 4), pt_now_ns(), 0);
}

/* Drops a damaged page: the reader of the page has released it before. */
static inline void disk_damaged(place *p)
{
    uint8_t key[PT_KEY_BYTES];
    page_key(choose_id(p), key);
    uint32_t entry = pt_dict_find(&p->owner.view, pt_dict_in_force(&p->owner.view), key);
    if (entry == PT_NONE || pt_load_state(&p->owner.view.locks[entry].word) != PT_WRITING)
        pt_disk_damaged(&p->owner, turn_of_device(p), key, pt_now_ns());
    p->owner.disk.devices[turn_of_device(p)].drop_count = 0;
}

static inline void disk_questions(place *p)
{
    pt_unwritten(&p->owner);
    pt_frames_before_unwritten(&p->owner, 0, choose(&p->choices, 2 * PLACE_FRAMES));
}

typedef void act(place *);

static act *const acts[] = {
    engine_match, engine_match_groups, engine_repin, engine_release, engine_copy, engine_end_part, engine_end_part,
    engine_finish_all, daemon_reserve, daemon_reserve, daemon_reserve, daemon_fetch, daemon_reap, daemon_keep_only,
    daemon_restart, daemon_settle, daemon_evict, daemon_flush, disk_turns, disk_report, disk_write, disk_answer,
    disk_damaged, disk_questions, daemon_drop_idle,
};
#define ACTS (sizeof acts / sizeof *acts)

static inline void act_by_choice(place *p) { acts[choose(&p->choices, ACTS)](p); }
