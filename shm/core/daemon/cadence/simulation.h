/* simulation.h - what cadence would find with an arena of another size: small caches of sampled keys, one for each size.
 *
 * Which keys return does not depend on the size of the cache. So what is known of a key, and what the daemon learned of all
 * (return_times.h), is the same for all sizes, and a cache only knows which of the keys it has (simulated_cache.h). The
 * sample is chosen so that a cache as large as the arena has a thousand pages (Waldspurger et al., ATC '17).
 *
 * A prompt is fed in two pieces: the pages that a lookup found, and the pages of the store that follows. In a smaller cache
 * some of the found pages are absent: they are stored at once. */
#pragma once

#include "simulated_sample.h"

#define PT_SIMULATED_STEPS_MINUTE (60u * 400000u) /* beyond it fewer keys are sampled: less than half a per cent of a core */

#define PT_SIMULATED_SLACK 1024u /* moments by which pieces of prompts may come in another order than their times */

/* ---- a prompt ---- */

/* Gives a key what a store says of it. */
static inline void pt_simulated_say(const pt_simulation *m, pt_simulated_key *k)
{
    k->class = pt_class_of(&m->policy->returns, k->cadence, k->uses, m->said.growth, m->said.hint);
    k->lasts = m->said.lasts;
    k->returned = !m->stores;
}

/* A key is used, unless the lookup before this store has counted it. A new one inherits the cadence of the page before it. */
static inline void pt_simulated_use_key(const pt_simulation *m, pt_simulated_key *k, uint8_t inherited)
{
    if (!m->stores || !k->returned) {
        float gap = pt_seconds_between(k->seen, m->now);
        k->cadence = k->uses ? pt_cadence_after(&m->policy->returns, k->cadence, gap) : inherited;
        k->uses += k->uses < PT_MOST_USES;
        k->seen = m->now;
    }
    pt_simulated_say(m, k);
}

/* Returns the number of a key that is used after the key `above`. */
static inline uint16_t pt_simulated_enroll(pt_simulation *m, const pt_simulated_use *use, uint16_t above)
{
    uint16_t *bucket = pt_simulated_bucket(m, use->hash);
    if (!*bucket) {
        m->kept->known[m->kept->keys] = (pt_simulated_key){.hash = use->hash, .parent = PT_NO_KEY};
        *bucket = (uint16_t)++m->kept->keys;
    }
    uint16_t key = *bucket - 1;
    pt_simulated_key *k = &m->kept->known[key];
    if (k->caches)
        return key;
    k->frames = (uint16_t)(use->frames < UINT16_MAX ? use->frames : UINT16_MAX);
    if (k->parent == PT_NO_KEY && above < key) /* PT_NO_KEY is not */
        k->parent = above;
    return key;
}

/* Says of the pages before a store what it says of its own: the lookup has counted them. */
static inline void pt_simulated_say_above(const pt_simulation *m, uint16_t key)
{
    for (; m->stores && key != PT_NO_KEY && m->kept->known[key].returned; key = m->kept->known[key].parent)
        pt_simulated_say(m, &m->kept->known[key]);
}

/* Uses the keys that were added. */
static inline void pt_simulate_added(pt_simulation *m)
{
    uint32_t count = 0;
    if (m->used)
        pt_simulated_make_keys(m);
    uint16_t first = m->above ? pt_simulated_find(m, m->above) : PT_NO_KEY, above = first;
    pt_simulated_say_above(m, above);
    for (uint32_t i = 0; i < m->used; i++) {
        if (!pt_is_sampled(m->uses[i].hash, m->kept->threshold))
            continue; /* since room was made */
        uint16_t key = pt_simulated_enroll(m, &m->uses[i], m->chained ? above : PT_NO_KEY);
        uint8_t inherited = above == PT_NO_KEY ? 0 : m->kept->known[above].cadence;
        pt_simulated_use_key(m, &m->kept->known[key], inherited);
        m->in_use[key] = true;
        m->chain[count++] = above = key;
    }
    if (first != PT_NO_KEY)
        m->in_use[first] = true;
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++)
        pt_simulated_store(m, &m->caches[size], count);
    for (uint32_t i = 0; i < count; i++)
        m->in_use[m->chain[i]] = false;
    if (first != PT_NO_KEY)
        m->in_use[first] = false;
    m->above = above == PT_NO_KEY ? 0 : m->kept->known[above].hash;
    m->steps += count * PT_SIMULATED_SIZES;
    m->used = 0;
}

/* Begins a prompt, or a piece of one that comes after the page with the hash `above`; 0: none, or not known. */
static inline void pt_simulate_begin(pt_simulation *m, uint64_t above, pt_said said, uint64_t now)
{
    m->above = above;
    m->said = said;
    if ((uint32_t)(m->now - pt_moment(now)) >= PT_SIMULATED_SLACK) /* not a little earlier than the last piece */
        m->now = pt_moment(now);
    m->stores = false;
    m->chained = true;
}

/* Adds the next page, if its key is simulated. */
static inline void pt_simulate_page(pt_simulation *m, uint64_t hash, uint32_t frames)
{
    if (!pt_is_sampled(hash, m->kept->threshold))
        return;
    if (m->used == PT_SIMULATED_CHAIN)
        pt_simulate_added(m);
    m->uses[m->used++] = (pt_simulated_use){hash, frames};
}

/* ---- what the daemon calls ---- */

/* Ends what an earlier daemon simulated: caches that did not follow some lookups would predict too little. */
static inline void pt_simulated_reset(pt_simulated *s) { s->threshold = s->keys = s->active = s->full = 0; }

/* Returns NULL if memory is short. */
static inline pt_simulation *pt_simulation_create(pt_simulated *kept, const pt_cadence *policy, uint64_t frames)
{
    pt_simulation *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->kept = kept, m->policy = policy, m->frames = frames, m->random = policy->seed | 1;
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++)
        m->caches[size].bit = (uint8_t)(1u << size);
    if (!kept->active || !pt_simulated_is_valid(kept))
        pt_simulated_reset(kept);
    pt_simulated_resize(m);
    if (!pt_simulated_derive(m)) {
        pt_simulated_reset(kept);
        pt_simulated_derive(m);
    }
    kept->active = 1;
    return m;
}

/* Chooses the sample when the first page is known, which has so many frames: the largest cache has half of the keys. */
static inline void pt_simulation_choose(pt_simulation *m, uint32_t frames, uint32_t most)
{
    double share = (double)PT_SIMULATED / 8 * frames / (double)m->frames, threshold = share * 4294967296.0;
    if (m->kept->threshold)
        return;
    m->kept->threshold = threshold < most ? (uint32_t)threshold + 1 : most;
    pt_simulated_resize(m);
}

/* Samples no more keys than the curve does, and less if there is too much to do. */
static inline void pt_simulation_limit(pt_simulation *m, uint32_t most, uint64_t now)
{
    uint32_t threshold = m->kept->threshold;
    bool much = m->steps > PT_SIMULATED_STEPS_MINUTE;
    if (much || now - m->minute_ns > 60000000000ull) {
        m->minute_ns = now;
        m->steps = 0;
    }
    threshold -= much ? threshold / 4 : 0;
    threshold = threshold < most ? threshold : most;
    if (threshold < m->kept->threshold)
        pt_simulate_less(m, threshold);
}

/* A page was dropped: no cache has it, however large. */
static inline void pt_simulation_drop(pt_simulation *m, uint64_t hash)
{
    uint16_t key = m && m->kept->keys ? pt_simulated_find(m, hash) : PT_NO_KEY;
    for (uint32_t size = 0; key != PT_NO_KEY && size < PT_SIMULATED_SIZES; size++)
        if (pt_simulated_has(m, &m->caches[size], key))
            pt_simulated_leave(m, &m->caches[size], key);
}

/* Stores by how much each cache leads the LRU cache of its size, of one key whose reuse distance is known: 1, 0 or -1.
 * Returns false if the key is not simulated, or was used last before the simulation began. */
static inline bool pt_simulation_compare(pt_simulation *m, uint64_t hash, double distance, int *leads)
{
    uint16_t key = m->kept->keys ? pt_simulated_find(m, hash) : PT_NO_KEY;
    if (!pt_is_sampled(hash, m->kept->threshold) || (key == PT_NO_KEY && !m->kept->full))
        return false;
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++) {
        bool own = key != PT_NO_KEY && pt_simulated_has(m, &m->caches[size], key);
        leads[size] = own - (distance <= pt_simulated_factor(size) * (double)m->frames);
    }
    return true;
}
