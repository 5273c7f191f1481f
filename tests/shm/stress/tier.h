/* tier.h - a simulated device of the disk tier: it stores for each page whether it has it. A page's bytes follow from
 * its id, so the client that reads the page makes them. It writes late, or not at all; it closes with all writes that
 * were commanded, and opens with other pages.
 *
 * The pages that are on disk according to the index and the pages of the tier must be the same after the drops were
 * taken. */
#pragma once

#include "world.h"

#define PAGES (IDS + KEPT * KEPT_IDS)
#define ORDERS 24u
#define TIERS 2u /* devices */
#define NEW_TIERS {{.device = 0}, {.device = 1}}

typedef struct {
    uint32_t entry, id;
    uint64_t serial;
} order;

typedef struct {
    uint8_t device;
    uint64_t bytes[PAGES]; /* of the pages that it has, by number; 0: not there */
    order orders[ORDERS];
    uint32_t ordered;
    uint64_t opened, written, read;
    uint8_t memory[PAGE_MAX];
} tier;

static inline uint32_t id_of(uint32_t number) { return number < IDS ? 1 + number : KEPT_BASE + number - IDS; }
static inline uint32_t number_of(uint32_t id) { return id < KEPT_BASE ? id - 1 : IDS + id - KEPT_BASE; }

static inline pt_device *device_of(const tier *t, pt_owner *o) { return &o->disk.devices[t->device]; }

static inline void tier_take_drops(tier *t, pt_owner *o)
{
    pt_device *d = device_of(t, o);
    for (uint32_t i = 0; i < d->drop_count; i++) {
        uint32_t id = page_id(d->drops + i * PT_KEY_BYTES);
        if (!t->bytes[number_of(id)])
            finding("page %u is to be dropped from the disk, and is not there", id);
        t->bytes[number_of(id)] = 0;
    }
    d->drop_count = 0;
}

static inline void tier_expect_same(tier *t, pt_owner *o)
{
    uint64_t on_disk = 0;
    tier_take_drops(t, o);
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++) {
        pt_entry *e = &o->view.entries[entry];
        if (pt_tiers(e) & PT_TIER_DISK && pt_device_of(o, entry) == device_of(t, o) &&
            t->bytes[number_of(page_id(e->key))] != e->size)
            finding("page %u is on disk according to the index, and is not there", page_id(e->key));
    }
    for (uint32_t n = 0; n < PAGES; n++)
        on_disk += t->bytes[n] != 0;
    if (device_of(t, o)->pages != (device_of(t, o)->open ? on_disk : 0))
        finding("%lu pages are on disk, the index has %lu", on_disk, (unsigned long)device_of(t, o)->pages);
}

/* Replaces the pages of the tier, some by pages of another size than the one that is stored under the same key. */
static inline void tier_exchange(tier *t, rng *r)
{
    for (uint32_t n = 0; n < PAGES; n++)
        t->bytes[n] = rng_one_in(r, 2) ? page_size(id_of(n)) + (rng_one_in(r, 8) ? 8 : 0) : 0;
}

/* Returns a tick of another boot, a very old one, or a true one. */
static inline uint64_t tier_tick(rng *r, uint64_t now)
{
    uint32_t kind = rng_below(r, 8);
    return kind == 0 ? UINT64_MAX - rng_below(r, 8) : kind == 1 ? rng_below(r, 8) : now - rng_below(r, 10000000);
}

/* Returns the slots of a page: 0 if they follow from its bytes, or more than these fill. */
static inline uint32_t tier_slots(rng *r) { return rng_below(r, 4 * PAGE_MAX / FRAME + 2); }

static inline void tier_report(const tier *t, pt_owner *o, rng *r)
{
    uint64_t now = pt_now_ns();
    uint8_t key[PT_KEY_BYTES];
    for (uint32_t n = rng_below(r, PAGES), left = PAGES; left; left--, n = (n + 1) % PAGES) {
        pt_stored page = {key, t->bytes[n], page_space(id_of(n)), tier_tick(r, now), t->device, tier_slots(r)};
        page_key(id_of(n), key);
        if (!page.size)
            continue;
        if (!pt_disk_report(o, &page, now))
            pt_drop_later(device_of(t, o), key);
        else if (rng_one_in(r, 16) && !pt_disk_report(o, &page, now)) /* twice */
            finding("page %u is on disk, and the index rejects it", id_of(n));
    }
}

static inline void tier_open(tier *t, pt_owner *o, rng *r)
{
    t->ordered = 0;
    t->opened++;
    if (rng_one_in(r, 2))
        tier_exchange(t, r);
    pt_disk_close(o, t->device, pt_now_ns());
    if (!pt_disk_divide(o, t->device, rng_one_in(r, 2) ? FRAME / 4 : 0))
        finding("memory is short");
    pt_disk_open(o, t->device, rng_below(r, 2 * FRAMES), (enum pt_write_rule)rng_below(r, 3), pt_now_ns());
    tier_report(t, o, r);
    expect_sound(o, "after the disk came");
    tier_expect_same(t, o);
}

static inline void tier_close(tier *t, pt_owner *o)
{
    t->ordered = 0;
    tier_take_drops(t, o);
    pt_disk_close(o, t->device, pt_now_ns());
    expect_sound(o, "after the disk went");
}

static inline void tier_shrink(tier *t, pt_owner *o, rng *r)
{
    pt_disk_shrink(o, t->device, rng_below(r, 8), pt_now_ns());
    expect_sound(o, "after the disk shrank");
}

/* ---- writing ---- */

static inline void tier_order(tier *t, pt_owner *o, rng *r)
{
    uint32_t entries[ORDERS], limit = rng_below(r, ORDERS - t->ordered + 1);
    if (pt_frames_before_unwritten(o, rng_below(r, o->tenants.count), FRAMES) > 2 * FRAMES)
        finding("more frames come free than there are");
    uint32_t count = pt_start_writes(o, t->device, 1 + rng_below(r, 20), limit, pt_now_ns(), entries);
    tier_take_drops(t, o);
    for (uint32_t i = 0; i < count; i++) {
        const pt_entry *e = &o->view.entries[entries[i]];
        t->orders[t->ordered++] = (order){entries[i], page_id(e->key), e->serial};
        if (t->bytes[number_of(page_id(e->key))])
            finding("page %u is to be written, and is on disk", page_id(e->key));
    }
}

/* Expects that the page is where it was when the write was commanded. */
static inline void tier_expect_in_place(tier *t, pt_owner *o, const order *of)
{
    const pt_entry *e = &o->view.entries[of->entry];
    if (e->serial != of->serial || pt_load_state(&o->view.locks[of->entry].word) != PT_READABLE)
        finding("page %u left the arena while it was written", of->id);
    page_verify(&o->view, of->entry, of->id, page_size(of->id), t->memory);
}

static inline void tier_write(tier *t, pt_owner *o, rng *r)
{
    if (!t->ordered)
        return;
    uint32_t at = rng_below(r, t->ordered);
    order of = t->orders[at];
    enum pt_write_result result = rng_one_in(r, 2) ? PT_WRITE_DONE : (enum pt_write_result)rng_below(r, 4);
    t->orders[at] = t->orders[--t->ordered];
    tier_expect_in_place(t, o, &of);
    tier_take_drops(t, o);
    pt_note_written(o, of.entry, tier_slots(r));
    pt_end_write(o, of.entry, result, pt_now_ns(), at);
    if (result == PT_WRITE_DONE)
        t->bytes[number_of(of.id)] = page_size(of.id);
    t->written += result == PT_WRITE_DONE;
}

/* Ends a write that was not commanded: one of an earlier daemon, or of nothing at all. */
static inline void tier_end_any_order(const tier *t, pt_owner *o, rng *r)
{
    uint32_t entry = rng_below(r, 2 * ENTRIES);
    for (uint32_t i = 0; i < t->ordered; i++)
        if (t->orders[i].entry == entry)
            return;
    if (entry < o->view.entry_count && pt_device_of(o, entry) != device_of(t, o))
        return; /* it may be commanded to the other device */
    pt_end_write(o, entry, PT_WRITE_DONE, pt_now_ns(), 0);
}

/* ---- reading ---- */

/* Expects that the granted pages of this device are there. (A response that came too late may have been doomed by the
 * next one already, and its copy dropped.) */
static inline void tier_expect_granted(tier *t, pt_owner *o, const pt_answer *answers, uint32_t count)
{
    tier_take_drops(t, o);
    for (uint32_t i = 0; i < count; i++) {
        if (answers[i].outcome == PT_GRANTED && pt_device_of(o, answers[i].entry) != device_of(t, o))
            continue;
        if (answers[i].outcome != PT_GRANTED || pt_load_state(&o->view.locks[answers[i].entry].word) == PT_DOOMED)
            continue;
        const pt_entry *e = &o->view.entries[answers[i].entry];
        if (t->bytes[number_of(page_id(e->key))] != e->size)
            finding("page %u is to be read, and is not on disk", page_id(e->key));
        t->read++;
    }
}

/* ---- at random ---- */

static inline void tier_act(tier *t, pt_owner *o, rng *r)
{
    uint32_t chance = rng_below(r, 64);
    if (!device_of(t, o)->open) {
        if (chance < 32)
            tier_open(t, o, r);
    } else if (rng_one_in(r, 200)) {
        tier_close(t, o);
    } else if (rng_one_in(r, 200)) {
        tier_shrink(t, o, r);
    } else if (chance < 16) {
        tier_order(t, o, r);
    } else if (chance < 60) {
        tier_write(t, o, r);
    } else {
        tier_end_any_order(t, o, r);
    }
}
