/* admission.h - which pages of a store are not worth their room: those in memory are expected to be used sooner. */
#pragma once

#include "learn_from_stores.h"

/* Returns the frames that the absent pages of a prompt need. */
static inline uint64_t pt_frames_missing(const pt_owner *o, const uint8_t *keys, const uint64_t *sizes, uint32_t count)
{
    uint64_t frames = 0;
    for (uint32_t i = 0; i < count; i++)
        if (sizes[i] <= o->view.header->arena_bytes && pt_entry_of(o, pt_nth_key(keys, i)) == PT_NONE)
            frames += pt_frames_for(&o->view, sizes[i]);
    return frames;
}

/* Returns what the last page of a prompt would be worth if it were stored. */
static inline float pt_worth_of_arrival(const pt_owner *o, const pt_request *r, const uint8_t *key,
                                        const pt_place *place)
{
    uint64_t hash = pt_key_hash(o->cadence, key);
    const pt_ghost *known = pt_ghost_find(&o->cadence->ghosts, hash);
    pt_ghost page = pt_cadence_arrival(o->cadence, known, hash, place->cadence, place->said, r->now);
    return o->cadence->returns.index[page.class][0];
}

/* Returns the time before which a page must have been used last to leave for one that is in no tier and returns
 * often; 0: none leaves, because that one was not used often, as far as is remembered. */
static inline uint64_t pt_unused_since(const pt_owner *o, const pt_request *r, const uint8_t *key)
{
    const pt_ghost *known = pt_ghost_find(&o->cadence->ghosts, pt_key_hash(o->cadence, key));
    if (!known || known->uses < PT_RETURNED_OFTEN)
        return 0;
    uint64_t gap = ((uint64_t)(uint32_t)(pt_moment(r->now) - known->seen) + 1) * PT_MOMENT_NS;
    return gap * PT_MUCH_LONGER < r->now ? r->now - gap * PT_MUCH_LONGER : 0;
}

/* Makes room for a prompt whose last page returns often, whatever was learned: while nothing else is stored, nothing
 * is learned of the pages in memory, and they would be expected to return first until their ages are beyond all that
 * was learned. */
static inline void pt_evict_unused(pt_owner *o, const pt_wanted *w, uint64_t since, uint64_t now)
{
    while (since && pt_update_need(o, w) && pt_evict_used_before(o, since, now))
        ;
}

/* Returns whether pages of a store may be left out: not where a disk keeps what leaves, where several ranks store a
 * page, where no page may leave, and for a client that does not know this answer. */
static inline bool pt_may_leave_out(const pt_owner *o, const pt_request *r)
{
    return pt_cadence_chooses(o) && r->prompt_kind == PT_PROMPT_KNOWN && r->parts == 1 && !o->disk.open && !r->keep;
}

/* Evicts pages that are worth no more than a new page, until the store has its frames. Returns false if there is no
 * page to compare with: then the store gets what room can be made, and the rest is refused. */
static inline bool pt_evict_worth_less(pt_owner *o, const pt_wanted *w, float own, uint64_t now)
{
    pt_offer other = pt_choose_leaf(o, now, now);
    if (other.entry == PT_NONE)
        return false;
    while (other.entry != PT_NONE && other.worth <= own && pt_update_need(o, w) && pt_evict_offer(o, &other, now))
        other = pt_choose_leaf(o, now, now);
    return true;
}

/* Makes room for a prompt while the pages that leave are worth less than its own last page, or were unused for much
 * longer if it returns often; pages at its end that are worth less are left out. Returns how many pages are to be
 * stored. */
static inline uint32_t pt_admit_prompt(pt_owner *o, const pt_request *r, const uint8_t *keys, const uint64_t *sizes,
                                       uint32_t count, const pt_place *place)
{
    if (!pt_may_leave_out(o, r))
        return count;
    uint32_t tenant = o->view.spaces[r->space].tenant;
    pt_wanted w = {tenant, pt_frames_missing(o, keys, sizes, count), 0};
    w.most = pt_most_after(o->tenants.frames[tenant], w.frames, o->tenants.most[tenant]);
    while (count && pt_update_need(o, &w)) {
        float own = pt_worth_of_arrival(o, r, pt_nth_key(keys, count - 1), place);
        if (!pt_evict_worth_less(o, &w, own, r->now))
            break;
        pt_evict_unused(o, &w, pt_unused_since(o, r, pt_nth_key(keys, count - 1)), r->now);
        if (!pt_update_need(o, &w))
            break;
        uint32_t cut = count < PT_CUT ? count : PT_CUT;
        count -= cut;
        uint64_t less = pt_frames_missing(o, pt_nth_key(keys, count), sizes + count, cut);
        w.frames -= less < w.frames ? less : w.frames;
    }
    return count;
}

/* Remembers a page that was left out. */
static inline pt_answer pt_leave_out(pt_owner *o, const pt_request *r, const uint8_t *key, pt_place *place)
{
    uint64_t hash = pt_key_hash(o->cadence, key);
    const pt_ghost *known = pt_ghost_find(&o->cadence->ghosts, hash);
    pt_ghost page = pt_cadence_arrival(o->cadence, known, hash, place->cadence, place->said, r->now);
    pt_cadence_missed(o->cadence, known, hash, r->now);
    pt_ghost_put(&o->cadence->ghosts, hash, page);
    o->left_out++;
    return pt_answer_with(o, PT_LEFT_OUT, PT_NONE);
}
