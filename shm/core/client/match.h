/* match.h - finds the longest cached prefix: no lock between processes, no message, one pass over the keys. */
#pragma once

#include "../common/dict.h"
#include "session.h"

#define PT_RETRIES 100u /* a miss is always safe to report; a reader never waits for the writer */

#define PT_FROM_DISK 0x80000000u /* set in the number of an entry: its page was on disk */

/* Where a key was found. A page that is being read from disk counts as on disk. */
enum pt_location { PT_NOWHERE, PT_IN_MEMORY, PT_ON_ITS_WAY };

/* Pins the entry if it is the readable page of this key.
 *
 * The pin comes first and the comparison second: a pin that found the state PT_READABLE keeps the entry from becoming
 * another page, so the key that is compared is the key of the page that will be read. A comparison before the pin would
 * prove nothing. The key of a page on disk may be compared for the same reason: such an entry is not reused while it is
 * pinned. After that comparison the pin is cleared. */
static inline enum pt_location pt_pin_key(pt_session *s, uint32_t entry, const uint8_t *key)
{
    pt_entry *e = &s->view.entries[entry];
    enum pt_state state = pt_try(s, entry);
    PT_POINT("pin.tried");
    bool on_disk = state == PT_ON_DISK || (state == PT_WRITING && pt_tiers(e) & PT_TIER_DISK);
    bool same = (state == PT_READABLE || on_disk) && pt_same_key(e->key, key);
    if (pt_keep(s, entry, same && !on_disk))
        return PT_IN_MEMORY;
    return same && on_disk ? PT_ON_ITS_WAY : PT_NOWHERE;
}

static inline bool pt_pin_serial(pt_session *s, uint32_t entry, uint64_t serial)
{
    bool readable = pt_try(s, entry) == PT_READABLE;
    PT_POINT("repin.tried");
    return pt_keep(s, entry, readable && s->view.entries[entry].serial == serial);
}

typedef struct {
    enum pt_location where;
    uint32_t entry;
} pt_found;

/* Scans the window of a key for its page, and pins the page if it is readable. */
static inline pt_found pt_scan(pt_session *s, pt_bucket *buckets, const uint8_t *key)
{
    const pt_view *v = &s->view;
    uint32_t home = pt_home(v, key), tag = pt_tag(key), reach = pt_reach(&buckets[home]);
    for (uint32_t distance = 0; distance < reach; distance++) {
        pt_bucket *b = &buckets[(home + distance) & v->bucket_mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            /* Acquire: a reader that sees the empty slot which a key has left sees the incremented version of its home
             * bucket (pt_find). */
            uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_acquire);
            uint32_t entry = pt_slot_entry(slot);
            if (!slot || pt_slot_tag(slot) != tag || entry >= v->entry_count)
                continue;
            enum pt_location where = pt_pin_key(s, entry, key);
            if (where != PT_NOWHERE)
                return (pt_found){where, entry};
        }
    }
    return (pt_found){PT_NOWHERE, PT_NONE};
}

/* Finds one page, and pins it if it is readable. The caller holds the lock.
 *
 * A hit is final, as the key was compared under the pin. A miss may be false for two reasons: a key was moved from
 * a slot that was not scanned yet to one that was already scanned, or a new daemon switched to the other
 * dictionary. So a miss is believed only if the version of the home bucket and the dictionary are the same as
 * before the scan; otherwise the scan is repeated. */
static inline pt_found pt_find(pt_session *s, const uint8_t *key)
{
    const pt_view *v = &s->view;
    for (uint32_t attempt = 0; attempt < PT_RETRIES; attempt++) {
        /* Acquire, both: everything that was derived before the switch is visible, and every move that was
         * made before the version was incremented. */
        uint64_t dictionary = atomic_load_explicit(&v->header->dictionary, memory_order_acquire);
        pt_bucket *buckets = v->buckets[dictionary & 1];
        pt_a32 *version = &buckets[pt_home(v, key)].version;
        uint32_t before = atomic_load_explicit(version, memory_order_acquire);
        pt_found found = pt_scan(s, buckets, key);
        if (found.where != PT_NOWHERE)
            return found;
        /* The loads of the scan were acquire: these two cannot be older than what the scan saw. */
        if (atomic_load_explicit(version, memory_order_relaxed) == before &&
            atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) == dictionary)
            break;
    }
    return (pt_found){PT_NOWHERE, PT_NONE};
}

/* Returns the entry that a key probably has, or PT_NONE. This is only a hint; no decision depends on it. */
static inline uint32_t pt_guess_entry(const pt_view *v, pt_bucket *buckets, const uint8_t *key)
{
    pt_bucket *home = &buckets[pt_home(v, key)];
    uint32_t tag = pt_tag(key);
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
        uint64_t slot = atomic_load_explicit(&home->slots[i], memory_order_relaxed);
        uint32_t entry = pt_slot_entry(slot);
        if (slot && pt_slot_tag(slot) == tag && entry < v->entry_count)
            return entry; /* another key with this tag is rare */
    }
    return PT_NONE;
}

/* Prefetches the entry that a key probably has, and returns whether there is one. */
static inline bool pt_prefetch_entry(pt_session *s, pt_bucket *buckets, const uint8_t *key)
{
    uint32_t entry = pt_guess_entry(&s->view, buckets, key);
    if (entry == PT_NONE)
        return false;
    pt_prefetch(&s->view.entries[entry]);
    pt_prefetch_pin(s, entry);
    return true;
}

/* Prefetches what the first pages need, which no page before them does. A prompt that all engines begin with is short,
 * and other processors have its lock words: so they come at once, and not one after the other. Nothing comes behind a
 * page that is probably missed. */
static inline void pt_prefetch_first(pt_session *s, pt_bucket *buckets, const uint8_t *keys, uint32_t count)
{
    for (uint32_t i = 0; i < 2 * PT_AHEAD && i < count; i++)
        pt_prefetch(&buckets[pt_home(&s->view, keys + i * (uint64_t)PT_KEY_BYTES)]);
    uint32_t first = count > 1 ? pt_guess_entry(&s->view, buckets, keys) : PT_NONE;
    s->held = first != PT_NONE && s->own_pins[first].pins;
    for (uint32_t i = 0; i < PT_AHEAD && i < count && count > 1; i++)
        if (!pt_prefetch_entry(s, buckets, keys + i * (uint64_t)PT_KEY_BYTES))
            break;
}

static inline void pt_prefetch_ahead(pt_session *s, pt_bucket *buckets, const uint8_t *keys, uint32_t at,
                                     uint32_t count)
{
    if (at + 2 * PT_AHEAD < count)
        pt_prefetch(&buckets[pt_home(&s->view, keys + (at + 2 * PT_AHEAD) * (uint64_t)PT_KEY_BYTES)]);
    if (at + PT_AHEAD < count)
        pt_prefetch_entry(s, buckets, keys + (at + PT_AHEAD) * (uint64_t)PT_KEY_BYTES);
}

/* Returns how far a prefix continues in memory or on disk from page `from` on, which is on disk. Pins nothing.
 * `entries` has room for `count` pages and receives the entry of each page that was found. */
static inline uint32_t pt_reach_on(pt_session *s, const uint8_t *keys, uint32_t from, uint32_t count, uint64_t now,
                                   uint32_t *entries)
{
    for (; from < count; from++) {
        pt_found found = pt_find(s, keys + from * (uint64_t)PT_KEY_BYTES);
        if (found.where == PT_NOWHERE)
            break;
        if (found.where == PT_IN_MEMORY)
            pt_release_one(s, found.entry);
        entries[from] = found.where == PT_IN_MEMORY ? found.entry : found.entry | PT_FROM_DISK;
        atomic_store_explicit(&s->view.locks[found.entry].tick, now + count - from, memory_order_relaxed);
        PT_POINT("reach.stamped");
    }
    return from;
}

/* The result of a match. `count` pages are pinned. `reach` is the length of the prefix in memory or on disk; entries
 * from `count` on are not pinned and have PT_FROM_DISK set if they are on disk. */
typedef struct {
    uint32_t *entries;
    uint64_t *serials;
    uint32_t count, reach;
} pt_matched;

/* Does what pt_match does. The caller holds the lock. */
static inline void pt_match_locked(pt_session *s, const uint8_t *keys, uint32_t count, pt_matched *to)
{
    const pt_view *v = &s->view;
    pt_bucket *buckets = pt_buckets_now(v);
    uint64_t now = pt_now_ns();
    pt_found found = {PT_NOWHERE, PT_NONE};
    uint32_t at = 0;
    pt_prefetch_first(s, buckets, keys, count);
    for (; at < count; at++) {
        pt_prefetch_ahead(s, buckets, keys, at, count);
        found = pt_find(s, keys + at * (uint64_t)PT_KEY_BYTES);
        if (found.where != PT_IN_MEMORY)
            break;
        PT_POINT("match.pinned");
        to->entries[at] = found.entry;
        to->serials[at] = v->entries[found.entry].serial;
        pt_stamp_use(s, found.entry, now + count - at);
        PT_POINT("match.stamped");
    }
    to->count = to->reach = at;
    if (at < count && found.where == PT_ON_ITS_WAY)
        to->reach = pt_reach_on(s, keys, at, count, now, to->entries);
    pt_count_bounded(s);
}

/* Pins the longest prefix of `count` keys that is readable, and stamps its recency, which falls from head to tail. Then
 * finds how far the prefix continues in memory or on disk. */
static inline void pt_match(pt_session *s, const uint8_t *keys, uint32_t count, pt_matched *to)
{
    pthread_mutex_lock(&s->lock);
    pt_match_locked(s, keys, count, to);
    pthread_mutex_unlock(&s->lock);
}

/* Pins what another process matched, by entry and serial. Returns the length of the prefix that is still there. */
static inline uint32_t pt_repin(pt_session *s, const uint32_t *entries, const uint64_t *serials, uint32_t count)
{
    uint32_t found = 0;
    pthread_mutex_lock(&s->lock);
    while (found < count && entries[found] < s->view.entry_count && pt_pin_serial(s, entries[found], serials[found]))
        found++;
    PT_POINT("repin.pinned");
    pt_count_bounded(s);
    pthread_mutex_unlock(&s->lock);
    return found;
}
