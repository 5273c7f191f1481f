/* disk_scene.h - a scene with a disk tier but no disk: the operations of the tests, and where pages are. */
#pragma once

#include "scene.h"

#define MOST 8u

/* Fetches pages with names of one letter each, which `located` may have in the fleet. */
static inline void fetch_all(scene *s, const char *names, pt_located *located, pt_answer *answers)
{
    uint8_t keys[MOST * PT_KEY_BYTES];
    uint32_t count = (uint32_t)strlen(names);
    pt_request r = request(s, &s->one);
    for (uint32_t i = 0; i < count; i++)
        key_of((char[]){names[i], 0}, keys + i * PT_KEY_BYTES);
    pt_reader readers[PT_DEVICES];
    for (uint32_t d = 0; d < PT_DEVICES; d++)
        readers[d] = (pt_reader){r.slot, UINT64_MAX, 0};
    pt_fetch(&s->owner, &r, readers, located, keys, count, answers);
    expect_sound(&s->owner, "after a fetch");
}

static inline pt_answer fetch(scene *s, const char *name)
{
    pt_answer a;
    fetch_all(s, name, NULL, &a);
    return a;
}

static inline bool report_on(scene *s, uint8_t device, const char *name, uint64_t size, uint64_t tick)
{
    uint8_t key[PT_KEY_BYTES];
    key_of(name, key);
    bool taken = pt_disk_report(&s->owner, &(pt_stored){key, size, 0, tick, device, 0}, later(s));
    expect_sound(&s->owner, "after a report");
    return taken;
}

static inline bool report(scene *s, const char *name, uint64_t size, uint64_t tick)
{
    return report_on(s, 0, name, size, tick);
}

static inline void damaged(scene *s, const char *name)
{
    uint8_t key[PT_KEY_BYTES];
    key_of(name, key);
    pt_disk_damaged(&s->owner, 0, key, later(s));
    expect_sound(&s->owner, "after a damage");
}

/* Matches pages with names of one letter each: returns how many are found, and the reach. Their recency is restored
 * afterwards. */
static inline pt_matched look(scene *s, const char *names)
{
    uint32_t entries[MOST], count = (uint32_t)strlen(names);
    uint64_t serials[MOST];
    uint8_t keys[MOST * PT_KEY_BYTES];
    pt_matched to = {entries, serials, 0, 0};
    for (uint32_t i = 0; i < count; i++)
        key_of((char[]){names[i], 0}, keys + i * PT_KEY_BYTES);
    pt_match(&s->other, keys, count, &to);
    pt_release(&s->other, entries, to.count);
    for (uint32_t entry = 0; entry < s->owner.view.entry_count; entry++)
        if (atomic_load(&s->owner.view.locks[entry].tick) < NOON)
            pt_stamp(&s->owner, entry, s->now);
    return to;
}

static inline bool in_memory(scene *s, const char *name) { return look(s, name).count == 1; }

static inline bool on_disk_alone(scene *s, const char *name)
{
    return !look(s, name).count && look(s, name).reach == 1;
}

static inline bool nowhere(scene *s, const char *name) { return look(s, name).reach == 0; }

static inline uint32_t order_on(scene *s, uint32_t device, uint32_t limit, uint32_t *entries)
{
    settle(s, later(s));
    uint32_t count = pt_start_writes(&s->owner, device, UINT64_MAX, limit, later(s), entries);
    expect_sound(&s->owner, "after an order");
    return count;
}

static inline uint32_t order(scene *s, uint32_t limit, uint32_t *entries) { return order_on(s, 0, limit, entries); }

static inline void end_order(scene *s, uint32_t entry, enum pt_write_result result)
{
    pt_end_write(&s->owner, entry, result, later(s), 0);
    expect_sound(&s->owner, "after a write");
}

static inline pt_answer store_written(scene *s, const char *name)
{
    uint32_t entry;
    pt_answer a = store(s, name);
    EXPECT(order(s, 1, &entry) == 1 && entry == a.entry);
    end_order(s, entry, PT_WRITE_DONE);
    return a;
}

static inline bool evict(scene *s)
{
    uint64_t now = later(s);
    bool done = pt_evict_one(&s->owner, now, now);
    expect_sound(&s->owner, "after an eviction");
    return done;
}

/* Returns whether exactly these keys are to be dropped from a device, and clears its list of drops. */
static inline bool dropped_from(scene *s, uint32_t device, const char *names)
{
    pt_device *d = &s->owner.disk.devices[device];
    bool same = d->drop_count == strlen(names);
    for (uint32_t i = 0; same && i < d->drop_count; i++)
        same = d->drops[i * PT_KEY_BYTES] == (uint8_t)names[i];
    d->drop_count = 0;
    return same;
}

static inline bool dropped(scene *s, const char *names) { return dropped_from(s, 0, names); }

static inline pt_flushed flush(scene *s, uint8_t tiers)
{
    pt_flushed flushed = pt_flush(&s->owner, PT_NONE, tiers, later(s));
    expect_sound(&s->owner, "after a flush");
    return flushed;
}

static inline uint64_t on_disk_frames(const scene *s) { return s->owner.view.header->disk_used_frames; }

static inline enum pt_state state_of(const scene *s, uint32_t entry)
{
    return pt_load_state(&s->one.view.locks[entry].word);
}
