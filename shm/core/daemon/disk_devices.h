/* disk_devices.h - the devices of the disk tier as the daemon sees them. Each has a worker of its own, which does the
 * I/O; the daemon commands what the worker writes and drops.
 *
 * A page lies on one device, which its history names. So a device that closes takes
 * its own pages along and no others. */
#pragma once

#include "tenants.h"

#define PT_DEVICES 8u

/* Which pages are written to the disk tier. */
enum pt_write_rule {
    PT_WRITE_EVICTED, /* pages that are about to be evicted from the arena */
    PT_WRITE_THROUGH, /* all pages, at once */
    PT_WRITE_SECOND, /* pages that are about to be evicted and were used again after they were stored */
};

typedef struct {
    bool open; /* its worker has opened it */
    bool complete; /* and has reported all pages on it */
    uint32_t slot_bytes; /* of the slots in which it stores pages; 0: those of a frame */
    uint64_t slots; /* for which it has room; 0 while it is closed */
    uint64_t used_slots, pages, bytes; /* of the pages on it */
    uint64_t ordered_slots; /* room that is reserved for pages which are being written */
    uint64_t used_of[PT_TENANTS], ordered_of[PT_TENANTS]; /* the same slots, by tenant */
    /* the pages on it, whether or not they are in the arena too; NULL until it is opened */
    pt_policy *listed[PT_TENANTS];
    uint8_t *drops; /* keys whose copies on it are useless; not sent to the worker yet */
    uint32_t drop_count, drop_room;
} pt_device;

typedef struct {
    uint32_t open; /* the number of devices that are open */
    enum pt_write_rule rule;
    uint64_t widest; /* frames of the largest one that is open: a larger page is never written */
    /* the slots of each page on disk, by entry; 0: as many as its bytes fill. NULL until a device may need fewer */
    uint32_t *taken;
    pt_device devices[PT_DEVICES];
} pt_disk;

static inline uint64_t pt_slot_bytes(const pt_header *h, const pt_device *d)
{
    return d->slot_bytes ? d->slot_bytes : h->frame_bytes;
}

/* Returns the slots that so many bytes fill. */
static inline uint32_t pt_slots_for(const pt_header *h, const pt_device *d, uint64_t bytes)
{
    return (uint32_t)((bytes + pt_slot_bytes(h, d) - 1) / pt_slot_bytes(h, d));
}

/* Returns the frames that have the bytes of these slots, of which the last may not be full. */
static inline uint64_t pt_frames_of_slots(const pt_header *h, const pt_device *d, uint64_t slots)
{
    return (slots * pt_slot_bytes(h, d) + h->frame_bytes - 1) / h->frame_bytes;
}

/* Derives what follows from the devices. */
static inline void pt_disk_measure(pt_disk *disk, pt_header *h)
{
    uint32_t complete = 0;
    disk->open = 0;
    disk->widest = h->disk_frames = 0;
    for (const pt_device *d = disk->devices; d < disk->devices + PT_DEVICES; d++) {
        disk->open += d->open;
        complete += d->complete;
        uint64_t frames = d->slots * pt_slot_bytes(h, d) / h->frame_bytes;
        disk->widest = frames > disk->widest ? frames : disk->widest;
        h->disk_frames += frames;
    }
    atomic_store_explicit(&h->disk_complete, complete && complete == disk->open, memory_order_relaxed);
}

/* Makes the policies of the first `count` tenants, if they do not exist. Returns false if memory is short. */
static inline bool pt_policies_begin(const pt_policy_kind *kind, uint32_t entries, uint32_t count,
                                     pt_policy **of_tenants)
{
    for (uint32_t tenant = 0; tenant < count; tenant++)
        if (!of_tenants[tenant] && !(of_tenants[tenant] = kind->create(entries, tenant ? of_tenants[0] : NULL)))
            return false;
    return true;
}

static inline void pt_policies_end(const pt_policy_kind *kind, pt_policy **of_tenants)
{
    for (uint32_t tenant = PT_TENANTS; tenant-- > 0; of_tenants[tenant] = NULL)
        if (of_tenants[tenant])
            kind->destroy(of_tenants[tenant]);
}

/* Returns whether a policy lists the page as one on this device. */
static inline bool pt_device_lists(const pt_device *d, const pt_policy_kind *kind, uint32_t entry)
{
    return d->listed[0] && kind->lists(d->listed[0], entry);
}

static inline void pt_devices_end(pt_disk *disk, const pt_policy_kind *kind)
{
    for (pt_device *d = disk->devices; d < disk->devices + PT_DEVICES; d++) {
        pt_policies_end(kind, d->listed);
        free(d->drops);
    }
    free(disk->taken);
    *disk = (pt_disk){0};
}
