/* simulated_sample.h - which keys are simulated, and all that follows from them. Keys come as they are used; those that no
 * cache has go when the table is full, the oldest half of them first. */
#pragma once

#include "simulated_cache.h"

static inline double pt_simulated_scale(const pt_simulation *m)
{
    return 4294967296.0 / (m->kept->threshold ? m->kept->threshold : 1);
}

static inline uint16_t *pt_simulated_bucket(pt_simulation *m, uint64_t hash)
{
    uint32_t at = (uint32_t)hash % PT_SIMULATED_BUCKETS;
    while (m->buckets[at] && m->kept->known[m->buckets[at] - 1].hash != hash)
        at = (at + 1) % PT_SIMULATED_BUCKETS;
    return &m->buckets[at];
}

/* Returns the number of a key, or PT_NO_KEY. */
static inline uint16_t pt_simulated_find(pt_simulation *m, uint64_t hash)
{
    uint16_t key = *pt_simulated_bucket(m, hash);
    return key ? key - 1 : PT_NO_KEY;
}

/* ---- all that follows from the keys ---- */

static inline void pt_simulated_clear(pt_simulated_cache *c)
{
    c->frames = c->leaf_count = c->run_left = 0;
    c->newest = c->run = PT_NO_KEY;
    memset(c->place, 0xff, sizeof c->place);
    memset(c->children, 0, sizeof c->children);
}

static inline void pt_simulated_derive_cache(pt_simulation *m, pt_simulated_cache *c)
{
    pt_simulated_clear(c);
    for (uint16_t key = 0; key < m->kept->keys; key++) {
        const pt_simulated_key *k = &m->kept->known[key];
        c->frames += k->caches & c->bit ? k->frames : 0;
        if (k->caches & c->bit && k->parent != PT_NO_KEY)
            c->children[k->parent]++;
    }
    for (uint16_t key = 0; key < m->kept->keys; key++)
        if (pt_simulated_has(m, c, key) && !c->children[key])
            pt_simulated_leaf_add(c, key);
    for (pt_simulated_offer least; c->frames > c->room && (least = pt_simulated_least(m, c)).key != PT_NO_KEY;)
        pt_simulated_evict(m, c, least.key);
}

/* Returns false if two keys are the same: then a daemon died while it moved them. */
static inline bool pt_simulated_derive(pt_simulation *m)
{
    memset(m->buckets, 0, sizeof m->buckets);
    for (uint32_t key = 0; key < m->kept->keys; key++) {
        uint16_t *bucket = pt_simulated_bucket(m, m->kept->known[key].hash);
        if (*bucket)
            return false;
        *bucket = (uint16_t)(key + 1);
    }
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++)
        pt_simulated_derive_cache(m, &m->caches[size]);
    return true;
}

/* Sets what follows from the threshold. */
static inline void pt_simulated_resize(pt_simulation *m)
{
    double share = 1 / pt_simulated_scale(m);
    m->leaves_run = 1 + (uint32_t)((PT_RUN - 1) * share + 0.5);
    m->cut = 1 + (uint32_t)((PT_CUT - 1) * share + 0.5);
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++) {
        double room = pt_simulated_factor(size) * (double)m->frames * share;
        m->caches[size].room = room < 1 ? 1 : (uint64_t)(room + 0.5);
    }
}

/* ---- which keys are known ---- */

/* Forgets the keys that are not sampled any more, and of those that no cache has the ones that were not used for `age`
 * moments. The key after a forgotten one comes after the key before it. */
static inline void pt_simulated_forget(pt_simulation *m, double age)
{
    pt_simulated *s = m->kept;
    uint16_t *to = m->caches[0].place, kept = 0; /* all of it is derived again */
    for (uint32_t key = 0; key < s->keys; key++) {
        pt_simulated_key k = s->known[key];
        k.parent = k.parent == PT_NO_KEY ? PT_NO_KEY : to[k.parent];
        bool stays = pt_is_sampled(k.hash, s->threshold) && (k.caches || (double)(m->now - k.seen) < age);
        to[key] = stays ? kept : k.parent;
        if (stays)
            s->known[kept++] = k;
    }
    s->keys = kept;
    pt_simulated_derive(m);
}

/* Samples no keys beyond a lower threshold from now on. */
static inline void pt_simulate_less(pt_simulation *m, uint32_t threshold)
{
    m->kept->threshold = threshold;
    pt_simulated_resize(m);
    pt_simulated_forget(m, HUGE_VAL);
}

/* Returns the average age of the keys that no cache has. */
static inline double pt_simulated_age_of_absent(const pt_simulation *m)
{
    double ages = 0, keys = 0;
    for (uint32_t key = 0; key < m->kept->keys; key++)
        if (!m->kept->known[key].caches)
            ages += (double)(m->now - m->kept->known[key].seen), keys++;
    return keys > 0 ? ages / keys : 0;
}

/* Makes room for the keys of one piece of a prompt. */
static inline void pt_simulated_make_keys(pt_simulation *m)
{
    while (m->kept->keys + PT_SIMULATED_CHAIN > PT_SIMULATED) {
        uint32_t keys = m->kept->keys;
        m->kept->full = 1;
        pt_simulated_forget(m, pt_simulated_age_of_absent(m));
        if (keys - m->kept->keys < PT_SIMULATED / 16)
            pt_simulate_less(m, m->kept->threshold - m->kept->threshold / 4);
    }
}
