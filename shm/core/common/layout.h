/* layout.h - the shared segments, field by field. This layout is a contract between processes.
 *
 * There are three segments. Who may write:
 *
 *   index   the daemon only. All other processes map it read-only and read it without a lock.
 *   locks   every process: lock words, part bits and ticks of entries, and the process's own counters.
 *   arena   every process: the bytes of frames that were granted to it.
 *
 * A reader may see any field of the index while the daemon changes it. A reader may believe
 *   - a field of an entry only while it has a pin on the entry that found the page readable (lock_word.h);
 *   - a hit in the dictionary only after it compared the entry's key under that pin, and a miss only after it read the
 *     version of the home bucket again (dict.h);
 *   - the `next` of a frame only while the entry that owns the frame is pinned by the reader or granted to it for
 *     writing.
 *
 * The daemon writes in this order, so that its successor can adopt the segments after a crash at any instruction:
 *   - key, serial, namespace, frames, size and parts are written before the state leaves PT_FREE;
 *   - the state returns to PT_FREE before the entry leaves the dictionary and the lists and before its frames are free;
 *   - a slot becomes free only after it was replaced in the open entries in which it wrote a part;
 *   - every entry that is not PT_FREE owns its list of frames, and every frame of a list names that entry.
 * Lists, dictionary, counts and free frames are derived data: an adoption rebuilds them from the entries. What is known
 * of the uses of pages is adopted where it can be true, and never needed. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "failpoints.h"

#define PT_MAGIC 0x7265697465676170ull /* "pagetier" */
#define PT_FORMAT 7u
#define PT_PAGE 4096u
#define PT_SLOTS 56u /* processes attached at once: the pin bits of a lock word */
#define PT_PARTS 32u /* parts of a page: half of the part bits; the other half says "released" */
#define PT_KEY_BYTES 32u
#define PT_BUCKET_SLOTS 7u /* fill one cache line together with version and displaced */
#define PT_WINDOW 8u /* buckets in which an entry may be stored, counted from its home */
#define PT_NONE 0xffffffffu /* no entry, no frame */
#define PT_NO_WRITER 0xffu
/* in place of a slot: the writer died or detached; its part is useful only if another writer lives */
#define PT_ENDED_WRITER 0xfeu
#define PT_NAME_BYTES 56u
#define PT_STATUS_BYTES (64u << 10) /* room for the status of the daemon; whole pages */
#define PT_LEARNED_BYTES (512u << 10) /* room for what the eviction policy learned; whole pages */
#define PT_RESERVE_LIMIT (4ull << 20) /* of the bytes of each reserved place */

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free to be shared between processes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free to be shared between processes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the shared format is little-endian");

typedef _Atomic uint64_t pt_a64;
typedef _Atomic uint32_t pt_a32;
typedef _Atomic uint8_t pt_a8;

/* The record of one page. Readers need only the first cache line; the second is used by the daemon only. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t serial; /* unique to one filling of this entry; never used twice in the life of the segments */
    uint64_t size; /* of the page in bytes; it occupies ceil(size / frame_bytes) frames */
    uint32_t first_frame; /* PT_NONE when the entry has no frames (the page is only on disk) */
    uint32_t frame_count;
    uint32_t space;        /* index of the page's namespace */
    uint8_t parts;         /* 1..PT_PARTS */
    pt_a8 tiers; /* PT_TIER_* : where the bytes are, or are being written */
    uint8_t on_list;       /* PT_LIST_* */
    uint8_t marks;         /* PT_MARK_* : for the disk tier */
    /* second line */
    uint32_t list_prev, list_next; /* in the free entries or in the open reservations */
    uint32_t space_prev, space_next; /* in the pages of one namespace */
    uint64_t expires_ns; /* CLOCK_MONOTONIC: an open reservation is doomed after this time */
    /* slot of each part's writer, or PT_*_WRITER. The daemon replaces a slot here before it frees it */
    uint8_t writers[PT_PARTS];
    uint32_t division; /* how the page was cut into parts; parts of two divisions never join */
    uint32_t reservation; /* number of the one that granted the page; 0: unknown */
} pt_entry;
_Static_assert(sizeof(pt_entry) == 128, "an entry is two cache lines");
_Static_assert(offsetof(pt_entry, list_prev) == 64, "what readers need is the first line");

/* What is known of a page's uses, for eviction. Only the daemon reads it, except `stamped`. A new daemon adopts it,
 * except children and place, which it derives; bytes of any value may lie here then (cadence/history.h). */
typedef struct {
    /* the entry of the page before it, and its life then; PT_NONE: not known, or the first of its prompt */
    uint32_t parent, parent_life;
    uint32_t life; /* changes when the entry is freed */
    uint32_t seen; /* the moment when a store last used it; 0: never */
    uint16_t class;
    uint8_t cadence, uses;
    /* what a choice of pages does not read */
    pt_a32 stamped; /* the low bits of its tick then */
    uint32_t children; /* in memory */
    uint32_t place; /* among the leaves; PT_NONE if it is not one */
    /* depth: number of the page in its prompt, from 1; 0: not known. device: of the disk */
    uint32_t depth : 24, device : 8;
    uint8_t keep; /* number of the keep that it belongs to, which may have ended; 0: none */
    bool in_memory : 1;
    bool named : 1; /* a page named it as its parent in this life */
    uint8_t lasts; /* the hint of its class holds for 2 to the power of so many seconds after `seen` */
    uint8_t tenant; /* for which its frames count (daemon/tenants.h) */
} pt_history;
_Static_assert(sizeof(pt_history) == 40, "with the lists of the policies a page costs at most 96 bytes");

enum { PT_TIER_MEMORY = 1, PT_TIER_DISK = 2 };
enum { PT_LIST_NONE = 0, PT_LIST_FREE = 1, PT_LIST_OPEN = 2 };
enum {
    PT_MARK_TOUCHED = 1, /* used again after it was stored */
    PT_MARK_ORDERED = 2, /* a write was commanded to the disk tier, and the tier has not answered yet */
    /* not written before its next use: the disk tier failed to write it, was not allowed to,
     * or evicted it, or it is the fleet's */
    PT_MARK_SKIPPED = 4,
};

/* A slot of the dictionary: entry + 1 (0: empty) in bits 0..31, tag in 32..60, distance from home in 61..63. */
typedef struct {
    pt_a32 version; /* covers all keys with this home; changes between the steps of a move */
    pt_a32 displaced; /* number of keys with this home that are stored in a later bucket */
    pt_a64 slots[PT_BUCKET_SLOTS];
} pt_bucket;
_Static_assert(sizeof(pt_bucket) == 64, "a bucket is one cache line");

typedef struct {
    uint32_t next;  /* next frame of the page or of the free list; PT_NONE ends it */
    uint32_t owner; /* entry, PT_NONE when free */
} pt_frame;

/* One attachment of a process. `kernel_id` names the process in every namespace and is never used twice while the host
 * is up. Kernels before Linux 6.9 have none; there `pid` and `started` tell the process from others, in one PID
 * namespace. `token` tells apart two attachments of one process: each counts its own pins, so each needs a bit of its
 * own. A slot with pid 0 is free; pid is written last. */
typedef struct {
    uint64_t started; /* start time of the process in clock ticks since boot; 0 if kernel_id names the process */
    uint64_t token; /* chosen by the client; the same when it attaches again */
    uint64_t attached_ns; /* CLOCK_MONOTONIC */
    uint32_t uid;
    pt_a32 pid; /* in the namespace of the daemon that attached it; PT_UNSEEN_PID if it saw none */
    char name[32];
    uint64_t kernel_id; /* the inode of its pidfd; 0: unknown */
    /* the byte of the arena's file that every descriptor sent for this attachment has locked; 0: not all have */
    uint64_t lock;
    uint64_t spare[6];
} pt_slot;
_Static_assert(sizeof(pt_slot) == 128, "a slot is two cache lines");
#define PT_UNSEEN_PID 0xffffffffu

/* A namespace: the model and layout that its pages belong to. Its pages form one list, whatever tier they are in. */
typedef struct {
    uint8_t digest[PT_KEY_BYTES];
    uint64_t pages, bytes;           /* in memory */
    uint64_t disk_pages, disk_bytes; /* on disk, whether or not they are in memory too */
    uint64_t listed; /* length of the list of pages */
    uint64_t used_ns; /* CLOCK_MONOTONIC: a lower bound of its last use (idle_namespaces.h); 0: unknown */
    uint64_t disk_stored; /* bytes of the slots of its pages on disk; which an earlier build does not count */
    uint64_t spare[3];
    uint32_t first;       /* entry */
    uint32_t page_tokens;
    uint32_t window; /* tokens, for a sliding window group; otherwise 0 */
    uint8_t group; /* kind of the group: full attention, sliding window, recurrent */
    uint8_t used;
    uint8_t tenant; /* the number that the daemon which runs has given to its quota; 0: none */
    uint8_t pad[9];
    char name[PT_NAME_BYTES];
} pt_space;
_Static_assert(sizeof(pt_space) == 192, "a namespace is three cache lines");

/* Counters that each process increments itself. The daemon adds those of a dead process to `retired`. */
typedef struct {
    pt_a64 lookups, hit_pages, miss_pages, loaded_pages, loaded_bytes, stored_pages, stored_bytes, lost_pages;
} pt_counts;
#define PT_COUNTS 8u
_Static_assert(sizeof(pt_counts) == 64,
               "the counters of a process are one cache line, which no other process writes to");

/* More counters of a process: tokens of looked-up prompts by the place where they were found, the
 * time that copies between the arena and the engine's memory took (summed over threads), matches that
 * ended at the header's pin_frames, and those missed tokens that a tier had and that were computed,
 * since loading them from there was slower. */
typedef struct {
    pt_a64 memory_tokens, disk_tokens, missed_tokens, load_ns, store_ns, bounded, remote_tokens, memory_slower_tokens,
        disk_slower_tokens, remote_slower_tokens;
    pt_a64 spare[6]; /* a counter that is added here needs no new format */
} pt_uses;
#define PT_USES 10u
_Static_assert(sizeof(pt_uses) == 128, "the counters of a process are two cache lines");

/* Counters of the daemon. */
typedef struct {
    uint64_t granted, present, pending, refused, evicted, evicted_bytes, flushed, doomed, expired, deaths, adopted,
        dropped;
    /* Counters of the disk tier. disk_missed: requested pages that were in no tier or were read too
     * late; disk_lost: pages that left the arena before they were written; disk_skipped: pages that
     * were excluded from writing; disk_damaged: pages whose bytes did not match their checksum;
     * disk_failed: pages whose write failed and is not tried again. */
    uint64_t disk_written, disk_written_bytes, disk_read, disk_read_bytes, disk_missed, disk_evicted,
        disk_evicted_bytes, disk_flushed, disk_lost, disk_skipped, disk_damaged, disk_failed;
    uint64_t spare[24]; /* a counter that is added here needs no new format */
} pt_daemon_counts;

enum pt_reason {
    PT_EVENT_EVICTED,
    PT_EVENT_FLUSHED,
    PT_EVENT_LOST, /* the copy on disk is damaged or missing */
    PT_EVENT_STORED, /* a client published the page, or the disk worker read it from disk */
    PT_EVENT_WRITTEN, /* the page was written to disk */
};

/* One record of the ring of events: a page came into a tier or left it. It says that something has
 * changed; where the page is now is in the index (event_reader.h). Words, because a reader may read a
 * record while the daemon overwrites it. */
typedef struct {
    pt_a64 key[PT_KEY_BYTES / 8];
    pt_a64 what; /* bits 0..7: PT_TIER_*; 8..15: 1 came, 0 left; 16..23: pt_reason */
} pt_event;
#define PT_EVENTS 65536u /* the most records of the ring; a small index has a smaller ring */
_Static_assert(sizeof(pt_event) * PT_EVENTS <= PT_RESERVE_LIMIT, "the ring fits its reserved place");

/* The bytes of places that later builds use without a new format; whole pages, 0: none. */
typedef struct {
    uint64_t events; /* in the index: a ring of what comes and leaves: pt_event */
    uint64_t curve; /* in the index: a curve of reuse distances */
    /* in the locks, after the lock words: rings in which processes leave the keys that they looked up */
    uint64_t samples;
} pt_reserves;

/* The first page of the index. Offsets are in bytes from the start of the index. */
typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t header_bytes;
    uint64_t segments_id; /* random; the same in all three segments; new each time the segments are created */
    char build[40]; /* the build that created the segments, for humans */
    uint64_t index_bytes, locks_bytes, arena_bytes;
    uint64_t frame_bytes;
    uint32_t frames, entries, buckets, spaces;
    uint64_t at_slots, at_spaces, at_buckets[2], at_entries, at_frames, at_histories, at_learned;
    pt_reserves reserves;
    uint64_t at_events, at_curve, at_samples; /* at_samples: from the start of the locks */
    /* The cache line that readers read all the time and that the daemon rarely writes. */
    _Alignas(64) pt_a64 incarnation; /* incremented by each daemon that takes the segments over */
    pt_a64 dictionary; /* its lowest bit selects the dictionary that is in use */
    pt_a32 closed; /* the daemon was stopped for good: processes should unmap the memory */
    pt_a32 pin_frames; /* limit of the frames that one attachment may pin at once; its matches end there; 0: no limit */
    pt_a32 fleet_breaker; /* engines do not ask the fleet while it is not 0 */
    pt_a32 sample_threshold; /* processes leave the keys below it in their rings (samples.h); 0: none */
    /* The cache lines that the daemon writes with every request. */
    _Alignas(64) uint32_t free_entry, free_frame, open_first, open_last; /* heads of the lists */
    uint32_t free_entries, free_frames, open_entries;
    uint64_t next_serial;
    uint64_t pages, bytes, used_frames; /* of readable, writing and doomed entries */
    uint64_t disk_frames, disk_used_frames, disk_pages, disk_bytes; /* disk_frames is 0 while there is no disk tier */
    pt_daemon_counts counters;
    pt_counts retired;
    pt_a64 events_head; /* number of events that were recorded */
    pt_a64 events_epoch; /* odd while events are recorded; changes whenever there may be changes that were not */
    pt_a32 disk_complete; /* the disk tier is open, and all pages on its devices were reported */
    uint32_t spare_word;
    uint64_t spare[13];
    /* The status of the daemon is a text in the pages after the header, at PT_AT_STATUS. The daemon makes the version
     * odd, writes the text and its length, and makes the version even again. A reader copies as many bytes as are in
     * use and reads the version before and after that: if it is odd or has changed, the text was written at the same
     * time and is not valid. */
    pt_a32 status_version;
    uint32_t status_bytes; /* in use */
} pt_header;
_Static_assert(sizeof(pt_header) <= PT_PAGE, "the header is one page");

#define PT_AT_STATUS PT_PAGE /* in the index; the places of pt_plan follow */

/* The part of an entry that lies in the locks segment. */
typedef struct {
    pt_a64 word;  /* lock_word.h */
    pt_a64 parts; /* bits 0..31: part done; bits 32..63: part released by its writer */
    pt_a64 tick; /* CLOCK_MONOTONIC in ns of the last use; decreases from the head of a prompt to its tail */
    pt_a64 checksum; /* entry_checksum.h: the checksum of the entry when its page was granted */
} pt_lock;
_Static_assert(sizeof(pt_lock) == 32, "two lock words to a cache line");

/* The first pages of the locks segment; counters and lock words follow them. `uses` has the counters of each
 * attachment, retired_uses the sum of the former attachments. A build that does not know these counters leaves them
 * at zero, so they did not need a new format. */
typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t reserved;
    uint64_t segments_id;
    pt_a64 event_readers; /* bits of the slots that read the ring of events; without any of them nothing is recorded */
    _Alignas(64) pt_uses retired_uses;
    _Alignas(512) pt_uses uses[PT_SLOTS];
} pt_locks_header;
_Static_assert(sizeof(pt_locks_header) <= 2u * PT_PAGE, "the header of the locks is two pages");

#define PT_AT_COUNTS (2u * PT_PAGE)
#define PT_AT_LOCKS (3u * PT_PAGE)
_Static_assert(PT_SLOTS * sizeof(pt_counts) <= PT_PAGE, "the counters of all processes are one page");
