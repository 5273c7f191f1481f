/* lookups.h - what processes look up, as the daemon learns it: found pages from the rings,
 * missed pages from the stores that follow.
 *
 * A lookup's record has the sampled keys that it found, and how many pages it did not find. The daemon expects a store
 * of as many pages from the first one of them on: only these count as missed. Pages that an engine stores without
 * having looked them up, such as those of an answer, only take their place in the order of use.
 *
 * Distances are taken before any page of the same prompt is used again, and pages are used from the tail to the head,
 * as an LRU cache that never evicts the beginning of a prompt before its end. */
#pragma once

#include "use_order.h"

#define PT_EXPECTED 1024u /* stores that may be expected at once */
/* sampled keys in a minute, beyond which fewer are sampled: half a per cent of a core */
#define PT_LOOKUPS_MINUTE (60u * 20000u)
#define PT_LEAST_THRESHOLD (1u << 22) /* processes that count lost records cannot lower the threshold further */

typedef struct {
    uint64_t hash; /* of the first page, or of the last page before it */
    uint32_t pages; /* missed from there on */
} pt_expected;

typedef struct {
    pt_use_order order;
    pt_samples *rings; /* NULL: the segments have none */
    uint64_t window_ns;
    uint64_t lost; /* records, when it was checked last */
    uint64_t minute_ns; /* when the present minute began */
    uint32_t minute_keys;
    pt_expected expected[PT_EXPECTED];
} pt_lookups;
_Static_assert(PT_CURVE_BYTES + PT_SAMPLES_BYTES + PT_PLACES * 8 + PT_SAMPLED_BUCKETS * 4 + sizeof(pt_lookups) <
                   4u << 20, "all that lookups need is within 4 MiB");

static inline void pt_lookups_destroy(pt_lookups *l)
{
    if (!l)
        return;
    pt_order_end(&l->order);
    free(l);
}

static inline bool pt_has_curve(const pt_view *v) { return v->curve_bytes >= sizeof(pt_curve) && pt_samples_of(v); }

/* Publishes which keys are sampled. The number lies in a cache line that processes read all the time, so
 * it is written only if it has changed. */
static inline void pt_publish_threshold(const pt_lookups *l, const pt_view *v)
{
    uint32_t threshold = l->order.curve->threshold;
    if (atomic_load_explicit(&v->header->sample_threshold, memory_order_relaxed) != threshold)
        atomic_store_explicit(&v->header->sample_threshold, threshold, memory_order_relaxed);
}

/* Returns NULL if memory is short. The caller guarantees that the segments have a place for a curve. */
static inline pt_lookups *pt_lookups_create(const pt_view *v, uint64_t window_ns)
{
    pt_lookups *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->window_ns = window_ns;
    l->rings = pt_samples_of(v);
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        l->lost += atomic_load_explicit(&l->rings[slot].lost, memory_order_relaxed);
    if (pt_order_begin(&l->order, (pt_curve *)v->curve)) {
        pt_publish_threshold(l, v);
        return l;
    }
    free(l);
    return NULL;
}

/* Returns the sums of a namespace, or NULL if too many have some. */
static inline pt_curve_sums *pt_sums_of(pt_curve *c, const pt_space *space)
{
    static const uint8_t none[sizeof c->all.digest];
    pt_curve_sums *unused = NULL;
    for (uint32_t i = 0; i < PT_CURVE_SPACES; i++) {
        pt_curve_sums *s = &c->spaces[i];
        if (!memcmp(s->digest, space->digest, sizeof s->digest))
            return s;
        if (!unused && !memcmp(s->digest, none, sizeof none))
            unused = s;
    }
    if (unused) {
        memcpy(unused->digest, space->digest, sizeof unused->digest);
        unused->page_tokens = space->page_tokens;
    }
    return unused;
}

/* Where a lookup counts: in all sums, and in those of its namespace. */
typedef struct {
    const pt_space *space;
    pt_curve_sums *sums[2]; /* the second may be NULL */
    uint32_t number; /* of the namespace */
} pt_counted;

static inline pt_counted pt_counted_in(pt_lookups *l, const pt_view *v, uint32_t space)
{
    pt_curve *c = l->order.curve;
    return (pt_counted){&v->spaces[space], {&c->all, pt_sums_of(c, &v->spaces[space])}, space};
}

/* Counts the reuse distance of a sampled key. */
static inline void pt_count_distance(pt_lookups *l, const pt_counted *in, const pt_sampled *k)
{
    double scale = pt_order_scale(&l->order), tokens = scale * in->space->page_tokens;
    bool cold = !k || !k->place;
    uint64_t frames = cold ? 0 : (uint64_t)((double)pt_order_after(&l->order, k->place) * scale) + k->frames;
    for (int i = 0; i < 2 && in->sums[i]; i++)
        *(cold ? &in->sums[i]->cold : &in->sums[i]->bins[pt_curve_bin(frames)]) += tokens;
}

/* Counts a sampled key that was found, but whose last use is not known: an earlier daemon stored it, or it was used
 * too long ago. Only the largest cache is said to have it. */
static inline void pt_count_farthest(pt_lookups *l, const pt_counted *in)
{
    for (int i = 0; i < 2 && in->sums[i]; i++)
        in->sums[i]->bins[PT_CURVE_BINS - 1] += pt_order_scale(&l->order) * in->space->page_tokens;
}

/* Uses a sampled key. `frames` is the size of its page. */
static inline void pt_use_sampled(pt_lookups *l, uint64_t hash, uint32_t frames, uint64_t now)
{
    uint8_t moment = pt_curve_moment(now, l->window_ns);
    pt_sampled *k = pt_order_find(&l->order, hash);
    k = k ? k : pt_order_insert(&l->order, hash, moment);
    if (!k)
        return;
    pt_order_remove(&l->order, k);
    k->frames = (uint16_t)(frames < UINT16_MAX ? frames : UINT16_MAX);
    k->absence = PT_NEVER_STORED;
    pt_order_use(&l->order, k, moment);
    l->minute_keys++;
}

/* ---- what lookups did not find ---- */

static inline pt_expected *pt_expected_at(pt_lookups *l, uint64_t hash) { return &l->expected[hash % PT_EXPECTED]; }

/* Expects that so many missed pages are stored, the first of which has this hash. */
static inline void pt_expect(pt_lookups *l, uint64_t hash, uint32_t pages)
{
    if (pages)
        *pt_expected_at(l, hash) = (pt_expected){hash, pages};
}

/* Returns how many pages were expected from here on, and expects them no more. */
static inline uint32_t pt_take_expected(pt_lookups *l, uint64_t hash)
{
    pt_expected *at = pt_expected_at(l, hash), e = *at;
    if (e.hash != hash)
        return 0;
    *at = (pt_expected){0};
    return e.pages;
}

/* A page that is stored first in a request may continue what an earlier request
 * began: it is expected after this one. */
static inline uint64_t pt_after_hash(const uint8_t *key) { return ~pt_sample_hash(key); }

/* ---- the rings ---- */

static inline uint64_t pt_ring_word(pt_samples *ring, uint64_t at)
{
    return atomic_load_explicit(&ring->words[at % PT_SAMPLE_WORDS], memory_order_relaxed);
}

/* Counts the pages that a lookup found. */
static inline void pt_lookup_found(pt_lookups *l, const pt_view *v, pt_samples *ring, uint64_t at, uint64_t sampled,
                                   uint64_t now)
{
    uint32_t space = (uint32_t)(pt_ring_word(ring, at) >> 32), found = (uint32_t)pt_ring_word(ring, at + 1);
    pt_counted in = pt_counted_in(l, v, space);
    const pt_space *s = in.space;
    uint32_t frames = pt_frames_for(v, s->pages ? s->bytes / s->pages : v->frame_bytes);
    for (int i = 0; i < 2 && in.sums[i]; i++)
        in.sums[i]->found += (double)found * s->page_tokens;
    for (uint64_t i = 0; i < sampled; i++) {
        uint64_t hash = pt_ring_word(ring, at + PT_SAMPLE_HEAD + i);
        const pt_sampled *k = pt_order_find(&l->order, hash);
        if (k)
            pt_count_distance(l, &in, k);
        else if (pt_is_sampled(hash, l->order.curve->threshold))
            pt_count_farthest(l, &in);
    }
    for (uint64_t i = 0; i < sampled; i++) {
        uint64_t hash = pt_ring_word(ring, at + PT_SAMPLE_HEAD + i);
        const pt_sampled *k = pt_order_find(&l->order, hash);
        pt_use_sampled(l, hash, k ? k->frames : frames, now);
    }
}

/* Counts one lookup. `at` is the place of its record, which has `sampled` keys. */
static inline void pt_lookup_record(pt_lookups *l, const pt_view *v, pt_samples *ring, uint64_t at, uint64_t sampled,
                                    uint64_t now)
{
    uint64_t space = pt_ring_word(ring, at) >> 32, pages = pt_ring_word(ring, at + 1);
    uint64_t missed = pt_ring_word(ring, at + 2);
    l->order.curve->lookups++;
    l->order.curve->hit_pages += (double)(uint32_t)pages;
    l->order.curve->miss_pages += (double)(pages >> 32);
    if ((uint32_t)pages && space < v->header->spaces && v->spaces[space].used)
        pt_lookup_found(l, v, ring, at, sampled, now);
    if (missed)
        pt_expect(l, missed, (uint32_t)(pages >> 32));
}

static inline void pt_lookups_read(pt_lookups *l, const pt_view *v, pt_samples *ring, uint64_t now)
{
    uint64_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
    /* Acquire: the words of every record that this number covers are visible
     * (tests/models/orders/samples_order.pml). */
    uint64_t end = atomic_load_explicit(&ring->written, memory_order_acquire);
    if (at == end)
        return;
    while (end - at >= PT_SAMPLE_HEAD && end - at <= PT_SAMPLE_WORDS) {
        uint64_t sampled = (uint32_t)pt_ring_word(ring, at);
        if (sampled > end - at - PT_SAMPLE_HEAD)
            break; /* no process writes this unless it is broken */
        pt_lookup_record(l, v, ring, at, sampled, now);
        at += PT_SAMPLE_HEAD + sampled;
    }
    /* Release: the process may write over the words that were read. */
    atomic_store_explicit(&ring->read, end, memory_order_release);
}

/* Samples less if processes lost records, or if there is too much to do. */
static inline void pt_lookups_limit(pt_lookups *l, const pt_view *v, uint64_t now)
{
    uint64_t lost = 0;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        lost += atomic_load_explicit(&l->rings[slot].lost, memory_order_relaxed);
    bool less = lost > l->lost && l->order.curve->threshold > PT_LEAST_THRESHOLD;
    l->order.curve->lost += lost > l->lost ? lost - l->lost : 0;
    l->lost = lost;
    less |= l->minute_keys > PT_LOOKUPS_MINUTE;
    if (less || now - l->minute_ns > 60000000000ull) {
        l->minute_ns = now;
        l->minute_keys = 0;
    }
    if (less)
        pt_order_sample_less(&l->order);
    pt_publish_threshold(l, v);
}

/* Reads what processes left in their rings. */
static inline void pt_lookups_drain(pt_lookups *l, const pt_view *v, uint64_t now)
{
    if (!l)
        return;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        pt_lookups_read(l, v, &l->rings[slot], now);
    pt_lookups_limit(l, v, now);
    pt_curve_fade(l->order.curve, now, l->window_ns);
}
