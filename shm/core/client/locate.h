/* locate.h - says where pages are: without a message, a pin, a stamp or a lock, and nothing is counted.
 *
 * Without a pin a page may leave at any time, so an answer is about the moment when it was given. */
#pragma once

#include "../common/dict.h"

#define PT_LOCATE_RETRIES 100u
#define PT_REFILLED 0x80u /* no tier */

/* Compares a key that the daemon may be overwriting. */
static inline bool pt_same_words(pt_entry *e, const uint8_t *key)
{
    pt_a64 *words = (pt_a64 *)e->key;
    for (int i = 0; i < (int)(PT_KEY_BYTES / 8); i++)
        if (atomic_load_explicit(&words[i], memory_order_acquire) != pt_key_word(key, i))
            return false;
    return true;
}

/* Returns the tiers in which an entry's page can be found, as bits. */
static inline uint8_t pt_tiers_now(const pt_view *v, uint32_t entry)
{
    pt_entry *e = &v->entries[entry];
    enum pt_state state = pt_load_state(&v->locks[entry].word);
    bool disk = (state == PT_READABLE || state == PT_ON_DISK || state == PT_WRITING) && pt_tiers(e) & PT_TIER_DISK;
    return (state == PT_READABLE ? PT_TIER_MEMORY : 0) | (disk ? PT_TIER_DISK : 0);
}

/* Returns the same; 0 if it is another page, and PT_REFILLED if the entry may have become another one in between.
 * Without the serial a page that is being written would count as there, because the page before it in the entry was: if
 * its writer gives up, no event follows. */
static inline uint8_t pt_locate_entry(const pt_view *v, uint32_t entry, const uint8_t *key)
{
    pt_entry *e = &v->entries[entry];
    uint64_t serial = atomic_load_explicit((pt_a64 *)&e->serial, memory_order_acquire);
    if (!pt_same_words(e, key))
        return 0;
    uint8_t tiers = pt_tiers_now(v, entry);
    return atomic_load_explicit((pt_a64 *)&e->serial, memory_order_relaxed) == serial ? tiers : PT_REFILLED;
}

static inline uint8_t pt_locate_scan(const pt_view *v, pt_bucket *buckets, const uint8_t *key)
{
    uint32_t home = pt_home(v, key), tag = pt_tag(key), reach = pt_reach(&buckets[home]);
    for (uint32_t i = 0; i < reach * PT_BUCKET_SLOTS; i++) {
        pt_bucket *b = &buckets[(home + i / PT_BUCKET_SLOTS) & v->bucket_mask];
        uint64_t slot = atomic_load_explicit(&b->slots[i % PT_BUCKET_SLOTS], memory_order_acquire);
        uint8_t tiers = slot && pt_slot_tag(slot) == tag && pt_slot_entry(slot) < v->entry_count
                            ? pt_locate_entry(v, pt_slot_entry(slot), key)
                            : 0;
        if (tiers)
            return tiers;
    }
    return 0;
}

/* Returns the tiers in which the page of a key can be found, as bits. It pins nothing, so the page may leave or come at
 * this time; then an event that is not read yet says so. A miss is believed as in pt_find. */
static inline uint8_t pt_locate(const pt_view *v, const uint8_t *key)
{
    for (uint32_t attempt = 0; attempt < PT_LOCATE_RETRIES; attempt++) {
        uint64_t dictionary = atomic_load_explicit(&v->header->dictionary, memory_order_acquire);
        pt_bucket *buckets = v->buckets[dictionary & 1];
        pt_a32 *version = &buckets[pt_home(v, key)].version;
        uint32_t before = atomic_load_explicit(version, memory_order_acquire);
        uint8_t tiers = pt_locate_scan(v, buckets, key);
        if (tiers == PT_REFILLED)
            continue;
        if (tiers || (atomic_load_explicit(version, memory_order_relaxed) == before &&
                      atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) == dictionary))
            return tiers;
    }
    return 0;
}

/* What an observer lists of a page. `parent` is the entry of the page before it; PT_NONE: not known. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t size, used_ns;
    uint32_t entry, parent, reservation, tiers;
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
        .reservation = e->reservation,
        .tiers = tiers,
    };
    memcpy(to->key, v->entries[entry].key, PT_KEY_BYTES);
    /* The next page's key comes after a state without a page, and its serial before the next state. */
    atomic_thread_fence(memory_order_acquire);
    return pt_tiers_now(v, entry) && e->serial == serial && e->space == space;
}
