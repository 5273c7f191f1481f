/* entry_checksum.h - the checksum of an entry, stored beside its lock word. With it a new daemon recognizes entries that are
 * damaged,
 * that are older than their lock words, or that were written over another entry.
 *
 * The checksum covers everything that a page is served by: key, serial, size, namespace, division, parts, and the frames in
 * their
 * order. It is written before the state leaves PT_FREE or PT_ON_DISK. 0 means that the entry was written by a build without
 * checksums; such an entry is accepted. Engines can write to the checksum as they can write to the lock word: that costs them
 * the page at
 * the next adoption. The bytes of a page have no checksum in memory. */
#pragma once

#include "view.h"

static inline uint64_t pt_seal_add(uint64_t seal, uint64_t word)
{
    seal = (seal ^ word) * 0x9e3779b97f4a7c15ull;
    return seal ^ seal >> 32;
}

/* Computes the checksum of an entry. The caller guarantees that the chain lies within the frames and has frame_count of them. */
static inline uint64_t pt_seal_of(const pt_view *v, const pt_entry *e)
{
    uint64_t words[4], seal = pt_seal_add(e->serial, e->size);
    memcpy(words, e->key, sizeof words);
    for (uint32_t i = 0; i < 4; i++)
        seal = pt_seal_add(seal, words[i]);
    seal = pt_seal_add(seal, (uint64_t)e->space << 32 | e->division);
    seal = pt_seal_add(seal, (uint64_t)e->frame_count << 32 | e->parts);
    for (uint32_t left = e->frame_count, frame = e->first_frame; left; left--, frame = v->frames[frame].next)
        seal = pt_seal_add(seal, frame);
    return seal ? seal : 1;
}

static inline void pt_seal(const pt_view *v, uint32_t entry)
{
    atomic_store_explicit(&v->locks[entry].seal, pt_seal_of(v, &v->entries[entry]), memory_order_relaxed);
}

static inline bool pt_seal_holds(const pt_view *v, uint32_t entry)
{
    uint64_t seal = atomic_load_explicit(&v->locks[entry].seal, memory_order_relaxed);
    return !seal || seal == pt_seal_of(v, &v->entries[entry]);
}
