/* curve.h - how many tokens LRU would find at each size of the cache: a histogram of reuse distances, in the index.
 *
 * The reuse distance of a page is the number of frames that an LRU cache needs to have it still: those of all pages
 * that were used since its last use, and its own. So the share of tokens with a distance of at most N frames is the hit
 * ratio of an LRU cache of N frames, whatever the size of the daemon's arena.
 *
 * Everything here lies in the index and is changed in place: a daemon that dies loses nothing, and a watcher reads it
 * without a message. Only the daemon writes it. All sums fade. */
#pragma once

#include <math.h>

#include "../../common/samples.h"

#define PT_CURVE_STEPS 16u /* bins from one power of 2 to the next */
#define PT_CURVE_BINS (32u * PT_CURVE_STEPS)
#define PT_CURVE_SPACES 16u /* namespaces that have a curve of their own */
#define PT_SAMPLED 65536u /* keys; a power of 2 */

/* Why a page was not found. */
enum pt_absence {
    PT_NEVER_STORED, /* as far as the history reaches */
    PT_EVICTED_FROM_MEMORY, /* and was not on disk; or was left out, as it was not worth its room */
    PT_EVICTED_FROM_DISK,
    PT_DROPPED, /* flushed, damaged, or its store was refused or given up */
    PT_IN_OTHER_NAMESPACE, /* the same hash of the engine is stored under another namespace */
    PT_ABSENCES,
};

/* The sums of one namespace, or of all. In tokens. */
typedef struct {
    uint8_t digest[8]; /* the beginning of the namespace's digest; zeros: unused, or all namespaces */
    uint32_t page_tokens, spare;
    double found, missed; /* of all lookups */
    double cold; /* of sampled lookups: used for the first time */
    double bins[PT_CURVE_BINS]; /* of sampled lookups: by reuse distance */
    double absences[PT_ABSENCES]; /* of sampled lookups that did not find the page */
} pt_curve_sums;

/* What is known of a sampled key. */
typedef struct {
    uint64_t hash;
    uint32_t place; /* in the order of use; 0: in no cache, however large */
    uint16_t frames;
    uint8_t used; /* when it was used last, see pt_curve_moment */
    uint8_t absence; /* why it is absent, if it is: an enum pt_absence */
} pt_sampled;
_Static_assert(sizeof(pt_sampled) == 16, "a sampled key is two words");

typedef struct {
    uint64_t layout; /* PT_CURVE_LAYOUT */
    uint64_t known_ns, faded_ns; /* how long lookups were counted until the sums faded last; when that was */
    uint32_t threshold, keys; /* of pt_is_sampled; how many keys are known */
    uint64_t lookups, lost; /* records that were read; lookups that found no room in a ring */
    double hit_pages, miss_pages, stored_pages; /* of these lookups; the last are those misses that a store followed */
    double absent_ever[PT_ABSENCES]; /* tokens, does not fade: for counters */
    pt_curve_sums all, spaces[PT_CURVE_SPACES];
    pt_sampled sampled[PT_SAMPLED];
} pt_curve;
#define PT_CURVE_LAYOUT (1ull << 32 | sizeof(pt_curve))
#define PT_CURVE_BYTES ((sizeof(pt_curve) + PT_PAGE - 1) / PT_PAGE * PT_PAGE)
_Static_assert(PT_CURVE_BYTES <= PT_RESERVE_LIMIT, "the curve fits into its place");

/* Returns the bin of a distance: exact below PT_CURVE_STEPS, then of equal width within each power of 2. */
static inline uint32_t pt_curve_bin(uint64_t frames)
{
    if (frames < PT_CURVE_STEPS)
        return (uint32_t)frames;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(frames), low = power - 4;
    uint32_t bin = (power - 3) * PT_CURVE_STEPS + (uint32_t)(frames >> low & (PT_CURVE_STEPS - 1));
    return bin < PT_CURVE_BINS ? bin : PT_CURVE_BINS - 1;
}

/* Returns the smallest distance of a bin. */
static inline double pt_curve_bin_begin(uint32_t bin)
{
    if (bin < PT_CURVE_STEPS)
        return bin;
    return ldexp(PT_CURVE_STEPS + bin % PT_CURVE_STEPS, (int)(bin / PT_CURVE_STEPS) - 1);
}

/* Returns the tokens of sampled lookups. */
static inline double pt_curve_looked_up(const pt_curve_sums *s)
{
    double sum = s->cold;
    for (uint32_t bin = 0; bin < PT_CURVE_BINS; bin++)
        sum += s->bins[bin];
    return sum;
}

/* Returns the share of tokens that an LRU cache of so many frames has. A bin at its end counts in part.
 *
 * A few keys are used by most lookups. Whether they are sampled decides how many uses are, and
 * their distances are short. So the difference between the uses that were sampled and all is taken
 * as uses of short distance (SHARDS-adj). */
static inline double pt_curve_ratio(const pt_curve_sums *s, double frames)
{
    double all = s->found + s->missed, within = all - pt_curve_looked_up(s);
    for (uint32_t bin = 0; bin < PT_CURVE_BINS; bin++) {
        double begin = pt_curve_bin_begin(bin), end = pt_curve_bin_begin(bin + 1);
        double part = (frames + 1 - begin) / (end - begin);
        within += s->bins[bin] * (part < 0 ? 0 : part > 1 ? 1 : part);
    }
    return all > 0 && within > 0 ? within / all : 0;
}

#define PT_CURVE_MOMENTS 64u /* in a window; the number of a moment wraps after four windows */

static inline uint8_t pt_curve_moment(uint64_t now, uint64_t window_ns)
{
    return (uint8_t)(now / (window_ns / PT_CURVE_MOMENTS + 1));
}

static inline bool pt_is_old(const pt_sampled *k, uint8_t moment)
{
    return (uint8_t)(moment - k->used) > PT_CURVE_MOMENTS;
}

static inline void pt_curve_fade_sums(pt_curve_sums *s, double by)
{
    s->found *= by, s->missed *= by, s->cold *= by;
    for (uint32_t bin = 0; bin < PT_CURVE_BINS; bin++)
        s->bins[bin] *= by;
    for (uint32_t i = 0; i < PT_ABSENCES; i++)
        s->absences[i] *= by;
}

static inline void pt_curve_fade_by(pt_curve *c, double by)
{
    pt_curve_fade_sums(&c->all, by);
    for (uint32_t i = 0; i < PT_CURVE_SPACES; i++)
        pt_curve_fade_sums(&c->spaces[i], by);
    c->hit_pages *= by, c->miss_pages *= by, c->stored_pages *= by;
}

#define PT_FADE_EVERY_NS 60000000000ull

/* Lets the sums fade: what is `window_ns` old counts 1/e. */
static inline void pt_curve_fade(pt_curve *c, uint64_t now, uint64_t window_ns)
{
    if (!c->faded_ns || c->faded_ns > now)
        c->known_ns = 0, c->faded_ns = now;
    if (now - c->faded_ns < PT_FADE_EVERY_NS)
        return;
    double by = exp(-(double)(now - c->faded_ns) / (double)window_ns);
    pt_curve_fade_by(c, by);
    c->known_ns += now - c->faded_ns;
    c->faded_ns = now;
}
