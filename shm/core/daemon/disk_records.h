/* disk_records.h - reads the records of pages that a folder of the disk tier keeps in LMDB; tiers/disk/file_format.py
 * describes them. The bytes may be damaged, or of another file: nothing is read before it is known to be there. */
#pragma once

#include "../common/xxh3.h"
#include "cadence/disk_history.h"

enum pt_record_format { PT_OLD_RECORD = 1, PT_RECORD = 2, PT_COMPRESSED_RECORD = 3 };
enum pt_codec { PT_PLAIN, PT_COMPRESSED };

/* The beginning of a record. Its extents follow; in the files store also the hash of the record. */
typedef struct {
    uint8_t format, codec;
    uint16_t unused;
    uint32_t space;
    uint64_t size, stamp;
    uint8_t checksum[16];
    pt_disk_history history; /* an old record ends before it */
    uint64_t serial; /* of the write, 0 in the lmdb store */
    uint64_t coded; /* the bytes of a compressed page, 0 of any other */
} pt_disk_record_head;
#define PT_OLD_HEAD_BYTES offsetof(pt_disk_record_head, history)
#define PT_CHECK_BYTES 8u
_Static_assert(sizeof(pt_disk_record_head) == 80 && PT_OLD_HEAD_BYTES == 40, "the record on disk has these sizes");

/* A key and its value as LMDB returns them. */
typedef struct {
    const uint8_t *key, *value;
    size_t key_bytes, value_bytes;
} pt_disk_record;

/* A page that a lower tier has. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    pt_disk_history history;
    uint64_t size, stamp;
    uint32_t space;
    uint32_t slots; /* that it takes; 0: as many as its bytes fill */
} pt_stored_page;

/* What a store accepts. `format`: that of the tier. */
typedef struct {
    uint64_t format, largest_page, slot_bytes;
} pt_record_limits;

/* Returns how many slots so many bytes fill. No bytes fill a slot without bytes. Most slots have a power of two of
 * bytes, which needs no division: of a million records it would be much of the time. */
static inline uint64_t pt_slots_filled(uint64_t bytes, uint64_t slot_bytes)
{
    if (slot_bytes && !(slot_bytes & (slot_bytes - 1)))
        return (bytes >> __builtin_ctzll(slot_bytes)) + (bytes & (slot_bytes - 1) ? 1 : 0);
    return slot_bytes ? bytes / slot_bytes + (bytes % slot_bytes > 0) : UINT64_MAX;
}

static inline bool pt_is_readable(const pt_disk_record_head *head, size_t bytes, uint64_t tier_format)
{
    switch (head->format) {
    case PT_OLD_RECORD:
        return head->codec == PT_PLAIN;
    case PT_RECORD:
        return head->codec == PT_PLAIN && bytes >= sizeof *head;
    case PT_COMPRESSED_RECORD:
        return head->codec == PT_COMPRESSED && bytes >= sizeof *head && tier_format == PT_COMPRESSED_RECORD;
    default:
        return false;
    }
}

/* Reads what the index needs of a page; `space` is the number that the record has. Returns false for a record that is
 * not valid: the index must not hear of it. */
static inline bool pt_read_stored(const pt_disk_record *r, const pt_record_limits *limits, pt_stored_page *page)
{
    pt_disk_record_head head = {0};
    if (r->key_bytes != PT_KEY_BYTES || r->value_bytes < PT_OLD_HEAD_BYTES)
        return false;
    memcpy(&head, r->value, r->value_bytes < sizeof head ? r->value_bytes : sizeof head);
    if (!pt_is_readable(&head, r->value_bytes, limits->format) || !head.size || head.size > limits->largest_page)
        return false;
    *page = (pt_stored_page){.size = head.size, .stamp = head.stamp, .space = head.space};
    memcpy(page->key, r->key, PT_KEY_BYTES);
    if (head.format != PT_OLD_RECORD)
        page->history = head.history;
    if (head.format == PT_COMPRESSED_RECORD) {
        uint64_t slots = pt_slots_filled(head.coded, limits->slot_bytes);
        page->slots = slots < UINT32_MAX ? (uint32_t)slots : UINT32_MAX;
    }
    return true;
}

typedef struct {
    uint32_t first, frames;
} pt_disk_extent;

/* The extents of a record, of any alignment; how many frames they have, and the first number after all of them. */
typedef struct {
    const uint8_t *at;
    size_t count;
    uint64_t frames, end;
} pt_disk_extents;

static inline pt_disk_extent pt_extent_at(const pt_disk_extents *x, size_t number)
{
    pt_disk_extent extent;
    memcpy(&extent, x->at + number * sizeof extent, sizeof extent);
    return extent;
}

static inline pt_disk_extents pt_read_extents(const uint8_t *at, size_t bytes)
{
    pt_disk_extents x = {.at = at, .count = bytes / sizeof(pt_disk_extent)};
    for (size_t i = 0; i < x.count; i++) {
        pt_disk_extent extent = pt_extent_at(&x, i);
        uint64_t end = (uint64_t)extent.first + extent.frames;
        x.frames += extent.frames;
        x.end = x.end < end ? end : x.end;
    }
    return x;
}

/* Adds the frames that a record of the lmdb store names. Returns false if its extents and its size disagree. */
static inline bool pt_add_frames(const pt_disk_record *r, uint64_t frame_bytes, uint64_t *frames)
{
    uint64_t size;
    if (r->value_bytes < PT_OLD_HEAD_BYTES || r->value_bytes % sizeof(pt_disk_extent))
        return false;
    size_t begin = r->value[0] == PT_RECORD ? sizeof(pt_disk_record_head) : PT_OLD_HEAD_BYTES;
    if (r->value_bytes < begin)
        return false;
    memcpy(&size, r->value + offsetof(pt_disk_record_head, size), sizeof size);
    pt_disk_extents x = pt_read_extents(r->value + begin, r->value_bytes - begin);
    *frames += x.frames;
    return x.frames == pt_slots_filled(size, frame_bytes);
}

/* Returns whether a record of the files store ends with its hash, whose bytes are there in the order of their weight.
 * The caller guarantees that there are a head and a hash. */
static inline bool pt_record_is_whole(const pt_disk_record *r)
{
    uint64_t check;
    size_t bytes = r->value_bytes - PT_CHECK_BYTES;
    memcpy(&check, r->value + bytes, sizeof check);
    return __builtin_bswap64(check) == pt_xxh3(&(pt_hashed){r->key, r->value, r->key_bytes, bytes});
}

enum pt_claim_result { PT_CLAIM_VALID, PT_CLAIM_WRONG, PT_CLAIM_BEYOND };

/* The slots that a record of the files store says to own. */
typedef struct {
    uint64_t serial;
    uint32_t mark; /* of the serial */
    pt_disk_extents slots;
} pt_claim;

/* Returns the mark that a write gives its slots, 0 for none: a million pages have tens of millions of slots. */
static inline uint32_t pt_mark(uint64_t serial)
{
    uint32_t mark = (uint32_t)(serial % UINT32_MAX);
    return mark ? mark : UINT32_MAX;
}

/* Returns whether the write of a mark is newer than that of another one. Marks begin again after 2^32 - 1 writes: of
 * two whose serials are half of that apart or more, the wrong one is found. */
static inline bool pt_is_newer(uint32_t mark, uint32_t other)
{
    return (int32_t)(mark - other) > 0;
}

/* Reads the claim of a record, over `slots` slots of which each has slot_bytes. BEYOND: it was written like that, and
 * names slots that the files do not have. One that names more slots than there are names some of them twice: without
 * the limit, its extents could be read for seconds. */
static inline enum pt_claim_result pt_read_claim(const pt_disk_record *r, uint64_t slot_bytes, uint64_t slots,
                                                 pt_claim *claim)
{
    pt_disk_record_head head;
    if (r->value_bytes <= sizeof head + PT_CHECK_BYTES || r->value_bytes % sizeof(pt_disk_extent) ||
        !pt_record_is_whole(r))
        return PT_CLAIM_WRONG;
    memcpy(&head, r->value, sizeof head);
    claim->serial = head.serial;
    claim->mark = pt_mark(head.serial);
    claim->slots = pt_read_extents(r->value + sizeof head, r->value_bytes - sizeof head - PT_CHECK_BYTES);
    if (claim->slots.frames != pt_slots_filled(head.coded ? head.coded : head.size, slot_bytes))
        return PT_CLAIM_WRONG;
    return claim->slots.end <= slots && claim->slots.frames <= slots ? PT_CLAIM_VALID : PT_CLAIM_BEYOND;
}

/* Starts to load the owners of the slots that a record names, whatever it is: most are not in the processor's cache,
 * which can claim the record before it until they are. */
static inline void pt_prefetch_owners(const pt_disk_record *r, const uint32_t *owners, uint64_t slots)
{
    if (r->value_bytes < sizeof(pt_disk_record_head) + PT_CHECK_BYTES)
        return;
    pt_disk_extents x = {.at = r->value + sizeof(pt_disk_record_head)};
    x.count = (r->value_bytes - sizeof(pt_disk_record_head) - PT_CHECK_BYTES) / sizeof(pt_disk_extent);
    for (size_t i = 0; i < x.count; i++) {
        pt_disk_extent extent = pt_extent_at(&x, i);
        if (!extent.frames || extent.frames > slots || extent.first > slots - extent.frames)
            continue;
        __builtin_prefetch(owners + extent.first, 1);
        __builtin_prefetch(owners + extent.first + extent.frames - 1, 1);
    }
}

/* Frees the first slots of a claim, so many of them. */
static inline void pt_free_first(uint32_t *owners, const pt_claim *claim, uint64_t slots)
{
    for (size_t i = 0; slots; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (uint32_t *owner = owners + extent.first; extent.frames && slots; extent.frames--, slots--)
            *owner++ = 0;
    }
}

/* Gives the slots of a valid claim to it if all are free, in one pass since those of a page lie far apart. Returns
 * false, without a change, if one is not, or is named twice. */
static inline bool pt_take_free(uint32_t *owners, const pt_claim *claim)
{
    uint64_t taken = 0;
    for (size_t i = 0; i < claim->slots.count; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (uint32_t *owner = owners + extent.first; extent.frames; extent.frames--, taken++) {
            if (*owner) {
                pt_free_first(owners, claim, taken);
                return false;
            }
            *owner++ = claim->mark;
        }
    }
    return true;
}

/* Returns the mark of the newest write that owns a slot of a valid claim, 0 if all are free. */
static inline uint32_t pt_newest_owner(const uint32_t *owners, const pt_claim *claim)
{
    uint32_t newest = 0;
    for (size_t i = 0; i < claim->slots.count; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (const uint32_t *owner = owners + extent.first; extent.frames; extent.frames--, owner++)
            newest = *owner && (!newest || pt_is_newer(*owner, newest)) ? *owner : newest;
    }
    return newest;
}

/* Gives all slots of a valid claim to it. */
static inline void pt_take_slots(uint32_t *owners, const pt_claim *claim)
{
    for (size_t i = 0; i < claim->slots.count; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (uint32_t *owner = owners + extent.first; extent.frames; extent.frames--, owner++)
            *owner = claim->mark;
    }
}
