/* write_quota.h - how much of the arena one process was granted and has not released. */
#pragma once

#include "owner.h"

/* Tells whether a slot belongs to the process with this identity. */
static inline bool pt_is_of(const pt_slot *s, uint64_t kernel_id, uint32_t pid, uint64_t started)
{
    if (s->kernel_id || kernel_id)
        return s->kernel_id == kernel_id;
    return atomic_load_explicit(&s->pid, memory_order_relaxed) == pid && s->started == started;
}

/* Returns the slots of the process that has this slot, as a bit mask; at least this slot. */
static inline uint64_t pt_slots_of_process(const pt_view *v, uint32_t slot)
{
    const pt_slot *s = &v->slots[slot];
    uint32_t pid = atomic_load_explicit(&s->pid, memory_order_relaxed);
    uint64_t slots = 1ull << slot;
    for (uint32_t other = 0; pid && other < PT_SLOTS; other++)
        if (atomic_load_explicit(&v->slots[other].pid, memory_order_relaxed) &&
            pt_is_of(&v->slots[other], s->kernel_id, pid, s->started))
            slots |= 1ull << other;
    return slots;
}

static inline bool pt_writes_any(const pt_entry *e, uint64_t slots)
{
    for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
        if (e->writers[part] < PT_SLOTS && slots >> e->writers[part] & 1)
            return true;
    return false;
}

/* Returns the number of frames in open reservations in which the process of this slot has a part, done or not. */
static inline uint64_t pt_frames_writing(const pt_owner *o, uint32_t slot)
{
    const pt_view *v = &o->view;
    uint64_t slots = pt_slots_of_process(v, slot), frames = 0;
    for (uint32_t entry = v->header->open_first; entry != PT_NONE; entry = v->entries[entry].list_next)
        frames += pt_writes_any(&v->entries[entry], slots) ? v->entries[entry].frame_count : 0;
    return frames;
}
