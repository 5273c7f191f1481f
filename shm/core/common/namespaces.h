/* namespaces.h - namespaces: found by digest, made on first use, reused when the table is full and one has no pages. */
#pragma once

#include "view.h"

/* The number of the namespace with this digest, used from now on and made if need be; PT_NONE if every one of a full table
 * has pages. A number means the same namespace only while that has pages: it is not to be kept for later.
 * Records are used from the first on and never given back, so the first unused one ends the search. */
static inline uint32_t pt_space_of(pt_view *v, const pt_space *wanted)
{
    uint32_t spare = PT_NONE;
    for (uint32_t s = 0; s < v->header->spaces; s++) {
        pt_space *have = &v->spaces[s];
        if (have->used && !memcmp(have->digest, wanted->digest, PT_KEY_BYTES)) {
            have->used_ns = wanted->used_ns;
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

/* How many namespaces the table has room for: records that nobody has used, or that have no pages. */
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
