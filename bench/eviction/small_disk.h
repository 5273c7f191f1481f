/* small_disk.h - a disk tier behind the index: the daemon's own code decides what is written, what is read and what
 * leaves. No bytes are written, and the disk is never late. */
#pragma once

#include "core/daemon/fetch.h"
#include "small_index.h"

/* as daemon/disk/write_behind.py has them */
enum { BATCH_FRAMES = 128, LEAST_AHEAD = 10, CHOICE_AHEAD = 3, SMALLEST_PART = 8 };

static inline bool open_disk(pt_owner *o, uint32_t pages, uint64_t now)
{
    if (!pages)
        return true;
    bool open = pt_disk_open(o, 0, pages, PT_WRITE_EVICTED, now);
    pt_disk_complete(o, 0);
    return open;
}

static inline uint32_t write_batch(pt_owner *o, uint64_t now)
{
    uint32_t entries[BATCH_FRAMES], part = o->view.frame_count / SMALLEST_PART;
    uint32_t most = part < 1 ? 1 : part < BATCH_FRAMES ? part : BATCH_FRAMES;
    uint32_t count = pt_start_writes(o, 0, most, most, now, entries);
    for (uint32_t i = 0; i < count; i++)
        pt_end_write(o, entries[i], PT_WRITE_DONE, now, i);
    return count;
}

/* Writes what would be lost if `frames` frames were taken now, and no less than the daemon writes ahead. */
static inline void write_ahead(pt_owner *o, uint32_t frames, uint64_t now)
{
    uint32_t part = pt_cadence_chooses(o) ? CHOICE_AHEAD : LEAST_AHEAD, least = o->view.frame_count / part + 1;
    uint32_t ahead = frames > least ? frames : least;
    while (o->disk.open && pt_frames_before_unwritten(o, 0, ahead) < ahead && write_batch(o, now))
        ;
}

/* Loads the pages of a prompt that are on disk, up to the first one that is in no tier. */
static inline void load(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now)
{
    pt_reader readers[PT_DEVICES] = {{.most_frames = (uint64_t)o->view.frame_count * 9 / 10}};
    pt_request r = {.parts = 1, .now = now, .expires_ns = UINT64_MAX};
    pt_answer *answers = malloc((count + 1) * sizeof *answers);
    pt_fetch(o, &r, readers, NULL, keys, count, answers);
    for (uint32_t i = 0; i < count; i++)
        if (answers[i].outcome == PT_GRANTED)
            pt_part_finish(&o->view, answers[i].entry, 0);
    pt_settle_all(o, now);
    free(answers);
}

/* Returns how many pages of a prompt are in a tier, up to the first one that is not. */
static inline uint32_t in_tiers(pt_owner *o, const uint8_t *keys, uint32_t count)
{
    uint32_t found = 0;
    while (found < count && pt_entry_of(o, keys + found * (size_t)PT_KEY_BYTES) != PT_NONE)
        found++;
    return found;
}
