/* session_handle.h - the object behind the Python type Session: the mappings of an attached process. */
#pragma once

#include "buffers.h"

#include "../core/client/copy.h"
#include "../core/client/event_reader.h"
#include "../core/client/match.h"
#include "../core/client/publish.h"

typedef struct {
    PyObject_HEAD
    mapping index, locks, arena;
    uint64_t own_pins_bytes, forks;
    bool open;
    /* reasons to keep the mappings, and how many of them are retain_arena() calls; guarded by the GIL */
    uint32_t busy, retained;
    pt_session shared;
    /* the counters after count_apart(), of which only the one of its slot is used */
    pt_counts own_counts;
    pt_uses own_uses[PT_SLOTS];
    pt_event_reader events;
} Session;

/* Returns whether the handle is usable. It is not in a forked child: the mappings are gone, and the slot belongs to the
 * parent. */
static inline bool handle_usable(const Session *self)
{
    return self && self->open && self->forks == atomic_load_explicit(&forks, memory_order_relaxed);
}

/* Counts the time that a copy took since it began. */
static inline void count_copy(pt_session *s, enum pt_direction way, uint64_t began)
{
    pt_uses *uses = &s->view.uses[s->slot];
    pt_count(way == PT_OUT_OF_ARENA ? &uses->load_ns : &uses->store_ns, pt_now_ns() - began);
}

/* count_apart(): keeps what this handle counts from now on in its own memory, where nothing reads it. */
static PyObject *session_count_apart(Session *self, PyObject *unused)
{
    (void)unused;
    self->shared.counts = &self->own_counts;
    self->shared.view.uses = self->own_uses;
    Py_RETURN_NONE;
}

/* count_time(load_ns, store_ns): counts the time of copies that another library made, for the statistics. */
static PyObject *session_count_time(Session *self, PyObject *args)
{
    unsigned long long load_ns, store_ns;
    if (!PyArg_ParseTuple(args, "KK", &load_ns, &store_ns))
        return NULL;
    if (handle_usable(self)) {
        pt_count(&self->shared.view.uses[self->shared.slot].load_ns, load_ns);
        pt_count(&self->shared.view.uses[self->shared.slot].store_ns, store_ns);
    }
    Py_RETURN_NONE;
}
