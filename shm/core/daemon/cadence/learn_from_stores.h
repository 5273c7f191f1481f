/* learn_from_stores.h - what the policy learns from a store: pages of a prompt that returned, and pages that are
 * new. */
#pragma once

#include "../requests.h"
#include "../evict.h"
#include "disk_history.h"

static inline const uint8_t *pt_nth_key(const uint8_t *keys, uint32_t at) { return keys + at * (uint64_t)PT_KEY_BYTES; }

static inline uint32_t pt_entry_of(const pt_owner *o, const uint8_t *key)
{
    return pt_dict_find(&o->view, pt_dict_in_force(&o->view), key);
}

/* Prefetches the bucket of a page, and where it is remembered if it left. */
static inline void pt_prefetch_known(const pt_owner *o, const uint8_t *key)
{
    pt_prefetch_write(&pt_dict_in_force(&o->view).buckets[pt_home(&o->view, key)]);
    pt_ghost_prefetch(&o->cadence->ghosts, pt_key_hash(o->cadence, key));
}

/* Returns how many pages of a prompt come before those at its end that were never seen, as far as is remembered. */
static inline uint32_t pt_count_known(const pt_owner *o, const uint8_t *keys, uint32_t count)
{
    for (uint32_t left = count; left; left--) {
        const uint8_t *key = pt_nth_key(keys, left - 1);
        if (left > PT_AHEAD)
            pt_prefetch_known(o, pt_nth_key(keys, left - 1 - PT_AHEAD));
        if (pt_entry_of(o, key) != PT_NONE || pt_ghost_find(&o->cadence->ghosts, pt_key_hash(o->cadence, key)))
            return left;
    }
    return 0;
}

/* A page has returned if a reader used it since the last store did (pt_stamp_use). */
static inline bool pt_was_used(const pt_cadence *c, uint32_t entry)
{
    return (uint32_t)pt_tick_of(c, entry) != atomic_load_explicit(&c->pages[entry].stamped, memory_order_relaxed);
}

static inline void pt_note_stamp(pt_cadence *c, uint32_t entry)
{
    atomic_store_explicit(&c->pages[entry].stamped, (uint32_t)pt_tick_of(c, entry), memory_order_relaxed);
}

static inline void pt_note_use_of(pt_owner *o, uint32_t entry, pt_said said, uint64_t now)
{
    pt_cadence_use(o->cadence, entry, pt_key_hash(o->cadence, o->view.entries[entry].key), said, now);
    pt_note_stamp(o->cadence, entry);
}

/* Learns from the pages before the first one of a store. Their recency rises from `tick`, as that of one prompt. */
static inline void pt_note_ancestors(pt_owner *o, uint32_t entry, pt_said said, uint64_t now, uint64_t tick)
{
    for (; entry != PT_NONE && o->cadence->climb && pt_was_used(o->cadence, entry); o->cadence->climb--) {
        pt_stamp(o, entry, ++tick);
        pt_note_use_of(o, entry, said, now);
        entry = pt_parent_of(o->cadence, entry);
    }
}

/* The next page comes after this one, PT_NONE if it is not known. */
static inline void pt_place_after(const pt_cadence *c, pt_place *place, uint32_t entry)
{
    place->parent = entry;
    place->life = entry == PT_NONE ? 0 : c->pages[entry].life;
}

/* Links a page to the one before it, if that one is still there. */
static inline void pt_link_at(pt_cadence *c, uint32_t entry, const pt_place *place)
{
    if (place->parent != PT_NONE && c->pages[place->parent].life == place->life)
        pt_cadence_link(c, entry, place->parent);
}

/* Finds the page before a prompt. It stays while room is made for the prompt, which is useless without it: that is no
 * use of it, so its place in the order of LRU moves with its tick, unless it was used before. */
static inline void pt_find_parent(pt_owner *o, const pt_request *r, pt_prompt *prompt, uint32_t count)
{
    uint32_t parent = r->prompt_kind == PT_PROMPT_KNOWN && prompt->parent ? pt_entry_of(o, prompt->parent) : PT_NONE;
    uint64_t tick = r->now + count + 1;
    pt_policy *list = parent == PT_NONE ? NULL : pt_list_of(o, parent);
    uint64_t listed = list ? o->kind->listed(list, parent) : UINT64_MAX;
    bool unused = listed < tick && pt_correct_tick(o, parent, r->now) <= listed;
    pt_place_after(o->cadence, &prompt->place, parent);
    pt_note_ancestors(o, parent, prompt->place.said, r->now, r->now + count);
    if (parent == PT_NONE)
        return;
    prompt->place.cadence = o->cadence->pages[parent].cadence;
    pt_stamp(o, parent, tick);
    pt_note_stamp(o->cadence, parent);
    if (unused)
        o->kind->used(list, parent, tick);
}

/* Returns the number of a prompt's first page, from what the client says or from the page before it; 0: not known. */
static inline uint32_t pt_depth_of(const pt_owner *o, const pt_prompt *prompt)
{
    uint32_t before = prompt->depth || !prompt->parent ? PT_NONE : pt_entry_of(o, prompt->parent);
    uint32_t depth = before == PT_NONE ? 0 : o->view.histories[before].depth;
    return prompt->depth ? prompt->depth : depth ? depth + 1 : 0;
}

/* Returns the place of a prompt when its pages are stored: the page before it may be
 * of an earlier prompt of the batch. */
static inline pt_place pt_place_of(const pt_owner *o, const pt_request *r, const pt_prompt *prompt)
{
    pt_place place = prompt->place;
    if (o->cadence && !r->part && r->prompt_kind == PT_PROMPT_KNOWN && prompt->parent && place.parent == PT_NONE)
        pt_place_after(o->cadence, &place, pt_entry_of(o, prompt->parent));
    place.depth = pt_depth_of(o, prompt);
    return place;
}

/* Records the number of a page in its prompt, with any policy, and moves on to that of the next page. */
static inline void pt_note_depth(pt_owner *o, uint32_t entry, pt_place *place)
{
    uint32_t depth = place->depth < PT_MOST_DEPTH ? place->depth : PT_MOST_DEPTH;
    if (!place->depth)
        return;
    place->depth = depth + 1;
    if (entry != PT_NONE && o->view.histories[entry].depth != depth)
        o->view.histories[entry].depth = depth & PT_MOST_DEPTH;
}

/* Learns from the pages of a prompt that exist, before they are stamped, and finds the place of the first one. Only the
 * first part of a page counts: the other parts are stores of the same prompt. */
static inline void pt_note_store(pt_owner *o, const pt_request *r, pt_prompt *prompt, const uint8_t *keys,
                                 uint32_t count)
{
    prompt->place = (pt_place){.parent = PT_NONE};
    prompt->known = count;
    if (!o->cadence || r->part)
        return;
    prompt->known = pt_count_known(o, keys, count);
    prompt->place.said = (pt_said){pt_growth_of(count - prompt->known), r->hint, r->lasts};
    pt_find_parent(o, r, prompt, count);
    bool missing = false; /* one of the pages before */
    for (uint32_t i = 0, before = prompt->place.parent; i < prompt->known; i++) {
        uint32_t entry = pt_entry_of(o, pt_nth_key(keys, i));
        missing |= entry == PT_NONE;
        if (entry != PT_NONE) {
            pt_cadence_link(o->cadence, entry, before);
            if (o->view.entries[entry].on_list != PT_LIST_OPEN)
                pt_note_use_of(o, entry, prompt->place.said, r->now);
            if (!missing) /* new pages inherit the cadence of the last one before them */
                prompt->place.cadence = o->cadence->pages[entry].cadence;
        }
        before = r->prompt_kind == PT_PROMPT_NONE ? PT_NONE : entry;
    }
}

/* Learns from the answer to one page, after it was stamped, and moves on to the place of the next page. */
static inline void pt_note_answer(pt_owner *o, const pt_request *r, const uint8_t *key, pt_answer answer,
                                  pt_place *place)
{
    pt_cadence *c = o->cadence;
    if (!c)
        return;
    uint32_t entry = answer.entry;
    if (answer.outcome == PT_GRANTED && !c->pages[entry].seen) {
        uint64_t hash = pt_key_hash(c, key);
        pt_ghost *known = pt_ghost_find(&c->ghosts, hash);
        pt_ghost page = pt_cadence_arrival(c, known, hash, place->cadence, place->said, r->now);
        pt_cadence_missed(c, known, hash, r->now);
        pt_link_at(c, entry, place);
        pt_cadence_become(c, entry, known, &page, place->said.lasts);
        c->promptless_stores += r->prompt_kind == PT_PROMPT_UNKNOWN ? 1 : -1;
    }
    pt_place_after(c, place, r->prompt_kind == PT_PROMPT_NONE ? PT_NONE : entry);
    if (entry == PT_NONE)
        return;
    place->cadence = c->pages[entry].cadence;
    pt_note_stamp(c, entry);
    c->newest = entry;
}
