/* reserve.h - responds to a batch of stores, page by page: granted, present, pending or refused.
 *
 * A store has four stages:
 *   1. Grant: the daemon fills an entry and its list of frames while the state is PT_FREE, sets the state to
 *      PT_WRITING, and only then adds the key to the dictionary. So a reader never finds a key before its entry is
 *      complete, and an adoption after a crash at any step finds either a free entry or a complete one (layout.h
 *      lists the order).
 *   2. Write: the writers copy their parts into the frames. The daemon takes no part in it.
 *   3. Publish: each writer sets its "done" bit; the last one sets the state to PT_READABLE (client/publish.h).
 *   4. Settle: when all writers have set their "released" bits, the daemon moves the entry from the open list to an
 *      eviction policy (reservations.h). If a writer gave up, died or was too slow, the page is doomed
 *      instead and freed at the same point. */
#pragma once

#include "cadence/admission.h"
#include "mrc/missed.h"
#include "../common/entry_checksum.h"

/* Responds to another rank of a page that is being written: granted if its part is not taken yet and its
 * engine cuts the page in the same way. */
static inline pt_answer pt_join(pt_owner *o, const pt_request *r, uint32_t entry, uint64_t size)
{
    pt_entry *e = &o->view.entries[entry];
    if (e->parts != r->parts || e->division != r->division || e->size != size || e->writers[r->part] != PT_NO_WRITER)
        return pt_answer_with(o, PT_PENDING, entry);
    e->writers[r->part] = (uint8_t)r->slot;
    PT_POINT("join.written");
    o->view.header->counters.granted++;
    return pt_answer_with(o, PT_GRANTED, entry);
}

/* Evicts one page, whichever helps this grant. Returns false if no page can be evicted.
 *
 * Where entries are short, evicting a page that is also on disk from the arena alone frees none. If all pages are on
 * disk and protected there, the arena keeps its pages. */
static inline bool pt_make_some_room(pt_owner *o, const pt_request *r, uint32_t frames, uint32_t entries)
{
    const pt_header *h = o->view.header;
    bool is_short = h->free_entries < entries;
    bool all_on_disk = o->view.entry_count - h->free_entries <= h->disk_pages + h->open_entries;
    if (is_short && (all_on_disk || h->free_frames >= frames) && pt_free_some_entry(o, r->now))
        return true;
    return !(is_short && all_on_disk) && pt_evict_one(o, r->now, r->now);
}

/* Records whether a quota is why a page is refused. */
static inline void pt_note_refusal(pt_owner *o, uint32_t tenant, uint32_t frames)
{
    bool at_maximum = o->tenants.need.own_only;
    uint32_t on_disk = o->view.header->free_entries ? 0 : pt_protected_on_disk(o, tenant, frames);
    o->tenants.refusal = (pt_refusal){at_maximum ? tenant : 0,
                                      at_maximum ? 0 : on_disk | pt_protected_from(o, tenant, frames)};
}

/* Makes room on demand: evicts pages that are older than this batch until a tenant may have `frames` frames more, and
 * these with their memory, and `entries` entries, are free. Returns false if that cannot be. The evictor and the disk's
 * cap are the other two places that evict (docs/design/disk.md). */
static inline bool pt_make_room(pt_owner *o, const pt_request *r, uint32_t tenant, uint32_t frames, uint32_t entries)
{
    const pt_header *h = o->view.header;
    pt_wanted w = {tenant, frames, pt_most_after(o->tenants.frames[tenant], frames, o->tenants.most[tenant])};
    bool made = true;
    while (made && (pt_update_need(o, &w) || h->free_entries < entries ||
                    !pt_lazy_take(&o->lazy, &o->view, frames))) {
        if (pt_make_some_room(o, r, frames, entries))
            continue;
        /* once per batch: a process may have a million pages open, and other requests are waiting */
        made = !o->settled;
        if (made)
            pt_settle_all(o, r->now);
        else
            pt_note_refusal(o, tenant, frames);
        o->settled = true;
    }
    o->tenants.need = PT_NO_NEED;
    return made;
}

/* Writes what differs in each filling of an entry, the checksum last. The caller
 * guarantees that the frames are free. */
static inline void pt_fill(pt_owner *o, const pt_request *r, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    pt_put_serial(e, o->view.header->next_serial++);
    e->parts = (uint8_t)r->parts;
    e->division = r->division;
    e->marks = 0;
    e->reservation = r->reservation;
    e->expires_ns = r->expires_ns;
    memset(e->writers, PT_NO_WRITER, sizeof e->writers);
    e->writers[r->part] = (uint8_t)r->slot;
    PT_POINT("fill.written");
    e->frame_count = pt_frames_for(&o->view, e->size);
    e->first_frame = pt_frame_list_take(&o->view, entry, e->frame_count);
    o->tenants.frames[pt_tenant_of(o, entry)] += e->frame_count;
    PT_POINT("fill.framed");
    pt_write_entry_checksum(&o->view, entry);
    atomic_store_explicit(&o->view.locks[entry].parts, 0, memory_order_relaxed);
}

static inline pt_answer pt_opened(pt_owner *o, uint32_t entry)
{
    pt_page_enters(o, entry);
    PT_POINT("opened.counted");
    pt_open_add(&o->view, entry);
    PT_POINT("opened.listed");
    o->view.header->counters.granted++;
    return pt_answer_with(o, PT_GRANTED, entry);
}

static inline pt_answer pt_grant(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t size)
{
    pt_view *v = &o->view;
    pt_dict d = pt_dict_in_force(v);
    uint32_t tenant = v->spaces[r->space].tenant;
    if (!size || size > v->header->arena_bytes)
        return pt_answer_with(o, PT_REFUSED_SIZE, PT_NONE);
    if (pt_frames_for(v, size) > o->tenants.most[tenant]) {
        o->tenants.refusal = (pt_refusal){tenant, 0};
        return pt_answer_with(o, PT_REFUSED_SIZE, PT_NONE);
    }
    if (!pt_make_room(o, r, tenant, pt_frames_for(v, size), 1) || !pt_dict_has_room(v, d, key))
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    uint32_t entry = pt_entry_take(v);
    PT_POINT("grant.taken");
    /* Stage 1. The state is PT_FREE while the record is written: a daemon that dies here leaves a free entry. */
    pt_put_key(&v->entries[entry], key);
    v->entries[entry].size = size;
    v->entries[entry].space = r->space;
    pt_join_tenant(o, entry);
    PT_POINT("grant.keyed");
    pt_fill(o, r, entry);
    PT_POINT("grant.filled");
    pt_put_state(&v->locks[entry].word, PT_WRITING);
    PT_POINT("grant.writing");
    /* The key comes last: a reader that finds it finds a complete record. */
    pt_dict_add(v, d, entry);
    PT_POINT("grant.named");
    pt_space_add(v, entry);
    PT_POINT("grant.spaced");
    return pt_opened(o, entry);
}

/* Grants frames for a page that is only on disk, to be read or stored again. */
static inline pt_answer pt_refill(pt_owner *o, const pt_request *r, uint32_t entry)
{
    if (!pt_make_room(o, r, pt_tenant_of(o, entry), pt_frames_for(&o->view, o->view.entries[entry].size), 0))
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    pt_fill(o, r, entry);
    PT_POINT("refill.filled");
    pt_put_state(&o->view.locks[entry].word, PT_WRITING);
    PT_POINT("refill.writing");
    return pt_opened(o, entry);
}

/* Grants a page that is only on disk to a store: storing it again is faster than reading it. */
static inline pt_answer pt_store_again(pt_owner *o, const pt_request *r, uint32_t entry, const uint8_t *key,
                                       uint64_t size)
{
    if (o->view.entries[entry].size == size)
        return pt_refill(o, r, entry);
    return pt_free_on_disk(o, entry) ? pt_grant(o, r, key, size) : pt_answer_with(o, PT_PENDING, entry);
}

static inline pt_answer pt_reserve_one(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t size)
{
    uint32_t entry = pt_find_settled(o, key, r->now);
    if (entry != PT_NONE)
        switch (pt_correct_state(o, entry)) {
        case PT_READABLE:
            return pt_answer_with(o, PT_PRESENT, entry);
        case PT_WRITING:
            return pt_join(o, r, entry, size);
        case PT_ON_DISK:
            return pt_store_again(o, r, entry, key, size);
        default: /* other states are not in the dictionary */
            break;
        }
    return pt_grant(o, r, key, size);
}

static inline void pt_tally(pt_daemon_counts *counters, enum pt_outcome outcome)
{
    counters->present += outcome == PT_PRESENT;
    counters->pending += outcome == PT_PENDING;
    counters->refused += outcome == PT_REFUSED_FULL || outcome == PT_REFUSED_SIZE;
}

/* Stamps the pages that exist, with a recency that falls from `tick`, that of the head. This happens before any
 * eviction, so that a batch never evicts its own prefix. */
static inline void pt_stamp_all(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t tick)
{
    pt_dict d = pt_dict_in_force(&o->view);
    for (uint32_t i = 0; i < count; i++) {
        if (i + PT_AHEAD < count)
            pt_prefetch_write(&d.buckets[pt_home(&o->view, pt_nth_key(keys, i + PT_AHEAD))]);
        uint32_t entry = pt_dict_find(&o->view, d, keys + i * (uint64_t)PT_KEY_BYTES);
        if (entry != PT_NONE)
            pt_stamp(o, entry, tick - i);
    }
}

/* Responds to the pages of one prompt, head first. `tick` is the recency of the first one. */
static inline void pt_reserve_prompt(pt_owner *o, const pt_request *r, const pt_prompt *prompt, const uint8_t *keys,
                                     const uint64_t *sizes, uint32_t count, uint64_t tick, pt_answer *answers)
{
    pt_place place = pt_place_of(o, r, prompt);
    uint32_t admitted = pt_admit_prompt(o, r, keys, sizes, count, &place);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *key = pt_nth_key(keys, i);
        bool left_out = i >= admitted && pt_entry_of(o, key) == PT_NONE;
        answers[i] = left_out ? pt_leave_out(o, r, key, &place) : pt_reserve_one(o, r, key, sizes[i]);
        if (answers[i].entry != PT_NONE)
            pt_stamp(o, answers[i].entry, tick - i);
        pt_note_depth(o, answers[i].entry, &place);
        if (!r->part)
            pt_note_answer(o, r, key, answers[i], &place);
        pt_tally(&o->view.header->counters, answers[i].outcome);
        pt_note_absent(o, r, key, answers[i].outcome);
        PT_POINT("reserve.answered");
    }
}

/* Returns how many pages of a batch belong to one of its prompts. */
static inline uint32_t pt_pages_of(const pt_prompt *prompts, uint32_t prompt_count, uint32_t at, uint32_t count)
{
    return (at + 1 < prompt_count ? prompts[at + 1].begin : count) - prompts[at].begin;
}

/* Responds to a chain of keys, head first; `keys` and `sizes` also have the pages that the request refuses. The
 * recency of pages that exist or are granted falls from head to tail, also from one prompt to the next: they are one
 * batch, which never evicts its own pages. */
static inline void pt_reserve(pt_owner *o, const pt_request *r, const uint8_t *keys, const uint64_t *sizes,
                              uint32_t count, pt_answer *answers)
{
    pt_prompt whole = {0}, *prompts = r->prompts ? r->prompts : &whole;
    uint32_t prompt_count = r->prompts ? r->prompt_count : 1;
    o->settled = false;
    o->tenants.refusal = (pt_refusal){0};
    pt_settle_some(o, r->now, 64);
    if (o->cadence)
        o->cadence->climb = PT_CLIMB + count;
    for (uint32_t i = 0; i < prompt_count; i++)
        pt_note_store(o, r, &prompts[i], pt_nth_key(keys, prompts[i].begin),
                      pt_pages_of(prompts, prompt_count, i, count));
    pt_note_batch(o, r, prompts, prompt_count, keys, sizes, count);
    for (uint32_t i = 0; i < prompt_count; i++)
        pt_stamp_all(o, pt_nth_key(keys, prompts[i].begin), prompts[i].known, r->now + count - prompts[i].begin);
    PT_POINT("reserve.stamped");
    for (uint32_t i = 0; i < prompt_count; i++) {
        uint32_t at = prompts[i].begin;
        pt_reserve_prompt(o, r, &prompts[i], pt_nth_key(keys, at), sizes + at,
                          pt_pages_of(prompts, prompt_count, i, count), r->now + count - at, answers + at);
    }
    for (uint32_t i = count; i < count + r->refused; i++)
        if (pt_entry_of(o, pt_nth_key(keys, i)) == PT_NONE)
            pt_note_absent(o, r, pt_nth_key(keys, i), PT_REFUSED_FULL);
    o->tenants.need = PT_NO_NEED;
    if (o->cadence)
        pt_cadence_sweep(o->cadence, r->now);
}
