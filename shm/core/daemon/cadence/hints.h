/* hints.h - what engines and operators say of pages: hints move pages in the order of
 * eviction, keeps put them at its end. */
#pragma once

#include "../evict.h"
#include "learning.h"

static inline uint32_t pt_entry_named(const pt_owner *o, const uint8_t *keys, uint32_t at)
{
    return pt_dict_find(&o->view, pt_dict_in_force(&o->view), keys + at * (uint64_t)PT_KEY_BYTES);
}

/* Gives a hint to the pages that exist. Returns their number. */
static inline uint32_t pt_hint_pages(pt_owner *o, enum pt_hint hint, uint8_t lasts, const uint8_t *keys, uint32_t count,
                                     uint64_t now)
{
    uint32_t found = 0;
    for (uint32_t i = 0; o->cadence && i < count; i++) {
        uint32_t entry = pt_entry_named(o, keys, i);
        if (entry == PT_NONE)
            continue;
        pt_cadence_hint(o->cadence, entry, hint, lasts, now);
        found++;
    }
    return found;
}

/* Takes the numbers of keeps that ended from all pages, so that they can be used again. Costs 5 ns for each entry. */
static inline void pt_clear_ended_keeps(pt_owner *o, uint64_t now)
{
    pt_keeps *k = &o->cadence->keeps;
    for (uint32_t entry = 0; entry < o->cadence->entries; entry++)
        if (!pt_keep_lives(k, o->cadence->pages[entry].keep, now))
            o->cadence->pages[entry].keep = 0;
    for (uint32_t number = 1; number < PT_KEEPS; number++)
        if (k->records[number].used && !pt_keep_lives(k, number, now)) {
            k->records[number] = (pt_keep_record){0};
            k->used--;
        }
}

#define PT_KEEPS_ENDED 32u /* together, where no number is left: so the pages are not walked for each new keep */

/* Returns the keep for a request: an existing one that ends at about the same time, or a new one. */
static inline uint32_t pt_keep_for(pt_owner *o, uint32_t uid, uint64_t ends_ns, uint64_t now)
{
    pt_keeps *k = &o->cadence->keeps;
    uint32_t number = pt_keep_like(k, uid, ends_ns, now), live = 0;
    if (number || (number = pt_keep_begin(k, uid, ends_ns)))
        return number;
    for (uint32_t other = 1; other < PT_KEEPS; other++)
        live += pt_keep_lives(k, other, now);
    for (; live + PT_KEEPS_ENDED >= PT_KEEPS; live--)
        pt_keep_end(k, pt_keep_to_end(k, 0, now));
    pt_clear_ended_keeps(o, now);
    return pt_keep_begin(k, uid, ends_ns);
}

/* Makes room for `frames` more frames of a keep. Returns false if the limit does not allow them: then the others
 * that could end keep less than its user. */
static inline bool pt_make_keep_room(pt_keeps *k, uint32_t number, uint32_t frames, uint64_t limit, uint64_t now)
{
    while (pt_kept_frames(k, now) + frames > limit) {
        uint32_t other = pt_keep_to_end(k, number, now), uid = k->records[number].uid;
        bool others = other && k->records[other].uid != uid;
        if (!other || (others && pt_kept_by(k, k->records[other].uid, now) < pt_kept_by(k, uid, now) + frames))
            return false;
        pt_keep_end(k, other);
    }
    return true;
}

/* Keeps a page in memory. A page stays in the keep that ends last. *no_room are the frames for which this request has
 * found no room: as many are not sought again, which would take longer than the rest of the request. */
static inline bool pt_keep_page(pt_owner *o, uint32_t entry, uint32_t number, uint64_t limit, uint32_t *no_room,
                                uint64_t now)
{
    pt_cadence_page *p = &o->cadence->pages[entry];
    pt_keeps *k = &o->cadence->keeps;
    uint32_t frames = pt_frames_for(&o->view, o->view.entries[entry].size);
    bool kept = pt_keep_lives(k, p->keep, now);
    if (!p->in_memory || (!kept && frames >= *no_room))
        return false;
    if (kept && k->records[p->keep].ends_ns >= k->records[number].ends_ns)
        return true;
    pt_cadence_unkeep(o->cadence, entry, frames);
    if (!pt_make_keep_room(k, number, frames, limit, now)) {
        *no_room = frames;
        return false;
    }
    p->keep = number;
    k->records[number].frames += frames;
    return true;
}

/* A request to keep pages, or to keep them no longer. */
typedef struct {
    uint32_t uid; /* of the user; PT_NONE, to keep them no longer: of any */
    uint32_t space; /* pages of other namespaces are ignored; PT_NONE: none is */
    uint64_t ends_ns;
    uint64_t most_frames; /* limit of all keeps together */
} pt_keep_request;

/* Returns the entry of the page that a request names, or PT_NONE. */
static inline uint32_t pt_entry_wanted(const pt_owner *o, const pt_keep_request *r, const uint8_t *keys, uint32_t at)
{
    uint32_t entry = pt_entry_named(o, keys, at);
    bool other = entry != PT_NONE && r->space != PT_NONE && o->view.entries[entry].space != r->space;
    return other ? PT_NONE : entry;
}

/* Keeps the pages that are in memory, head first. Returns how many of them are kept. */
static inline uint32_t pt_keep_pages(pt_owner *o, const pt_keep_request *r, const uint8_t *keys, uint32_t count,
                                     uint64_t now)
{
    uint32_t kept = 0, number = o->cadence && count ? pt_keep_for(o, r->uid, r->ends_ns, now) : 0;
    uint32_t no_room = UINT32_MAX;
    for (uint32_t i = 0; number && i < count; i++) {
        uint32_t entry = pt_entry_wanted(o, r, keys, i);
        kept += entry != PT_NONE && pt_keep_page(o, entry, number, r->most_frames, &no_room, now);
    }
    return kept;
}

/* Ends the keep of pages that a user keeps. Returns how many of the pages exist and are not kept now. */
static inline uint32_t pt_unkeep_pages(pt_owner *o, const pt_keep_request *r, const uint8_t *keys, uint32_t count,
                                       uint64_t now)
{
    uint32_t found = 0;
    for (uint32_t i = 0; o->cadence && i < count; i++) {
        uint32_t entry = pt_entry_wanted(o, r, keys, i);
        if (entry == PT_NONE)
            continue;
        const pt_keep_record *keep = &o->cadence->keeps.records[o->cadence->pages[entry].keep];
        if (r->uid == PT_NONE || keep->uid == r->uid)
            pt_cadence_unkeep(o->cadence, entry, pt_frames_for(&o->view, o->view.entries[entry].size));
        found += !pt_is_kept(o, entry, now);
    }
    return found;
}
