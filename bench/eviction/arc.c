/* arc.c - ARC: pages that were used once and pages that were used more often, and a target for the share of each, which
 * follows the pages that return soon after they left (Megiddo and Modha, "ARC: A self-tuning, low overhead replacement
 * cache", FAST 2003). */
#include "page_lists.h"

enum { ONCE, OFTEN, LEFT_ONCE, LEFT_OFTEN }; /* T1, T2, B1, B2 of the paper */

static bool has(const cache *c, int32_t page) { return c->pages[page].list <= OFTEN; }

static void hit(cache *c, int32_t page) { list_add(c, OFTEN, page); }

/* Evicts a page if the cache is full. Returns false if all pages are in use. */
static bool make_room(cache *c, bool left_often)
{
    int32_t once = list_oldest(c, ONCE), often = list_oldest(c, OFTEN);
    double length = (double)c->lists[ONCE].length;
    if (c->lists[ONCE].length + c->lists[OFTEN].length < c->room)
        return true;
    if (once != NO_PAGE && (often == NO_PAGE || length > c->target || (left_often && length == c->target)))
        list_add(c, LEFT_ONCE, once);
    else if (often != NO_PAGE)
        list_add(c, LEFT_OFTEN, often);
    return once != NO_PAGE || often != NO_PAGE;
}

/* A page returns that left: the list that it left from should be longer. */
static void adapt(cache *c, int list)
{
    double once = (double)c->lists[LEFT_ONCE].length, often = (double)c->lists[LEFT_OFTEN].length;
    double step = list == LEFT_ONCE ? often / once : once / often;
    c->target += (step > 1 ? step : 1) * (list == LEFT_ONCE ? 1 : -1);
    c->target = c->target < 0 ? 0 : c->target > (double)c->room ? (double)c->room : c->target;
}

static void miss(cache *c, int32_t page)
{
    int list = c->pages[page].list;
    if (list != NO_LIST)
        adapt(c, list);
    list_remove(c, page);
    if (!make_room(c, list == LEFT_OFTEN))
        return;
    list_add(c, list == NO_LIST ? ONCE : OFTEN, page);
    list_trim(c, LEFT_ONCE, c->room - c->lists[ONCE].length);
    list_trim(c, LEFT_OFTEN, 2 * c->room - c->lists[ONCE].length - c->lists[OFTEN].length - c->lists[LEFT_ONCE].length);
}

int64_t arc(const int64_t *starts, const int32_t *pages, int64_t requests, int32_t distinct, int64_t room)
{
    return replay_lists(&(policy){has, hit, miss}, starts, pages, requests, distinct, room);
}
