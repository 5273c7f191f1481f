/* fetch.h - answering who wants pages from disk in the arena: present, pending, to be read now, or not there. */
#pragma once

#include "disk_tier.h"
#include "reserve.h"

/* granted: frames that this fetch was granted so far. */
static inline pt_answer pt_fetch_one(pt_owner *o, const pt_request *r, const uint8_t *key, uint64_t granted)
{
    uint32_t entry = pt_find_settled(o, key, r->now);
    if (entry != PT_NONE)
        switch (pt_true_state(o, entry)) {
        case PT_READABLE:
            return pt_answer_with(o, PT_PRESENT, entry);
        case PT_WRITING:
            return pt_answer_with(o, PT_PENDING, entry);
        case PT_ON_DISK:
            if (r->most_frames && granted + pt_frames_for(&o->view, o->view.entries[entry].size) > r->most_frames)
                return pt_answer_with(o, PT_REFUSED_FULL, PT_NONE);
            return o->disk.open ? pt_refill(o, r, entry) : pt_answer_with(o, PT_ABSENT, PT_NONE);
        default: /* nothing else is in the dictionary */
            break;
        }
    return pt_answer_with(o, PT_ABSENT, PT_NONE);
}

/* Answers a chain of keys, head first: r->slot is the disk worker's, which is granted what it is to read in. After the
 * first page that can not be had the others are of no use, and are answered like it. */
static inline void pt_fetch(pt_owner *o, const pt_request *r, const uint8_t *keys, uint32_t count, pt_answer *answers)
{
    pt_answer lost = {PT_GRANTED, PT_NONE, 0};
    uint64_t granted = 0;
    o->settled = false;
    pt_stamp_all(o, keys, count, r->now);
    PT_POINT("fetch.stamped");
    for (uint32_t i = 0; i < count; i++) {
        answers[i] = lost.outcome == PT_GRANTED ? pt_fetch_one(o, r, keys + i * (uint64_t)PT_KEY_BYTES, granted) : lost;
        PT_POINT("fetch.answered");
        if (answers[i].outcome == PT_GRANTED)
            granted += o->view.entries[answers[i].entry].frame_count;
        if (answers[i].outcome == PT_ABSENT || answers[i].outcome == PT_REFUSED_FULL)
            lost = answers[i];
        if (answers[i].entry != PT_NONE)
            pt_stamp(o, answers[i].entry, r->now + count - i);
    }
}
