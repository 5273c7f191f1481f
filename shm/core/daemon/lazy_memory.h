/* lazy_memory.h - an arena whose memory is allocated when a frame first needs it: by the daemon, before it grants the
 * frame.
 *
 * A process that writes to a part of a shared memory object for which the kernel has no memory is killed (SIGBUS), be it an
 * engine or the disk worker. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/view.h"

typedef struct {
    int fd; /* of the arena; owned by this struct */
    uint8_t *taken; /* one byte per frame: 1 if its memory is allocated; NULL: the whole arena is allocated */
    bool lacks; /* the last attempt to allocate failed for lack of memory */
} pt_lazy;

/* Begins to allocate on demand. Returns false with errno set if it cannot. It owns the descriptor after success. */
static inline bool pt_lazy_begin(pt_lazy *l, const pt_view *v, int fd)
{
    *l = (pt_lazy){.fd = fd, .taken = calloc(v->frame_count, 1)};
    return l->taken != NULL;
}

static inline void pt_lazy_end(pt_lazy *l)
{
    if (l->taken)
        close(l->fd);
    free(l->taken);
    *l = (pt_lazy){0};
}

/* Allocates the memory of one frame; false if there is none. Where the file system cannot tell, the frame counts as
 * allocated. An allocated frame costs only one comparison. */
static inline bool pt_lazy_take_frame(pt_lazy *l, const pt_view *v, uint32_t frame)
{
    int failed;
    if (l->taken[frame])
        return true;
    do
        failed = fallocate(l->fd, FALLOC_FL_KEEP_SIZE, (off_t)(frame * v->frame_bytes), (off_t)v->frame_bytes);
    while (failed && errno == EINTR);
    l->lacks = failed && (errno == ENOSPC || errno == ENOMEM);
    l->taken[frame] = !l->lacks;
    return !l->lacks;
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
