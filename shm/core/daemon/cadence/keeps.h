/* keeps.h - pages that an operator or an engine wants to keep: they are evicted last, until their time ends.
 *
 * Each request to keep pages is one record, a keep; a page knows the number of its keep. Keeps share a
 * limit of frames. When it is exceeded, the oldest keep of the user that keeps most ends, so no user can
 * end what others keep by keeping more. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PT_KEEPS 256u /* number 0 is none */

typedef struct {
    uint64_t ends_ns; /* 0: it ended early, or the number is unused */
    uint64_t order; /* of the beginnings */
    uint32_t uid;
    uint32_t frames; /* of its pages that are in memory */
    bool used; /* pages may have this number */
} pt_keep_record;

typedef struct {
    pt_keep_record records[PT_KEEPS];
    uint64_t begun, ended_early;
    uint32_t used;
} pt_keeps;

static inline bool pt_keep_lives(const pt_keeps *k, uint32_t number, uint64_t now)
{
    return number && k->records[number].ends_ns > now;
}

/* Returns the frames that a user keeps. */
static inline uint64_t pt_kept_by(const pt_keeps *k, uint32_t uid, uint64_t now)
{
    uint64_t frames = 0;
    for (uint32_t number = 1; number < PT_KEEPS; number++)
        frames += pt_keep_lives(k, number, now) && k->records[number].uid == uid ? k->records[number].frames : 0;
    return frames;
}

/* Returns the frames that are kept. */
static inline uint64_t pt_kept_frames(const pt_keeps *k, uint64_t now)
{
    uint64_t frames = 0;
    for (uint32_t number = 1; k->used && number < PT_KEEPS; number++)
        frames += pt_keep_lives(k, number, now) ? k->records[number].frames : 0;
    return frames;
}

/* Returns the oldest keep of the user that keeps most, except `other`; 0: there is none. */
static inline uint32_t pt_keep_to_end(const pt_keeps *k, uint32_t other, uint64_t now)
{
    uint32_t found = 0;
    uint64_t most = 0;
    for (uint32_t number = 1; number < PT_KEEPS; number++) {
        const pt_keep_record *keep = &k->records[number];
        if (number == other || !pt_keep_lives(k, number, now))
            continue;
        uint64_t frames = pt_kept_by(k, keep->uid, now);
        if (!found || frames > most || (frames == most && keep->order < k->records[found].order))
            most = frames, found = number;
    }
    return found;
}

static inline void pt_keep_end(pt_keeps *k, uint32_t number)
{
    k->records[number].ends_ns = 0;
    k->ended_early++;
}

/* Ends keeps until `limit` frames are kept. */
static inline void pt_keep_at_most(pt_keeps *k, uint64_t limit, uint64_t now)
{
    for (uint32_t number; pt_kept_frames(k, now) > limit && (number = pt_keep_to_end(k, 0, now));)
        pt_keep_end(k, number);
}

/* Returns a keep of this user that ends at this time or a little earlier, or 0. */
static inline uint32_t pt_keep_like(const pt_keeps *k, uint32_t uid, uint64_t ends_ns, uint64_t now)
{
    for (uint32_t number = 1; number < PT_KEEPS; number++) {
        const pt_keep_record *keep = &k->records[number];
        if (pt_keep_lives(k, number, now) && keep->uid == uid && keep->ends_ns <= ends_ns && ends_ns != UINT64_MAX &&
            ends_ns - keep->ends_ns <= (ends_ns - now) / 16)
            return number;
    }
    return 0;
}

/* Begins a keep. Returns its number, or 0 if all numbers are used. */
static inline uint32_t pt_keep_begin(pt_keeps *k, uint32_t uid, uint64_t ends_ns)
{
    for (uint32_t number = 1; number < PT_KEEPS; number++)
        if (!k->records[number].used) {
            k->records[number] = (pt_keep_record){.ends_ns = ends_ns, .order = k->begun++, .uid = uid, .used = true};
            k->used++;
            return number;
        }
    return 0;
}
