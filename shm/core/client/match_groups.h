/* match_groups.h - one match over several groups of a model's state: the longest prefix on which all of them agree.
 *
 * Each group has its own keys for pages of its own size. A hit at p tokens needs of each group the pages that hold its
 * last `needs` tokens before p: all of them for full attention, window - 1 for a sliding window, 1 for a recurrent
 * state, which is whole pages in each case. p is a multiple of every group's page_tokens; all groups agree on p = 0.
 *
 * No key is looked up twice: the result for a page is remembered, and the page stays pinned until the end. Groups
 * that need all their pages are searched first, head first as in pt_match, so that a miss there bounds the
 * others. Windows and snapshots are searched from that bound downwards, those that need least first, and only as
 * far down as the groups may still agree.
 *
 * Recency is stamped, as by pt_match, on all pages that were found of groups that need all of them; of the other groups
 * on the pages that the hit needs, including a hit with pages from disk. It falls from head to tail by tokens, so that
 * the pages of all groups that end together are evicted together. */
#pragma once

#include "match.h"

#define PT_GROUPS 64u
#define PT_NEEDS_ALL UINT64_MAX

/* What is known about a page: its entry, which is pinned, or, with this bit set, is on
 * disk; or one of the two values below. */
#define PT_SEEN_ON_DISK PT_FROM_DISK
#define PT_SEEN_NOWHERE 0xfffffffeu
#define PT_NOT_SEEN 0xffffffffu

typedef struct {
    const uint8_t *keys;
    uint32_t count;       /* of the keys */
    uint32_t page_tokens; /* 1 or more */
    uint64_t needs; /* tokens before p that a hit needs */
    uint32_t *seen; /* room for `count` pages; afterwards the entries of the pinned pages, from `first` on */
    uint64_t *serials; /* room for as many; afterwards the serials of the pinned pages, from `first` on */
    uint32_t first, pins; /* the pages that are pinned afterwards, which the caller has to release */
    uint32_t sound_from, sound_to; /* pages that are known to be there */
    uint64_t step; /* ticks from one page to the next */
} pt_group;

typedef struct {
    uint64_t limit; /* set by the caller: no hit is longer */
    uint64_t tokens, reach; /* tokens on which all groups agree in memory; and in memory or on disk */
    uint64_t asked; /* the longest hit for which there are keys */
} pt_agreed;

/* The state of one search. */
typedef struct {
    pt_session *session;
    pt_group *order[PT_GROUPS]; /* the groups that need least first */
    uint32_t count;
    /* no hit is longer than bound, for lack of keys or by the limit; each hit is a multiple of grain */
    uint64_t bound, grain;
    /* now: the latest tick of all; unit: tokens from one tick to the next, a divisor of every page's length */
    uint64_t now, unit;
} pt_search;

static inline uint32_t pt_pages_in(const pt_group *g, uint64_t tokens) { return (uint32_t)(tokens / g->page_tokens); }

/* Returns the first page that a hit at `tokens` needs. */
static inline uint32_t pt_first_needed(const pt_group *g, uint64_t tokens)
{
    return g->needs < tokens ? pt_pages_in(g, tokens - g->needs) : 0;
}

static inline bool pt_needs_all(const pt_search *f, const pt_group *g) { return g->needs >= f->bound; }
static inline uint64_t pt_on_grain(const pt_search *f, uint64_t tokens) { return tokens - tokens % f->grain; }
static inline bool pt_is_pinned(uint32_t seen) { return seen < PT_SEEN_ON_DISK; }
static inline bool pt_is_there(uint32_t seen, bool disk) { return disk ? seen < PT_SEEN_NOWHERE : pt_is_pinned(seen); }

/* ---- beginning ---- */

static inline uint64_t pt_gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Returns the least common multiple of all page_tokens, or a number beyond the bound if the multiple is beyond it. */
static inline uint64_t pt_grain_of(const pt_search *f)
{
    uint64_t grain = 1;
    for (uint32_t i = 0; i < f->count && grain <= f->bound; i++) {
        uint64_t times = f->order[i]->page_tokens / pt_gcd(grain, f->order[i]->page_tokens);
        grain = grain > f->bound / times ? UINT64_MAX : grain * times;
    }
    return grain;
}

static inline void pt_order_groups(pt_search *f, pt_group *groups)
{
    for (uint32_t i = 0; i < f->count; i++) {
        uint32_t at = i;
        for (; at && f->order[at - 1]->needs > groups[i].needs; at--)
            f->order[at] = f->order[at - 1];
        f->order[at] = &groups[i];
    }
}

static inline void pt_begin_ticks(pt_search *f)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        const pt_group *g = f->order[i];
        uint64_t tokens = (uint64_t)g->count * g->page_tokens;
        longest = tokens > longest ? tokens : longest;
        f->unit = pt_gcd(g->page_tokens, f->unit);
    }
    f->now = pt_now_ns() + longest / f->unit + 1;
    for (uint32_t i = 0; i < f->count; i++)
        f->order[i]->step = f->order[i]->page_tokens / f->unit;
}

static inline pt_search pt_search_of(pt_session *s, pt_group *groups, uint32_t count, uint64_t limit)
{
    pt_search f = {.session = s, .count = count, .bound = limit};
    for (uint32_t i = 0; i < count; i++) {
        uint64_t tokens = (uint64_t)groups[i].count * groups[i].page_tokens;
        f.bound = tokens < f.bound ? tokens : f.bound;
        groups[i].first = groups[i].pins = 0;
    }
    pt_order_groups(&f, groups);
    pt_begin_ticks(&f);
    f.grain = pt_grain_of(&f);
    f.bound = pt_on_grain(&f, f.bound);
    for (uint32_t i = 0; i < count; i++)
        memset(groups[i].seen, 0xff, pt_pages_in(&groups[i], f.bound) * sizeof *groups[i].seen);
    return f;
}

/* ---- searching pages ---- */

static inline const uint8_t *pt_key_at(const pt_group *g, uint32_t page)
{
    return g->keys + page * (uint64_t)PT_KEY_BYTES;
}

static inline void pt_notice(pt_session *s, pt_group *g, uint32_t page)
{
    pt_found found = pt_find(s, pt_key_at(g, page));
    g->seen[page] = found.where == PT_NOWHERE     ? PT_SEEN_NOWHERE
                    : found.where == PT_IN_MEMORY ? found.entry
                                                  : found.entry | PT_SEEN_ON_DISK;
    if (found.where == PT_IN_MEMORY)
        g->serials[page] = s->view.entries[found.entry].serial;
}

/* Stamps a page. The caller guarantees that it was found. Pages that end together get the same tick; a
 * single group gets the ticks of pt_match. */
static inline void pt_stamp_page(const pt_search *f, const pt_group *g, uint32_t page)
{
    pt_stamp_use(f->session, g->seen[page] & ~PT_SEEN_ON_DISK, f->now - (page + 1) * g->step);
}

typedef struct {
    uint64_t memory, reach; /* tokens */
} pt_extent;

/* Searches a group that needs all its pages, head first: how far the pages in memory go,
 * and how far those on disk continue. */
static inline pt_extent pt_scan_all(pt_search *f, pt_group *g, pt_extent to)
{
    pt_session *s = f->session;
    pt_bucket *buckets = pt_buckets_now(&s->view);
    uint32_t count = pt_pages_in(g, to.reach);
    pt_prefetch_first(s, buckets, g->keys, count);
    for (uint32_t page = 0; page < count; page++) {
        uint64_t begin = page * (uint64_t)g->page_tokens;
        pt_prefetch_ahead(s, buckets, g->keys, page, count);
        pt_notice(s, g, page);
        if (!pt_is_pinned(g->seen[page]) && begin < to.memory)
            to.memory = begin;
        if (g->seen[page] == PT_SEEN_NOWHERE) {
            to.reach = begin;
            break;
        }
        pt_stamp_page(f, g, page);
    }
    return to;
}

static inline void pt_prefetch_below(pt_session *s, pt_bucket *buckets, const pt_group *g, uint32_t page,
                                     uint32_t first)
{
    if (page >= first + 2 * PT_AHEAD)
        pt_prefetch(&buckets[pt_home(&s->view, pt_key_at(g, page - 2 * PT_AHEAD))]);
    if (page >= first + PT_AHEAD)
        pt_prefetch_entry(s, buckets, pt_key_at(g, page - PT_AHEAD));
}

/* Returns p if this group agrees on it; otherwise a bound for p, the beginning of the last missing page. */
static inline uint64_t pt_lower(pt_search *f, pt_group *g, uint64_t p, bool disk)
{
    pt_bucket *buckets = pt_buckets_now(&f->session->view);
    uint32_t first = pt_first_needed(g, p), at = pt_pages_in(g, p);
    if (at <= g->sound_from || at > g->sound_to)
        g->sound_from = g->sound_to = at;
    while (g->sound_from > first) {
        uint32_t page = g->sound_from - 1;
        if (g->seen[page] == PT_NOT_SEEN) {
            pt_prefetch_below(f->session, buckets, g, page, first);
            pt_notice(f->session, g, page);
        }
        if (!pt_is_there(g->seen[page], disk))
            return page * (uint64_t)g->page_tokens;
        g->sound_from = page;
    }
    return p;
}

/* Returns the largest number of tokens, at most `p`, on which all groups agree. Groups that need
 * all their pages already agree on `p`. */
static inline uint64_t pt_agree(pt_search *f, uint64_t p, bool disk)
{
    for (uint32_t i = 0; i < f->count; i++)
        f->order[i]->sound_from = f->order[i]->sound_to = 0;
    p = pt_on_grain(f, p);
    for (uint32_t i = 0; i < f->count && p && !pt_needs_all(f, f->order[i]);) {
        uint64_t lower = pt_lower(f, f->order[i], p, disk);
        i = lower == p ? i + 1 : 0;
        p = pt_on_grain(f, lower);
    }
    return p;
}

/* ---- ending ---- */

/* Stamps the pages that a hit at `tokens` needs. */
static inline void pt_stamp_needed(const pt_search *f, const pt_group *g, uint64_t tokens)
{
    for (uint32_t page = pt_first_needed(g, tokens), end = pt_pages_in(g, tokens); page < end; page++)
        pt_stamp_page(f, g, page);
}

/* Releases the pages that the hit does not need. They all lie behind it: no page before
 * those that the hit needs was searched. */
static inline void pt_keep_needed(const pt_search *f, pt_group *g, uint64_t tokens)
{
    uint32_t end = pt_pages_in(g, tokens);
    g->first = pt_first_needed(g, tokens);
    g->pins = end - g->first;
    for (uint32_t page = end; page < pt_pages_in(g, f->bound); page++)
        if (pt_is_pinned(g->seen[page]))
            pt_release_one(f->session, g->seen[page]);
}

/* Pins the pages of the longest hit on which 1 to PT_GROUPS groups agree. */
static inline void pt_match_groups(pt_session *s, pt_group *groups, uint32_t count, pt_agreed *agreed)
{
    pt_search f = pt_search_of(s, groups, count, agreed->limit);
    pt_extent to = {f.bound, f.bound};
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = count; i && pt_needs_all(&f, f.order[i - 1]); i--)
        to = pt_scan_all(&f, f.order[i - 1], to);
    PT_POINT("groups.scanned");
    agreed->reach = pt_agree(&f, to.reach, true);
    agreed->tokens = pt_agree(&f, to.memory < agreed->reach ? to.memory : agreed->reach, false);
    PT_POINT("groups.agreed");
    for (uint32_t i = 0; i < count; i++) {
        if (!pt_needs_all(&f, &groups[i])) {
            pt_stamp_needed(&f, &groups[i], agreed->reach);
            pt_stamp_needed(&f, &groups[i], agreed->tokens);
        }
        pt_keep_needed(&f, &groups[i], agreed->tokens);
        PT_POINT("groups.kept");
    }
    pt_count_bounded(s);
    pthread_mutex_unlock(&s->lock);
    agreed->asked = f.bound;
}
