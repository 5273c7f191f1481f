/* simulated_cache.h - one of the caches that simulation.h simulates: which of the sampled keys it has, and which leaves.
 *
 * It evicts as victim.h and stores.h do: the leaf with the lowest index of a few that are drawn, unless that one is worth more
 * than the page that needs the room. */
#pragma once

#include "cadence.h"
#include "simulated_keys.h"

typedef struct {
    uint64_t frames, room; /* at the sampled scale */
    uint32_t leaf_count, run_left;
    uint16_t newest, run; /* as in pt_cadence */
    uint8_t bit; /* in pt_simulated_key.caches */
    uint16_t leaves[PT_SIMULATED], place[PT_SIMULATED], children[PT_SIMULATED];
} pt_simulated_cache;

typedef struct {
    uint64_t hash;
    uint32_t frames;
} pt_simulated_use;

#define PT_SIMULATED_BUCKETS (2 * PT_SIMULATED)
#define PT_SIMULATED_CHAIN 1024u /* keys of one prompt that are used at once */

typedef struct {
    pt_simulated *kept; /* in the index */
    const pt_cadence *policy; /* what the daemon learned: it does not depend on the size */
    uint64_t frames; /* of the arena */
    uint64_t random;
    uint64_t minute_ns; /* when the present minute began */
    uint32_t steps; /* in this minute: keys that were compared or used */
    uint32_t leaves_run, cut; /* PT_RUN and PT_CUT at the sampled scale */
    bool leaves_out; /* pages that are not worth their room are not stored */
    pt_simulated_cache caches[PT_SIMULATED_SIZES];
    uint16_t buckets[PT_SIMULATED_BUCKETS]; /* key + 1, with linear probing; 0: empty */
    bool in_use[PT_SIMULATED]; /* keys of the present prompt: they stay */
    /* The present prompt (simulation.h). */
    uint64_t above; /* hash of the sampled page before the next one; 0: none */
    pt_said said;
    bool stores, chained;
    uint32_t now, used;
    pt_simulated_use uses[PT_SIMULATED_CHAIN];
    uint16_t chain[PT_SIMULATED_CHAIN];
} pt_simulation;

static inline bool pt_simulated_has(const pt_simulation *m, const pt_simulated_cache *c, uint16_t key)
{
    return m->kept->known[key].caches & c->bit;
}

/* ---- leaves ---- */

static inline void pt_simulated_leaf_add(pt_simulated_cache *c, uint16_t key)
{
    c->place[key] = (uint16_t)c->leaf_count;
    c->leaves[c->leaf_count++] = key;
}

static inline void pt_simulated_leaf_remove(pt_simulated_cache *c, uint16_t key)
{
    uint16_t at = c->place[key], last = c->leaves[--c->leaf_count];
    c->leaves[at] = last;
    c->place[last] = at;
    c->place[key] = PT_NO_KEY;
}

static inline void pt_simulated_enter(pt_simulation *m, pt_simulated_cache *c, uint16_t key)
{
    pt_simulated_key *k = &m->kept->known[key];
    k->caches |= c->bit;
    c->frames += k->frames;
    if (!c->children[key])
        pt_simulated_leaf_add(c, key);
    if (k->parent != PT_NO_KEY && !c->children[k->parent]++ && c->place[k->parent] != PT_NO_KEY)
        pt_simulated_leaf_remove(c, k->parent);
}

static inline void pt_simulated_leave(pt_simulation *m, pt_simulated_cache *c, uint16_t key)
{
    pt_simulated_key *k = &m->kept->known[key];
    k->caches &= (uint8_t)~c->bit;
    c->frames -= k->frames;
    if (c->place[key] != PT_NO_KEY)
        pt_simulated_leaf_remove(c, key);
    if (k->parent != PT_NO_KEY && !--c->children[k->parent] && pt_simulated_has(m, c, k->parent))
        pt_simulated_leaf_add(c, k->parent);
    if (c->newest == key)
        c->newest = k->parent;
}

/* ---- which page leaves ---- */

/* Returns what a key is worth. While the daemon follows LRU, all are worth the same, and the coldest one leaves. */
static inline float pt_simulated_worth(const pt_simulation *m, uint16_t key)
{
    const pt_simulated_key *k = &m->kept->known[key];
    float age = pt_seconds_between(k->seen, m->now);
    bool expired = pt_hint_of_class(k->class) && age > (float)(1u << k->lasts);
    uint16_t class = expired ? pt_class_with(k->class, PT_HINT_NONE) : k->class;
    return m->policy->shadow.follows ? 0 : m->policy->returns.index[class][pt_age_bin(age)];
}

typedef struct {
    uint16_t key;
    float worth;
} pt_simulated_offer;

static inline void pt_simulated_offer_leaf(pt_simulation *m, uint16_t key, pt_simulated_offer *best)
{
    m->steps++;
    if (m->in_use[key])
        return;
    float worth = pt_simulated_worth(m, key);
    const pt_simulated_key *known = m->kept->known;
    bool none = best->key == PT_NO_KEY, colder = !none && (int32_t)(known[key].seen - known[best->key].seen) < 0;
    if (none || worth < best->worth || (worth == best->worth && colder))
        *best = (pt_simulated_offer){key, worth};
}

static inline uint16_t pt_simulated_draw(pt_simulation *m, const pt_simulated_cache *c)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return c->leaves[(m->random >> 32) * c->leaf_count >> 32];
}

/* Returns the leaf that is worth least, or one like the leaf that left last. */
static inline pt_simulated_offer pt_simulated_least(pt_simulation *m, pt_simulated_cache *c)
{
    pt_simulated_offer best = {PT_NO_KEY, 0};
    uint16_t run = c->run;
    uint32_t count = c->leaf_count < PT_CANDIDATES ? c->leaf_count : PT_CANDIDATES;
    c->run = PT_NO_KEY;
    if (run != PT_NO_KEY && c->run_left && c->place[run] != PT_NO_KEY && !m->in_use[run]) {
        c->run_left--;
        return (pt_simulated_offer){run, pt_simulated_worth(m, run)};
    }
    c->run_left = m->leaves_run - 1;
    for (uint32_t i = 0; i < count; i++)
        pt_simulated_offer_leaf(m, count == c->leaf_count ? c->leaves[i] : pt_simulated_draw(m, c), &best);
    if (c->newest != PT_NO_KEY && c->place[c->newest] != PT_NO_KEY)
        pt_simulated_offer_leaf(m, c->newest, &best);
    return best;
}

static inline void pt_simulated_evict(pt_simulation *m, pt_simulated_cache *c, uint16_t key)
{
    const pt_simulated_key *k = &m->kept->known[key];
    uint16_t parent = k->parent;
    bool alike = parent != PT_NO_KEY && m->kept->known[parent].seen == k->seen && m->kept->known[parent].class == k->class;
    pt_simulated_leave(m, c, key);
    c->run = alike ? parent : PT_NO_KEY;
}

/* ---- a prompt ---- */

/* Returns the frames that pages of the present prompt need, those from `from` to `to` that the cache lacks. */
static inline uint64_t pt_simulated_need(const pt_simulation *m, const pt_simulated_cache *c, uint32_t from, uint32_t to)
{
    uint64_t frames = 0;
    for (uint32_t i = from; i < to; i++)
        frames += pt_simulated_has(m, c, m->chain[i]) ? 0 : m->kept->known[m->chain[i]].frames;
    return frames;
}

/* Makes room for the present prompt, and leaves out pages at its end that are not worth it. Returns how many pages stay. */
static inline uint32_t pt_simulated_make_room(pt_simulation *m, pt_simulated_cache *c, uint32_t count)
{
    uint64_t need = pt_simulated_need(m, c, 0, count);
    while (need && c->frames + need > c->room) {
        pt_simulated_offer least = pt_simulated_least(m, c);
        bool worse = least.key != PT_NO_KEY && (!m->leaves_out || least.worth <= pt_simulated_worth(m, m->chain[count - 1]));
        if (worse) {
            pt_simulated_evict(m, c, least.key);
            continue;
        }
        uint32_t cut = count < m->cut ? count : m->cut;
        need -= pt_simulated_need(m, c, count - cut, count);
        count -= cut;
    }
    return count;
}

/* Returns whether a cache has a page, or can have it: a page without the one before it is useless. */
static inline bool pt_simulated_may_have(const pt_simulation *m, const pt_simulated_cache *c, uint16_t key)
{
    uint16_t parent = m->kept->known[key].parent;
    return parent == PT_NO_KEY || pt_simulated_has(m, c, parent) || pt_simulated_has(m, c, key);
}

/* Stores the pages of the present prompt that the cache lacks. */
static inline void pt_simulated_store(pt_simulation *m, pt_simulated_cache *c, uint32_t count)
{
    if (!count || !pt_simulated_may_have(m, c, m->chain[0]))
        return; /* a piece before this one was left out */
    count = pt_simulated_make_room(m, c, count);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t key = m->chain[i];
        if (!pt_simulated_has(m, c, key) && pt_simulated_may_have(m, c, key))
            pt_simulated_enter(m, c, key);
        if (pt_simulated_has(m, c, key))
            c->newest = key;
    }
}
