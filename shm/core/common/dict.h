/* dict.h - the hash dictionary: buckets of one cache line, bounded probes, one writer, readers without a lock.
 *
 * A key's home is a bucket; it lives there or in one of the next PT_WINDOW - 1.  The one writer keeps keys near
 * home: room that comes free is filled by a key from further out.  Such a move shows the key at its new place first,
 * then raises the home's version, then clears the old place.  A reader that looked at the new place before and at the
 * old place after has missed a key that was there all the time; the version tells it, so no miss is believed
 * before the home's version was read again.
 *
 * There are two dictionaries. A daemon that adopts the segments derives the other one and switches to it by one store.
 */
#pragma once

#include "view.h"

#define PT_TAG_MASK 0x1fffffffu

static inline uint64_t pt_key_word(const uint8_t *key, int i)
{
    uint64_t word;
    memcpy(&word, key + 8 * i, 8);
    return word;
}

static inline bool pt_same_key(const uint8_t *a, const uint8_t *b) { return memcmp(a, b, PT_KEY_BYTES) == 0; }
static inline uint32_t pt_home(const pt_view *v, const uint8_t *key) { return (uint32_t)pt_key_word(key, 0) & v->bucket_mask; }
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

/* How many buckets a search for a key with this home has to look at. Acquire: who sees that a key which
 * moved home is not counted any more sees the version raised. */
static inline uint32_t pt_reach(pt_bucket *home)
{
    return atomic_load_explicit(&home->displaced, memory_order_acquire) ? PT_WINDOW : 1;
}

/* ---- the writer's side: the daemon alone ---- */

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

/* Whether a key that is not there can be added. */
static inline bool pt_dict_has_room(const pt_view *v, pt_dict d, const uint8_t *key)
{
    uint32_t distance;
    return pt_dict_room(d, pt_home(v, key), &distance) != NULL;
}

/* For a dictionary that is not in force. Release: a reader that slept over a whole adoption and still looks here sees with
 * the first empty slot that another dictionary was put in force, and does not believe its miss. */
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

/* False if the whole window is full. The caller guarantees that the key is not there. */
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

/* The entry of a key, or PT_NONE. Reads entries without a pin: for the writer only. */
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

/* A slot within reach of bucket `to` whose key may move there, or NULL. */
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

/* Fills a free slot of bucket `to` from further out, and the slot that this frees, and so on. The version is raised with
 * release: a search that begins with the new version sees the key at its new place. Relaxed, it could see it at neither
 * (tests/models/orders/move_order.pml). Beyond a bucket that had a gap before lives nobody who would rather live in it:
 * to look there would cost as many cache lines as the window has buckets, and nearly all buckets have one. */
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
        /* Release again: who sees the old place empty, or the key no longer counted as displaced, sees the version. */
        atomic_store_explicit(from, 0, memory_order_release);
        PT_POINT("dict.moved");
        if (distance == step)
            atomic_fetch_sub_explicit(&home->displaced, 1, memory_order_release);
        room = from;
        to = (to + step) & d.mask;
    }
}

/* False if the entry was not there. */
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
