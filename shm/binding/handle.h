/* handle.h - the object behind the Python type Session: the mappings of an attached process. */
#pragma once

#include "memory.h"

#include "../core/copy.h"
#include "../core/match.h"
#include "../core/part.h"

typedef struct {
    PyObject_HEAD
    mapping index, locks, arena;
    uint64_t held_bytes, forks;
    bool open;
    uint32_t busy, holds; /* calls that work without the GIL, and holds among them; guarded by it */
    pt_session shared;
} Session;

/* False in a forked child: there the mappings are gone, and the slot is the parent's. */
static inline bool handle_usable(const Session *self)
{
    return self && self->open && self->forks == atomic_load_explicit(&forks, memory_order_relaxed);
}
