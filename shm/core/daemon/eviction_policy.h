/* eviction_policy.h - what leaves first: the interface behind which the order of eviction lives, one policy a file.
 *
 * A policy orders the entries that could be evicted by the tick with which they were listed. Its memory is the daemon's
 * own: all of it is derived from the entries' ticks.  Readers stamp ticks without telling anybody, so a policy's
 * tick may be stale; the evictor reads the true one before it believes that an entry is the coldest (evict.h).
 */
#pragma once

#include "../common/layout.h"

typedef struct pt_policy pt_policy;
typedef bool pt_see(void *context, uint32_t entry);

typedef struct {
    const char *name;
    /* NULL if memory is short. `entries` is one more than the largest entry ever listed. */
    pt_policy *(*create)(uint32_t entries);
    void (*destroy)(pt_policy *);
    /* The caller guarantees that the entry is not listed. */
    void (*add)(pt_policy *, uint32_t entry, uint64_t tick);
    /* The caller guarantees that the entry is listed. */
    void (*remove)(pt_policy *, uint32_t entry);
    void (*used)(pt_policy *, uint32_t entry, uint64_t tick);
    /* The entry that should leave next, PT_NONE if none is listed; its tick as listed goes to *tick. */
    uint32_t (*coldest)(const pt_policy *, uint64_t *tick);
    /* Shows the entries listed with a tick before `before`, in no order, until `see` returns false. */
    void (*look)(const pt_policy *, uint64_t before, pt_see *see, void *context);
    bool (*lists)(const pt_policy *, uint32_t entry);
    uint32_t (*count)(const pt_policy *);
    /* What is wrong with the policy's own memory, or NULL. */
    const char *(*check)(const pt_policy *);
} pt_policy_kind;
