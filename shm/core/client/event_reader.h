/* event_reader.h - reads the ring of events: without a message, a pin or a lock. */
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
    /* the daemon records nothing: it has not noticed this reader yet, or the disk tier has just closed */
    PT_EVENTS_OFF,
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

/* Reads at most *count events, and sets *count to their number. After PT_EVENTS_MISSED any page may have
 * changed; all later changes have events.
 *
 * The events were not overwritten if the head, which is read again after them, is not a whole ring further than the
 * first of them. At exactly a whole ring the daemon may be writing to its place. */
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
