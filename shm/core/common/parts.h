/* parts.h - the bits of a page's parts: done by the writer, and released by it. Writers set them, and the daemon sets
 * those of writers that died. */
#pragma once

#include "view.h"

static inline uint32_t pt_done_bits(uint64_t parts) { return (uint32_t)parts; }
static inline uint32_t pt_gone_bits(uint64_t parts) { return (uint32_t)(parts >> 32); }
static inline uint32_t pt_all_parts(const pt_entry *entry)
{
    return entry->parts >= 32 ? 0xffffffffu : (1u << entry->parts) - 1;
}

static inline uint64_t pt_gone_bit(uint32_t part) { return 1ull << (32 + part); }

/* Releases a part without finishing it: the page will be doomed, and its frames become free when all writers have
 * released them. The caller guarantees that the part was granted to it, that it has not released it, and that it no
 * longer touches the frames. Release: what it wrote to the frames happens before what their next owner writes. */
static inline void pt_part_abandon(const pt_view *v, uint32_t entry, uint32_t part)
{
    atomic_fetch_or_explicit(&v->locks[entry].parts, pt_gone_bit(part), memory_order_acq_rel);
    PT_POINT("part.abandoned");
}

