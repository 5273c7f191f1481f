/* writing.h - how much of the arena one process was granted and has not let go of. */
#pragma once

#include "owner.h"

/* Frames of the open reservations in which the slot has a part, whether it is done with it or not. */
static inline uint64_t pt_frames_writing(const pt_owner *o, uint32_t slot)
{
    const pt_view *v = &o->view;
    uint64_t frames = 0;
    for (uint32_t entry = v->header->open_first; entry != PT_NONE; entry = v->entries[entry].list_next)
        frames += pt_writes(&v->entries[entry], slot) ? v->entries[entry].frame_count : 0;
    return frames;
}
