/* dict.h - the hash dictionary: buckets of one cache line, bounded probes, one writer, readers without a lock.
 *
 * The home of a key is a bucket. The key is stored there or in one of the next PT_WINDOW - 1 buckets. The one writer
 * keeps keys near their homes: it fills a slot that becomes free with a key from further out.
 *
 * A move has three steps: it stores the key in its new slot, then increments the version of the home bucket, then
 * clears the old slot. A reader that scanned the new slot before the move and the old slot after it misses a key that
 * was in the dictionary all the time. So a reader does not believe a miss before it has read the version of the home
 * bucket again and found it unchanged.
 *
 * There are two dictionaries. A daemon that adopts the segments builds the dictionary that is not in
 * use and switches to it with one store. */
#pragma once

#include "view.h"

#define PT_TAG_MASK 0x1fffffffu

static inline uint64_t pt_key_word(const uint8_t *key, int i)
{
    uint64_t word;
    memcpy(&word, key + 8 * i, 8);
    return word;
}

/* Writes the key of an entry, and its serial, which is unique to the filling. A reader that has not pinned the entry
 * may compare both at this time (pt_locate); one that sees either of them sees that the entry was free before. */
static inline void pt_put_key(pt_entry *e, const uint8_t *key)
{
    pt_a64 *words = (pt_a64 *)e->key;
    for (int i = 0; i < (int)(PT_KEY_BYTES / 8); i++)
        atomic_store_explicit(&words[i], pt_key_word(key, i), memory_order_release);
}

static inline void pt_put_serial(pt_entry *e, uint64_t serial)
{
    atomic_store_explicit((pt_a64 *)&e->serial, serial, memory_order_release);
}

static inline bool pt_same_key(const uint8_t *a, const uint8_t *b) { return memcmp(a, b, PT_KEY_BYTES) == 0; }
static inline uint32_t pt_home(const pt_view *v, const uint8_t *key)
{
    return (uint32_t)pt_key_word(key, 0) & v->bucket_mask;
}
static inline uint32_t pt_tag(const uint8_t *key) { return (uint32_t)pt_key_word(key, 1) & PT_TAG_MASK; }

static inline uint64_t pt_slot_make(uint32_t entry, uint32_t tag, uint32_t distance)
{
    return ((uint64_t)distance << 61) | ((uint64_t)tag << 32) | (entry + 1);
}
static inline uint32_t pt_slot_entry(uint64_t slot) { return (uint32_t)slot - 1; }
static inline uint32_t pt_slot_tag(uint64_t slot) { return (uint32_t)(slot >> 32) & PT_TAG_MASK; }
static inline uint32_t pt_slot_distance(uint64_t slot) { return (uint32_t)(slot >> 61); }

static inline pt_bucket *pt_buckets_now(const pt_view *v)
{
    return v->buckets[atomic_load_explicit(&v->header->dictionary, memory_order_acquire) & 1];
}

/* Returns the number of buckets that a search for a key with this home has to scan. Acquire: a reader that sees that a
 * key was moved home (and is no longer counted as displaced) also sees the incremented version. */
static inline uint32_t pt_reach(pt_bucket *home)
{
    return atomic_load_explicit(&home->displaced, memory_order_acquire) ? PT_WINDOW : 1;
}

/* ---- the writer's side: used by the daemon only ---- */

typedef struct {
    pt_bucket *buckets;
    uint32_t mask;
} pt_dict;

static inline pt_dict pt_dict_of(const pt_view *v, uint64_t number)
{
    return (pt_dict){v->buckets[number & 1], v->bucket_mask};
}

static inline pt_a64 *pt_dict_room(pt_dict d, uint32_t home, uint32_t *distance)
{
    for (*distance = 0; *distance < PT_WINDOW; ++*distance) {
        pt_bucket *b = &d.buckets[(home + *distance) & d.mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++)
            if (!atomic_load_explicit(&b->slots[i], memory_order_relaxed))
                return &b->slots[i];
    }
    return NULL;
}

/* Returns whether a key that is not in the dictionary can be added. */
static inline bool pt_dict_has_room(const pt_view *v, pt_dict d, const uint8_t *key)
{
    uint32_t distance;
    return pt_dict_room(d, pt_home(v, key), &distance) != NULL;
}

/* Clears a dictionary that is not in use. Release: a reader that slept through a whole adoption may still
 * scan this dictionary. When it sees the first cleared slot it also sees that the other dictionary is in
 * use, and so does not believe its miss. */
static inline void pt_dict_clear(pt_dict d)
{
    for (uint64_t at = 0; at <= d.mask; at++) {
        atomic_store_explicit(&d.buckets[at].version, 0, memory_order_release);
        atomic_store_explicit(&d.buckets[at].displaced, 0, memory_order_release);
        PT_POINT("dict.wiped");
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++)
            atomic_store_explicit(&d.buckets[at].slots[i], 0, memory_order_release);
    }
}

/* Adds an entry. Returns false if the whole window is full. The caller guarantees that
 * the key is not in the dictionary. */
static inline bool pt_dict_add(const pt_view *v, pt_dict d, uint32_t entry)
{
    const uint8_t *key = v->entries[entry].key;
    uint32_t home = pt_home(v, key), distance;
    pt_a64 *room = pt_dict_room(d, home, &distance);
    if (!room)
        return false;
    if (distance)
        atomic_fetch_add_explicit(&d.buckets[home].displaced, 1, memory_order_release);
    PT_POINT("dict.displaced");
    atomic_store_explicit(room, pt_slot_make(entry, pt_tag(key), distance), memory_order_release);
    PT_POINT("dict.added");
    return true;
}

/* Returns the entry of a key, or PT_NONE. Reads entries without a pin, so only the writer may call it. */
static inline uint32_t pt_dict_find(const pt_view *v, pt_dict d, const uint8_t *key)
{
    uint32_t home = pt_home(v, key), tag = pt_tag(key), reach = pt_reach(&d.buckets[home]);
    for (uint32_t distance = 0; distance < reach; distance++) {
        pt_bucket *b = &d.buckets[(home + distance) & d.mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_relaxed);
            if (slot && pt_slot_tag(slot) == tag && pt_same_key(v->entries[pt_slot_entry(slot)].key, key))
                return pt_slot_entry(slot);
        }
    }
    return PT_NONE;
}

/* bytes of a key that tell it from all others, unless they were chosen; home and tag are made of them */
#define PT_KEY_BEGIN 16u

/* Returns an entry whose key begins with these PT_KEY_BEGIN bytes, or PT_NONE. Only the writer may call it. */
static inline uint32_t pt_dict_find_begin(const pt_view *v, pt_dict d, const uint8_t *begin)
{
    uint32_t home = pt_home(v, begin), tag = pt_tag(begin), reach = pt_reach(&d.buckets[home]);
    for (uint32_t distance = 0; distance < reach; distance++) {
        pt_bucket *b = &d.buckets[(home + distance) & d.mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_relaxed);
            if (slot && pt_slot_tag(slot) == tag && !memcmp(v->entries[pt_slot_entry(slot)].key, begin, PT_KEY_BEGIN))
                return pt_slot_entry(slot);
        }
    }
    return PT_NONE;
}

/* Returns an entry that may have a key, by the tag alone, or PT_NONE: to fetch the entries of many keys at once, as no
 * entry is read. Only the writer may call it. */
static inline uint32_t pt_dict_guess(const pt_view *v, pt_dict d, const uint8_t *key)
{
    const pt_bucket *b = &d.buckets[pt_home(v, key)];
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
        uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_relaxed);
        if (slot && pt_slot_tag(slot) == pt_tag(key))
            return pt_slot_entry(slot);
    }
    return PT_NONE;
}

/* Returns a slot within the window of bucket `to` whose key may move into that bucket, or NULL. */
static inline pt_a64 *pt_dict_movable(pt_dict d, uint32_t to, uint32_t *step)
{
    for (*step = 1; *step < PT_WINDOW; ++*step) {
        pt_bucket *b = &d.buckets[(to + *step) & d.mask];
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            uint64_t slot = atomic_load_explicit(&b->slots[i], memory_order_relaxed);
            if (slot && pt_slot_distance(slot) >= *step)
                return &b->slots[i];
        }
    }
    return NULL;
}

static inline bool pt_dict_has_gap(pt_dict d, uint32_t bucket, const pt_a64 *besides)
{
    for (pt_a64 *slot = d.buckets[bucket].slots; slot < d.buckets[bucket].slots + PT_BUCKET_SLOTS; slot++)
        if (slot != besides && !atomic_load_explicit(slot, memory_order_relaxed))
            return true;
    return false;
}

/* Fills a free slot of bucket `to` with a key from further out, then the slot which that key left, and so on. The
 * version is incremented with release: a search that starts with the new version sees the key in its new slot. With
 * relaxed order it could see the key in neither slot (tests/models/orders/move_order.pml). The loop stops at a bucket
 * that had another free slot before: keys beyond it would not move into it, because they would be there already.
 * Scanning on would cost one cache line for each bucket of the window, and nearly all buckets have a free slot. */
static inline void pt_dict_pull_home(pt_dict d, uint32_t to, pt_a64 *room)
{
    uint32_t step;
    while (!pt_dict_has_gap(d, to, room)) {
        pt_a64 *from = pt_dict_movable(d, to, &step);
        if (!from)
            return;
        uint64_t slot = atomic_load_explicit(from, memory_order_relaxed);
        uint32_t distance = pt_slot_distance(slot);
        pt_bucket *home = &d.buckets[(to + step - distance) & d.mask];
        atomic_store_explicit(room, pt_slot_make(pt_slot_entry(slot), pt_slot_tag(slot), distance - step),
                              memory_order_release);
        PT_POINT("dict.shown");
        atomic_fetch_add_explicit(&home->version, 1, memory_order_release);
        PT_POINT("dict.versioned");
        /* Release again: a reader that sees the old slot empty, or the key no longer counted
         * as displaced, also sees the version. */
        atomic_store_explicit(from, 0, memory_order_release);
        PT_POINT("dict.moved");
        if (distance == step)
            atomic_fetch_sub_explicit(&home->displaced, 1, memory_order_release);
        room = from;
        to = (to + step) & d.mask;
    }
}

/* Removes an entry. Returns false if the dictionary did not contain it. */
static inline bool pt_dict_drop(const pt_view *v, pt_dict d, uint32_t entry)
{
    uint32_t home = pt_home(v, v->entries[entry].key);
    for (uint32_t distance = 0; distance < PT_WINDOW; distance++) {
        uint32_t at = (home + distance) & d.mask;
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            pt_a64 *place = &d.buckets[at].slots[i];
            uint64_t slot = atomic_load_explicit(place, memory_order_relaxed);
            if (!slot || pt_slot_entry(slot) != entry)
                continue;
            atomic_store_explicit(place, 0, memory_order_release);
            PT_POINT("dict.dropped");
            if (distance)
                atomic_fetch_sub_explicit(&d.buckets[home].displaced, 1, memory_order_release);
            PT_POINT("dict.undisplaced");
            pt_dict_pull_home(d, at, place);
            return true;
        }
    }
    return false;
}
