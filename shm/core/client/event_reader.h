/* event_reader.h - reads the ring of events, and where pages are: without a message, a pin or a lock. */
#pragma once

#include "../common/dict.h"

/* What a reader has read. Zero: nothing yet. */
typedef struct {
    uint64_t epoch, cursor;
} pt_event_reader;

typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t what; /* as in pt_event */
} pt_seen_event;

enum pt_events {
    PT_EVENTS_OFF, /* the daemon records nothing: it has not noticed this reader yet, or the disk tier has just closed */
    PT_EVENTS_MISSED, /* there were changes without an event, or events were overwritten */
    PT_EVENTS_READ,
};

/* Makes the daemon record events while this slot is taken. */
static inline void pt_want_events(const pt_view *v, uint32_t slot)
{
    if (!(atomic_load_explicit(v->event_readers, memory_order_relaxed) >> slot & 1))
        atomic_fetch_or_explicit(v->event_readers, 1ull << slot, memory_order_relaxed);
}

static inline void pt_read_event(const pt_event *from, pt_seen_event *to)
{
    pt_event *e = (pt_event *)from;
    for (int i = 0; i < (int)(PT_KEY_BYTES / 8); i++) {
        uint64_t word = atomic_load_explicit(&e->key[i], memory_order_acquire);
        memcpy(to->key + 8 * i, &word, 8);
    }
    to->what = atomic_load_explicit(&e->what, memory_order_acquire);
}

/* Reads at most *count events, and sets *count to their number. After PT_EVENTS_MISSED any page may have changed; all later
 * changes have events.
 *
 * The events were not overwritten if the head, which is read again after them, is not a whole ring further than the first
 * of them. At exactly a whole ring the daemon may be writing to its place. */
static inline enum pt_events pt_read_events(const pt_view *v, pt_event_reader *r, pt_seen_event *to, uint32_t *count)
{
    uint64_t epoch = atomic_load_explicit(&v->header->events_epoch, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&v->header->events_head, memory_order_acquire);
    uint32_t most = *count, i = 0;
    *count = 0;
    if (epoch != r->epoch || !(epoch & 1)) {
        *r = (pt_event_reader){epoch, head};
        return epoch & 1 ? PT_EVENTS_MISSED : PT_EVENTS_OFF;
    }
    for (; i < most && i < head - r->cursor && head - r->cursor < v->event_count; i++)
        pt_read_event(&v->events[(r->cursor + i) % v->event_count], &to[i]);
    if (atomic_load_explicit(&v->header->events_head, memory_order_relaxed) - r->cursor >= v->event_count) {
        r->cursor = head;
        return PT_EVENTS_MISSED;
    }
    r->cursor += i;
    *count = i;
    return PT_EVENTS_READ;
}

/* Compares a key that the daemon may be overwriting. */
static inline bool pt_same_words(pt_entry *e, const uint8_t *key)
{
    pt_a64 *words = (pt_a64 *)e->key;
    for (int i = 0; i < (int)(PT_KEY_BYTES / 8); i++)
        if (atomic_load_explicit(&words[i], memory_order_relaxed) != pt_key_word(key, i))
            return false;
    return true;
}

/* Returns the tiers in which an entry's page can be found, as bits; 0 if it is another page. */
static inline uint8_t pt_locate_entry(const pt_view *v, uint32_t entry, const uint8_t *key)
{
    pt_entry *e = &v->entries[entry];
    enum pt_state state = pt_load_state(&v->locks[entry].word);
    bool disk = (state == PT_READABLE || state == PT_ON_DISK || state == PT_WRITING) && pt_tiers(e) & PT_TIER_DISK;
    if (!pt_same_words(e, key))
        return 0;
    return (state == PT_READABLE ? PT_TIER_MEMORY : 0) | (disk ? PT_TIER_DISK : 0);
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

#define PT_LOCATE_RETRIES 100u

/* Returns the tiers in which the page of a key can be found, as bits. It pins nothing, so the entry may become another page
 * at this time; but then the page has left or come, and an event that is not read yet says so. A miss is believed as in
 * pt_find. */
static inline uint8_t pt_locate(const pt_view *v, const uint8_t *key)
{
    for (uint32_t attempt = 0; attempt < PT_LOCATE_RETRIES; attempt++) {
        uint64_t dictionary = atomic_load_explicit(&v->header->dictionary, memory_order_acquire);
        pt_bucket *buckets = v->buckets[dictionary & 1];
        pt_a32 *version = &buckets[pt_home(v, key)].version;
        uint32_t before = atomic_load_explicit(version, memory_order_acquire);
        uint8_t tiers = pt_locate_scan(v, buckets, key);
        if (tiers || (atomic_load_explicit(version, memory_order_relaxed) == before &&
                      atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) == dictionary))
            return tiers;
    }
    return 0;
}
