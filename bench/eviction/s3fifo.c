/* s3fifo.c - S3-FIFO: a small queue of new pages, a main queue of those that were used again, and the
 * numbers of pages that left the small one (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you
 * need for cache eviction", SOSP 2023). */
#include "page_lists.h"

enum { SMALL, MAIN, GHOST };
enum { MOST_USES = 3 };

static int64_t small_room(const cache *c) { return c->room >= 10 ? c->room / 10 : 1; }

static bool has(const cache *c, int32_t page) { return c->pages[page].list <= MAIN; }

static void hit(cache *c, int32_t page) { c->pages[page].uses += c->pages[page].uses < MOST_USES; }

/* Looks at a page of the small queue: it leaves, or moves to the main one if it was used more than once. */
static void pass_small(cache *c, int32_t page)
{
    list_add(c, c->pages[page].uses > 1 ? MAIN : GHOST, page);
    c->pages[page].uses = 0;
}

/* Looks at a page of the main queue: it leaves if it was not used since the last time. */
static void pass_main(cache *c, int32_t page)
{
    bool stays = c->pages[page].uses;
    c->pages[page].uses -= stays;
    list_remove(c, page);
    if (stays)
        list_add(c, MAIN, page);
}

static int64_t size(const cache *c) { return c->lists[SMALL].length + c->lists[MAIN].length; }

/* Evicts a page if the cache is full. Returns false if all pages are in use. */
static bool make_room(cache *c)
{
    while (size(c) == c->room) {
        int32_t small = list_oldest(c, SMALL), main = list_oldest(c, MAIN);
        if (small == NO_PAGE && main == NO_PAGE)
            return false;
        if (main == NO_PAGE || (small != NO_PAGE && c->lists[SMALL].length >= small_room(c)))
            pass_small(c, small);
        else
            pass_main(c, main);
    }
    list_trim(c, GHOST, c->room - small_room(c));
    return true;
}

static void miss(cache *c, int32_t page)
{
    bool left = c->pages[page].list == GHOST;
    list_remove(c, page);
    if (!make_room(c))
        return;
    c->pages[page].uses = 0;
    list_add(c, left ? MAIN : SMALL, page);
}

int64_t s3fifo(const int64_t *starts, const int32_t *pages, int64_t requests, int32_t distinct, int64_t room)
{
    return replay_lists(&(policy){has, hit, miss}, starts, pages, requests, distinct, room);
}
