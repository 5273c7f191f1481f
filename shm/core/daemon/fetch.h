/* fetch.h - responds to a request for pages on disk: present, pending, to be read now, or absent. */
#pragma once

#include "disk_tier.h"
#include "reserve.h"

/* Responds to one key. `granted` is the number of frames that this fetch was granted so far. */
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
        default: /* other states are not in the dictionary */
            break;
        }
    return pt_answer_with(o, PT_ABSENT, PT_NONE);
}

/* Responds to a chain of keys, head first. r->slot is the slot of the disk worker, which is granted the pages that it has
 * to read. Pages after the first one that is absent or rejected are useless without it, and get the same answer. */
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
