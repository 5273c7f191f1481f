/* samples.h - rings in which processes leave the keys that they looked up, for the daemon's curve (daemon/mrc/).
 *
 * Each slot has a ring: one process writes it, the daemon reads it. A ring is lossy: a lookup that finds no room is
 * counted and left out as a whole. Of each lookup the ring has a record:
 *
 *   word 0   how many sampled keys follow, in bits 0..31; the namespace of the pages that were found, in 32..63
 *   word 1   pages that were found, in bits 0..31; pages that were not, in 32..63
 *   word 2   the hash of the first key that was not found; 0: there is none
 *   then     the hashes of the sampled keys that were found, from the tail of the prompt to its head
 *
 * A key is sampled if its hash is below the header's threshold, so every process samples the same keys. Keys behind the
 * first one that was not found come with the request that stores them. */
#pragma once

#include "dict.h"

#define PT_SAMPLE_WORDS 2048u /* a power of 2 */
#define PT_SAMPLE_HEAD 3u

/* The ring of one slot. The process writes the first line and the words, the daemon the second line. */
typedef struct {
    _Alignas(64) pt_a64 written; /* words, since the segments were made */
    pt_a64 lost; /* lookups that found no room */
    _Alignas(64) pt_a64 read; /* words, since the segments were made */
    _Alignas(64) pt_a64 words[PT_SAMPLE_WORDS];
} pt_samples;
#define PT_SAMPLES_BYTES ((PT_SLOTS * sizeof(pt_samples) + PT_PAGE - 1) / PT_PAGE * PT_PAGE)

/* Returns the rings, or NULL if the segments have none. */
static inline pt_samples *pt_samples_of(const pt_view *v)
{
    uint8_t *locks = (uint8_t *)v->locks - PT_AT_LOCKS;
    return v->samples_bytes >= PT_SLOTS * sizeof(pt_samples) ? (pt_samples *)(locks + v->at_samples) : NULL;
}

/* Returns a hash of a key, of which a lookup reads the upper half of many: keys are
 * digests, so their own bits serve. */
static inline uint64_t pt_sample_hash(const uint8_t *key)
{
    uint64_t first = pt_key_word(key, 0);
    return (pt_key_word(key, 1) & ~0xffffffffull) | (uint32_t)(first ^ first >> 32);
}

static inline bool pt_is_sampled(uint64_t hash, uint32_t threshold) { return hash >> 32 < threshold; }
