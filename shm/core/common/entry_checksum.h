/* entry_checksum.h - the checksum of an entry, stored beside its lock word. With it a new daemon recognizes entries
 * that are damaged, that are older than their lock words, or that were written over another entry.
 *
 * The checksum covers everything that a page is served by: key, serial, size, namespace, division, parts, and the
 * frames in their order. It is written before the state leaves PT_FREE or PT_ON_DISK. 0 means that the entry was
 * written by a build without checksums; such an entry is accepted. Engines can write to the checksum as they can write
 * to the lock word: that costs them the page at the next adoption. The bytes of a page have no checksum in memory. */
#pragma once

#include "view.h"

static inline uint64_t pt_checksum_add(uint64_t checksum, uint64_t word)
{
    checksum = (checksum ^ word) * 0x9e3779b97f4a7c15ull;
    return checksum ^ checksum >> 32;
}

/* Computes the checksum of an entry. The caller guarantees that the list of frames lies within the
 * frames and has frame_count of them. */
static inline uint64_t pt_entry_checksum(const pt_view *v, const pt_entry *e)
{
    uint64_t words[4], checksum = pt_checksum_add(e->serial, e->size);
    memcpy(words, e->key, sizeof words);
    for (uint32_t i = 0; i < 4; i++)
        checksum = pt_checksum_add(checksum, words[i]);
    checksum = pt_checksum_add(checksum, (uint64_t)e->space << 32 | e->division);
    checksum = pt_checksum_add(checksum, (uint64_t)e->frame_count << 32 | e->parts);
    for (uint32_t left = e->frame_count, frame = e->first_frame; left; left--, frame = v->frames[frame].next)
        checksum = pt_checksum_add(checksum, frame);
    return checksum ? checksum : 1;
}

static inline void pt_write_entry_checksum(const pt_view *v, uint32_t entry)
{
    atomic_store_explicit(&v->locks[entry].checksum, pt_entry_checksum(v, &v->entries[entry]), memory_order_relaxed);
}

static inline bool pt_entry_checksum_matches(const pt_view *v, uint32_t entry)
{
    uint64_t checksum = atomic_load_explicit(&v->locks[entry].checksum, memory_order_relaxed);
    return !checksum || checksum == pt_entry_checksum(v, &v->entries[entry]);
}
