/* integrity.h - checks all shared and private structures and describes what is wrong. Changes nothing. The
 * daemon calls it between two requests. */
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "adopt.h"
#include "cadence/cadence_integrity.h"
#include "disk_tier.h"

#define PT_FINDINGS 100u /* limit of the findings that are kept; all are counted */

typedef struct {
    uint32_t count;
    char text[PT_FINDINGS][160];
} pt_findings;

__attribute__((format(printf, 2, 3))) static void pt_finding(pt_findings *f, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (f->count++ < PT_FINDINGS)
        vsnprintf(f->text[f->count - 1], sizeof f->text[0], format, arguments);
    va_end(arguments);
}

typedef struct {
    pt_owner *owner;
    pt_view *v;
    pt_findings *found;
    uint8_t *frame_seen; /* frames that are a page's or on the free list */
    uint8_t *entry_seen; /* bits: PT_SEEN_* */
    struct {
        uint64_t slots, ordered_slots, pages, used_of[PT_TENANTS], ordered_of[PT_TENANTS];
    } devices[PT_DEVICES];
    uint64_t tenant_frames[PT_TENANTS];
} pt_check;

enum { PT_SEEN_FREE = 1, PT_SEEN_OPEN = 2, PT_SEEN_SPACE = 4, PT_SEEN_DICTIONARY = 8 };

/* Follows a list of entries by `next` and sets `bit` for each. Returns its length, and stops at an invalid link. */
static uint32_t pt_check_walk(pt_check *c, const char *name, uint32_t first, size_t next, uint8_t bit)
{
    uint32_t length = 0;
    for (uint32_t entry = first; entry != PT_NONE; length++) {
        if (entry >= c->v->entry_count || c->entry_seen[entry] & bit) {
            pt_finding(c->found, "%s: the link after %u entries leads to %u, out of range or seen before", name, length,
                       entry);
            break;
        }
        c->entry_seen[entry] |= bit;
        memcpy(&entry, (uint8_t *)&c->v->entries[entry] + next, sizeof entry);
    }
    return length;
}

static void pt_check_lists(pt_check *c)
{
    pt_header *h = c->v->header;
    uint32_t n = pt_check_walk(c, "free entries", h->free_entry, offsetof(pt_entry, list_next), PT_SEEN_FREE);
    if (n != h->free_entries)
        pt_finding(c->found, "free entries: %u on the list, %u in the header", n, h->free_entries);
    n = pt_check_walk(c, "open reservations", h->open_first, offsetof(pt_entry, list_next), PT_SEEN_OPEN);
    if (n != h->open_entries)
        pt_finding(c->found, "open reservations: %u on the list, %u in the header", n, h->open_entries);
}

static void pt_check_spaces(pt_check *c)
{
    uint64_t pages = 0, disk_pages = 0, stored = 0, slots = 0;
    for (uint32_t s = 0; s < c->v->header->spaces; s++) {
        pt_space *space = &c->v->spaces[s];
        if (!space->used)
            continue;
        uint32_t n = pt_check_walk(c, "namespace", space->first, offsetof(pt_entry, space_next), PT_SEEN_SPACE);
        if (n != space->listed)
            pt_finding(c->found, "namespace %u: %u pages on its list, %lu in its record", s, n,
                       (unsigned long)space->listed);
        pages += space->pages;
        disk_pages += space->disk_pages;
        stored += space->disk_stored;
    }
    if (pages != c->v->header->pages || disk_pages != c->v->header->disk_pages)
        pt_finding(c->found, "namespaces have %lu pages and %lu on disk, the header says %lu and %lu",
                   (unsigned long)pages, (unsigned long)disk_pages, (unsigned long)c->v->header->pages,
                   (unsigned long)c->v->header->disk_pages);
    for (const pt_device *d = c->owner->disk.devices; d < c->owner->disk.devices + PT_DEVICES; d++)
        slots += d->used_slots * pt_slot_bytes(c->v->header, d);
    if (stored != slots)
        pt_finding(c->found, "the pages of namespaces take %lu bytes on disk, those of the devices %lu",
                   (unsigned long)stored, (unsigned long)slots);
}

static void pt_check_bucket(pt_check *c, pt_dict d, uint32_t at, uint32_t *displaced)
{
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++) {
        uint64_t slot = atomic_load_explicit(&d.buckets[at].slots[i], memory_order_relaxed);
        uint32_t entry = pt_slot_entry(slot), distance = pt_slot_distance(slot), home = (at - distance) & d.mask;
        if (!slot)
            continue;
        if (entry >= c->v->entry_count || c->entry_seen[entry] & PT_SEEN_DICTIONARY) {
            pt_finding(c->found, "bucket %u: entry %u is out of range or in the dictionary twice", at, entry);
            continue;
        }
        c->entry_seen[entry] |= PT_SEEN_DICTIONARY;
        displaced[home] += distance > 0;
        for (uint32_t nearer = 0; nearer < distance; nearer++)
            if (pt_dict_has_gap(d, (home + nearer) & d.mask, NULL))
                pt_finding(c->found, "bucket %u: entry %u could live nearer to its home", at, entry);
        if (pt_home(c->v, c->v->entries[entry].key) != home || pt_tag(c->v->entries[entry].key) != pt_slot_tag(slot))
            pt_finding(c->found, "bucket %u: entry %u is filed under another key than its own", at, entry);
    }
}

static void pt_check_dictionary(pt_check *c)
{
    pt_dict d = pt_dict_in_force(c->v);
    uint32_t *displaced = calloc((size_t)d.mask + 1, sizeof *displaced);
    for (uint32_t at = 0; displaced && at <= d.mask; at++)
        pt_check_bucket(c, d, at, displaced);
    for (uint32_t at = 0; displaced && at <= d.mask; at++)
        if (displaced[at] != atomic_load_explicit(&d.buckets[at].displaced, memory_order_relaxed))
            pt_finding(c->found, "bucket %u: %u keys live elsewhere, its counter says otherwise", at, displaced[at]);
    free(displaced);
}

static uint32_t pt_check_frames_of(pt_check *c, uint32_t entry)
{
    const pt_entry *e = &c->v->entries[entry];
    enum pt_state state = pt_load_state(&c->v->locks[entry].word);
    bool none = state == PT_ON_DISK || (state == PT_DOOMED && !e->frame_count); /* doomed when the disk was lost */
    return none ? 0 : pt_frames_for(c->v, e->size);
}

static void pt_check_frame_list(pt_check *c, uint32_t entry)
{
    const pt_entry *e = &c->v->entries[entry];
    uint32_t frame = e->first_frame, n = 0;
    for (; frame != PT_NONE; frame = c->v->frames[frame].next, n++) {
        if (frame >= c->v->frame_count || c->frame_seen[frame]) {
            pt_finding(c->found, "entry %u: link %u of its frames is out of range or another's", entry, n);
            return;
        }
        c->frame_seen[frame] = 1;
        if (c->v->frames[frame].owner != entry)
            pt_finding(c->found, "entry %u: its frame %u names %u", entry, frame, c->v->frames[frame].owner);
    }
    if (n != e->frame_count || n != pt_check_frames_of(c, entry))
        pt_finding(c->found, "entry %u: %u frames for %lu bytes, %u in its record", entry, n, (unsigned long)e->size,
                   e->frame_count);
}

/* Returns the lists that an entry must be on, by its state. */
static uint8_t pt_check_wanted(pt_check *c, uint32_t entry, enum pt_state state)
{
    bool settled = pt_list_of(c->owner, entry) || c->v->entries[entry].marks & PT_MARK_ORDERED;
    switch (state) {
    case PT_FREE:
        return PT_SEEN_FREE;
    case PT_DOOMED:
        return PT_SEEN_OPEN;
    case PT_READABLE:
        return PT_SEEN_SPACE | PT_SEEN_DICTIONARY | (settled ? 0 : PT_SEEN_OPEN);
    case PT_ON_DISK:
        return PT_SEEN_SPACE | PT_SEEN_DICTIONARY;
    default:
        return PT_SEEN_SPACE | PT_SEEN_DICTIONARY | PT_SEEN_OPEN;
    }
}

/* Checks whether the tier flags agree with the state, and the disk's list with the flags. */
static void pt_check_tiers(pt_check *c, uint32_t entry, enum pt_state state)
{
    uint8_t tiers = pt_tiers(&c->v->entries[entry]), marks = c->v->entries[entry].marks;
    bool in_memory = state == PT_READABLE || state == PT_WRITING, on_disk = tiers & PT_TIER_DISK;
    if (in_memory != !!(tiers & PT_TIER_MEMORY) || (state == PT_ON_DISK && !on_disk) ||
        ((state == PT_FREE || state == PT_DOOMED) && tiers))
        pt_finding(c->found, "entry %u: state %u contradicts its tiers %x", entry, (unsigned)state, tiers);
    uint32_t device = c->v->histories[entry].device % PT_DEVICES;
    for (uint32_t d = 0; d < PT_DEVICES; d++)
        if ((on_disk && d == device) != pt_device_lists(&c->owner->disk.devices[d], c->owner->kind, entry))
            pt_finding(c->found, "entry %u: its disk flag and the list of device %u disagree", entry, d);
    if (marks & PT_MARK_ORDERED && (state != PT_READABLE || on_disk || pt_list_of(c->owner, entry)))
        pt_finding(c->found, "entry %u: being written out in state %u, tiers %x", entry, (unsigned)state, tiers);
    const pt_device *of = &c->owner->disk.devices[device];
    uint64_t ordered = marks & PT_MARK_ORDERED ? pt_slots_for(c->v->header, of, c->v->entries[entry].size) : 0;
    uint64_t used = on_disk ? pt_slots_of(c->owner, entry) : 0;
    uint32_t tenant = pt_tenant_of(c->owner, entry) % PT_TENANTS;
    c->devices[device].ordered_slots += ordered;
    c->devices[device].ordered_of[tenant] += ordered;
    c->devices[device].slots += used;
    c->devices[device].used_of[tenant] += used;
    c->devices[device].pages += on_disk;
}

/* Checks whether each writer of an open entry has its slot or is marked as ended. Otherwise the next process of
 * the slot would be taken for the writer. */
static void pt_check_writers(pt_check *c, uint32_t entry, uint64_t taken)
{
    const pt_entry *e = &c->v->entries[entry];
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] < PT_SLOTS ? !(taken >> e->writers[part] & 1) : e->writers[part] < PT_ENDED_WRITER)
            pt_finding(c->found, "entry %u: part %u is written by slot %u, which is not taken", entry, part,
                       e->writers[part]);
}

/* Checks the tenant of a page: it is that of its namespace while the namespace has the page. */
static void pt_check_tenant(pt_check *c, uint32_t entry, enum pt_state state)
{
    uint32_t tenant = pt_tenant_of(c->owner, entry), count = c->owner->tenants.count;
    bool named = state == PT_WRITING || state == PT_READABLE || state == PT_ON_DISK;
    if (tenant >= count || (named && tenant != c->v->spaces[c->v->entries[entry].space].tenant))
        pt_finding(c->found, "entry %u: tenant %u of %u is not that of its namespace", entry, tenant, count);
    c->tenant_frames[tenant % PT_TENANTS] += c->v->entries[entry].frame_count;
}

static void pt_check_entry(pt_check *c, uint32_t entry, uint64_t taken)
{
    uint64_t word = atomic_load_explicit(&c->v->locks[entry].word, memory_order_acquire);
    enum pt_state state = pt_state_of(word);
    if (word & PT_PINS & ~taken)
        pt_finding(c->found, "entry %u: pinned by slots that are not taken (%014lx)", entry,
                   (unsigned long)(word & PT_PINS & ~taken));
    if (state > PT_ON_DISK)
        pt_finding(c->found, "entry %u: state %u does not exist", entry, (unsigned)state);
    if (c->entry_seen[entry] != pt_check_wanted(c, entry, state))
        pt_finding(c->found, "entry %u: in state %u it is on lists %x, not %x", entry, (unsigned)state,
                   c->entry_seen[entry], pt_check_wanted(c, entry, state));
    pt_check_tiers(c, entry, state);
    if (state != PT_READABLE && pt_list_of(c->owner, entry))
        pt_finding(c->found, "entry %u: in state %u it could be evicted", entry, (unsigned)state);
    if (state == PT_FREE && c->v->entries[entry].frame_count)
        pt_finding(c->found, "entry %u: free, and has %u frames", entry, c->v->entries[entry].frame_count);
    if (state != PT_FREE)
        pt_check_frame_list(c, entry);
    pt_check_tenant(c, entry, state);
    if (c->v->entries[entry].on_list == PT_LIST_OPEN)
        pt_check_writers(c, entry, taken);
}

static void pt_check_frames(pt_check *c)
{
    pt_header *h = c->v->header;
    uint32_t free_frames = 0, lost = 0;
    for (uint32_t frame = h->free_frame; frame != PT_NONE; frame = c->v->frames[frame].next, free_frames++) {
        if (frame >= c->v->frame_count || c->frame_seen[frame]) {
            pt_finding(c->found, "free frames: link %u is out of range or another's", free_frames);
            break;
        }
        c->frame_seen[frame] = 1;
    }
    for (uint32_t frame = 0; frame < c->v->frame_count; frame++)
        lost += !c->frame_seen[frame];
    if (lost)
        pt_finding(c->found, "%u frames belong to no entry and are not free", lost);
    if (free_frames != h->free_frames || free_frames + h->used_frames != h->frames)
        pt_finding(c->found, "%u frames are free; the header says %u free and %lu used of %u", free_frames,
                   h->free_frames, (unsigned long)h->used_frames, h->frames);
}

static void pt_check_disk(pt_check *c)
{
    const pt_header *h = c->v->header;
    uint64_t frames = 0;
    for (uint32_t i = 0; i < PT_DEVICES; i++) {
        const pt_device *d = &c->owner->disk.devices[i];
        frames += pt_frames_of_slots(h, d, d->used_slots);
        if (c->devices[i].slots != d->used_slots || c->devices[i].ordered_slots != d->ordered_slots ||
            c->devices[i].pages != d->pages)
            pt_finding(
                c->found,
                "device %u has %lu pages in %lu slots and %lu are being written, its record says %lu, %lu and %lu", i,
                (unsigned long)c->devices[i].pages, (unsigned long)c->devices[i].slots,
                (unsigned long)c->devices[i].ordered_slots, (unsigned long)d->pages, (unsigned long)d->used_slots,
                (unsigned long)d->ordered_slots);
        if (d->used_slots + d->ordered_slots > d->slots)
            pt_finding(c->found, "device %u has room for %lu slots, and more are used or reserved", i,
                       (unsigned long)d->slots);
    }
    if (frames != h->disk_used_frames)
        pt_finding(c->found, "%lu frames are on the devices, the header says %lu", (unsigned long)frames,
                   (unsigned long)h->disk_used_frames);
}

static void pt_check_tenants(pt_check *c)
{
    for (uint32_t tenant = 0; tenant < PT_TENANTS; tenant++) {
        bool same = c->tenant_frames[tenant] == c->owner->tenants.frames[tenant];
        for (uint32_t i = 0; i < PT_DEVICES; i++) {
            const pt_device *d = &c->owner->disk.devices[i];
            same = same && c->devices[i].used_of[tenant] == d->used_of[tenant] &&
                   c->devices[i].ordered_of[tenant] == d->ordered_of[tenant];
        }
        if (!same)
            pt_finding(c->found, "tenant %u: its frames in memory or on a device were counted wrongly", tenant);
    }
}

typedef struct {
    pt_check *check;
    uint32_t tenant;
} pt_list_check;

static bool pt_check_listed(void *context, uint32_t entry)
{
    const pt_list_check *l = context;
    if (pt_tenant_of(l->check->owner, entry) != l->tenant)
        pt_finding(l->check->found, "entry %u: it is on a list of tenant %u", entry, l->tenant);
    return true;
}

/* Checks the policies of all tenants for the same pages. */
static void pt_check_policies(pt_check *c, pt_policy *const *of_tenants)
{
    for (uint32_t tenant = 0; tenant < PT_TENANTS && of_tenants[tenant]; tenant++) {
        const char *wrong = c->owner->kind->check(of_tenants[tenant]);
        c->owner->kind->walk(of_tenants[tenant], UINT64_MAX, pt_check_listed, &(pt_list_check){c, tenant});
        if (wrong)
            pt_finding(c->found, "%s", wrong);
    }
}

static void pt_check_histories(pt_check *c)
{
    uint32_t *seen = calloc(c->v->entry_count, sizeof *seen);
    const char *wrong = seen ? pt_history_check(c->v, seen) : NULL;
    if (wrong)
        pt_finding(c->found, "%s", wrong);
    free(seen);
}

static void pt_check_cadence(pt_check *c)
{
    uint32_t *children = c->owner->cadence ? calloc(c->v->entry_count, sizeof *children) : NULL;
    const char *wrong = children ? pt_cadence_check(c->owner, children) : NULL;
    if (wrong)
        pt_finding(c->found, "%s", wrong);
    free(children);
}

static void pt_check_all(pt_check *c)
{
    pt_check_histories(c);
    pt_check_cadence(c);
    pt_check_policies(c, c->owner->ready);
    pt_check_policies(c, c->owner->unwritten);
    for (uint32_t i = 0; i < PT_DEVICES; i++)
        pt_check_policies(c, c->owner->disk.devices[i].listed);
    pt_check_lists(c);
    pt_check_spaces(c);
    pt_check_dictionary(c);
    for (uint32_t entry = 0; entry < c->v->entry_count; entry++)
        pt_check_entry(c, entry, pt_taken_slots(c->v));
    pt_check_frames(c);
    pt_check_disk(c);
    pt_check_tenants(c);
}

/* Writes what is wrong to `found`. Returns false if memory is short. */
static inline bool pt_check_integrity(pt_owner *o, pt_findings *found)
{
    pt_view *v = &o->view;
    pt_check c = {o, v, found, calloc(v->frame_count, 1), calloc(v->entry_count, 1), {{0}}, {0}};
    bool able = c.frame_seen && c.entry_seen;
    found->count = 0;
    if (able)
        pt_check_all(&c);
    free(c.frame_seen);
    free(c.entry_seen);
    return able;
}
