/* quotas.h - the quotas change: at the start of a daemon, and at a reload. */
#pragma once

#include "disk_tier.h"

/* Makes the policies of more tenants. Returns false if memory is short. */
static inline bool pt_more_tenants(pt_owner *o, uint32_t count)
{
    bool made = pt_policies_begin(o->kind, o->view.entry_count, count, o->ready) &&
                pt_policies_begin(o->kind, o->view.entry_count, count, o->unwritten);
    for (pt_device *d = o->disk.devices; made && d < o->disk.devices + PT_DEVICES; d++)
        made = !d->listed[0] || pt_policies_begin(o->kind, o->view.entry_count, count, d->listed);
    return made;
}

/* Counts a page for the tenant of its namespace, and lists it there. */
static inline void pt_count_for_tenant(pt_owner *o, uint32_t entry, uint64_t now)
{
    pt_entry *e = &o->view.entries[entry];
    pt_device *d = pt_device_of(o, entry);
    uint64_t tick = pt_correct_tick(o, entry, now);
    bool listed = pt_unlist(o, entry), on_disk = pt_tiers(e) & PT_TIER_DISK;
    if (on_disk)
        o->kind->remove(d->listed[pt_tenant_of(o, entry)], entry);
    if (e->space < o->view.header->spaces) /* a doomed entry may have any, if an adoption found it damaged */
        pt_join_tenant(o, entry);
    uint32_t tenant = pt_tenant_of(o, entry);
    o->tenants.frames[tenant] += e->frame_count;
    d->ordered_of[tenant] += e->marks & PT_MARK_ORDERED ? pt_slots_for(o->view.header, d, e->size) : 0;
    d->used_of[tenant] += on_disk ? pt_slots_of(o, entry) : 0;
    if (on_disk)
        o->kind->add(d->listed[tenant], entry, tick);
    if (listed)
        pt_list(o, entry, tick);
}

/* Sets the quotas of tenants 1 to before `count`, and the tenant of each namespace. What the pages use is
 * derived again: a walk over all entries. Returns false if memory is short; then nothing has changed. The
 * caller guarantees that the tenants exist. */
static inline bool pt_set_quotas(pt_owner *o, const pt_quota *quotas, uint32_t count, const uint8_t *tenant_of_space,
                                 uint64_t now)
{
    if (!pt_more_tenants(o, count))
        return false;
    o->tenants = pt_one_tenant();
    o->tenants.count = count;
    for (uint32_t tenant = 1; tenant < count; tenant++)
        o->tenants.quotas[tenant] = quotas[tenant],
        o->tenants.most[tenant] = pt_most_frames(quotas[tenant].memory, o->view.frame_count);
    for (pt_device *d = o->disk.devices; d < o->disk.devices + PT_DEVICES; d++) {
        memset(d->used_of, 0, sizeof d->used_of);
        memset(d->ordered_of, 0, sizeof d->ordered_of);
    }
    for (uint32_t s = 0; s < o->view.header->spaces; s++)
        o->view.spaces[s].tenant = tenant_of_space[s];
    for (uint32_t entry = 0; entry < o->view.entry_count; entry++)
        if (o->view.entries[entry].on_list != PT_LIST_FREE)
            pt_count_for_tenant(o, entry, now);
    return true;
}
