/* engine_acts.h - the actions of attached engines: match, repin, release, finish parts or abandon them. Everything that
 * is found is compared with what was looked up. */
#pragma once

#include "place.h"

static inline uint32_t choose_id(place *p) { return 1 + choose(&p->choices, PLACE_IDS); }

static inline uint32_t choose_keys(place *p, uint8_t *keys)
{
    uint32_t count = 1 + choose(&p->choices, PROMPT);
    for (uint32_t i = 0; i < count; i++)
        page_key(choose_id(p), keys + i * PT_KEY_BYTES);
    return count;
}

/* Expects that the caller has pinned a readable page with the requested key. */
static inline void expect_pinned(const pt_session *s, uint32_t entry, const uint8_t *key)
{
    if (entry >= PLACE_ENTRIES || !s->own_pins[entry].pins)
        finding("entry %u was reported as pinned, and is not", entry);
    uint64_t word = atomic_load(&s->view.locks[entry].word);
    if (!(word >> s->slot & 1) || pt_state_of(word) != PT_READABLE)
        finding("entry %u is pinned, and its word is %016lx", entry, (unsigned long)word);
    if (key && !pt_same_key(s->view.entries[entry].key, key))
        finding("entry %u was found under another key than its own", entry);
}

static inline pinned *pinned_room(place *p, uint32_t engine)
{
    if (p->pin_count == PINNED)
        return NULL;
    pinned *pins = &p->pins[p->pin_count++];
    *pins = (pinned){.engine = engine};
    return pins;
}

static inline void release_pins(place *p, uint32_t at)
{
    pinned pins = p->pins[at];
    p->pins[at] = p->pins[--p->pin_count];
    pt_release(&p->engines[pins.engine], pins.entries, pins.count);
}

static inline void engine_release(place *p)
{
    if (p->pin_count)
        release_pins(p, choose(&p->choices, p->pin_count));
}

static inline void engine_match(place *p)
{
    uint8_t keys[PROMPT * PT_KEY_BYTES];
    uint32_t engine, count = choose_keys(p, keys);
    pt_session *s = choose_engine(p, &engine);
    pinned *pins = pinned_room(p, engine);
    if (!pins)
        return;
    pt_matched to = {pins->entries, pins->serials, 0, 0};
    pt_match(s, keys, count, &to);
    pins->count = to.count;
    if (to.count > to.reach || to.reach > count)
        finding("of %u keys %u were found, with a reach of %u", count, to.count, to.reach);
    for (uint32_t i = 0; i < to.count; i++)
        expect_pinned(s, pins->entries[i], keys + i * PT_KEY_BYTES);
}

/* Repins the match of another process, or arbitrary numbers. */
static inline void engine_repin(place *p)
{
    uint32_t engine;
    pt_session *s = choose_engine(p, &engine);
    pinned *pins = pinned_room(p, engine);
    if (!pins)
        return;
    pinned from = p->pins[choose(&p->choices, p->pin_count)];
    if (choose_one_in(&p->choices, 4) && from.count < PROMPT)
        from.entries[from.count] = (uint32_t)choose_odd(&p->choices),
        from.serials[from.count++] = choose_odd(&p->choices);
    memcpy(pins->entries, from.entries, sizeof pins->entries);
    memcpy(pins->serials, from.serials, sizeof pins->serials);
    pins->count = pt_repin(s, pins->entries, pins->serials, from.count);
    for (uint32_t i = 0; i < pins->count; i++) {
        expect_pinned(s, pins->entries[i], NULL);
        if (s->view.entries[pins->entries[i]].serial != pins->serials[i])
            finding("entry %u was pinned again, and is another page", pins->entries[i]);
    }
}

#define GROUPS_MAX 3u

static inline void choose_group(place *p, pt_group *g, uint8_t *keys, uint32_t *seen, uint64_t *serials)
{
    uint32_t count = choose_keys(p, keys), tokens = 1 + choose(&p->choices, 4), kind = choose(&p->choices, 3);
    uint64_t needs = kind == 0 ? PT_NEEDS_ALL : kind == 1 ? 1 : choose_odd(&p->choices);
    *g = (pt_group){.keys = keys,
                    .count = count,
                    .page_tokens = tokens,
                    .needs = needs,
                    .seen = seen,
                    .serials = serials};
}

static inline void keep_group(place *p, uint32_t engine, const pt_group *g)
{
    pt_session *s = &p->engines[engine];
    pinned *pins = pinned_room(p, engine);
    if (g->first + g->pins > g->count)
        finding("pages %u to %u of %u are pinned", g->first, g->first + g->pins, g->count);
    for (uint32_t i = g->first; i < g->first + g->pins; i++)
        expect_pinned(s, g->seen[i], g->keys + i * PT_KEY_BYTES);
    if (!pins) {
        pt_release(s, g->seen + g->first, g->pins);
        return;
    }
    pins->count = g->pins;
    memcpy(pins->entries, g->seen + g->first, g->pins * sizeof *pins->entries);
    memcpy(pins->serials, g->serials + g->first, g->pins * sizeof *pins->serials);
}

static inline void engine_match_groups(place *p)
{
    uint8_t keys[GROUPS_MAX][PROMPT * PT_KEY_BYTES];
    uint32_t seen[GROUPS_MAX][PROMPT], engine, count = 1 + choose(&p->choices, GROUPS_MAX);
    uint64_t serials[GROUPS_MAX][PROMPT];
    pt_group groups[GROUPS_MAX];
    pt_session *s = choose_engine(p, &engine);
    pt_agreed agreed = {.limit = choose_one_in(&p->choices, 4) ? choose_odd(&p->choices) : UINT64_MAX};
    for (uint32_t i = 0; i < count; i++)
        choose_group(p, &groups[i], keys[i], seen[i], serials[i]);
    pt_match_groups(s, groups, count, &agreed);
    if (agreed.tokens > agreed.reach || agreed.reach > agreed.limit)
        finding("%lu tokens, a reach of %lu, a limit of %lu", agreed.tokens, agreed.reach, agreed.limit);
    for (uint32_t i = 0; i < count; i++) {
        if (agreed.tokens % groups[i].page_tokens)
            finding("%lu tokens are not a whole number of pages", agreed.tokens);
        keep_group(p, engine, &groups[i]);
    }
}

/* Copies pinned pages: wherever a list of frames leads, no byte outside the arena may be accessed. */
static inline void engine_copy(place *p)
{
    if (!p->pin_count)
        return;
    const pinned *pins = &p->pins[choose(&p->choices, p->pin_count)];
    const pt_view *v = &p->engines[pins->engine].view;
    for (uint32_t i = 0; i < pins->count; i++) {
        uint64_t size = v->entries[pins->entries[i]].size;
        uint64_t wanted = choose_one_in(&p->choices, 8) ? choose_odd(&p->choices) : size;
        if (wanted > (uint64_t)PLACE_FRAMES * FRAME)
            continue;
        uint32_t *frames = malloc(pt_frames_for(v, wanted) * sizeof *frames + 1);
        uint8_t *memory = malloc(wanted + 1);
        pt_job job = {pins->entries[i], memory, choose_one_in(&p->choices, 8) ? choose_odd(&p->choices) : 0, wanted};
        pt_frame_list_read(v, pins->entries[i], wanted, frames);
        if (pt_job_fits(v, &job))
            pt_copy(v, &job, 1, PT_OUT_OF_ARENA, 1);
        free(memory);
        free(frames);
    }
}

static inline void end_part(place *p, uint32_t at, bool whole)
{
    grant g = p->grants[at];
    const pt_view *v = &p->engines[g.engine].view;
    p->grants[at] = p->grants[--p->grant_count];
    if (v->entries[g.entry].serial != g.serial)
        return;
    if (whole)
        pt_part_finish(v, g.entry, g.part);
    else
        pt_part_abandon(v, g.entry, g.part);
}

static inline void engine_end_part(place *p)
{
    if (p->grant_count)
        end_part(p, choose(&p->choices, p->grant_count), !choose_one_in(&p->choices, 4));
}

/* Finishes all parts that were granted to any engine. */
static inline void engine_finish_all(place *p)
{
    while (p->grant_count)
        end_part(p, 0, true);
}
