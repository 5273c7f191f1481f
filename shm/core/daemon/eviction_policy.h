/* eviction_policy.h - the interface of an eviction policy: which page is evicted first. Each policy is one file.
 *
 * A policy orders the entries that could be evicted by the ticks with which they were listed. Its memory is private to
 * the daemon and is derived from the ticks of the entries. Readers stamp ticks without a message, so the tick in a
 * policy may be stale: the evictor reads the true tick before it believes that an entry is the coldest (evict.h). */
#pragma once

#include "../common/layout.h"

typedef struct pt_policy pt_policy;
typedef bool pt_see(void *context, uint32_t entry);

typedef struct {
    const char *name;
    /* Returns NULL if memory is short. `entries` is one more than the largest entry that is ever listed. A policy with
     * a sibling shares memory with it, and is destroyed before it; an entry is listed by at most one of them. */
    pt_policy *(*create)(uint32_t entries, pt_policy *sibling);
    void (*destroy)(pt_policy *);
    /* The caller guarantees that the entry is not listed. */
    void (*add)(pt_policy *, uint32_t entry, uint64_t tick);
    /* The caller guarantees that the entry is listed. */
    void (*remove)(pt_policy *, uint32_t entry);
    void (*used)(pt_policy *, uint32_t entry, uint64_t tick);
    /* Returns the entry that should be evicted next, or PT_NONE if none is listed. Stores the
     * tick with which it was listed in *tick. */
    uint32_t (*coldest)(const pt_policy *, uint64_t *tick);
    /* Returns the tick with which an entry was listed. The caller guarantees that it is. */
    uint64_t (*listed)(const pt_policy *, uint32_t entry);
    /* Calls `see` for the entries that are listed with a tick before `before`, in no
     * order, until `see` returns false. */
    void (*walk)(const pt_policy *, uint64_t before, pt_see *see, void *context);
    /* Returns whether this policy or a sibling lists the entry. */
    bool (*lists)(const pt_policy *, uint32_t entry);
    uint32_t (*count)(const pt_policy *);
    /* Returns what is wrong with the policy's own memory, or NULL. */
    const char *(*check)(const pt_policy *);
} pt_policy_kind;
