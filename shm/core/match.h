/* match.h - finding the longest cached prefix: no lock between processes, no message, one pass over the keys. */
#pragma once

#include "dict.h"
#include "session.h"

#define PT_RETRIES 100u /* a miss is always safe to report; a reader never waits for the writer */

static inline bool pt_pin_key(pt_session *s, uint32_t entry, const uint8_t *key)
{
    bool readable = pt_try(s, entry);
    return pt_keep(s, entry, readable && pt_same_key(s->view.entries[entry].key, key));
}

static inline bool pt_pin_serial(pt_session *s, uint32_t entry, uint64_t serial)
{
    bool readable = pt_try(s, entry);
    return pt_keep(s, entry, readable && s->view.entries[entry].serial == serial);
}

/* Looks through the window of a key for a page to pin; PT_NONE if it is not there or not readable. */
static inline uint32_t pt_scan(pt_session *s, pt_bucket *buckets, const uint8_t *key)
{
    const pt_view *v = &s->view;
    uint32_t home = pt_home(v, key), tag = pt_tag(key), reach = pt_reach(&buckets[home]);
    for (uint32_t distance = 0; distance < reach; distance++) {
        pt_bucket *b = &buckets[(home + distance) & v->bucket_mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_acquire);
            uint32_t entry = pt_slot_entry(slot);
            if (slot && pt_slot_tag(slot) == tag && entry < v->entry_count && pt_pin_key(s, entry, key))
                return entry;
        }
    }
    return PT_NONE;
}

/* Finds and pins one page; PT_NONE is a miss. The caller holds the lock. */
static inline uint32_t pt_find(pt_session *s, const uint8_t *key)
{
    const pt_view *v = &s->view;
    for (uint32_t attempt = 0; attempt < PT_RETRIES; attempt++) {
        uint64_t dictionary = atomic_load_explicit(&v->header->dictionary, memory_order_acquire);
        pt_bucket *buckets = v->buckets[dictionary & 1];
        pt_a32 *version = &buckets[pt_home(v, key)].version;
        uint32_t before = atomic_load_explicit(version, memory_order_acquire);
        uint32_t entry = pt_scan(s, buckets, key);
        if (entry != PT_NONE)
            return entry;
        /* The loads of the scan were acquire: these two can not be older than what the scan saw. */
        if (atomic_load_explicit(version, memory_order_relaxed) == before &&
            atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) == dictionary)
            return PT_NONE;
    }
    return PT_NONE;
}

/* The entry that a key probably has: a hint for prefetching, believed by nobody. */
static inline void pt_prefetch_entry(pt_session *s, pt_bucket *buckets, const uint8_t *key)
{
    const pt_view *v = &s->view;
    pt_bucket *home = &buckets[pt_home(v, key)];
    uint32_t tag = pt_tag(key);
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
        uint64_t slot = atomic_load_explicit(&home->slots[i], memory_order_relaxed);
        uint32_t entry = pt_slot_entry(slot);
        if (!slot || pt_slot_tag(slot) != tag || entry >= v->entry_count)
            continue;
        pt_prefetch(&v->entries[entry]);
        pt_prefetch_pin(s, entry);
    }
}

static inline void pt_look_ahead(pt_session *s, pt_bucket *buckets, const uint8_t *keys, uint32_t at, uint32_t count)
{
    if (at + 2 * PT_AHEAD < count)
        pt_prefetch(&buckets[pt_home(&s->view, keys + (at + 2 * PT_AHEAD) * (uint64_t)PT_KEY_BYTES)]);
    if (at + PT_AHEAD < count)
        pt_prefetch_entry(s, buckets, keys + (at + PT_AHEAD) * (uint64_t)PT_KEY_BYTES);
}

/* Pins the longest prefix of `count` keys that is readable, and stamps its recency, falling from head to tail.
 * Returns its length; the entries go to `entries`, their serials to `serials`. */
static inline uint32_t pt_match(pt_session *s, const uint8_t *keys, uint32_t count, uint32_t *entries, uint64_t *serials)
{
    const pt_view *v = &s->view;
    pt_bucket *buckets = pt_buckets_now(v);
    uint64_t now = pt_now_ns();
    uint32_t found = 0;
    for (uint32_t i = 0; i < 2 * PT_AHEAD && i < count; i++)
        pt_prefetch(&buckets[pt_home(v, keys + i * (uint64_t)PT_KEY_BYTES)]);
    pthread_mutex_lock(&s->lock);
    for (; found < count; found++) {
        pt_look_ahead(s, buckets, keys, found, count);
        uint32_t entry = pt_find(s, keys + found * (uint64_t)PT_KEY_BYTES);
        if (entry == PT_NONE)
            break;
        entries[found] = entry;
        serials[found] = v->entries[entry].serial;
        atomic_store_explicit(&v->locks[entry].tick, now + count - found, memory_order_relaxed);
    }
    pthread_mutex_unlock(&s->lock);
    pt_count(&s->counts->lookups, 1);
    pt_count(&s->counts->hit_pages, found);
    pt_count(&s->counts->miss_pages, count - found);
    return found;
}

/* Pins what another process matched, by entry and serial; returns the length of the prefix that is still there. */
static inline uint32_t pt_repin(pt_session *s, const uint32_t *entries, const uint64_t *serials, uint32_t count)
{
    uint32_t found = 0;
    pthread_mutex_lock(&s->lock);
    while (found < count && entries[found] < s->view.entry_count && pt_pin_serial(s, entries[found], serials[found]))
        found++;
    pthread_mutex_unlock(&s->lock);
    return found;
}
