/* attachments.h - processes attach, detach and die: the slots, and what a dead process leaves behind. */
#pragma once

#include "reservations.h"
#include "write_quota.h"

typedef struct {
    uint32_t pid, uid;
    uint64_t started, token;
    uint64_t kernel_id, lock; /* as in pt_slot */
    const char *name;
} pt_process;

/* Returns a slot for an attachment: its present slot if it already has one, PT_NONE if all slots are taken. */
static inline uint32_t pt_attach(pt_owner *o, const pt_process *p, uint64_t now)
{
    uint32_t free_slot = PT_NONE;
    for (uint32_t slot = PT_SLOTS; slot-- > 0;) {
        pt_slot *s = &o->view.slots[slot];
        uint32_t pid = atomic_load_explicit(&s->pid, memory_order_relaxed);
        if (pid && pt_is_of(s, p->kernel_id, p->pid, p->started) && s->token == p->token)
            return slot;
        if (!pid)
            free_slot = slot;
    }
    if (free_slot == PT_NONE)
        return PT_NONE;
    pt_slot *s = &o->view.slots[free_slot];
    s->started = p->started;
    s->token = p->token;
    s->attached_ns = now;
    s->uid = p->uid;
    s->kernel_id = p->kernel_id;
    s->lock = p->lock;
    memset(s->name, 0, sizeof s->name);
    strncpy(s->name, p->name, sizeof s->name - 1);
    memset(&o->view.counts[free_slot], 0, sizeof(pt_counts));
    memset(&o->view.uses[free_slot], 0, sizeof(pt_uses));
    PT_POINT("attach.named");
    atomic_store_explicit(&s->pid, p->pid, memory_order_release);
    PT_POINT("attach.taken");
    return free_slot;
}

/* Tells whether the process still writes the filling with this serial. */
typedef bool pt_lists_serial(const void *context, uint64_t serial);

static inline void pt_release_unlisted_parts(pt_owner *o, uint32_t slot, pt_lists_serial *lists, const void *context)
{
    const pt_view *v = &o->view;
    for (uint32_t entry = v->header->open_first; entry != PT_NONE; entry = v->entries[entry].list_next) {
        pt_entry *e = &v->entries[entry];
        for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
            if (e->writers[part] == slot && !lists(context, e->serial))
                pt_part_abandon(v, entry, part);
    }
}

/* Releases all parts of a process that is about to lose its slot, and records in their entries that it has ended.
 * Otherwise the next process of the slot would be taken for their writer. */
static inline void pt_end_writer(pt_owner *o, uint32_t slot)
{
    const pt_view *v = &o->view;
    for (uint32_t entry = v->header->open_first; entry != PT_NONE; entry = v->entries[entry].list_next) {
        pt_entry *e = &v->entries[entry];
        for (uint32_t part = 0; part < e->parts && part < PT_PARTS; part++)
            if (e->writers[part] == slot) {
                pt_part_abandon(v, entry, part);
                e->writers[part] = PT_ENDED_WRITER;
                PT_POINT("writer.ended");
            }
    }
}

static inline void pt_clear_pins(const pt_view *v, uint64_t slots)
{
    for (uint32_t entry = 0; entry < v->entry_count; entry++)
        if (atomic_load_explicit(&v->locks[entry].word, memory_order_relaxed) & slots & PT_PINS)
            atomic_fetch_and_explicit(&v->locks[entry].word, ~(slots & PT_PINS), memory_order_acq_rel);
}

static inline uint64_t pt_taken_slots(const pt_view *v)
{
    uint64_t bits = 0;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        bits |= (uint64_t)(atomic_load_explicit(&v->slots[slot].pid, memory_order_relaxed) != 0) << slot;
    return bits;
}

static inline void pt_fold(pt_a64 *from, pt_a64 *to, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        atomic_fetch_add_explicit(&to[i], atomic_exchange_explicit(&from[i], 0, memory_order_relaxed),
                                  memory_order_relaxed);
}

static inline void pt_fold_counts(const pt_view *v, uint32_t slot)
{
    pt_fold((pt_a64 *)&v->counts[slot], (pt_a64 *)&v->header->retired, PT_COUNTS);
    pt_fold((pt_a64 *)&v->uses[slot], (pt_a64 *)v->retired_uses, PT_USES);
}

/* Frees the slot of a process that died or detached, and releases everything that it had. The caller
 * guarantees that the process cannot touch the memory any more. Its pages that are not complete are doomed,
 * unless another of their writers is attached.
 *
 * Also clears the pins of slots that are not taken: only a process that has ended can have set those, and they would
 * keep their pages forever. The order matters: pins go first, because a doomed page that is pinned is not freed. The
 * process is replaced as a writer in all open entries, the entries that this dooms are settled, and its counters are
 * added up before the slot becomes free, because the next process of the slot begins with none of these. */
static inline void pt_reap(pt_owner *o, uint32_t slot, uint64_t now)
{
    pt_clear_pins(&o->view, 1ull << slot | ~pt_taken_slots(&o->view));
    PT_POINT("reap.unpinned");
    pt_end_writer(o, slot);
    PT_POINT("reap.parted");
    pt_settle_all(o, now);
    PT_POINT("reap.settled");
    pt_fold_counts(&o->view, slot);
    PT_POINT("reap.folded");
    pt_end_reader(&o->view, 1ull << slot | ~pt_taken_slots(&o->view));
    atomic_store_explicit(&o->view.slots[slot].pid, 0, memory_order_release);
    PT_POINT("reap.freed");
    o->view.header->counters.deaths++;
}
