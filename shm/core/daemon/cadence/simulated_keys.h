/* simulated_keys.h - the sampled keys of the caches that simulation.h simulates. They lie in the index, so that a daemon
 * that dies loses nothing. */
#pragma once

#include "../../common/samples.h"
#include "history.h"

#define PT_SIMULATED 8192u /* keys; a power of 2 */
#define PT_SIMULATED_SIZES 4u /* half, the same, twice and four times the arena */
#define PT_NO_KEY UINT16_MAX

/* What is known of a key: as a pt_history, but the same for all sizes. */
typedef struct {
    uint64_t hash;
    uint32_t seen; /* the moment of its last use */
    uint16_t parent; /* number of the sampled page before it, always a smaller number; PT_NO_KEY: none, or not known */
    uint16_t class, frames;
    uint8_t cadence, uses, lasts;
    uint8_t caches; /* bits of the sizes at which it is in memory */
    uint8_t returned; /* it was used, and no store has named it since */
    uint8_t spare;
} pt_simulated_key;
_Static_assert(sizeof(pt_simulated_key) == 24, "the limit on memory counts on it");

typedef struct {
    uint32_t threshold; /* of pt_is_sampled, at most that of the curve; 0: not chosen yet */
    uint32_t keys;
    uint32_t active; /* the daemon evicts by the policy that is simulated */
    uint32_t full; /* keys were forgotten: others than those that are known were used before each cache could fill */
    pt_simulated_key known[PT_SIMULATED];
} pt_simulated;

/* Returns a simulated size as a multiple of the arena. */
static inline double pt_simulated_factor(uint32_t size) { return ldexp(1, (int)size - 1); }

/* Returns whether the keys that an earlier daemon left can be used. */
static inline bool pt_simulated_is_valid(const pt_simulated *s)
{
    if (s->keys > PT_SIMULATED)
        return false;
    for (uint32_t key = 0; key < s->keys; key++) {
        const pt_simulated_key *k = &s->known[key];
        if (!pt_is_sampled(k->hash, s->threshold) || (k->parent != PT_NO_KEY && k->parent >= key) || k->class >= PT_CLASSES ||
            k->cadence >= PT_AGES || k->uses > PT_MOST_USES || k->lasts > PT_LASTS_MOST || k->caches >> PT_SIMULATED_SIZES)
            return false;
    }
    return true;
}
