/* tenants.h - quotas: what the namespaces of a tenant may have of the arena and of each device, and what others leave
 * them.
 *
 * A tenant is a number; the daemon chooses it by a namespace's name. Tenant 0 has no limits. Each page
 * knows the tenant that its frames count for (pt_history), because the record of its namespace may be
 * reused while a writer still has the frames.
 *
 * Each tenant has policies of its own. So the coldest page that may leave is found at the heads of a few lists, however
 * many pages of a protected tenant are colder. */
#pragma once

#include "../common/view.h"
#include "eviction_policy.h"

#define PT_TENANTS 16u

/* Shares of the arena, or of each device. */
typedef struct {
    double least; /* others evict none of the tenant's pages below it */
    double most; /* the tenant's stores evict its own pages above it; 1: no limit */
} pt_bounds;

typedef struct {
    pt_bounds memory, disk;
} pt_quota;

/* For whom room is made. */
typedef struct {
    uint32_t tenant; /* or PT_NOBODY: ahead of need, or PT_EVERYBODY: a limit has to hold whatever the quotas are */
    bool own_only; /* the tenant has its maximum */
} pt_need;
#define PT_NOBODY 0xffffffffu
#define PT_EVERYBODY 0xfffffffeu

/* When a page leaves, by the quota of its tenant: the lowest precedence leaves first. */
enum pt_precedence {
    PT_LEAVES_FIRST, /* its tenant has more than its maximum */
    PT_LEAVES,
    PT_LEAVES_LAST, /* its tenant has no more than its minimum, and is the one that needs room */
    PT_STAYS, /* it is protected */
};

/* The page that should be evicted next, of one list or of several. */
typedef struct {
    pt_policy *list;
    uint32_t entry;
    enum pt_precedence precedence;
    uint64_t tick;
} pt_candidate;

/* Why the last page that a quota refused was refused. */
typedef struct {
    uint32_t at_maximum; /* the tenant that stored it, which has its maximum; 0: it was not that */
    uint32_t protected; /* otherwise: bits of the tenants that have no more than their minimum */
} pt_refusal;

typedef struct {
    uint32_t count; /* 1: there are no quotas */
    pt_quota quotas[PT_TENANTS];
    uint64_t most[PT_TENANTS]; /* frames of the arena that each tenant may have */
    uint64_t frames[PT_TENANTS]; /* of the arena: of all pages, also of those that are being written or are doomed */
    bool hurries[PT_TENANTS]; /* its unwritten pages are about to be evicted: they are written first (write_behind.h) */
    pt_need need;
    enum pt_precedence latest; /* pages that leave later are not drawn (cadence/choose_victim.h) */
    pt_refusal refusal;
    uint64_t keeps_checked_ns; /* when the tenant at its maximum had no kept page left (evict.h) */
} pt_tenants;

#define PT_NO_QUOTA ((pt_quota){{0, 1}, {0, 1}})
#define PT_NO_NEED ((pt_need){PT_NOBODY, false})

static inline pt_tenants pt_one_tenant(void)
{
    return (pt_tenants){
        .count = 1, .quotas = {PT_NO_QUOTA}, .most = {UINT64_MAX}, .need = PT_NO_NEED, .latest = PT_LEAVES,
    };
}

static inline uint64_t pt_least_frames(pt_bounds share, uint64_t all) { return (uint64_t)(share.least * (double)all); }

static inline uint64_t pt_most_frames(pt_bounds share, uint64_t all)
{
    return share.most < 1 ? (uint64_t)(share.most * (double)all) : UINT64_MAX;
}

/* Returns how many frames a tenant may have after it was given `frames` more. One that has more than its maximum,
 * because that was changed, gives two for each: so no request has to evict all that is too much. */
static inline uint64_t pt_most_after(uint64_t used, uint64_t frames, uint64_t most)
{
    return used > most && used - most > frames ? used - frames : most;
}

/* Returns when a page of `frames` frames leaves whose tenant has `used` of `all` frames. */
static inline enum pt_precedence pt_precedence_by(pt_bounds share, uint64_t used, uint64_t all, uint32_t tenant,
                                                  uint32_t frames, pt_need need)
{
    bool own = tenant == need.tenant || need.tenant == PT_EVERYBODY;
    if (need.own_only)
        return own ? PT_LEAVES : PT_STAYS;
    /* a large page may be above the maximum, and the rest below the minimum */
    if (used >= pt_least_frames(share, all) + frames)
        return used > pt_most_frames(share, all) ? PT_LEAVES_FIRST : PT_LEAVES;
    return own ? PT_LEAVES_LAST : PT_STAYS;
}
