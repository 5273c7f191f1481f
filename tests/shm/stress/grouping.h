/* grouping.h - matches a prompt as an engine does whose model has several groups of state. */
#pragma once

#include "client.h"
#include "client/match_groups.h"

/* Returns the pages that are pinned for one group, as a prompt of their own. */
static inline prompt group_prompt(const prompt *asked, const pt_group *g)
{
    prompt p = {.count = g->pins, .found = g->pins, .reach = g->pins};
    memcpy(p.ids, asked->ids + g->first, g->pins * sizeof *p.ids);
    memcpy(p.entries, g->seen + g->first, g->pins * sizeof *p.entries);
    memcpy(p.serials, g->serials + g->first, g->pins * sizeof *p.serials);
    return p;
}

/* Matches full attention and a window of the same pages: what the first has found and pinned the second must find
 * again, with the same entry. So no promised page may be missed because of the window. */
static inline void client_match_windowed(client *c, prompt *p)
{
    uint32_t seen[PROMPT];
    uint64_t serials[PROMPT];
    pt_group groups[] = {
        {.keys = p->keys,
         .count = p->count,
         .page_tokens = 1,
         .needs = PT_NEEDS_ALL,
         .seen = p->entries,
         .serials = p->serials},
        {.keys = p->keys,
         .count = p->count,
         .page_tokens = 1,
         .needs = 1 + rng_below(&c->random, 3),
         .seen = seen,
         .serials = serials},
    };
    pt_agreed agreed = {.limit = UINT64_MAX};
    pt_match_groups(c->session, groups, 2, &agreed);
    p->found = groups[0].pins;
    p->reach = (uint32_t)agreed.reach;
    client_matched(c, p);
    prompt window = group_prompt(p, &groups[1]);
    for (uint32_t i = 0; i < window.found; i++)
        if (window.entries[i] != p->entries[groups[1].first + i] ||
            window.serials[i] != p->serials[groups[1].first + i])
            finding("page %u was pinned twice, as two entries", window.ids[i]);
    client_release(c, &window);
}

/* Matches full attention and snapshots that have keys of their own, one for every other boundary:
 * mostly they do not agree on everything. */
static inline void client_match_snapshots(client *c, prompt *p)
{
    uint32_t seen[PROMPT];
    uint64_t serials[PROMPT];
    prompt snapshots = {0};
    while (snapshots.count < p->count / 2)
        prompt_add(&snapshots, 1 + rng_below(&c->random, IDS));
    pt_group groups[] = {
        {.keys = snapshots.keys,
         .count = snapshots.count,
         .page_tokens = 2,
         .needs = 1,
         .seen = seen,
         .serials = serials},
        {.keys = p->keys,
         .count = p->count,
         .page_tokens = 1,
         .needs = PT_NEEDS_ALL,
         .seen = p->entries,
         .serials = p->serials},
    };
    pt_agreed agreed = {.limit = rng_one_in(&c->random, 4) ? rng_below(&c->random, PROMPT) : UINT64_MAX};
    pt_match_groups(c->session, groups, 2, &agreed);
    p->found = groups[1].pins;
    p->reach = (uint32_t)agreed.reach;
    if (p->found != agreed.tokens || agreed.tokens > agreed.reach || agreed.reach > p->count || agreed.reach % 2)
        finding("of %u pages %u were found, for %lu tokens and a reach of %lu", p->count, p->found, agreed.tokens,
                agreed.reach);
    prompt snapshot = group_prompt(&snapshots, &groups[0]);
    client_verify(c, &snapshot);
    client_release(c, &snapshot);
}
