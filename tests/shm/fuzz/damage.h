/* damage.h - changes bytes as other processes could: any byte in any record of a segment. */
#pragma once

#include "place.h"

typedef struct {
    void *at;
    size_t bytes, record;
} area;

/* Chooses a part of the index, of all except the sizes and offsets: attach.c compares
 * those with the sizes of the files. */
static inline area choose_area(place *p)
{
    const pt_view *v = &p->owner.view;
    pt_header *h = v->header;
    const area areas[] = {
        {v->entries, PLACE_ENTRIES * sizeof *v->entries, sizeof *v->entries},
        {v->locks, PLACE_ENTRIES * sizeof *v->locks, sizeof *v->locks},
        {v->frames, PLACE_FRAMES * sizeof *v->frames, sizeof *v->frames},
        {v->buckets[0], (v->bucket_mask + 1) * sizeof(pt_bucket), sizeof(pt_bucket)},
        {v->buckets[1], (v->bucket_mask + 1) * sizeof(pt_bucket), sizeof(pt_bucket)},
        {&h->incarnation, sizeof *h - offsetof(pt_header, incarnation), 8},
        {v->slots, PT_SLOTS * sizeof *v->slots, sizeof *v->slots},
        {v->spaces, SPACES * sizeof *v->spaces, sizeof *v->spaces},
        {v->counts, PT_SLOTS * sizeof *v->counts, sizeof *v->counts},
        {v->histories, PLACE_ENTRIES * sizeof *v->histories, sizeof *v->histories},
        {v->learned, sizeof(pt_learned), 8},
    };
    return areas[choose(&p->choices, sizeof areas / sizeof *areas)];
}

static inline void damage_at(place *p, uint8_t *at, size_t room)
{
    uint64_t number = choose_odd(&p->choices);
    size_t bytes = 1u << choose(&p->choices, 4);
    memcpy(at, &number, bytes < room ? bytes : room);
}

/* A byte, a number, a bit, or a whole record that becomes another one or nothing. */
static inline void damage(place *p, area a)
{
    uint32_t records = (uint32_t)(a.bytes / a.record), record = choose(&p->choices, records);
    uint8_t *at = (uint8_t *)a.at + record * a.record;
    uint32_t inside = choose(&p->choices, (uint32_t)a.record);
    switch (choose(&p->choices, 5)) {
    case 0:
        at[inside] = choose_byte(&p->choices);
        break;
    case 1:
        at[inside] ^= (uint8_t)(1u << choose(&p->choices, 8));
        break;
    case 2:
        memmove(at, (uint8_t *)a.at + choose(&p->choices, records) * a.record, a.record);
        break;
    case 3:
        memset(at, choose_one_in(&p->choices, 2) ? 0xff : 0, a.record);
        break;
    default:
        damage_at(p, at + inside / 4 * 4, a.record - inside / 4 * 4);
    }
}
