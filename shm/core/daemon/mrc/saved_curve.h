/* saved_curve.h - the curve as bytes: the disk tier keeps them while there are no segments, from a stop that
 * releases the memory to the next start.
 *
 * Ages pass while the daemon is down: the sums fade, and keys get older. The bytes may be damaged, or come from another
 * build: they have a checksum, and are checked as a curve that a dead daemon left. */
#pragma once

#include "../../common/entry_checksum.h"
#include "lookups.h"

typedef struct {
    uint64_t layout; /* PT_SAVED_LAYOUT */
    uint64_t checksum; /* of everything after it */
    uint64_t saved_ns; /* of the realtime clock */
    uint64_t window_ns, frame_bytes;
} pt_saved_head;

#define PT_SAVED_VERSION 1ull /* raised when the meaning of the bytes changes, and not the size of the curve */
#define PT_SAVED_LAYOUT (PT_SAVED_VERSION << 56 | PT_CURVE_LAYOUT)
#define PT_SAVED_SUMS offsetof(pt_curve, sampled) /* bytes of a curve before its keys */
#define PT_SAVED_MOST (sizeof(pt_saved_head) + PT_SAVED_SUMS + sizeof(pt_sampled) * PT_SAMPLED)
_Static_assert(sizeof(pt_saved_head) % 8 == 0 && PT_SAVED_SUMS % 8 == 0, "the checksum is one of words");

static inline uint64_t pt_realtime_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Returns the checksum of saved bytes, of which `bytes` are a multiple of 8. */
static inline uint64_t pt_saved_checksum(const uint8_t *saved, size_t bytes)
{
    uint64_t checksum = bytes, word;
    for (size_t at = offsetof(pt_saved_head, saved_ns); at < bytes; at += sizeof word) {
        memcpy(&word, saved + at, sizeof word);
        checksum = pt_checksum_add(checksum, word);
    }
    return checksum;
}

/* Writes the curve to `saved`, which has room for PT_SAVED_MOST bytes. Returns how many it wrote. */
static inline size_t pt_curve_save(const pt_lookups *l, const pt_view *v, uint64_t now, uint8_t *saved)
{
    const pt_curve *c = l->order.curve;
    pt_saved_head head = {PT_SAVED_LAYOUT, 0, pt_realtime_ns(), l->window_ns, v->frame_bytes};
    size_t bytes = sizeof head + PT_SAVED_SUMS + sizeof(pt_sampled) * c->keys;
    uint8_t moment = pt_curve_moment(now, l->window_ns);
    memcpy(saved + sizeof head, c, bytes - sizeof head);
    pt_sampled *keys = (pt_sampled *)(saved + sizeof head + PT_SAVED_SUMS);
    for (uint32_t key = 0; key < c->keys; key++)
        keys[key].used = (uint8_t)(moment - keys[key].used); /* its age: the clock may begin again */
    memcpy(saved, &head, sizeof head);
    head.checksum = pt_saved_checksum(saved, bytes);
    memcpy(saved, &head, sizeof head);
    return bytes;
}

/* Copies saved bytes into `c`, which is zeroed. Returns false if they are no curve for these frames. */
static inline bool pt_curve_decode(const pt_view *v, const uint8_t *saved, size_t bytes, pt_saved_head *head,
                                   pt_curve *c)
{
    if (bytes < sizeof *head + PT_SAVED_SUMS || bytes > PT_SAVED_MOST || bytes % 8)
        return false;
    memcpy(head, saved, sizeof *head);
    if (head->layout != PT_SAVED_LAYOUT || head->checksum != pt_saved_checksum(saved, bytes) ||
        head->frame_bytes != v->frame_bytes)
        return false;
    memcpy(c, saved + sizeof *head, bytes - sizeof *head);
    return sizeof *head + PT_SAVED_SUMS + sizeof(pt_sampled) * (size_t)c->keys == bytes && pt_order_is_valid(c);
}

/* Lets the time pass that the daemon was down. */
static inline void pt_curve_age(pt_curve *c, const pt_saved_head *head, uint64_t now)
{
    uint64_t realtime = pt_realtime_ns(), down = realtime > head->saved_ns ? realtime - head->saved_ns : 0;
    uint64_t moments = down / (head->window_ns / PT_CURVE_MOMENTS + 1), oldest = 2 * PT_CURVE_MOMENTS;
    uint8_t moment = pt_curve_moment(now, head->window_ns);
    for (uint32_t key = 0; key < c->keys; key++) {
        uint64_t age = c->sampled[key].used + moments;
        c->sampled[key].used = (uint8_t)(moment - (age < oldest ? age : oldest));
    }
    pt_curve_fade_by(c, exp(-(double)down / (double)(head->window_ns + 1)));
    c->known_ns += down;
    c->faded_ns = now;
}

/* Puts a curve into the index, except for what is counted since the segments were made. A daemon that dies in
 * between leaves a curve without a layout. */
static inline void pt_curve_install(pt_curve *c, const pt_curve *from)
{
    double absent_ever[PT_ABSENCES];
    uint64_t lost = c->lost;
    memcpy(absent_ever, c->absent_ever, sizeof absent_ever);
    c->layout = 0;
    atomic_signal_fence(memory_order_seq_cst);
    memcpy((uint8_t *)c + sizeof c->layout, (const uint8_t *)from + sizeof c->layout, sizeof *c - sizeof c->layout);
    memcpy(c->absent_ever, absent_ever, sizeof absent_ever);
    c->lost = lost;
    atomic_signal_fence(memory_order_seq_cst);
    c->layout = PT_CURVE_LAYOUT;
}

/* Continues a saved curve in the index, unless the present one knows more. Returns false if the bytes cannot be used.
 * The caller derives again what follows from the curve. */
static inline bool pt_curve_restore(const pt_view *v, const uint8_t *saved, size_t bytes, uint64_t now,
                                    pt_curve *scratch)
{
    pt_saved_head head;
    pt_curve *present = (pt_curve *)v->curve;
    if (!pt_curve_decode(v, saved, bytes, &head, scratch))
        return false;
    pt_curve_age(scratch, &head, now);
    if (present->layout != PT_CURVE_LAYOUT ||
        scratch->hit_pages + scratch->miss_pages > present->hit_pages + present->miss_pages)
        pt_curve_install(present, scratch);
    return true;
}
