/* lazy_memory.h - an arena whose memory is allocated when a frame first needs it: by the daemon, before it grants the
 * frame.
 *
 * A process that writes to a part of a shared memory object for which the kernel has no memory is killed
 * (SIGBUS), be it an engine or the disk worker. */
#pragma once

#include <errno.h>
#include <fcntl.h>
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
    int file; /* of the arena; -1: memory is allocated through the mapping */
    bool lacks; /* the last attempt to allocate failed for lack of memory */
} pt_lazy;

/* Begins to allocate on demand, through a file of the arena that pt_lazy_end closes, or -1. Returns false if
 * it cannot; the caller closes the file then. */
static inline bool pt_lazy_begin(pt_lazy *l, const pt_view *v, int file)
{
    *l = (pt_lazy){.taken = calloc(v->frame_count, 1), .file = file};
    return l->taken != NULL;
}

static inline void pt_lazy_end(pt_lazy *l)
{
    if (l->taken && l->file >= 0)
        close(l->file);
    free(l->taken);
    *l = (pt_lazy){0};
}

/* Allocates bytes of the arena. Through the mapping the kernel follows the advice about it, so it may allocate a huge
 * page, for which fallocate would ignore the advice. Without huge pages fallocate takes half the time: the daemon
 * needs none of the bytes, and so no page table and no fault for each page. A file that was truncated stays short, so
 * that pages beyond its end are a SIGBUS and not zeros. */
static inline int pt_lazy_allocate(const pt_lazy *l, const pt_view *v, uint64_t offset, uint64_t bytes)
{
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE); /* in a page that begins in another frame */
    if (l->file >= 0)
        return fallocate(l->file, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
    return madvise(v->arena + offset - before, before + bytes, MADV_POPULATE_WRITE);
}

/* Allocates the memory of some frames in a row; false if there is none for all of them. */
static inline bool pt_lazy_populate(pt_lazy *l, const pt_view *v, uint32_t first, uint32_t frames)
{
    int failed;
    do
        failed = pt_lazy_allocate(l, v, first * v->frame_bytes, frames * v->frame_bytes);
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
