/* optimum.c - what a cache of a given size could hit at most, if it knew all later requests.
 *
 * After each request it keeps, of the pages that it has and those of the request, the ones that are used soonest
 * (Belady's rule, with bypass). Of two pages that the same request uses next, the one nearer to the head stays: so no
 * page is kept without those before it. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t next; /* the request that uses the page next */
    int32_t depth, page;
} use;

typedef struct {
    use *items;
    int64_t count, room;
} heap;

static bool later(use a, use b) { return a.next != b.next ? a.next > b.next : a.depth > b.depth; }

static void push(heap *h, use item)
{
    if (h->count == h->room)
        h->items = realloc(h->items, (size_t)(h->room = 2 * h->room + 1024) * sizeof *h->items);
    int64_t at = h->count++;
    for (; at && later(item, h->items[(at - 1) / 2]); at = (at - 1) / 2)
        h->items[at] = h->items[(at - 1) / 2];
    h->items[at] = item;
}

static use pop(heap *h)
{
    use top = h->items[0], last = h->items[--h->count];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < h->count; at = child) {
        child += child + 1 < h->count && later(h->items[child + 1], h->items[child]);
        if (!later(h->items[child], last))
            break;
        h->items[at] = h->items[child];
    }
    h->items[at] = last;
    return top;
}

/* Returns the request that uses each page of `pages` next; `requests` if none does. */
static int64_t *next_uses(const int64_t *starts, const int32_t *pages, int64_t requests, int32_t distinct)
{
    int64_t *after = malloc((size_t)starts[requests] * sizeof *after);
    int64_t *latest = malloc((size_t)distinct * sizeof *latest);
    for (int32_t page = 0; page < distinct; page++)
        latest[page] = requests;
    for (int64_t request = requests - 1; request >= 0; request--)
        for (int64_t at = starts[request]; at < starts[request + 1]; at++) {
            after[at] = latest[pages[at]];
            latest[pages[at]] = request;
        }
    free(latest);
    return after;
}

/* Returns the pages that hit: those before the first one of each request that is missing. */
int64_t optimum(const int64_t *starts, const int32_t *pages, int64_t requests, int32_t distinct, int64_t room)
{
    int64_t *after = next_uses(starts, pages, requests, distinct), *next = malloc((size_t)distinct * sizeof *next);
    bool *kept = calloc((size_t)distinct, 1);
    heap h = {0};
    int64_t hits = 0, size = 0;
    for (int64_t request = 0; request < requests; request++) {
        int64_t at = starts[request], end = starts[request + 1];
        for (; at < end && kept[pages[at]]; at++)
            hits++;
        for (at = starts[request]; at < end; at++) {
            int32_t page = pages[at];
            size += !kept[page];
            kept[page] = true;
            next[page] = after[at];
            push(&h, (use){after[at], (int32_t)(at - starts[request]), page});
        }
        while (size > room) {
            use last = pop(&h);
            bool stale = !kept[last.page] || next[last.page] != last.next;
            kept[last.page] &= stale;
            size -= !stale;
        }
    }
    free(after);
    free(next);
    free(kept);
    free(h.items);
    return hits;
}
