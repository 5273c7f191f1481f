/* shadow_lru.h - what least recently used would have hit: an LRU over an eighth of the keys at an eighth of the size.
 *
 * It compares its own hits with those of the cache, on the same keys. While LRU leads, the cache follows LRU; after a
 * while it tries again, with doubled patience each time. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PT_SHADOW_SHARE 8u
#define PT_SHADOW_LEAD 1.003 /* how far LRU has to lead, with PT_SHADOW_DEVIATIONS standard deviations of its hits */
#define PT_SHADOW_DEVIATIONS 4.0

typedef struct {
    uint32_t print, next, newer, older; /* next: in the same bucket */
} pt_shadow_key;

typedef struct {
    pt_shadow_key *keys;
    uint32_t *buckets, bucket_count; /* a power of 2 */
    uint32_t count, limit, most, newest, oldest;
    double hits, own_hits, fade; /* fading sums */
    uint32_t patience, left;
    bool follows; /* the cache follows LRU */
    uint64_t switches; /* how often `follows` changed */
} pt_shadow;

static inline void pt_shadow_end(pt_shadow *s)
{
    free(s->keys);
    free(s->buckets);
    *s = (pt_shadow){0};
}

/* Makes room for `most` keys. Returns false if memory is short. */
static inline bool pt_shadow_begin(pt_shadow *s, uint32_t most)
{
    *s = (pt_shadow){.most = most, .newest = UINT32_MAX, .oldest = UINT32_MAX, .bucket_count = 1};
    while (s->bucket_count < most)
        s->bucket_count *= 2;
    s->keys = malloc(most * sizeof *s->keys);
    s->buckets = malloc(s->bucket_count * sizeof *s->buckets);
    if (!s->keys || !s->buckets) {
        pt_shadow_end(s);
        return false;
    }
    memset(s->buckets, 0xff, s->bucket_count * sizeof *s->buckets);
    return true;
}

/* Sets the size once the number of pages in the full cache is known. */
static inline void pt_shadow_resize(pt_shadow *s, uint32_t pages)
{
    uint32_t limit = pages / PT_SHADOW_SHARE;
    s->limit = limit < 1 ? 1 : limit < s->most ? limit : s->most;
    s->fade = exp2(-1.0 / (4.0 * s->limit));
    s->patience = 8 * s->limit;
}

static inline uint32_t *pt_shadow_link(pt_shadow *s, uint32_t print)
{
    uint32_t *link = &s->buckets[print & (s->bucket_count - 1)];
    while (*link != UINT32_MAX && s->keys[*link].print != print)
        link = &s->keys[*link].next;
    return link;
}

static inline void pt_shadow_unlink_age(pt_shadow *s, uint32_t at)
{
    pt_shadow_key *k = &s->keys[at];
    *(k->newer == UINT32_MAX ? &s->newest : &s->keys[k->newer].older) = k->older;
    *(k->older == UINT32_MAX ? &s->oldest : &s->keys[k->older].newer) = k->newer;
}

static inline void pt_shadow_make_newest(pt_shadow *s, uint32_t at)
{
    s->keys[at].newer = UINT32_MAX;
    s->keys[at].older = s->newest;
    *(s->newest == UINT32_MAX ? &s->oldest : &s->keys[s->newest].newer) = at;
    s->newest = at;
}

/* Returns room for a new key: unused room, or that of the oldest key. */
static inline uint32_t pt_shadow_take(pt_shadow *s)
{
    if (s->count < s->limit)
        return s->count++;
    uint32_t at = s->oldest;
    pt_shadow_unlink_age(s, at);
    *pt_shadow_link(s, s->keys[at].print) = s->keys[at].next;
    return at;
}

/* Uses a key. Returns whether LRU had it. */
static inline bool pt_shadow_touch(pt_shadow *s, uint32_t print)
{
    uint32_t at = *pt_shadow_link(s, print);
    bool hit = at != UINT32_MAX;
    if (hit) {
        pt_shadow_unlink_age(s, at);
    } else {
        at = pt_shadow_take(s);
        uint32_t *link = pt_shadow_link(s, print); /* after the oldest key has left, whose link it may have been */
        s->keys[at].print = print;
        s->keys[at].next = UINT32_MAX;
        *link = at;
    }
    pt_shadow_make_newest(s, at);
    return hit;
}

static inline void pt_shadow_judge(pt_shadow *s, bool hit, bool own)
{
    if (s->follows) {
        if (!--s->left) {
            s->follows = false;
            s->switches++;
            s->hits = s->own_hits = 0;
        }
        return;
    }
    s->hits = s->hits * s->fade + hit;
    s->own_hits = s->own_hits * s->fade + own;
    if (s->hits <= s->own_hits * PT_SHADOW_LEAD + 4 + PT_SHADOW_DEVIATIONS * sqrt(s->hits))
        return;
    s->follows = true;
    s->switches++;
    s->left = s->patience;
    s->patience *= s->patience < 64 * s->limit ? 2 : 1;
}

/* Records the use of a page by the hash of its key. `own` says whether the cache had it. */
static inline void pt_shadow_use(pt_shadow *s, uint64_t hash, bool own)
{
    if (s->limit && hash % PT_SHADOW_SHARE == 0)
        pt_shadow_judge(s, pt_shadow_touch(s, (uint32_t)(hash >> 32)), own);
}
