/* events.h - the ring of events, the daemon's side: it records which pages come into a tier and leave it, for readers
 * that it never waits for (tests/models/orders/event_order.pml).
 *
 * An event is recorded after the change, so that a reader that reads it finds the page as it was then or later. The
 * epoch is odd while changes are recorded. It is raised after changes that were not: when there was no reader, when a
 * device of the disk tier closed or was reported, and when a daemon takes the segments over, because the one before may
 * have died between a change and its record. */
#pragma once

#include "owner.h"

static inline bool pt_events_on(const pt_view *v)
{
    return atomic_load_explicit(&v->header->events_epoch, memory_order_relaxed) & 1;
}

/* Raises the epoch. Release: a reader that reads it sees all changes before it. */
static inline void pt_raise_epoch(const pt_view *v)
{
    pt_a64 *epoch = &v->header->events_epoch;
    atomic_store_explicit(epoch, atomic_load_explicit(epoch, memory_order_relaxed) + 1, memory_order_release);
}

/* Stops recording until pt_serve_events. */
static inline void pt_stop_events(const pt_view *v)
{
    if (pt_events_on(v))
        pt_raise_epoch(v);
}

static inline bool pt_events_wanted(const pt_view *v)
{
    return v->event_count && atomic_load_explicit(v->event_readers, memory_order_acquire);
}

/* Begins to record if there are readers, or stops if there are none. */
static inline void pt_serve_events(const pt_view *v)
{
    if (pt_events_on(v) != pt_events_wanted(v))
        pt_raise_epoch(v);
}

/* A slot reads no events any more, and neither do slots that are not taken. */
static inline void pt_end_reader(const pt_view *v, uint64_t slots)
{
    atomic_fetch_and_explicit(v->event_readers, ~slots, memory_order_relaxed);
}

/* Records an event. The order of the stores matters: a reader that sees a word of this event sees the head at this
 * event or later, and so that the place was overwritten. */
static inline void pt_record(const pt_view *v, const uint8_t *key, uint64_t what)
{
    uint64_t head = atomic_load_explicit(&v->header->events_head, memory_order_relaxed);
    pt_event *to = &v->events[head % v->event_count];
    for (int i = 0; i < (int)(PT_KEY_BYTES / 8); i++)
        atomic_store_explicit(&to->key[i], pt_key_word(key, i), memory_order_release);
    atomic_store_explicit(&to->what, what, memory_order_release);
    atomic_store_explicit(&v->header->events_head, head + 1, memory_order_release);
}

static inline void pt_came(const pt_owner *o, uint32_t entry, uint8_t tier, enum pt_reason why)
{
    if (pt_events_on(&o->view))
        pt_record(&o->view, o->view.entries[entry].key, tier | 1u << 8 | (uint32_t)why << 16);
}

static inline void pt_left(const pt_owner *o, uint32_t entry, uint8_t tier)
{
    if (pt_events_on(&o->view))
        pt_record(&o->view, o->view.entries[entry].key, tier | (uint32_t)o->leaves << 16);
}
