/* sample.h - leaves the sampled keys of a lookup in the process's ring (common/samples.h). It sends no message. */
#pragma once

#include "../common/samples.h"
#include "match.h"

/* Leaves a record of a lookup in one namespace that found the first `found` of `count` keys; `space` is that of the
 * pages found. The caller holds the lock. */
static inline void pt_sample_locked(pt_session *s, const uint8_t *keys, uint32_t found, uint32_t count, uint32_t space)
{
    uint32_t threshold = atomic_load_explicit(&s->view.header->sample_threshold, memory_order_relaxed);
    pt_samples *rings = pt_samples_of(&s->view);
    if (!threshold || !rings || !count)
        return;
    pt_samples *ring = &rings[s->slot];
    uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    /* Acquire: the daemon has read the words whose room is used again (tests/models/orders/samples_order.pml). */
    uint64_t end = atomic_load_explicit(&ring->read, memory_order_acquire) + PT_SAMPLE_WORDS, sampled = 0;
    uint64_t missed = found < count ? pt_sample_hash(keys + found * (uint64_t)PT_KEY_BYTES) | 1 : 0;
    uint64_t room = end - at <= PT_SAMPLE_WORDS ? end - at : 0; /* `read` may be damaged */
    for (uint32_t i = found; i-- > 0 && PT_SAMPLE_HEAD + sampled <= room;) {
        const uint8_t *key = keys + i * (uint64_t)PT_KEY_BYTES;
        if (!pt_is_sampled(pt_key_word(key, 1), threshold))
            continue;
        if (PT_SAMPLE_HEAD + sampled < room)
            atomic_store_explicit(&ring->words[(at + PT_SAMPLE_HEAD + sampled) % PT_SAMPLE_WORDS], pt_sample_hash(key),
                                  memory_order_relaxed);
        sampled++;
    }
    if (PT_SAMPLE_HEAD + sampled <= room) {
        uint64_t head[PT_SAMPLE_HEAD] = {sampled | (uint64_t)space << 32, found | (uint64_t)(count - found) << 32,
                                         missed};
        for (uint32_t i = 0; i < PT_SAMPLE_HEAD; i++)
            atomic_store_explicit(&ring->words[(at + i) % PT_SAMPLE_WORDS], head[i], memory_order_relaxed);
        /* Release: a daemon that reads this number reads the words of the record, too. */
        atomic_store_explicit(&ring->written, at + PT_SAMPLE_HEAD + sampled, memory_order_release);
    } else {
        pt_count(&ring->lost, 1);
    }
}

/* Does the same for a caller that does not hold the lock. Called once for each request, not for each of its matches. */
static inline void pt_sample_lookup(pt_session *s, const uint8_t *keys, uint32_t found, uint32_t count, uint32_t space)
{
    pthread_mutex_lock(&s->lock);
    pt_sample_locked(s, keys, found, count, space);
    pthread_mutex_unlock(&s->lock);
}

/* Matches the keys of a request for the first time (match.h), and leaves a record of it. */
static inline void pt_look_up(pt_session *s, const uint8_t *keys, uint32_t count, pt_matched *to)
{
    pthread_mutex_lock(&s->lock);
    pt_match_locked(s, keys, count, to);
    uint32_t first = to->reach ? to->entries[0] & ~PT_FROM_DISK : 0;
    pt_sample_locked(s, keys, to->reach, count, s->view.entries[first].space);
    pthread_mutex_unlock(&s->lock);
}
