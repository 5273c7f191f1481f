/* layout.h - the shared segments, field by field: a contract between processes.
 *
 * Three segments.  Who may write what:
 *
 *   index   the daemon alone.  Everybody else maps it read-only and reads it without a lock.
 *   locks   everybody: an entry's lock word, part bits and tick, and each process's own counters.
 *   arena   everybody: the bytes of frames, by whoever was granted them.
 *
 * A reader may see any field of the index while the daemon changes it.  What it read may be believed only
 *   - of an entry: while the reader holds a pin on it that found it readable (lock_word.h);
 *   - of the dictionary: a hit after the entry's key was compared under that pin, a miss after the home bucket's
 *     version was read again (dict.h);
 *   - of a frame's `next`: while the entry that owns the frame is pinned, or granted to the reader for writing.
 *
 * The daemon keeps this order, so that a successor can adopt the segments after a death at any instruction:
 *   - key, serial, namespace, frames, size and parts are written before the state leaves PT_FREE;
 *   - the state goes back to PT_FREE before dictionary, lists and frames let the entry go;
 *   - a slot is replaced in the open entries of which it wrote a part before it is free;
 *   - every entry that is not PT_FREE owns its chain of frames, and every frame of a chain names that entry.
 * Lists, dictionary, counts and free frames are derived: adoption makes them anew from the entries.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "failpoints.h"

#define PT_MAGIC 0x7265697465676170ull /* "pagetier" */
#define PT_FORMAT 3u
#define PT_PAGE 4096u
#define PT_SLOTS 56u        /* processes attached at once: pin bits of a lock word */
#define PT_PARTS 32u        /* parts of a page: half of the part bits, the other half says "let go" */
#define PT_KEY_BYTES 32u
#define PT_BUCKET_SLOTS 7u  /* what fits one cache line beside the version */
#define PT_WINDOW 8u        /* buckets in which an entry may live, counted from its home */
#define PT_NONE 0xffffffffu /* no entry, no frame */
#define PT_NO_WRITER 0xffu
#define PT_DEAD_WRITER 0xfeu     /* instead of a slot: the writer died, and its part is of use only if another writer lives */
#define PT_DETACHED_WRITER 0xfdu /* instead of a slot: the writer detached */
#define PT_NAME_BYTES 56u
#define PT_TEXT_BYTES 2048u

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free to be shared between processes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free to be shared between processes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the shared format is little-endian");

typedef _Atomic uint64_t pt_a64;
typedef _Atomic uint32_t pt_a32;
typedef _Atomic uint8_t pt_a8;

/* The record of one page. The first cache line is what a reader needs, the second is the daemon's own. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t serial;       /* unique to one filling of this entry, never used twice in the life of the segments */
    uint64_t size;         /* bytes of the page; its chain holds ceil(size / frame) frames */
    uint32_t first_frame;  /* PT_NONE when no frames (a page that is only on disk) */
    uint32_t frame_count;
    uint32_t space;        /* index of the page's namespace */
    uint8_t parts;         /* 1..PT_PARTS */
    pt_a8 tiers;           /* PT_TIER_* : where the bytes are, or are being written to */
    uint8_t on_list;       /* PT_LIST_* */
    uint8_t marks;         /* PT_MARK_* : for the disk tier */
    /* second line */
    uint32_t list_prev, list_next;   /* free entries, or open reservations */
    uint32_t space_prev, space_next; /* the pages of one namespace */
    uint64_t expires_ns;             /* CLOCK_MONOTONIC: an open reservation is doomed after it */
    uint8_t writers[PT_PARTS];       /* slot of each part's writer, or PT_*_WRITER. The daemon replaces a slot before it frees it */
    uint32_t division;               /* how the page was cut into parts: parts of two divisions make no page */
    uint32_t chain;                  /* the run of pages that were granted together; 0: not known */
} pt_entry;
_Static_assert(sizeof(pt_entry) == 128, "an entry is two cache lines");
_Static_assert(offsetof(pt_entry, list_prev) == 64, "what readers need is the first line");

enum { PT_TIER_MEMORY = 1, PT_TIER_DISK = 2 };
enum { PT_LIST_NONE = 0, PT_LIST_FREE = 1, PT_LIST_OPEN = 2 };
enum {
    PT_MARK_TOUCHED = 1, /* used again after it was stored */
    PT_MARK_ORDERED = 2, /* the disk tier was told to write it, and has not answered */
    PT_MARK_SPARED = 4,  /* it will not be written before it is used again: the disk tier could not, or was not allowed to,
                          * or had it and let go of it */
};

/* A slot of the dictionary: entry + 1 (0: empty) in bits 0..31, tag in 32..60, distance from home in 61..63. */
typedef struct {
    pt_a32 version;   /* of every key whose home this is; changes between the two steps of a move */
    pt_a32 displaced; /* how many keys whose home this is live in a later bucket */
    pt_a64 slots[PT_BUCKET_SLOTS];
} pt_bucket;
_Static_assert(sizeof(pt_bucket) == 64, "a bucket is one cache line");

typedef struct {
    uint32_t next;  /* next frame of the chain or of the free list; PT_NONE ends it */
    uint32_t owner; /* entry, PT_NONE when free */
} pt_frame;

/* One attachment of a process. `started` tells a pid from its reuse, `token` two attachments of one process: each has
 * pin counts of its own, so each needs a bit of its own. pid 0 is a free slot and is written last. */
typedef struct {
    uint64_t started;     /* start time of the process in clock ticks since boot, /proc/PID/stat field 22 */
    uint64_t token;       /* chosen by the client, kept when it attaches again */
    uint64_t attached_ns; /* CLOCK_MONOTONIC */
    uint32_t uid;
    pt_a32 pid;
    char name[32];
} pt_slot;
_Static_assert(sizeof(pt_slot) == 64, "a slot is one cache line");

/* A namespace: what its pages were computed with. Its pages form a list, whatever tier they are in. */
typedef struct {
    uint8_t digest[PT_KEY_BYTES];
    uint64_t pages, bytes;           /* in memory */
    uint64_t disk_pages, disk_bytes; /* on disk, in memory too or not */
    uint64_t listed;                 /* length of the list */
    uint64_t used_ns;                /* CLOCK_MONOTONIC: the least that is known of its last use (idle_namespaces.h); 0: nothing is */
    uint64_t spare[4];
    uint32_t first;       /* entry */
    uint32_t page_tokens;
    uint32_t window;      /* tokens, of a sliding window group; else 0 */
    uint8_t group;        /* kind of the group: full attention, sliding window, recurrent */
    uint8_t used;
    uint8_t pad[10];
    char name[PT_NAME_BYTES];
} pt_space;
_Static_assert(sizeof(pt_space) == 192, "a namespace is three cache lines");

/* What processes did, counted by themselves; the daemon folds a dead process's into `retired`. */
typedef struct {
    pt_a64 lookups, hit_pages, miss_pages, loaded_pages, loaded_bytes, stored_pages, stored_bytes, lost_pages;
} pt_counts;
#define PT_COUNTS 8u
_Static_assert(sizeof(pt_counts) == 64, "a process's counters are one cache line: nobody else's writes touch it");

/* More of the same: tokens of prompts that were looked for, by where they were found, the time that copies between the
 * arena and an engine's memory took, added over their threads, and matches that ended at the header's pin_frames. */
typedef struct {
    pt_a64 memory_tokens, disk_tokens, missed_tokens, load_ns, store_ns, bounded;
    pt_a64 spare[2];
} pt_uses;
#define PT_USES 6u
_Static_assert(sizeof(pt_uses) == 64, "one cache line, too");

/* What the daemon did. */
typedef struct {
    uint64_t granted, present, pending, refused, evicted, evicted_bytes, flushed, doomed, expired, deaths, adopted, dropped;
    /* of the disk tier. disk_missed: pages asked for that were nowhere, or came too late; disk_lost: pages that left the
     * arena before they could be written; disk_damaged: pages whose bytes were not those that were stored. */
    uint64_t disk_written, disk_written_bytes, disk_read, disk_read_bytes, disk_missed, disk_evicted, disk_evicted_bytes,
        disk_flushed, disk_lost, disk_spared, disk_damaged;
} pt_deeds;

/* First page of the index. Offsets are in bytes from the start of the index. */
typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t header_bytes;
    uint64_t segments_id; /* random, the same in all three segments; a new one each time they are made */
    char build[40];       /* who wrote the segments, for people */
    uint64_t index_bytes, locks_bytes, arena_bytes;
    uint64_t frame_bytes;
    uint32_t frames, entries, buckets, spaces;
    uint64_t at_slots, at_spaces, at_buckets[2], at_entries, at_frames;
    /* a cache line that readers read all the time and that the daemon hardly ever writes */
    _Alignas(64) pt_a64 incarnation; /* goes up whenever a daemon takes the segments over */
    pt_a64 dictionary;               /* its lowest bit says which of the two dictionaries is in force */
    pt_a32 closed;                   /* the daemon stopped on purpose: let go of the memory */
    pt_a32 pin_frames;               /* what one attachment may have pinned at once: its matches end there; 0: any number */
    /* and those that it writes with every request */
    _Alignas(64) uint32_t free_entry, free_frame, open_first, open_last; /* heads of lists */
    uint32_t free_entries, free_frames, open_entries;
    uint64_t next_serial;
    uint64_t pages, bytes, used_frames; /* readable, writing and doomed */
    uint64_t disk_frames, disk_used_frames, disk_pages, disk_bytes; /* 0 frames: there is no disk tier now */
    pt_deeds deeds;
    pt_counts retired;
    /* What the disk tier says of itself, for people. A reader looks at the version before and after: odd, or another
     * one, means that the text changed meanwhile. */
    pt_a32 disk_version;
    uint32_t disk_text_bytes;
    char disk_text[PT_TEXT_BYTES];
} pt_header;
_Static_assert(sizeof(pt_header) <= PT_PAGE, "the header is one page");

/* Of each entry, in the locks segment. */
typedef struct {
    pt_a64 word;  /* lock_word.h */
    pt_a64 parts; /* bits 0..31: part done; bits 32..63: its writer has let go */
    pt_a64 tick;  /* CLOCK_MONOTONIC ns of the last use, falling from the head of a prompt to its tail */
    pt_a64 seal;  /* entry_checksum.h: what the entry said when its page was granted */
} pt_lock;
_Static_assert(sizeof(pt_lock) == 32, "two lock words to a cache line");

/* First page of the locks segment; counters and lock words follow. `uses`: of each attachment; retired_uses: of those that
 * are gone. A build that does not know of them leaves them at zero, so they are no format of their own. */
typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t reserved;
    uint64_t segments_id;
    _Alignas(64) pt_uses retired_uses;
    _Alignas(512) pt_uses uses[PT_SLOTS];
} pt_locks_header;
_Static_assert(sizeof(pt_locks_header) <= PT_PAGE, "they are one page");

#define PT_AT_COUNTS PT_PAGE
#define PT_AT_LOCKS (2u * PT_PAGE)
_Static_assert(PT_SLOTS * sizeof(pt_counts) <= PT_PAGE, "the counters of all processes are one page");
