/* learning.h - what the policy learns from a store, and from pages that do not return. */
#pragma once

#include "cadence.h"

/* ---- the time at risk of pages that did not return, slice by slice ---- */

static inline uint32_t pt_slice_start(uint32_t slice, uint32_t count)
{
    return (uint32_t)((uint64_t)slice * count / PT_SLICES);
}
static inline uint32_t pt_slice_of(uint32_t at, uint32_t count) { return (uint32_t)((uint64_t)at * PT_SLICES / count); }

/* Adds the time since the page was seen, or since its slice was added up, if that was later. */
static inline void pt_add_risk(pt_cadence *c, uint32_t slice, uint16_t class, uint32_t seen, uint32_t now, float weight)
{
    float age = pt_seconds_between(seen, now), uncounted = pt_seconds_between(c->swept[slice], now);
    pt_note_risk(&c->returns, class, age > uncounted ? age - uncounted : 0, age, weight);
}

/* Adds the time at risk of a page up to now, and ends its hint if that is due. */
static inline void pt_sweep_page(pt_cadence *c, uint32_t slice, uint32_t entry, uint32_t now)
{
    pt_cadence_page *p = &c->pages[entry];
    if (!p->seen)
        return;
    p->class = pt_class_in_force(p, now);
    pt_add_risk(c, slice, p->class, p->seen, now, 1);
}

static inline void pt_sweep_pages(pt_cadence *c, uint32_t slice, uint32_t now)
{
    for (uint32_t entry = pt_slice_start(slice, c->entries); entry < pt_slice_start(slice + 1, c->entries); entry++)
        pt_sweep_page(c, slice, entry, now);
}

static inline void pt_sweep_ghosts(pt_cadence *c, uint32_t slice, uint32_t now)
{
    const pt_ghosts *d = &c->ghosts;
    for (uint32_t set = pt_slice_start(slice, d->sets); set < pt_slice_start(slice + 1, d->sets); set++)
        for (uint32_t i = 0; set % PT_GHOST_SAMPLE == 0 && i < PT_GHOST_WAYS; i++) {
            const pt_ghost *page = &d->pages[(size_t)set * PT_GHOST_WAYS + i];
            if (page->seen)
                pt_add_risk(c, slice, page->class, page->seen, now, PT_GHOST_SAMPLE);
        }
}

/* Returns how many pages are stored while all pages are added up once: a quarter of the full memory, but not so few
 * that a large index, most of it on disk, costs more than 16 entries for each. */
static inline uint32_t pt_pages_a_round(const pt_cadence *c)
{
    uint32_t pages = c->full_pages / 4 > c->entries / 16 ? c->full_pages / 4 : c->entries / 16;
    return pages > 256 ? pages : 256;
}

/* Uses count at once, the time at risk only when the slice is added up: at the greatest ages, which pages reached in
 * the last two rounds only, uses would seem more likely than they are. */
static inline void pt_note_round(pt_cadence *c, uint32_t now)
{
    uint32_t last = c->round_ended ? c->round_ended : c->began;
    float complete = pt_seconds_between(c->began, now) - 2 * pt_seconds_between(last, now);
    c->returns.complete = complete > c->returns.complete ? complete : c->returns.complete;
    c->round_ended = now;
}

/* A round of stores is over: the index follows. Where the clients do not say which page is before which, the policy
 * cannot know which pages are leaves, and the order is LRU's until most stores of a round say so. */
static inline void pt_end_round(pt_cadence *c, uint32_t now)
{
    pt_note_round(c, now);
    pt_returns_update(&c->returns);
    c->learned = c->full_pages && c->promptless_stores <= 0;
    c->promptless_stores = 0;
    pt_learned_save(c->saved, &c->returns, c->learned ? c->full_pages : 0);
}

/* Adds up what is due. */
static inline void pt_cadence_sweep(pt_cadence *c, uint64_t now)
{
    uint32_t round = pt_pages_a_round(c);
    c->began = c->began ? c->began : pt_moment(now);
    for (uint32_t most = PT_SLICES; c->stored >= c->next_slice && most; most--) {
        pt_sweep_pages(c, c->slice, pt_moment(now));
        pt_sweep_ghosts(c, c->slice, pt_moment(now));
        c->swept[c->slice] = pt_moment(now);
        c->next_slice += round / PT_SLICES;
        c->slice = (c->slice + 1) % PT_SLICES;
        if (!c->slice)
            pt_end_round(c, pt_moment(now));
    }
    if (c->stored >= c->next_slice) /* more was stored at once than a round: the rest is not made up for */
        c->next_slice = c->stored + 1;
}

/* ---- hints ---- */

/* Gives a page a hint. Its age begins again: a hint says when a page returns, counted from now. */
static inline void pt_cadence_hint(pt_cadence *c, uint32_t entry, enum pt_hint hint, uint8_t lasts, uint64_t now)
{
    pt_cadence_page *p = &c->pages[entry];
    pt_sweep_page(c, pt_slice_of(entry, c->entries), entry, pt_moment(now));
    p->class = pt_class_with(p->class, hint);
    p->seen = pt_moment(now);
    p->lasts = lasts;
}

/* ---- a page of a store ---- */

/* A page that is in a tier has returned. Its parent has to be linked already. */
static inline void pt_cadence_use(pt_cadence *c, uint32_t entry, uint64_t hash, pt_said said, uint64_t now)
{
    pt_cadence_page *p = &c->pages[entry];
    if (p->seen) {
        float gap = pt_seconds_between(p->seen, pt_moment(now));
        uint16_t class = pt_class_in_force(p, pt_moment(now));
        pt_note_return(&c->returns, class, gap, 1);
        pt_add_risk(c, pt_slice_of(entry, c->entries), class, p->seen, pt_moment(now), 1);
        pt_note_gap(&c->returns, gap);
        p->cadence = pt_cadence_after(&c->returns, p->cadence, gap);
    }
    p->uses += p->uses < 7;
    p->seen = pt_moment(now);
    p->class = pt_class_of(&c->returns, p->cadence, p->uses, said.growth, said.hint);
    p->lasts = said.lasts;
    pt_shadow_use(&c->shadow, hash, p->in_memory);
}

/* A page is stored that is in no tier: a new one, or one that returns, of which `known` is remembered. A new page gets
 * its parent's cadence. */
static inline pt_ghost pt_cadence_arrival(const pt_cadence *c, const pt_ghost *known, uint64_t hash, uint8_t inherited,
                                          pt_said said, uint64_t now)
{
    pt_ghost page = {.print = pt_ghost_print(hash), .cadence = inherited, .uses = 1};
    if (known) {
        page.cadence = pt_cadence_after(&c->returns, known->cadence, pt_seconds_between(known->seen, pt_moment(now)));
        page.uses = (uint8_t)(known->uses + (known->uses < 7));
    }
    page.seen = pt_moment(now);
    page.class = pt_class_of(&c->returns, page.cadence, page.uses, said.growth, said.hint);
    return page;
}

/* Learns that a page which is in no tier was used. `known` is what is remembered of it, or NULL. */
static inline void pt_cadence_missed(pt_cadence *c, const pt_ghost *known, uint64_t hash, uint64_t now)
{
    uint32_t set = pt_ghost_set(&c->ghosts, hash);
    pt_shadow_use(&c->shadow, hash, false);
    if (!known)
        return;
    float gap = pt_seconds_between(known->seen, pt_moment(now));
    pt_note_gap(&c->returns, gap);
    if (set % PT_GHOST_SAMPLE)
        return;
    pt_note_return(&c->returns, known->class, gap, PT_GHOST_SAMPLE);
    pt_add_risk(c, pt_slice_of(set, c->ghosts.sets), known->class, known->seen, pt_moment(now), PT_GHOST_SAMPLE);
}

/* Gives a new entry what is known of its page, of which `known` is remembered no more. */
static inline void pt_cadence_become(pt_cadence *c, uint32_t entry, pt_ghost *known, const pt_ghost *page,
                                     uint8_t lasts)
{
    pt_cadence_page *p = &c->pages[entry];
    if (known)
        known->seen = 0;
    p->class = page->class;
    p->cadence = page->cadence;
    p->uses = page->uses;
    p->seen = page->seen;
    p->lasts = lasts;
    c->stored++;
}
