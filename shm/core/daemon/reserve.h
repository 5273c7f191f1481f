/* reserve.h - answering a batch of stores: granted, present, pending or refused, page by page. */
#pragma once

#include "evict.h"
#include "../common/entry_checksum.h"

enum pt_outcome { PT_GRANTED = 0, PT_PRESENT = 1, PT_PENDING = 2, PT_REFUSED_FULL = 3, PT_REFUSED_SIZE = 4, PT_ABSENT = 5 };

typedef struct {
    uint32_t slot, space;
    uint32_t part, parts, division;
    uint64_t now, expires_ns;
    uint32_t chain;       /* of what is granted */
    uint64_t most_frames; /* that a fetch may be granted; 0: any number */
} pt_request;

typedef struct {
    enum pt_outcome outcome;
    uint32_t entry;
    uint64_t serial;
} pt_answer;

static inline pt_answer pt_answer_with(pt_owner *o, enum pt_outcome outcome, uint32_t entry)
{
    return (pt_answer){outcome, entry, entry == PT_NONE ? 0 : o->view.entries[entry].serial};
}

/* Another rank of the same page: granted if its part is still free, and if the page was cut as its engine cuts it. */
static inline pt_answer pt_join(pt_owner *o, const pt_request *r, uint32_t entry, uint64_t size)
{
    pt_entry *e = &o->view.entries[entry];
    if (e->parts != r->parts || e->division != r->division || e->size != size || e->writers[r->part] != PT_NO_WRITER)
        return pt_answer_with(o, PT_PENDING, entry);
    e->writers[r->part] = (uint8_t)r->slot;
    PT_POINT("join.written");
    o->view.header->deeds.granted++;
    return pt_answer_with(o, PT_GRANTED, entry);
}

/* One thing less in the way of a grant; false if nothing can be moved. */
static inline bool pt_make_some_room(pt_owner *o, const pt_request *r, uint32_t frames, uint32_t entries)
{
    const pt_header *h = o->view.header;
    if (h->free_frames >= frames && h->free_entries < entries && pt_evict_wholly(o, r->now))
        return true; /* it is entries that are short: to drop what is on disk and in the arena from one of them gives none */
    return pt_evict_one(o, r->now, r->now);
}

/* True if `frames` frames, with their memory, and so many entries are free, if need be after evicting pages older than this
 * batch. */
static inline bool pt_make_room(pt_owner *o, const pt_request *r, uint32_t frames, uint32_t entries)
{
    pt_header *h = o->view.header;
    while (h->free_frames < frames || h->free_entries < entries || !pt_lazy_take(&o->lazy, &o->view, frames)) {
        if (pt_make_some_room(o, r, frames, entries))
            continue;
        if (o->settled) /* once a batch: a process may have a million pages open, and others are waiting */
            return false;
        pt_settle_all(o, r->now);
        o->settled = true;
    }
    return true;
}

/* What is new in each filling of an entry. The caller guarantees that the frames are free. */
static inline void pt_fill(pt_owner *o, const pt_request *r, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    e->serial = o->view.header->next_serial++;
    e->parts = (uint8_t)r->parts;
    e->division = r->division;
    e->marks = 0;
    e->chain = r->chain;
    e->expires_ns = r->expires_ns;
    memset(e->writers, PT_NO_WRITER, sizeof e->writers);
    e->writers[r->part] = (uint8_t)r->slot;
    PT_POINT("fill.written");
    e->frame_count = pt_frames_for(&o->view, e->size);
    e->first_frame = pt_chain_take(&o->view, entry, e->frame_count);
    PT_POINT("fill.chained");
    pt_seal(&o->view, entry);
    atomic_store_explicit(&o->view.locks[entry].parts, 0, memory_order_relaxed);
}

static inline pt_answer pt_opened(pt_owner *o, uint32_t entry)
{
    pt_enter_memory(&o->view, &o->view.entries[entry]);
    PT_POINT("opened.counted");
    pt_open_add(&o->view, entry);
    PT_POINT("opened.listed");
    o->view.header->deeds.granted++;
    return pt_answer_with(o, PT_GRANTED, entry);
}

static inline pt_answer pt_grant(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t size)
{
    pt_view *v = &o->view;
    pt_dict d = pt_dict_in_force(v);
    if (!size || size > v->header->arena_bytes)
        return pt_answer_with(o, PT_REFUSED_SIZE, PT_NONE);
    if (!pt_make_room(o, r, pt_frames_for(v, size), 1) || !pt_dict_has_room(v, d, key))
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    uint32_t entry = pt_entry_take(v);
    PT_POINT("grant.taken");
    memcpy(v->entries[entry].key, key, PT_KEY_BYTES);
    v->entries[entry].size = size;
    v->entries[entry].space = r->space;
    PT_POINT("grant.keyed");
    pt_fill(o, r, entry);
    PT_POINT("grant.filled");
    pt_put_state(&v->locks[entry].word, PT_WRITING);
    PT_POINT("grant.writing");
    pt_dict_add(v, d, entry);
    PT_POINT("grant.named");
    pt_space_add(v, entry);
    PT_POINT("grant.spaced");
    return pt_opened(o, entry);
}

/* Frames for a page that is on disk alone, to be read or stored again. */
static inline pt_answer pt_refill(pt_owner *o, const pt_request *r, uint32_t entry)
{
    if (!pt_make_room(o, r, pt_frames_for(&o->view, o->view.entries[entry].size), 0))
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    pt_fill(o, r, entry);
    PT_POINT("refill.filled");
    pt_put_state(&o->view.locks[entry].word, PT_WRITING);
    PT_POINT("refill.writing");
    return pt_opened(o, entry);
}

/* A page that is on disk alone is stored anew: sooner there than it could be read. */
static inline pt_answer pt_store_again(pt_owner *o, const pt_request *r, uint32_t entry, const uint8_t *key, uint64_t size)
{
    if (o->view.entries[entry].size == size)
        return pt_refill(o, r, entry);
    return pt_free_on_disk(o, entry) ? pt_grant(o, r, key, size) : pt_answer_with(o, PT_PENDING, entry);
}

static inline pt_answer pt_reserve_one(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t size)
{
    uint32_t entry = pt_find_settled(o, key, r->now);
    if (entry != PT_NONE)
        switch (pt_true_state(o, entry)) {
        case PT_READABLE:
            return pt_answer_with(o, PT_PRESENT, entry);
        case PT_WRITING:
            return pt_join(o, r, entry, size);
        case PT_ON_DISK:
            return pt_store_again(o, r, entry, key, size);
        default: /* nothing else is in the dictionary */
            break;
        }
    return pt_grant(o, r, key, size);
}

static inline void pt_tally(pt_deeds *deeds, enum pt_outcome outcome)
{
    deeds->present += outcome == PT_PRESENT;
    deeds->pending += outcome == PT_PENDING;
    deeds->refused += outcome == PT_REFUSED_FULL || outcome == PT_REFUSED_SIZE;
}

/* Stamps what is there, recency falling from head to tail: before anything is evicted, so that a batch never evicts its
 * own prefix. */
static inline void pt_stamp_all(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now)
{
    pt_dict d = pt_dict_in_force(&o->view);
    for (uint32_t i = 0; i < count; i++) {
        if (i + PT_AHEAD < count)
            pt_prefetch_write(&d.buckets[pt_home(&o->view, keys + (i + PT_AHEAD) * (uint64_t)PT_KEY_BYTES)]);
        uint32_t entry = pt_dict_find(&o->view, d, keys + i * (uint64_t)PT_KEY_BYTES);
        if (entry != PT_NONE)
            pt_stamp(o, entry, now + count - i);
    }
}

/* Answers a chain of keys, head first. The recency of what is there or granted falls from head to tail. */
static inline void pt_reserve(pt_owner *o, const pt_request *r, const uint8_t *keys, const uint64_t *sizes, uint32_t count,
                              pt_answer *answers)
{
    o->settled = false;
    pt_settle_some(o, r->now, 64);
    pt_stamp_all(o, keys, count, r->now);
    PT_POINT("reserve.stamped");
    for (uint32_t i = 0; i < count; i++) {
        answers[i] = pt_reserve_one(o, r, keys + i * (uint64_t)PT_KEY_BYTES, sizes[i]);
        if (answers[i].entry != PT_NONE)
            pt_stamp(o, answers[i].entry, r->now + count - i);
        pt_tally(&o->view.header->deeds, answers[i].outcome);
        PT_POINT("reserve.answered");
    }
}
