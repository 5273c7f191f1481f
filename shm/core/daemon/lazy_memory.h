/* lazy_memory.h - an arena whose memory is taken where a frame first needs it: by the daemon, before the frame is granted.
 *
 * Whoever writes to memory that there is not is ended by the kernel (SIGBUS), be it an engine or the disk worker.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/view.h"

typedef struct {
    int fd;         /* of the arena; its own */
    uint8_t *taken; /* of each frame, whether its memory is; NULL: that of all is */
    bool lacks;     /* there was none, when some was to be taken last */
} pt_lazy;

/* False with errno set if that can not be. The descriptor is its own from then on. */
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

/* Where the kernel can not say, what is written to will tell. Memory that is there costs a look. */
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

/* Memory for the next frames that are given out; false if there is none. The caller guarantees that so many are free.
 * What came free last is given out first: where there is no more memory, a page that leaves gives its own. */
static inline bool pt_lazy_take(pt_lazy *l, const pt_view *v, uint32_t frames)
{
    uint32_t frame = v->header->free_frame;
    for (uint32_t i = 0; l->taken && i < frames; i++, frame = v->frames[frame].next)
        if (!pt_lazy_take_frame(l, v, frame))
            return false;
    return true;
}
