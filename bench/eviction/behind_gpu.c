/* behind_gpu.c - replays a trace through an engine's own cache, which is an LRU, with the daemon's index behind it.
 *
 * A prompt hits in the engine's cache up to the first page that is missing there, and from there on in the index. */
#include "small_index.h"

#define STORE_NS 1e6 /* of the trace, from the match of a request to its store */

enum { EAGER, ON_EVICTION };

typedef struct {
    int32_t *newer, *older, *parent; /* by page; -1: none */
    bool *has;
    int32_t newest, oldest;
    uint32_t size, room;
} gpu;

static bool open_gpu(gpu *g, const trace *t, int32_t distinct, uint32_t room)
{
    size_t bytes = (size_t)distinct * sizeof(int32_t);
    *g = (gpu){malloc(bytes), malloc(bytes), malloc(bytes), calloc((size_t)distinct, 1), -1, -1, 0, room};
    if (!g->newer || !g->older || !g->parent || !g->has)
        return false;
    for (int64_t request = 0; request < t->requests; request++)
        for (int64_t at = t->starts[request]; at < t->starts[request + 1]; at++)
            g->parent[t->pages[at]] = at > t->starts[request] ? t->pages[at - 1] : -1;
    return true;
}

static void close_gpu(gpu *g)
{
    free(g->newer);
    free(g->older);
    free(g->parent);
    free(g->has);
}

static void take_out(gpu *g, int32_t page)
{
    int32_t newer = g->newer[page], older = g->older[page];
    *(newer >= 0 ? &g->older[newer] : &g->newest) = older;
    *(older >= 0 ? &g->newer[older] : &g->oldest) = newer;
    g->has[page] = false;
    g->size--;
}

static void use(gpu *g, int32_t page)
{
    if (g->has[page])
        take_out(g, page);
    g->older[page] = g->newest;
    g->newer[page] = -1;
    *(g->newest >= 0 ? &g->newer[g->newest] : &g->oldest) = page;
    g->newest = page;
    g->has[page] = true;
    g->size++;
}

/* Stores pages of a prompt from the page `first` on. The key of the page before it,
 * if there is one, is before `keys`. */
static void store(pt_owner *o, const uint8_t *keys, uint32_t first, uint32_t count, uint64_t now, outcome *out)
{
    pt_prompt prompt = {.parent = first ? keys - PT_KEY_BYTES : NULL, .depth = first + 1};
    pt_request r = {.now = now, .prompts = &prompt};
    reserve(o, &r, keys, count, out);
}

/* Stores pages of one prompt, given tail first. */
static void store_run(pt_owner *o, const gpu *g, const int32_t *tail, uint32_t count, uint64_t now, outcome *out)
{
    uint8_t *keys = malloc((count + 1) * (size_t)PT_KEY_BYTES), *head = keys + PT_KEY_BYTES;
    int32_t parent = g->parent[tail[count - 1]];
    uint32_t first = 0;
    for (int32_t page = parent; page >= 0; page = g->parent[page])
        first++;
    if (parent >= 0)
        key_of(parent, keys);
    for (uint32_t at = 0; at < count; at++)
        key_of(tail[count - 1 - at], head + at * (size_t)PT_KEY_BYTES);
    store(o, head, first, count, now, out);
    free(keys);
}

/* Evicts what is too much, the tails of old prompts first, and stores it in the index with `when` ON_EVICTION. */
static void shrink(pt_owner *o, gpu *g, int when, uint64_t now, outcome *out)
{
    int32_t *left = malloc((g->size + 1) * sizeof *left);
    uint32_t count = 0;
    while (g->size > g->room) {
        int32_t page = g->oldest;
        take_out(g, page);
        if (count && (g->parent[left[count - 1]] != page || count >= o->view.header->frames / 2)) {
            if (when == ON_EVICTION)
                store_run(o, g, left, count, now, out);
            count = 0;
        }
        left[count++] = page;
    }
    if (count && when == ON_EVICTION)
        store_run(o, g, left, count, now, out);
    free(left);
}

/* Replays a trace: `gpu_pages` in the engine's cache and `pages` in the index. Returns 0, or -1 if memory is short. */
int replay_behind_gpu(const trace *t, int32_t distinct, uint32_t gpu_pages, uint32_t pages, int learns, int when,
                      outcome *out)
{
    pt_owner o;
    gpu g;
    uint64_t began = 1000000000000ull;
    uint8_t *keys = NULL;
    pt_findings found = {0};
    *out = (outcome){0};
    if (!open_index(&o, pages, learns) || !open_gpu(&g, t, distinct, gpu_pages))
        return -1;
    for (int64_t request = 0; request < t->requests; request++) {
        const int32_t *prompt = t->pages + t->starts[request];
        uint32_t count = (uint32_t)(t->starts[request + 1] - t->starts[request]), own = 0;
        uint64_t now = began + (uint64_t)(t->seconds[request] * 1e9);
        keys = realloc(keys, (count + 1) * (size_t)PT_KEY_BYTES);
        for (uint32_t at = 0; at < count; at++)
            key_of(prompt[at], keys + at * (size_t)PT_KEY_BYTES);
        while (own < count && g.has[prompt[own]])
            own++;
        uint32_t fits = count < pages ? count : pages, begins = when == ON_EVICTION ? own : 0;
        uint32_t ends = begins < fits ? begins + match(&o, keys + begins * (size_t)PT_KEY_BYTES, fits - begins, now)
                                      : begins;
        out->hits += ends > own ? ends : own;
        if (when == EAGER && ends < fits)
            store(&o, keys + ends * (size_t)PT_KEY_BYTES, ends, fits - ends, now + (uint64_t)STORE_NS, out);
        for (uint32_t at = count; at--;)
            use(&g, prompt[at]);
        shrink(&o, &g, when, now + (uint64_t)STORE_NS, out);
    }
    pt_settle_all(&o, UINT64_MAX / 2);
    pt_check_integrity(&o, &found);
    out->findings = found.count;
    free(keys);
    close_gpu(&g);
    close_index(&o);
    return 0;
}
