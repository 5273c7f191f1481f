/* adopt.h - a new daemon takes over the segments that an earlier daemon left.
 *
 * An adoption keeps every page that is provably complete and frees everything else. It trusts the entries, their lock
 * words and the owners of the frames. Everything else is derived from them: the free lists, the namespace lists, the
 * counts, the eviction policy and the dictionary. The dictionary is built beside the one that is in use and then
 * switched to with one store, so that processes which match at the same time never see an incomplete dictionary. What
 * the index says about the disk is not used: the new worker reports what the files contain. */
#pragma once

#include "attachments.h"
#include "flush.h"
#include "../common/entry_checksum.h"

/* Returns the geometry of new segments, with all places that this build uses. The ring has
 * room for four events of each page. */
static inline pt_geometry pt_geometry_of(uint64_t frame_bytes, uint32_t frames, uint32_t entries, uint32_t spaces)
{
    uint64_t events = entries < PT_EVENTS / 4 ? 4 * (uint64_t)entries : PT_EVENTS;
    pt_reserves reserves = {pt_round_up(events * sizeof(pt_event)), PT_CURVE_BYTES, PT_SAMPLES_BYTES};
    return (pt_geometry){frame_bytes, frames, entries, spaces, reserves};
}

/* Formats new segments; all their bytes are zero. The magic is written last, so that half-formatted segments are not
 * recognized. */
static inline void pt_format(void *index, void *locks, const pt_geometry *g, uint64_t id, const char *build)
{
    pt_header *h = index;
    pt_locks_header *l = locks;
    pt_plan(h, g);
    h->header_bytes = sizeof *h;
    PT_POINT("format.planned");
    h->segments_id = l->segments_id = id;
    strncpy(h->build, build, sizeof h->build - 1);
    h->next_serial = 1;
    h->format = l->format = PT_FORMAT;
    l->magic = PT_MAGIC;
    PT_POINT("format.locks");
    atomic_thread_fence(memory_order_release);
    h->magic = PT_MAGIC;
    PT_POINT("format.done");
}

/* no daemon lives long enough to grant so many: a serial from here on is damage, and would wrap */
#define PT_SERIALS_END (1ull << 62)

static inline void pt_forget_derived(pt_owner *o)
{
    pt_header *h = o->view.header;
    uint64_t now = pt_now_ns();
    h->free_entry = h->free_frame = h->open_first = h->open_last = PT_NONE;
    h->free_entries = h->free_frames = h->open_entries = 0;
    h->pages = h->bytes = h->used_frames = 0;
    memset(o->tenants.frames, 0, sizeof o->tenants.frames);
    h->disk_frames = h->disk_used_frames = h->disk_pages = h->disk_bytes = 0;
    h->status_bytes = 0;
    pt_stop_events(&o->view); /* the daemon before may have died between a change and its event */
    atomic_store_explicit(&h->disk_complete, 0, memory_order_relaxed);
    if (!h->next_serial || h->next_serial >= PT_SERIALS_END)
        h->next_serial = 1;
    PT_POINT("adopt.forgetting");
    /* Makes the version even again if its writer died while it was odd. Otherwise
     * no reader would ever accept a text. */
    atomic_fetch_add_explicit(&h->status_version, h->status_version & 1 ? 1 : 2, memory_order_release);
    for (uint32_t i = 0; i < h->spaces; i++) {
        pt_space *s = &o->view.spaces[i];
        s->first = PT_NONE;
        s->tenant = 0;
        s->pages = s->bytes = s->disk_pages = s->disk_bytes = s->disk_stored = s->listed = 0;
        /* a damaged time in the future would keep the namespace forever */
        s->used_ns = s->used_ns < now ? s->used_ns : now;
    }
}

/* Marks the frames of a page in `seen`, one byte per frame. Returns false, with no frame marked, if the list is
 * incomplete, has frames of another entry, or does not match the entry's checksum. */
static inline bool pt_claim_frame_list(const pt_view *v, uint32_t entry, uint8_t *seen)
{
    const pt_entry *e = &v->entries[entry];
    uint32_t frame = e->first_frame, claimed = 0;
    while (claimed < e->frame_count && frame < v->frame_count && v->frames[frame].owner == entry && !seen[frame]) {
        seen[frame] = 1;
        claimed++;
        frame = v->frames[frame].next;
    }
    if (claimed == e->frame_count && frame == PT_NONE && pt_entry_checksum_matches(v, entry))
        return true;
    for (frame = e->first_frame; claimed--; frame = v->frames[frame].next)
        seen[frame] = 0;
    return false;
}

static inline bool pt_sound(const pt_view *v, const pt_entry *e)
{
    return e->size && e->size <= (uint64_t)v->frame_count * v->frame_bytes &&
           e->frame_count == pt_frames_for(v, e->size) && e->serial && e->serial < PT_SERIALS_END &&
           e->space < v->header->spaces && v->spaces[e->space].used && e->parts >= 1 && e->parts <= PT_PARTS;
}

/* The state of one adoption. alive: bits of the slots whose process lives. seen: one byte per
 * frame; 1 if the frame belongs to a page. */
typedef struct {
    pt_dict dict;
    uint64_t alive;
    uint8_t *seen;
} pt_adoption;

/* Releases the parts whose writer is dead, and records the death in the entry before the slot becomes free. A damaged
 * entry can name a writer that never existed: its part is released, too, because no process would ever release it. */
static inline void pt_release_dead_parts(const pt_view *v, uint32_t entry, uint64_t alive)
{
    pt_entry *e = &v->entries[entry];
    for (uint32_t part = 0; part < e->parts; part++)
        if (e->writers[part] != PT_NO_WRITER && (e->writers[part] >= PT_SLOTS || !(alive >> e->writers[part] & 1))) {
            pt_part_abandon(v, entry, part);
            e->writers[part] = PT_ENDED_WRITER;
        }
}

/* Decides what an entry is, after the pins of dead processes were cleared. Returns true if the entry keeps its page. */
static inline bool pt_adopt_entry(pt_owner *o, const pt_adoption *a, uint32_t entry)
{
    pt_view *v = &o->view;
    pt_entry *e = &v->entries[entry];
    enum pt_state state = pt_load_state(&v->locks[entry].word);
    e->on_list = PT_LIST_NONE;
    if (state == PT_FREE || state > PT_DOOMED || !pt_sound(v, e) || !pt_claim_frame_list(v, entry, a->seen))
        return false;
    v->header->used_frames += e->frame_count;
    v->histories[entry].tenant = 0; /* until the quotas are set */
    o->tenants.frames[0] += e->frame_count;
    /* The commands to the worker and the number of the reservation ended with the daemon before. The worker of
     * this daemon reports what is on disk. */
    e->marks = 0;
    e->reservation = 0;
    pt_put_tiers(e, 0);
    /* The header may be older than the entry. A serial that is used twice would pin another page than was matched. */
    if (e->serial >= v->header->next_serial)
        v->header->next_serial = e->serial + 1;
    PT_POINT("adopt.claimed");
    if (state != PT_DOOMED) {
        /* A second entry of a key, or one without room in the dictionary, can never be found. A reader may have it
         * pinned nevertheless: it is doomed, and freed like every doomed page. */
        if (pt_dict_find(v, a->dict, e->key) != PT_NONE || !pt_dict_add(v, a->dict, entry))
            pt_change(&v->locks[entry].word, pt_load_state(&v->locks[entry].word), PT_DOOMED);
        else {
            pt_space_add(v, entry);
            PT_POINT("adopt.named");
            pt_page_enters(o, entry);
        }
    }
    /* Readable pages go to the open list too. Settling judges all pages in one place, by the parts that are left. */
    pt_release_dead_parts(v, entry, a->alive);
    pt_open_add(v, entry);
    PT_POINT("adopt.opened");
    return true;
}

static inline void pt_adopt_nothing(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    e->first_frame = PT_NONE;
    e->frame_count = 0;
    e->marks = 0;
    pt_put_tiers(e, 0);
    pt_history_clear(&o->view.histories[entry]);
}

static inline void pt_prefetch_home(const pt_view *v, pt_dict d, uint32_t entry)
{
    if (entry < v->entry_count)
        pt_prefetch_write(&d.buckets[pt_home(v, v->entries[entry].key)]);
}

/* Dooms a page that was only on disk. Returns true if the entry was such a page. A reader may be comparing the entry's
 * key at this time, so the entry stays on the open list until it is unpinned. */
static inline bool pt_adopt_forgotten(pt_owner *o, uint32_t entry)
{
    pt_entry *e = &o->view.entries[entry];
    enum pt_state state = pt_load_state(&o->view.locks[entry].word);
    if (state != PT_ON_DISK && (state != PT_DOOMED || e->frame_count))
        return false;
    pt_change(&o->view.locks[entry].word, PT_ON_DISK, PT_DOOMED);
    PT_POINT("adopt.off_disk");
    memset(e->writers, PT_NO_WRITER, sizeof e->writers);
    pt_adopt_nothing(o, entry);
    pt_open_add(&o->view, entry);
    return true;
}

static inline void pt_adopt_entries(pt_owner *o, const pt_adoption *a)
{
    pt_view *v = &o->view;
    pt_daemon_counts *counters = &v->header->counters;
    for (uint32_t entry = v->entry_count; entry-- > 0;) {
        pt_prefetch_home(v, a->dict, entry >= 16 ? entry - 16 : PT_NONE);
        if (pt_adopt_entry(o, a, entry)) {
            counters->adopted += pt_tiers(&v->entries[entry]) & PT_TIER_MEMORY ? 1 : 0; /* a doomed page is none */
            continue;
        }
        if (pt_adopt_forgotten(o, entry))
            continue;
        counters->dropped += pt_load_state(&v->locks[entry].word) != PT_FREE;
        /* The pins of living readers stay: they clear their own bits later, whatever the entry is then. */
        atomic_fetch_and_explicit(&v->locks[entry].word, PT_PINS, memory_order_acq_rel);
        pt_adopt_nothing(o, entry);
        pt_entry_put(v, entry);
        PT_POINT("adopt.dropped");
    }
}

/* Frees the slots of dead processes and counts the deaths; `alive` has the bits of the others. Their
 * pins and parts were already released. */
static inline void pt_free_dead_slots(pt_owner *o, uint64_t alive)
{
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++) {
        bool taken = atomic_load_explicit(&o->view.slots[slot].pid, memory_order_relaxed);
        if (!taken || alive >> slot & 1)
            continue;
        pt_fold_counts(&o->view, slot);
        pt_end_reader(&o->view, 1ull << slot);
        atomic_store_explicit(&o->view.slots[slot].pid, 0, memory_order_release);
        o->view.header->counters.deaths++;
    }
}

/* Adopts the segments: derives everything from the entries. `alive` has the bits of the slots whose
 * process lives. Returns false if memory is short; then nothing was changed. The caller guarantees that
 * no other daemon uses these segments.
 *
 * The steps, each of which may be the last one of this daemon:
 *   1. Reset all derived data, and clear the dictionary that is not in use.
 *   2. Clear the pins of dead processes. Only then a page can be judged by its lock word.
 *   3. Walk the entries. An entry whose record is sound, whose list of frames is complete and whose checksum matches
 *      keeps its page: it enters the new dictionary and its namespace, its dead writers are replaced by
 *      PT_ENDED_WRITER, and it goes to the open list. A page that was only on disk is doomed. All others become free
 *      entries.
 *   4. Accept what is known of the uses of these pages, where it can be true, and put the frames that no page claimed
 *      on the free list.
 *   5. Switch to the new dictionary with one store, and increment the incarnation.
 *   6. Free the slots of dead processes. That comes after step 3, so that an entry never names the next process of a
 *      slot as its writer.
 *   7. Settle all open entries: complete pages go to the eviction policy, incomplete pages without a living writer are
 *      doomed. */
static inline bool pt_adopt(pt_owner *o, uint64_t alive)
{
    pt_view *v = &o->view;
    uint64_t number = atomic_load_explicit(&v->header->dictionary, memory_order_relaxed) + 1;
    pt_dict d = pt_dict_of(v, number);
    uint8_t *seen = calloc(v->frame_count, 1);
    uint32_t *entries_seen = calloc(v->entry_count, sizeof *entries_seen);
    if (!seen || !entries_seen) {
        free(seen);
        free(entries_seen);
        return false;
    }
    alive &= pt_taken_slots(v);
    pt_forget_derived(o);
    PT_POINT("adopt.forgotten");
    pt_dict_clear(d);
    PT_POINT("adopt.cleared");
    pt_clear_pins(v, ~alive);
    pt_adopt_entries(o, &(pt_adoption){d, alive, seen});
    PT_POINT("adopt.entries");
    pt_histories_adopt(v, entries_seen, pt_now_ns());
    free(entries_seen);
    for (uint32_t frame = v->frame_count; frame-- > 0;)
        if (!seen[frame])
            pt_frame_put(v, frame);
    PT_POINT("adopt.frames");
    free(seen);
    /* Release: a reader that reads this number sees every key in its dictionary
     * (tests/models/orders/switch_order.pml). */
    atomic_store_explicit(&v->header->dictionary, number, memory_order_release);
    PT_POINT("adopt.switched");
    atomic_fetch_add_explicit(&v->header->incarnation, 1, memory_order_acq_rel);
    PT_POINT("adopt.counted");
    pt_free_dead_slots(o, alive);
    pt_settle_all(o, pt_now_ns());
    PT_POINT("adopt.settled");
    return true;
}
