/* fetch.h - responds to a request for pages on disk or in the fleet: present, pending, to be read now, or absent. */
#pragma once

#include "disk_tier.h"
#include "reserve.h"

/* The worker of a device, and the limit of the frames that one fetch may be granted for it. */
typedef struct {
    uint32_t slot;
    uint64_t most_frames, granted;
} pt_reader;

/* What the requesting process located in the fleet. The index does not know these pages: reading one is a store by the
 * fleet's worker, which fills and publishes the frames like any writer. */
typedef struct {
    pt_reader reader;
    const uint64_t *sizes; /* of each page of the request; 0: not in the fleet */
    const uint32_t *spaces; /* the namespace of each page */
} pt_located;

/* Grants frames for a page on disk to the worker of its device. */
static inline pt_answer pt_fetch_from_disk(pt_owner *o, const pt_request *r, pt_reader *readers, uint32_t entry)
{
    pt_device *d = pt_device_of(o, entry);
    pt_reader *reader = &readers[d - o->disk.devices];
    pt_request for_worker = *r;
    if (!d->open)
        return pt_answer_with(o, PT_ABSENT, PT_NONE);
    if (reader->granted + pt_frames_for(&o->view, o->view.entries[entry].size) > reader->most_frames)
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    for_worker.slot = reader->slot;
    pt_answer answer = pt_refill(o, &for_worker, entry);
    if (answer.outcome == PT_GRANTED)
        reader->granted += o->view.entries[entry].frame_count;
    return answer;
}

/* Grants frames for a page of the fleet to the fleet's worker. */
static inline pt_answer pt_fetch_from_fleet(pt_owner *o, const pt_request *r, pt_located *located, uint32_t page,
                                            const uint8_t *key)
{
    pt_reader *reader = &located->reader;
    pt_request for_worker = *r;
    if (reader->granted + pt_frames_for(&o->view, located->sizes[page]) > reader->most_frames)
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    for_worker.slot = reader->slot;
    for_worker.space = located->spaces[page];
    pt_answer answer = pt_grant(o, &for_worker, key, located->sizes[page]);
    if (answer.outcome != PT_GRANTED)
        return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
    reader->granted += o->view.entries[answer.entry].frame_count;
    o->view.entries[answer.entry].marks |= PT_MARK_SKIPPED; /* used only once, it need not be on this host's disk */
    answer.outcome = PT_GRANTED_TO_FLEET;
    return answer;
}

/* Responds to one key. */
static inline pt_answer pt_fetch_one(pt_owner *o, const pt_request *r, pt_reader *readers, const uint8_t *key)
{
    uint32_t entry = pt_find_settled(o, key, r->now);
    if (entry != PT_NONE)
        switch (pt_correct_state(o, entry)) {
        case PT_READABLE:
            return pt_answer_with(o, PT_PRESENT, entry);
        case PT_WRITING:
            return pt_answer_with(o, PT_PENDING, entry);
        case PT_ON_DISK:
            return pt_fetch_from_disk(o, r, readers, entry);
        default: /* other states are not in the dictionary */
            break;
        }
    return pt_answer_with(o, PT_ABSENT, PT_NONE);
}

/* Responds to one page of a request: from the fleet if no tier of this host has it. */
static inline pt_answer pt_fetch_page(pt_owner *o, const pt_request *r, pt_reader *readers, pt_located *located,
                                      uint32_t page, const uint8_t *key)
{
    pt_answer answer = pt_fetch_one(o, r, readers, key);
    if (answer.outcome != PT_ABSENT || !located || !located->sizes[page] || pt_entry_of(o, key) != PT_NONE)
        return answer;
    return pt_fetch_from_fleet(o, r, located, page, key);
}

/* Responds to a chain of keys, head first. `readers` has the worker of each device, which is granted the pages that it
 * has to read; `located` the pages in the fleet, NULL without one. Pages after the first one that is absent or rejected
 * are useless without it, and get the same answer. */
static inline void pt_fetch(pt_owner *o, const pt_request *r, pt_reader *readers, pt_located *located,
                            const uint8_t *keys, uint32_t count, pt_answer *answers)
{
    pt_answer lost = {PT_GRANTED, PT_NONE, 0};
    o->settled = false;
    pt_stamp_all(o, keys, count, r->now + count);
    PT_POINT("fetch.stamped");
    for (uint32_t i = 0; i < count; i++) {
        answers[i] = lost.outcome == PT_GRANTED ? pt_fetch_page(o, r, readers, located, i, pt_nth_key(keys, i)) : lost;
        PT_POINT("fetch.answered");
        if (answers[i].outcome == PT_ABSENT || answers[i].outcome == PT_REFUSED_FULL)
            lost = answers[i];
        if (answers[i].entry != PT_NONE)
            pt_stamp(o, answers[i].entry, r->now + count - i);
    }
}
