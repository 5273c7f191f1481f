/* namespaces.h - namespaces: found by digest, created on first use; a record without pages
 * is reused when the table is full. */
#pragma once

#include "view.h"

/* Returns the number of the namespace with this digest: notes its use, or creates it. Returns
 * PT_NONE if the table is full and every namespace has pages. A number means the same namespace only while
 * that namespace has pages, so callers must not keep it. Records are used in order and never freed, so the
 * first unused record ends the search. */
static inline uint32_t pt_intern_space(pt_view *v, const pt_space *wanted)
{
    uint32_t spare = PT_NONE;
    for (uint32_t s = 0; s < v->header->spaces; s++) {
        pt_space *have = &v->spaces[s];
        if (have->used && !memcmp(have->digest, wanted->digest, PT_KEY_BYTES)) {
            have->used_ns = wanted->used_ns;
            have->tenant = have->listed ? have->tenant : wanted->tenant;
            return s;
        }
        if (!have->used || (!have->listed && spare == PT_NONE))
            spare = s;
        if (!have->used)
            break;
    }
    if (spare != PT_NONE)
        v->spaces[spare] = *wanted;
    PT_POINT("space.made");
    return spare;
}

/* Returns how many namespaces the table has room for: records that are unused or have no pages. */
static inline uint32_t pt_spare_spaces(const pt_view *v)
{
    uint32_t spare = 0;
    for (uint32_t s = 0; s < v->header->spaces; s++) {
        if (!v->spaces[s].used)
            return spare + v->header->spaces - s;
        spare += !v->spaces[s].listed;
    }
    return spare;
}
