/* lazy_memory.h - an arena whose memory is allocated when a frame first needs it: by the daemon, before it grants the
 * frame.
 *
 * A process that writes to a part of a shared memory object for which the kernel has no memory is killed (SIGBUS), be it an
 * engine or the disk worker. */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../common/view.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

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

/* Allocates the memory of one frame; false if there is none. An allocated frame costs only one comparison. The kernel
 * follows the advice about this mapping, so it may allocate a huge page, for which fallocate would ignore the advice. */
static inline bool pt_lazy_take_frame(pt_lazy *l, const pt_view *v, uint32_t frame)
{
    int failed;
    if (l->taken[frame])
        return true;
    uint8_t *at = v->arena + frame * v->frame_bytes;
    uint64_t before = (uintptr_t)at % (uintptr_t)sysconf(_SC_PAGESIZE); /* in a page that begins in another frame */
    do
        failed = madvise(at - before, before + v->frame_bytes, MADV_POPULATE_WRITE);
    while (failed && errno == EINTR);
    l->lacks = failed;
    l->taken[frame] = !failed;
    return !failed;
}

/* Allocates memory for the next frames that will be granted. Returns false if there is none. The caller guarantees that so
 * many are free. The frames that became free last are granted first: when memory is exhausted, an evicted page provides its
 * own. */
static inline bool pt_lazy_take(pt_lazy *l, const pt_view *v, uint32_t frames)
{
    uint32_t frame = v->header->free_frame;
    for (uint32_t i = 0; l->taken && i < frames; i++, frame = v->frames[frame].next)
        if (!pt_lazy_take_frame(l, v, frame))
            return false;
    return true;
}
