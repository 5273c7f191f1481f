/* lists.h - linked lists over entries and frames. Only the daemon changes them. An adoption rebuilds them. */
#pragma once

#include "view.h"

/* ---- free entries: a stack ---- */

static inline void pt_entry_put(const pt_view *v, uint32_t entry)
{
    pt_header *h = v->header;
    v->entries[entry].on_list = PT_LIST_FREE;
    v->entries[entry].list_next = h->free_entry;
    h->free_entry = entry;
    h->free_entries++;
}

static inline uint32_t pt_entry_take(const pt_view *v)
{
    pt_header *h = v->header;
    uint32_t entry = h->free_entry;
    if (entry == PT_NONE)
        return entry;
    h->free_entry = v->entries[entry].list_next;
    h->free_entries--;
    v->entries[entry].on_list = PT_LIST_NONE;
    if (h->free_entry != PT_NONE) { /* both of its cache lines: a store takes several entries */
        pt_prefetch_write(&v->entries[h->free_entry]);
        pt_prefetch_write(&v->entries[h->free_entry].list_next);
    }
    return entry;
}

/* ---- open reservations, the oldest first: entries that not all writers have released ---- */

static inline void pt_open_add(const pt_view *v, uint32_t entry)
{
    pt_header *h = v->header;
    pt_entry *e = &v->entries[entry];
    e->on_list = PT_LIST_OPEN;
    e->list_prev = h->open_last;
    e->list_next = PT_NONE;
    *(h->open_last == PT_NONE ? &h->open_first : &v->entries[h->open_last].list_next) = entry;
    h->open_last = entry;
    h->open_entries++;
}

static inline void pt_open_remove(const pt_view *v, uint32_t entry)
{
    pt_header *h = v->header;
    pt_entry *e = &v->entries[entry];
    *(e->list_prev == PT_NONE ? &h->open_first : &v->entries[e->list_prev].list_next) = e->list_next;
    *(e->list_next == PT_NONE ? &h->open_last : &v->entries[e->list_next].list_prev) = e->list_prev;
    e->on_list = PT_LIST_NONE;
    h->open_entries--;
}

/* ---- the pages of a namespace ---- */

static inline void pt_space_add(const pt_view *v, uint32_t entry)
{
    pt_entry *e = &v->entries[entry];
    pt_space *s = &v->spaces[e->space];
    e->space_prev = PT_NONE;
    e->space_next = s->first;
    if (s->first != PT_NONE)
        v->entries[s->first].space_prev = entry;
    s->first = entry;
    s->listed++;
}

static inline void pt_space_remove(const pt_view *v, uint32_t entry)
{
    pt_entry *e = &v->entries[entry];
    pt_space *s = &v->spaces[e->space];
    *(e->space_prev == PT_NONE ? &s->first : &v->entries[e->space_prev].space_next) = e->space_next;
    if (e->space_next != PT_NONE)
        v->entries[e->space_next].space_prev = e->space_prev;
    s->listed--;
}

/* ---- contents of the tiers: the flag of the entry, and the sums ---- */

static inline void pt_enter_memory(const pt_view *v, pt_entry *e)
{
    pt_space *s = &v->spaces[e->space];
    pt_put_tiers(e, pt_tiers(e) | PT_TIER_MEMORY);
    s->pages++;
    s->bytes += e->size;
    v->header->pages++;
    v->header->bytes += e->size;
}

static inline void pt_leave_memory(const pt_view *v, pt_entry *e)
{
    pt_space *s = &v->spaces[e->space];
    pt_put_tiers(e, pt_tiers(e) & ~PT_TIER_MEMORY);
    s->pages--;
    s->bytes -= e->size;
    v->header->pages--;
    v->header->bytes -= e->size;
}

static inline void pt_enter_disk(const pt_view *v, pt_entry *e)
{
    pt_space *s = &v->spaces[e->space];
    pt_put_tiers(e, pt_tiers(e) | PT_TIER_DISK);
    s->disk_pages++;
    s->disk_bytes += e->size;
    v->header->disk_pages++;
    v->header->disk_bytes += e->size;
}

static inline void pt_leave_disk(const pt_view *v, pt_entry *e)
{
    pt_space *s = &v->spaces[e->space];
    pt_put_tiers(e, pt_tiers(e) & ~PT_TIER_DISK);
    s->disk_pages--;
    s->disk_bytes -= e->size;
    v->header->disk_pages--;
    v->header->disk_bytes -= e->size;
}

/* ---- frames: the lists of entries, and the free frames as a stack ---- */

static inline void pt_frame_put(const pt_view *v, uint32_t frame)
{
    pt_header *h = v->header;
    v->frames[frame] = (pt_frame){h->free_frame, PT_NONE};
    h->free_frame = frame;
    h->free_frames++;
}

/* Takes a list of `count` frames for an entry. The caller guarantees that `count` frames are free. */
static inline uint32_t pt_frame_list_take(const pt_view *v, uint32_t entry, uint32_t count)
{
    pt_header *h = v->header;
    uint32_t first = h->free_frame, last = PT_NONE;
    for (uint32_t i = 0; i < count; i++) {
        last = h->free_frame;
        v->frames[last].owner = entry;
        PT_POINT("frames.owned");
        h->free_frame = v->frames[last].next;
    }
    v->frames[last].next = PT_NONE;
    h->free_frames -= count;
    h->used_frames += count;
    return first;
}

static inline void pt_frame_list_put(const pt_view *v, pt_entry *e)
{
    for (uint32_t frame = e->first_frame, next; frame != PT_NONE; frame = next) {
        next = v->frames[frame].next;
        pt_frame_put(v, frame);
        PT_POINT("frames.put");
    }
    v->header->used_frames -= e->frame_count;
    e->first_frame = PT_NONE;
    e->frame_count = 0;
}
