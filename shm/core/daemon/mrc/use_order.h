/* use_order.h - the sampled keys in the order of their last use, and how many frames were used since each of them.
 *
 * Each use gives a key the next place. A tree of sums over the places (Fenwick) says in logarithmic time how many
 * frames lie behind a place. When the places are used up, they are numbered again. The keys lie in the index; the tree,
 * the keys by place and the hash table are private to the daemon and are derived from them.
 *
 * The number of keys is fixed. When it is reached, those that were not used for long are forgotten, or else the
 * threshold is lowered, so that fewer keys are sampled (SHARDS with a fixed size, Waldspurger et al., FAST '15). */
#pragma once

#include <stdlib.h>

#include "curve.h"

#define PT_PLACES (2u * PT_SAMPLED)
#define PT_SAMPLED_BUCKETS (2u * PT_SAMPLED)

typedef struct {
    pt_curve *curve; /* in the index */
    uint32_t *tree; /* frames, by place from 1 on */
    uint32_t *at; /* key + 1 at each place; 0: none */
    uint32_t *buckets; /* key + 1, with linear probing; 0: empty */
    uint32_t next_place;
    uint64_t frames; /* of all keys that have a place */
} pt_use_order;

static inline void pt_order_end(pt_use_order *o)
{
    free(o->tree);
    free(o->at);
    free(o->buckets);
    *o = (pt_use_order){0};
}

/* Returns how many keys stand for one that is sampled. */
static inline double pt_order_scale(const pt_use_order *o)
{
    return 4294967296.0 / (o->curve->threshold ? o->curve->threshold : 1);
}

static inline void pt_order_add(pt_use_order *o, uint32_t place, uint32_t frames)
{
    o->frames += (int32_t)frames;
    for (; place < PT_PLACES; place += place & -place)
        o->tree[place] += frames;
}

/* Returns the frames that were used after this place. */
static inline uint64_t pt_order_after(const pt_use_order *o, uint32_t place)
{
    uint64_t until = 0;
    for (; place; place &= place - 1)
        until += o->tree[place];
    return o->frames - until;
}

static inline uint32_t pt_order_home(uint64_t hash) { return (uint32_t)hash % PT_SAMPLED_BUCKETS; }

static inline void pt_order_prefetch(const pt_use_order *o, uint64_t hash)
{
    pt_prefetch_write(&o->buckets[pt_order_home(hash)]);
}

static inline uint32_t *pt_order_bucket(const pt_use_order *o, uint64_t hash)
{
    uint32_t at = pt_order_home(hash);
    while (o->buckets[at] && o->curve->sampled[o->buckets[at] - 1].hash != hash)
        at = (at + 1) % PT_SAMPLED_BUCKETS;
    return &o->buckets[at];
}

/* Returns what is known of a key, or NULL. */
static inline pt_sampled *pt_order_find(const pt_use_order *o, uint64_t hash)
{
    uint32_t key = *pt_order_bucket(o, hash);
    return key ? &o->curve->sampled[key - 1] : NULL;
}

/* Takes a key out of the order: no cache has it, however large. */
static inline void pt_order_remove(pt_use_order *o, pt_sampled *k)
{
    if (!k->place)
        return;
    pt_order_add(o, k->place, -(uint32_t)k->frames);
    o->at[k->place] = 0;
    k->place = 0;
}

/* Derives tree and table from the keys in `at`, which it numbers again from 1 on. */
static inline void pt_order_renumber(pt_use_order *o)
{
    uint32_t next = 1;
    memset(o->tree, 0, PT_PLACES * sizeof *o->tree);
    o->frames = 0;
    for (uint32_t place = 1; place < PT_PLACES; place++) {
        uint32_t key = o->at[place];
        if (!key)
            continue;
        o->at[place] = 0;
        o->at[next] = key;
        o->curve->sampled[key - 1].place = next;
        pt_order_add(o, next++, o->curve->sampled[key - 1].frames);
    }
    o->next_place = next;
}

static inline void pt_order_derive(pt_use_order *o)
{
    pt_curve *c = o->curve;
    memset(o->at, 0, PT_PLACES * sizeof *o->at);
    memset(o->buckets, 0, PT_SAMPLED_BUCKETS * sizeof *o->buckets);
    for (uint32_t key = 0; key < c->keys; key++) {
        pt_sampled *k = &c->sampled[key];
        uint32_t *bucket = pt_order_bucket(o, k->hash);
        if (*bucket || o->at[k->place])
            k->place = 0; /* a daemon died while it moved keys */
        *bucket = key + 1;
        if (k->place)
            o->at[k->place] = key + 1;
    }
    pt_order_renumber(o);
}

/* Forgets the keys that are not sampled any more, and at a moment also those that are old. Returns how many. */
static inline uint32_t pt_order_forget(pt_use_order *o, const uint8_t *moment)
{
    pt_curve *c = o->curve;
    uint32_t kept = 0, keys = c->keys;
    for (uint32_t key = 0; key < keys; key++)
        if (pt_is_sampled(c->sampled[key].hash, c->threshold) && !(moment && pt_is_old(&c->sampled[key], *moment)))
            c->sampled[kept++] = c->sampled[key];
    c->keys = kept;
    if (kept < keys)
        pt_order_derive(o);
    return keys - kept;
}

/* Samples three quarters of the keys from now on. */
static inline void pt_order_sample_less(pt_use_order *o)
{
    pt_curve *c = o->curve;
    c->threshold -= c->threshold / 4;
    pt_order_forget(o, NULL);
}

/* Makes room for a new key. Takes a millisecond, once in some thousand keys. */
static inline void pt_order_make_room(pt_use_order *o, uint8_t moment)
{
    uint32_t freed = o->curve->keys < PT_SAMPLED ? PT_SAMPLED : pt_order_forget(o, &moment);
    while (freed < PT_SAMPLED / 8 && o->curve->threshold > 4) {
        uint32_t keys = o->curve->keys;
        pt_order_sample_less(o);
        freed += keys - o->curve->keys;
    }
}

/* Gives a key the newest place. */
static inline void pt_order_use(pt_use_order *o, pt_sampled *k, uint8_t moment)
{
    pt_order_remove(o, k);
    if (o->next_place == PT_PLACES)
        pt_order_renumber(o);
    k->place = o->next_place++;
    k->used = moment;
    o->at[k->place] = (uint32_t)(k - o->curve->sampled) + 1;
    pt_order_add(o, k->place, k->frames);
}

/* Returns a record for a key that is not known, or NULL if it is not sampled any more. */
static inline pt_sampled *pt_order_insert(pt_use_order *o, uint64_t hash, uint8_t moment)
{
    pt_order_make_room(o, moment);
    pt_curve *c = o->curve;
    if (!pt_is_sampled(hash, c->threshold) || c->keys == PT_SAMPLED)
        return NULL;
    pt_sampled *k = &c->sampled[c->keys++];
    *k = (pt_sampled){.hash = hash};
    *pt_order_bucket(o, hash) = c->keys;
    return k;
}

/* Returns whether the keys that an earlier daemon left can be used: a damaged record is no key. */
static inline bool pt_order_is_valid(const pt_curve *c)
{
    if (c->layout != PT_CURVE_LAYOUT || c->keys > PT_SAMPLED || !c->threshold)
        return false;
    for (uint32_t key = 0; key < c->keys; key++)
        if (c->sampled[key].place >= PT_PLACES || !pt_is_sampled(c->sampled[key].hash, c->threshold) ||
            c->sampled[key].absence >= PT_ABSENCES)
            return false;
    if (!isfinite(c->hit_pages + c->miss_pages + c->stored_pages))
        return false;
    for (uint32_t i = 0; i <= PT_CURVE_SPACES; i++) {
        const pt_curve_sums *s = i ? &c->spaces[i - 1] : &c->all;
        if (!isfinite(pt_curve_looked_up(s)) || !isfinite(s->found) || !isfinite(s->missed))
            return false;
    }
    return true;
}

/* Continues what an earlier daemon left, or begins with nothing known. Returns false if memory is short. */
static inline bool pt_order_begin(pt_use_order *o, pt_curve *curve)
{
    *o = (pt_use_order){.curve = curve,
                        .tree = calloc(PT_PLACES, sizeof *o->tree),
                        .at = calloc(PT_PLACES, sizeof *o->at),
                        .buckets = calloc(PT_SAMPLED_BUCKETS, sizeof *o->buckets)};
    if (!o->tree || !o->at || !o->buckets) {
        pt_order_end(o);
        return false;
    }
    if (!pt_order_is_valid(curve)) {
        memset(curve, 0, sizeof *curve);
        curve->threshold = UINT32_MAX;
        curve->layout = PT_CURVE_LAYOUT;
    }
    pt_order_derive(o);
    return true;
}
