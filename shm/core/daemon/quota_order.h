/* quota_order.h - the page that leaves first, by the quotas of all tenants and by recency. */
#pragma once

#include "disk_slots.h"

/* Returns when a page leaves the arena. */
static inline enum pt_precedence pt_precedence_in_memory(const pt_owner *o, uint32_t entry)
{
    const pt_tenants *t = &o->tenants;
    if (t->count == 1)
        return PT_LEAVES;
    uint32_t tenant = pt_tenant_of(o, entry);
    return pt_precedence_by(t->quotas[tenant].memory, t->frames[tenant], o->view.frame_count, tenant,
                      o->view.entries[entry].frame_count, t->need);
}

/* Returns the slots of a device that a tenant has, also those that are reserved for its pages. */
static inline uint64_t pt_slots_on(const pt_device *d, uint32_t tenant)
{
    return d->used_of[tenant] + d->ordered_of[tenant];
}

/* Returns when a page leaves the device that it is on. */
static inline enum pt_precedence pt_precedence_on_disk(const pt_owner *o, const pt_device *d, uint32_t entry,
                                                       pt_need need)
{
    if (o->tenants.count == 1)
        return PT_LEAVES;
    uint32_t tenant = pt_tenant_of(o, entry), slots = pt_slots_of(o, entry);
    return pt_precedence_by(o->tenants.quotas[tenant].disk, pt_slots_on(d, tenant), d->slots, tenant, slots, need);
}

static inline pt_candidate pt_coldest_of(const pt_owner *o, pt_policy *list)
{
    pt_candidate c = {list, PT_NONE, PT_STAYS, UINT64_MAX};
    c.entry = o->kind->coldest(list, &c.tick);
    c.precedence = c.entry == PT_NONE ? PT_STAYS : PT_LEAVES;
    return c;
}

/* Returns the one of two candidates that leaves first. */
static inline pt_candidate pt_first(pt_candidate one, pt_candidate other)
{
    bool later = one.precedence > other.precedence || (one.precedence == other.precedence && one.tick > other.tick);
    return later ? other : one;
}

/* Returns the page of the lists of all tenants that should leave the arena first, of
 * those that were used before `before`. */
static inline pt_candidate pt_first_in_memory(const pt_owner *o, pt_policy *const *lists, uint64_t before)
{
    pt_candidate first = {lists[0], PT_NONE, PT_STAYS, UINT64_MAX};
    if (o->tenants.count == 1)
        return pt_coldest_of(o, lists[0]);
    for (uint32_t tenant = 0; tenant < o->tenants.count; tenant++) {
        pt_candidate c = pt_coldest_of(o, lists[tenant]);
        if (c.entry == PT_NONE || c.tick >= before || (c.precedence = pt_precedence_in_memory(o, c.entry)) == PT_STAYS)
            continue;
        first = pt_first(first, c);
    }
    return first;
}

/* Returns the page of a device that should leave it first. */
static inline pt_candidate pt_first_on_disk(const pt_owner *o, const pt_device *d, pt_need need, uint64_t before)
{
    pt_candidate first = {NULL, PT_NONE, PT_STAYS, UINT64_MAX};
    for (uint32_t tenant = 0; d->listed[0] && tenant < o->tenants.count; tenant++) {
        pt_candidate c = pt_coldest_of(o, d->listed[tenant]);
        if (c.entry == PT_NONE || c.tick >= before ||
            (c.precedence = pt_precedence_on_disk(o, d, c.entry, need)) == PT_STAYS)
            continue;
        first = pt_first(first, c);
    }
    return first;
}

/* ---- tenants at their limits ---- */

/* Returns whether a tenant has more of the arena than its maximum. */
static inline bool pt_is_above(const pt_owner *o, uint32_t tenant)
{
    return o->tenants.frames[tenant] > o->tenants.most[tenant];
}

/* Returns the frames of the arena that a tenant can lose to others. */
static inline uint64_t pt_spare_frames(const pt_owner *o, uint32_t tenant)
{
    uint64_t used = o->tenants.frames[tenant];
    uint64_t least = pt_least_frames(o->tenants.quotas[tenant].memory, o->view.frame_count);
    return used > least ? used - least : 0;
}

/* The frames that a tenant is to get. */
typedef struct {
    uint32_t tenant;
    uint64_t frames, most; /* most: frames that it may have then */
} pt_wanted;

/* Makes room for this tenant from now on. Returns whether it has to give pages before it gets the frames, or finds too
 * few that are free. */
static inline bool pt_update_need(pt_owner *o, const pt_wanted *w)
{
    o->tenants.need = (pt_need){w->tenant, o->tenants.frames[w->tenant] + w->frames > w->most};
    return o->tenants.need.own_only || o->view.header->free_frames < w->frames;
}

/* Returns a tenant that has more than its maximum, or PT_NOBODY. */
static inline uint32_t pt_tenant_above(const pt_owner *o)
{
    for (uint32_t tenant = 1; tenant < o->tenants.count; tenant++)
        if (pt_is_above(o, tenant))
            return tenant;
    return PT_NOBODY;
}

/* Returns the tenants that have frames of the arena and lose none to this one, as bits. */
static inline uint32_t pt_protected_from(const pt_owner *o, uint32_t tenant, uint32_t frames)
{
    const pt_tenants *t = &o->tenants;
    uint32_t bits = 0;
    for (uint32_t other = 1; other < t->count; other++) {
        enum pt_precedence precedence = pt_precedence_by(t->quotas[other].memory, t->frames[other], o->view.frame_count,
                                                         other, frames, (pt_need){tenant, false});
        bits |= (uint32_t)(t->frames[other] && precedence == PT_STAYS) << other;
    }
    return bits;
}

/* Returns the same for the devices of the disk tier. */
static inline uint32_t pt_protected_on_disk(const pt_owner *o, uint32_t tenant, uint32_t frames)
{
    uint32_t bits = 0;
    for (const pt_device *d = o->disk.devices; d < o->disk.devices + PT_DEVICES; d++)
        for (uint32_t other = 1; other < o->tenants.count; other++) {
            pt_bounds share = o->tenants.quotas[other].disk;
            uint64_t used = pt_slots_on(d, other);
            uint32_t slots = pt_slots_for(o->view.header, d, frames * o->view.frame_bytes);
            enum pt_precedence precedence = pt_precedence_by(share, used, d->slots, other, slots,
                                                             (pt_need){tenant, false});
            bits |= (uint32_t)(used && precedence == PT_STAYS) << other;
        }
    return bits;
}

/* Returns whether a namespace can lose all its pages without a loss below the minimum of its tenant. */
static inline bool pt_tenant_spares(const pt_owner *o, const pt_space *s)
{
    uint32_t tenant = s->tenant;
    const pt_quota *quota = &o->tenants.quotas[tenant];
    uint64_t on_disk = 0, least_on_disk = 0, frame = o->view.frame_bytes;
    if (!quota->memory.least && !quota->disk.least)
        return true;
    for (const pt_device *d = o->disk.devices; d < o->disk.devices + PT_DEVICES; d++) {
        on_disk += pt_slots_on(d, tenant) * pt_slot_bytes(o->view.header, d) / frame;
        least_on_disk += pt_frames_of_slots(o->view.header, d, pt_least_frames(quota->disk, d->slots));
    }
    return o->tenants.frames[tenant] >=
               pt_least_frames(quota->memory, o->view.frame_count) + s->bytes / frame + s->pages &&
           on_disk >= least_on_disk + s->disk_bytes / frame + s->disk_pages;
}
