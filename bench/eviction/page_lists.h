/* page_lists.h - what the policies of the literature share: lists of pages, and the replay of a trace.
 *
 * A request hits the pages of its prompt before the first one that is missing. Then it uses all of them, the last one
 * first, so that the head of a prompt is newer than its tail. No page leaves while its own request is served. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { LISTS = 4, NO_LIST = LISTS, NO_PAGE = -1 };

typedef struct {
    int32_t newest, oldest;
    int64_t length;
} page_list;

typedef struct {
    int32_t newer, older;
    uint8_t list, uses;
    int64_t request; /* the last one that had it; while it is served, the page stays */
} page;

typedef struct {
    page *pages;
    page_list lists[LISTS];
    int64_t room, request;
    double target; /* of ARC: the length that its list of new pages should have */
} cache;

/* A policy: what it does with a page that is in the cache, and with one that is not. */
typedef struct {
    bool (*has)(const cache *, int32_t page);
    void (*hit)(cache *, int32_t page);
    void (*miss)(cache *, int32_t page);
} policy;

static inline void list_remove(cache *c, int32_t page)
{
    if (c->pages[page].list == NO_LIST)
        return;
    page_list *l = &c->lists[c->pages[page].list];
    int32_t newer = c->pages[page].newer, older = c->pages[page].older;
    *(newer == NO_PAGE ? &l->newest : &c->pages[newer].older) = older;
    *(older == NO_PAGE ? &l->oldest : &c->pages[older].newer) = newer;
    c->pages[page].list = NO_LIST;
    l->length--;
}

/* Makes a page the newest one of a list, wherever it was. */
static inline void list_add(cache *c, int list, int32_t page)
{
    list_remove(c, page);
    page_list *l = &c->lists[list];
    c->pages[page].newer = NO_PAGE;
    c->pages[page].older = l->newest;
    c->pages[page].list = (uint8_t)list;
    *(l->newest == NO_PAGE ? &l->oldest : &c->pages[l->newest].newer) = page;
    l->newest = page;
    l->length++;
}

/* Forgets the oldest pages of a list until it has at most so many. */
static inline void list_trim(cache *c, int list, int64_t length)
{
    while (c->lists[list].length > (length > 0 ? length : 0))
        list_remove(c, c->lists[list].oldest);
}

static inline bool is_in_use(const cache *c, int32_t page) { return c->pages[page].request == c->request; }

/* Returns the oldest page of a list that may leave, or NO_PAGE. */
static inline int32_t list_oldest(const cache *c, int list)
{
    int32_t page = c->lists[list].oldest;
    while (page != NO_PAGE && is_in_use(c, page))
        page = c->pages[page].newer;
    return page;
}

/* Serves a request. Returns how many pages hit. */
static inline int64_t serve(cache *c, const policy *p, const int32_t *prompt, int64_t count)
{
    int64_t hits = 0;
    while (hits < count && p->has(c, prompt[hits]))
        hits++;
    for (int64_t at = 0; at < count; at++)
        c->pages[prompt[at]].request = c->request;
    for (int64_t at = count - 1; at >= 0; at--)
        (p->has(c, prompt[at]) ? p->hit : p->miss)(c, prompt[at]);
    return hits;
}

/* Returns the pages that hit. Of a prompt that is larger than the cache, the head counts. */
static inline int64_t replay_lists(const policy *p, const int64_t *starts, const int32_t *pages, int64_t requests,
                                   int32_t distinct, int64_t room)
{
    cache c = {.pages = malloc((size_t)distinct * sizeof *c.pages), .room = room};
    int64_t hits = 0;
    for (int list = 0; list < LISTS; list++)
        c.lists[list] = (page_list){NO_PAGE, NO_PAGE, 0};
    for (int32_t at = 0; at < distinct; at++)
        c.pages[at] = (page){.list = NO_LIST, .request = -1};
    for (; c.request < requests; c.request++) {
        int64_t count = starts[c.request + 1] - starts[c.request];
        hits += serve(&c, p, pages + starts[c.request], count < room ? count : room);
    }
    free(c.pages);
    return hits;
}
