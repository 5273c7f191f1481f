/* locate.h - says where pages are, for observers: nothing is pinned, stamped or counted.
 *
 * Without a pin a page may leave at any time, so an answer is about the moment when it was given. The serial of the entry is
 * read before and after everything else: an entry that became another page in between counts as absent. */
#pragma once

#include "../common/dict.h"

#define PT_LOCATE_RETRIES 100u

/* Returns the tiers of the page of an entry, PT_TIER_*; 0 if it is in none. */
static inline uint32_t pt_tiers_now(const pt_view *v, uint32_t entry)
{
    enum pt_state state = pt_load_state(&v->locks[entry].word);
    uint32_t on_disk = pt_tiers(&v->entries[entry]) & PT_TIER_DISK;
    return state == PT_READABLE ? on_disk | PT_TIER_MEMORY : state == PT_WRITING || state == PT_ON_DISK ? on_disk : 0;
}

/* What an observer sees of an entry. */
typedef struct {
    uint64_t serial;
    uint32_t tiers;
    bool same; /* it has the key that was looked for */
} pt_glimpse;

static inline pt_glimpse pt_glimpse_of(const pt_view *v, uint32_t entry, const uint8_t *key)
{
    const volatile pt_entry *e = &v->entries[entry];
    pt_glimpse seen = {.serial = e->serial, .tiers = pt_tiers_now(v, entry)};
    atomic_thread_fence(memory_order_acquire);
    seen.same = pt_same_key(v->entries[entry].key, key);
    atomic_thread_fence(memory_order_acquire);
    seen.same = seen.same && e->serial == seen.serial;
    return seen;
}

static inline uint32_t pt_locate_in(const pt_view *v, pt_bucket *buckets, const uint8_t *key)
{
    uint32_t home = pt_home(v, key), tag = pt_tag(key), reach = pt_reach(&buckets[home]);
    for (uint32_t distance = 0; distance < reach; distance++)
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
            uint64_t slot = atomic_load_explicit(&buckets[(home + distance) & v->bucket_mask].slots[i], memory_order_acquire);
            uint32_t entry = pt_slot_entry(slot);
            if (!slot || pt_slot_tag(slot) != tag || entry >= v->entry_count)
                continue;
            pt_glimpse seen = pt_glimpse_of(v, entry, key);
            if (seen.same && seen.tiers)
                return seen.tiers;
        }
    return 0;
}

/* Returns the tiers of a page, PT_TIER_*. A miss is believed as in pt_find (match.h). */
static inline uint32_t pt_locate(const pt_view *v, const uint8_t *key)
{
    for (uint32_t attempt = 0; attempt < PT_LOCATE_RETRIES; attempt++) {
        uint64_t dictionary = atomic_load_explicit(&v->header->dictionary, memory_order_acquire);
        pt_bucket *buckets = v->buckets[dictionary & 1];
        pt_a32 *version = &buckets[pt_home(v, key)].version;
        uint32_t before = atomic_load_explicit(version, memory_order_acquire), tiers = pt_locate_in(v, buckets, key);
        if (tiers)
            return tiers;
        if (atomic_load_explicit(version, memory_order_relaxed) == before &&
            atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) == dictionary)
            break;
    }
    return 0;
}

/* What an observer lists of a page. `parent` is the entry of the page before it; PT_NONE: not known. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t size, used_ns;
    uint32_t entry, parent, chain, tiers;
} pt_listed;
_Static_assert(sizeof(pt_listed) == 64, "a record of 64 bytes");

/* Lists the page of an entry. Returns false if the entry has no page of this namespace. */
static inline bool pt_list_page(const pt_view *v, uint32_t entry, uint32_t space, pt_listed *to)
{
    const volatile pt_entry *e = &v->entries[entry];
    uint64_t serial = e->serial;
    uint32_t parent = v->histories[entry].parent, tiers = pt_tiers_now(v, entry);
    if (!tiers || e->space != space)
        return false;
    bool known = parent < v->entry_count && v->histories[parent].life == v->histories[entry].parent_life;
    *to = (pt_listed){
        .size = e->size,
        .used_ns = atomic_load_explicit(&v->locks[entry].tick, memory_order_relaxed),
        .entry = entry,
        .parent = known ? parent : PT_NONE,
        .chain = e->chain,
        .tiers = tiers,
    };
    memcpy(to->key, v->entries[entry].key, PT_KEY_BYTES);
    atomic_thread_fence(memory_order_acquire);
    return e->serial == serial && e->space == space;
}
