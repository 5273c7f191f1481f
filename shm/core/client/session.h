/* session.h - one attached process: its mappings, its slot, and how often its threads hold each pin.
 *
 * A process has one bit in a lock word however many of its threads hold the page. The counts beside it are private,
 * and the process's own lock owns the step from 0 to 1 and back, so that no thread takes the bit from another.
 * With that step the frames are counted that it keeps from being evicted: never more than the daemon allows one.
 */
#pragma once

#include <pthread.h>

#include "../common/view.h"

/* Of an entry: pins of this process's threads, and its frames while there are any, UINT16_MAX for more. One word: to let go of
 * a page looks at nothing else that is private, and not at its entry. A page that is pinned UINT16_MAX times is a miss. */
typedef struct {
    uint16_t pins, frames;
} pt_held;

typedef struct {
    pt_view view;
    uint32_t slot;
    pthread_mutex_t lock;
    pt_held *held;   /* of each entry; guarded by lock, as what follows */
    uint64_t frames; /* of all that is held */
    bool bounded;    /* a match ended, as it would have held too much */
    pt_counts *counts;
} pt_session;


static inline void pt_prefetch_pin(pt_session *s, uint32_t entry)
{
    pt_prefetch_write(&s->view.locks[entry]);
    pt_prefetch_write(&s->held[entry]);
}

static inline void pt_count(pt_a64 *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* One request's lookup. Pages: found in memory by its first match, and not. Tokens: from memory, from disk, and those that the
 * cache did not give. */
typedef struct {
    uint64_t hit_pages, miss_pages, memory_tokens, disk_tokens, missed_tokens;
} pt_lookup;

/* Matches do not count themselves: a request may match several times, and is counted once. */
static inline void pt_count_lookup(pt_session *s, pt_lookup lookup)
{
    pt_uses *uses = &s->view.uses[s->slot];
    pt_count(&s->counts->lookups, 1);
    pt_count(&s->counts->hit_pages, lookup.hit_pages);
    pt_count(&s->counts->miss_pages, lookup.miss_pages);
    pt_count(&uses->memory_tokens, lookup.memory_tokens);
    if (lookup.disk_tokens)
        pt_count(&uses->disk_tokens, lookup.disk_tokens);
    if (lookup.missed_tokens)
        pt_count(&uses->missed_tokens, lookup.missed_tokens);
}

/* Pins an entry; what was readable stays so while pinned. Its key or serial is compared after this and not before,
 * when the entry could still become another page; then pt_keep. The caller holds the lock. */
static inline enum pt_state pt_try(pt_session *s, uint32_t entry)
{
    return s->held[entry].pins ? PT_READABLE : pt_state_of(pt_pin(&s->view.locks[entry].word, s->slot));
}

/* Counts the frames of an entry that is about to be held; false if they are too many. */
static inline bool pt_hold_frames(pt_session *s, uint32_t entry)
{
    uint32_t frames = s->view.entries[entry].frame_count;
    uint64_t most = atomic_load_explicit(&s->view.header->pin_frames, memory_order_relaxed);
    frames = frames < UINT16_MAX ? frames : UINT16_MAX;
    if (most && s->frames + frames > most) {
        s->bounded = true;
        return false;
    }
    s->frames += frames;
    s->held[entry].frames = (uint16_t)frames;
    return true;
}

/* Counts the pin of pt_try, or takes it back; true if it was counted. The caller holds the lock since pt_try. */
static inline bool pt_keep(pt_session *s, uint32_t entry, bool wanted)
{
    pt_held *held = &s->held[entry];
    wanted = wanted && (held->pins ? held->pins < UINT16_MAX : pt_hold_frames(s, entry));
    if (wanted)
        held->pins++;
    else if (!held->pins)
        pt_unpin(&s->view.locks[entry].word, s->slot);
    return wanted;
}

/* The caller holds the lock and a pin on the entry. */
static inline void pt_let_go(pt_session *s, uint32_t entry)
{
    pt_held *held = &s->held[entry];
    if (--held->pins == 0) {
        s->frames -= held->frames;
        pt_unpin(&s->view.locks[entry].word, s->slot);
    }
}

/* At the end of each match; the caller holds the lock. */
static inline void pt_count_bounded(pt_session *s)
{
    if (s->bounded)
        pt_count(&s->view.uses[s->slot].bounded, 1);
    s->bounded = false;
}

static inline void pt_release(pt_session *s, const uint32_t *entries, uint32_t count)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (i + PT_AHEAD < count)
            pt_prefetch_pin(s, entries[i + PT_AHEAD]);
        pt_let_go(s, entries[i]);
        PT_POINT("release.page");
    }
    pthread_mutex_unlock(&s->lock);
}
