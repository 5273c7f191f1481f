/* session.h - one attached process: its mappings, its slot, and how many pins its threads have on each page.
 *
 * A process has one bit in a lock word, however many of its threads have the page pinned. The counts of these
 * pins are private. The process's own lock guards the step from 0 to 1 and back, so that no thread clears the bit
 * while another one needs it. The same steps count the frames that the process keeps from eviction: never more
 * than the daemon allows to one attachment. */
#pragma once

#include <pthread.h>

#include "../common/view.h"

/* Of one entry: the pins of this process's threads, and its frames while there are any, UINT16_MAX for more. Both
 * share one word, so that releasing a page reads no other private data, and not its entry. A match treats a page that
 * is pinned UINT16_MAX times as a miss. */
typedef struct {
    uint16_t pins, frames;
} pt_own_pins;

typedef struct {
    pt_view view;
    uint32_t slot;
    pthread_mutex_t lock;
    pt_own_pins *own_pins; /* for each entry; guarded by lock, as are frames and bounded */
    uint64_t frames; /* frames of all pinned pages */
    bool bounded; /* a match ended because it would have pinned too many frames */
    bool held; /* another request of the process had the page that was found last, or released last; guarded by lock */
    pt_counts *counts;
} pt_session;

/* Prefetches what pinning or releasing a page needs. Pages are pinned head first, so a page behind one that another
 * request of the process holds is probably held, too. Then its lock word is not written, and other processors that
 * read the line keep it. */
static inline void pt_prefetch_pin(pt_session *s, uint32_t entry)
{
    if (s->held) {
        pt_prefetch(&s->view.locks[entry]);
        pt_prefetch(&s->view.histories[entry].stamped);
    } else {
        pt_prefetch_write(&s->view.locks[entry]);
    }
    pt_prefetch_write(&s->own_pins[entry]);
}

static inline void pt_count(pt_a64 *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* The result of one request's lookup. Pages: those that its first match found in memory, and those that it did not
 * find. Tokens: from memory, from disk, those that were not in the cache, those from the
 * fleet, and those not in the cache that a tier had and that were computed because loading them was slower. */
typedef struct {
    uint64_t hit_pages, miss_pages, memory_tokens, disk_tokens, missed_tokens, remote_tokens, memory_slower_tokens,
        disk_slower_tokens, remote_slower_tokens;
} pt_lookup;

/* Counts a lookup. Matches do not count themselves: a request may match several times and is counted once. */
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
    if (lookup.remote_tokens)
        pt_count(&uses->remote_tokens, lookup.remote_tokens);
    if (lookup.memory_slower_tokens)
        pt_count(&uses->memory_slower_tokens, lookup.memory_slower_tokens);
    if (lookup.disk_slower_tokens)
        pt_count(&uses->disk_slower_tokens, lookup.disk_slower_tokens);
    if (lookup.remote_slower_tokens)
        pt_count(&uses->remote_slower_tokens, lookup.remote_slower_tokens);
}

/* Sets the pin bit of an entry and returns its state. A page that was readable stays readable while pinned. The caller
 * compares the key or serial after this call and not before, when the entry could still become another page, and then
 * calls pt_keep. The caller holds the lock. */
static inline enum pt_state pt_try(pt_session *s, uint32_t entry)
{
    return s->own_pins[entry].pins ? PT_READABLE : pt_state_of(pt_pin(&s->view.locks[entry].word, s->slot));
}

/* Counts the frames of an entry that is about to be pinned. Returns false if they exceed the limit. */
static inline bool pt_count_own_frames(pt_session *s, uint32_t entry)
{
    uint32_t frames = s->view.entries[entry].frame_count;
    uint64_t most = atomic_load_explicit(&s->view.header->pin_frames, memory_order_relaxed);
    frames = frames < UINT16_MAX ? frames : UINT16_MAX;
    if (most && s->frames + frames > most) {
        s->bounded = true;
        return false;
    }
    s->frames += frames;
    s->own_pins[entry].frames = (uint16_t)frames;
    return true;
}

/* Counts the pin of pt_try, or clears it. Returns whether it was counted. The caller has held the lock since pt_try. */
static inline bool pt_keep(pt_session *s, uint32_t entry, bool wanted)
{
    pt_own_pins *own = &s->own_pins[entry];
    wanted = wanted && (own->pins ? own->pins < UINT16_MAX : pt_count_own_frames(s, entry));
    if (wanted)
        s->held = own->pins++;
    else if (!own->pins)
        pt_unpin(&s->view.locks[entry].word, s->slot);
    return wanted;
}

/* Releases one pin. The caller holds the lock and has a pin on the entry. */
static inline void pt_release_one(pt_session *s, uint32_t entry)
{
    pt_own_pins *own = &s->own_pins[entry];
    s->held = --own->pins;
    if (!s->held) {
        s->frames -= own->frames;
        pt_unpin(&s->view.locks[entry].word, s->slot);
    }
}

#define PT_HELD_STAMP_NS 100000000ull

/* Returns whether a reader stamped a page in the last 100 ms, and no store did after that: a store learns from the tick
 * whether the page has returned (learn_from_stores.h). A tick of the future does not count. */
static inline bool pt_was_just_stamped(const pt_view *v, uint32_t entry, uint64_t tick)
{
    uint64_t last = atomic_load_explicit(&v->locks[entry].tick, memory_order_relaxed);
    return tick + PT_HELD_STAMP_NS - last < 2 * PT_HELD_STAMP_NS &&
           (uint32_t)last != atomic_load_explicit(&v->histories[entry].stamped, memory_order_relaxed);
}

/* Stamps the recency of a page that was found and pinned. A page that another request of the process holds cannot be
 * evicted now, and keeps a tick that is nearly as good: otherwise all engines would write the line of a prompt that all
 * begin with at each of their matches. */
static inline void pt_stamp_use(pt_session *s, uint32_t entry, uint64_t tick)
{
    if (s->own_pins[entry].pins < 2 || !pt_was_just_stamped(&s->view, entry, tick))
        atomic_store_explicit(&s->view.locks[entry].tick, tick, memory_order_relaxed);
}

/* Counts a match that ended at the limit. Called at the end of each match; the caller holds the lock. */
static inline void pt_count_bounded(pt_session *s)
{
    if (s->bounded)
        pt_count(&s->view.uses[s->slot].bounded, 1);
    s->bounded = false;
}

static inline void pt_release(pt_session *s, const uint32_t *entries, uint32_t count)
{
    pthread_mutex_lock(&s->lock);
    s->held = count && s->own_pins[entries[0]].pins > 1;
    for (uint32_t i = 0; i < PT_AHEAD && i < count && count > 1; i++)
        pt_prefetch_pin(s, entries[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (i + PT_AHEAD < count)
            pt_prefetch_pin(s, entries[i + PT_AHEAD]);
        pt_release_one(s, entries[i]);
        PT_POINT("release.page");
    }
    pthread_mutex_unlock(&s->lock);
}
