/* missed.h - the pages of a store that a lookup did not find before, and why they were absent. */
#pragma once

#include "../requests.h"

/* Returns whether the page of an engine's own hash is stored under another namespace: keys_of_hashes makes a key of
 * such a hash by XOR with the namespace's digest. */
static inline bool pt_is_elsewhere(const pt_owner *o, uint32_t space, const uint8_t *key)
{
    const pt_view *v = &o->view;
    uint8_t other[PT_KEY_BYTES];
    for (uint32_t s = 0; s < v->header->spaces && s < PT_CURVE_SPACES; s++) {
        if (s == space || !v->spaces[s].used)
            continue;
        for (uint32_t i = 0; i < PT_KEY_BYTES; i++)
            other[i] = key[i] ^ v->spaces[space].digest[i] ^ v->spaces[s].digest[i];
        if (pt_dict_find(v, pt_dict_in_force(v), other) != PT_NONE)
            return true;
    }
    return false;
}

static inline enum pt_absence pt_absence_of(const pt_owner *o, uint32_t space, const uint8_t *key, const pt_sampled *k)
{
    if (!k)
        return pt_is_elsewhere(o, space, key) ? PT_IN_OTHER_NAMESPACE : PT_NEVER_STORED;
    if (k->absence != PT_NEVER_STORED)
        return (enum pt_absence)k->absence;
    /* It did not leave as far as is known: another process stored it since the lookup, or an adoption dropped it. */
    return pt_dict_find(&o->view, pt_dict_in_force(&o->view), key) == PT_NONE ? PT_DROPPED : PT_NEVER_STORED;
}

static inline void pt_count_missed(pt_owner *o, const pt_counted *in, const uint8_t *key, const pt_sampled *k)
{
    pt_curve *c = o->lookups->order.curve;
    double tokens = pt_order_scale(&o->lookups->order) * in->space->page_tokens;
    enum pt_absence absence = pt_absence_of(o, in->number, key, k);
    for (int i = 0; i < 2 && in->sums[i]; i++)
        in->sums[i]->absences[absence] += tokens;
    c->absent_ever[absence] += tokens;
    pt_count_distance(o->lookups, in, k);
}

/* Counts the pages of one prompt of a store that a lookup missed, and uses all its sampled pages. Called before any of
 * them is granted, for the first part of a page only: the other parts are stores of the same prompt. */
static inline void pt_note_missed(pt_owner *o, const pt_request *r, const pt_prompt *prompt, const uint8_t *keys,
                                  const uint64_t *sizes, uint32_t count)
{
    pt_lookups *l = o->lookups;
    if (!l || r->part || !count)
        return;
    uint32_t expected = prompt->parent ? pt_take_expected(l, pt_after_hash(prompt->parent)) : 0;
    uint64_t all = 0;
    pt_counted in = pt_counted_in(l, &o->view, r->space);
    for (uint32_t i = 0; i < count; i++)
        pt_order_prefetch(&l->order, pt_sample_hash(keys + i * (uint64_t)PT_KEY_BYTES));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *key = keys + i * (uint64_t)PT_KEY_BYTES;
        uint64_t hash = pt_sample_hash(key);
        uint32_t from = pt_take_expected(l, hash | 1);
        expected = from ? from : expected;
        if (expected && pt_is_sampled(hash, l->order.curve->threshold))
            pt_count_missed(o, &in, key, pt_order_find(&l->order, hash));
        all += expected ? 1 : 0;
        expected -= expected ? 1 : 0;
    }
    for (int i = 0; i < 2 && in.sums[i]; i++)
        in.sums[i]->missed += (double)all * in.space->page_tokens;
    l->order.curve->stored_pages += (double)all;
    pt_expect(l, pt_after_hash(keys + (count - 1) * (uint64_t)PT_KEY_BYTES), expected);
    for (uint32_t i = count; i-- > 0;) {
        uint64_t hash = pt_sample_hash(keys + i * (uint64_t)PT_KEY_BYTES);
        if (pt_is_sampled(hash, l->order.curve->threshold))
            pt_use_sampled(l, hash, pt_frames_for(&o->view, sizes[i]), r->now);
    }
}

/* Counts all pages of a batch that a lookup missed, before any of them is granted. */
static inline void pt_note_batch(pt_owner *o, const pt_request *r, const pt_prompt *prompts, uint32_t prompt_count,
                                 const uint8_t *keys, const uint64_t *sizes, uint32_t count)
{
    pt_lookups_drain(o->lookups, &o->view, r->now);
    for (uint32_t i = 0; i < prompt_count; i++) {
        uint32_t at = prompts[i].begin, end = i + 1 < prompt_count ? prompts[i + 1].begin : count + r->refused;
        pt_note_missed(o, r, &prompts[i], keys + at * (uint64_t)PT_KEY_BYTES, sizes + at, end - at);
    }
}

/* Records why a page of a store is absent after it, if it is. */
static inline void pt_note_absent(pt_owner *o, const pt_request *r, const uint8_t *key, enum pt_outcome outcome)
{
    if (outcome == PT_LEFT_OUT)
        pt_note_absence(o, key, PT_EVICTED_FROM_MEMORY);
    else if (!r->part && (outcome == PT_REFUSED_FULL || outcome == PT_REFUSED_SIZE))
        pt_note_absence(o, key, PT_DROPPED);
}
