/* index_replay.c - replays a trace through the daemon's own index, with the trace's clock: what would it have hit?
 *
 * The index lies in ordinary memory, one frame is one page, and no bytes are copied. Each request
 * matches its prompt, as readers do, loads what follows on disk, and stores the prompt whole if a page
 * is missing, as `pagetier-bench replay` does. */
#include "core/daemon/cadence/hints.h"
#include "small_disk.h"

#define HINT_NS 3600000000000ull /* a hint's time to live */
#define STORE_NS 1e6 /* of the trace, from the match of a request to its store */

typedef struct {
    uint32_t pages, disk_pages; /* that memory and disk have room for */
    int32_t learns;
    double speed; /* how many times as fast the clock runs */
    uint64_t seed; /* of the draws */
} cache;

/* Stores a whole prompt. */
static void store(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now, uint8_t hint, outcome *out)
{
    pt_prompt prompt = {0};
    pt_request r = {.now = now, .prompts = &prompt, .hint = hint, .lasts = pt_lasts(HINT_NS)};
    reserve(o, &r, keys, count, out);
}

/* Matches a prompt, and loads what follows on disk. Returns how many pages are in memory afterwards. */
static uint32_t look_up(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now, outcome *out)
{
    uint32_t hits = match(o, keys, count, now), found = o->disk.open ? in_tiers(o, keys, count) : hits;
    out->hits_in_memory += hits;
    if (found > hits) {
        write_ahead(o, found - hits, now);
        load(o, keys, found, now);
        hits = match(o, keys, count, now);
    }
    out->hits += hits;
    return hits;
}

/* A request uses its prompt, and stores it if a page is missing. */
static void serve(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now, uint64_t later, uint8_t hint,
                  outcome *out)
{
    uint32_t hits = look_up(o, keys, count, now, out);
    out->followed += o->cadence && o->cadence->shadow.follows;
    if (hits < count) {
        write_ahead(o, count - hits, later);
        store(o, keys, count, later, hint, out);
    } else if (hint) {
        pt_hint_pages(o, hint, pt_lasts(HINT_NS), keys, count, later);
    }
}

static void close_replay(pt_owner *o, outcome *out)
{
    pt_findings found = {0};
    pt_settle_all(o, UINT64_MAX / 2);
    pt_check_integrity(o, &found);
    out->findings = found.count;
    out->written = (int64_t)o->view.header->counters.disk_written;
    close_index(o);
}

/* Replays a trace through an index. Returns 0, or -1 if memory is short. */
int replay(const trace *t, const cache *c, outcome *out)
{
    pt_owner o;
    uint64_t began = 1000000000000ull;
    uint8_t *keys = NULL;
    *out = (outcome){0};
    pt_geometry geometry = {4096, c->pages, c->pages + c->disk_pages, 4, {0}};
    if (!open_geometry(&o, &geometry) || !open_disk(&o, c->disk_pages, began) ||
        (c->learns && !pt_learn_returns(&o, pt_mixed(c->seed))))
        return -1;
    for (int64_t request = 0; request < t->requests; request++) {
        uint32_t count = (uint32_t)(t->starts[request + 1] - t->starts[request]);
        uint64_t now = began + (uint64_t)(t->seconds[request] * 1e9 / c->speed);
        count = count < c->pages ? count : c->pages;
        keys = realloc(keys, (count + 1) * (size_t)PT_KEY_BYTES);
        for (uint32_t at = 0; at < count; at++)
            key_of(t->pages[t->starts[request] + at], keys + at * (size_t)PT_KEY_BYTES);
        serve(&o, keys, count, now, now + (uint64_t)(STORE_NS / c->speed), t->hints ? t->hints[request] : 0, out);
    }
    free(keys);
    close_replay(&o, out);
    return 0;
}
