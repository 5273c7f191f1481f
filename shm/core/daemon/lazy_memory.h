/* lazy_memory.h - an arena whose memory is allocated when a frame first needs it: by the daemon, before it grants the
 * frame.
 *
 * A process that writes to a part of a shared memory object for which the kernel has no memory is killed
 * (SIGBUS), be it an engine or the disk worker. */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../common/view.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Bytes that are allocated by one system call. A call for each frame of 4 KiB would take
 * longer than a store's other work. */
#define PT_LAZY_STEP (256u << 10)

typedef struct {
    uint8_t *taken; /* one byte per frame: 1 if its memory is allocated; NULL: the whole arena is allocated */
    bool lacks; /* the last attempt to allocate failed for lack of memory */
} pt_lazy;

/* Begins to allocate on demand. Returns false if it cannot. */
static inline bool pt_lazy_begin(pt_lazy *l, const pt_view *v)
{
    *l = (pt_lazy){.taken = calloc(v->frame_count, 1)};
    return l->taken != NULL;
}

static inline void pt_lazy_end(pt_lazy *l)
{
    free(l->taken);
    *l = (pt_lazy){0};
}

/* Allocates the memory of some frames in a row; false if there is none for all of them. The kernel follows the advice
 * about this mapping, so it may allocate a huge page, for which fallocate would ignore the advice. */
static inline bool pt_lazy_populate(pt_lazy *l, const pt_view *v, uint32_t first, uint32_t frames)
{
    int failed;
    uint8_t *at = v->arena + first * v->frame_bytes;
    uint64_t before = (uintptr_t)at % (uintptr_t)sysconf(_SC_PAGESIZE); /* in a page that begins in another frame */
    do
        failed = madvise(at - before, before + frames * v->frame_bytes, MADV_POPULATE_WRITE);
    while (failed && errno == EINTR);
    if (!failed)
        memset(l->taken + first, 1, frames);
    return !failed;
}

/* Allocates the memory of one frame, with that of its neighbours if frames are small; false if there is none. An
 * allocated frame costs only one comparison. */
static inline bool pt_lazy_take_frame(pt_lazy *l, const pt_view *v, uint32_t frame)
{
    if (l->taken[frame])
        return true;
    uint32_t together = v->frame_bytes < PT_LAZY_STEP ? (uint32_t)(PT_LAZY_STEP / v->frame_bytes) : 1;
    uint32_t first = frame / together * together, left = v->frame_count - first;
    l->lacks = !pt_lazy_populate(l, v, first, together < left ? together : left) && !pt_lazy_populate(l, v, frame, 1);
    return !l->lacks;
}

/* Allocates memory for the next frames that will be granted. Returns false if there is none. The caller
 * guarantees that so many are free. The frames that became free last are granted first: when memory is
 * exhausted, an evicted page provides its own. */
static inline bool pt_lazy_take(pt_lazy *l, const pt_view *v, uint32_t frames)
{
    uint32_t frame = v->header->free_frame;
    for (uint32_t i = 0; l->taken && i < frames; i++, frame = v->frames[frame].next)
        if (!pt_lazy_take_frame(l, v, frame))
            return false;
    return true;
}
