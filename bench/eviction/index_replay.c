/* index_replay.c - replays a trace through the daemon's own index, with the trace's clock: what would it have hit?
 *
 * The index lies in ordinary memory, one frame is one page, and no bytes are copied. Each request matches its prompt, as
 * readers do, and stores it whole if a page is missing, as `pagetier replay` does. */
#include "core/daemon/cadence/hints.h"
#include "small_index.h"

#define HINT_NS 3600000000000ull /* a hint's time to live */
#define STORE_NS 1e6 /* of the trace, from the match of a request to its store */

/* Stores a whole prompt. */
static void store(pt_owner *o, const uint8_t *keys, uint32_t count, uint64_t now, uint8_t hint, outcome *out)
{
    pt_prompt prompt = {0};
    pt_request r = {.now = now, .prompts = &prompt, .hint = hint, .lasts = pt_lasts(HINT_NS)};
    reserve(o, &r, keys, count, out);
}

/* Replays a trace through an index of `pages` pages, `speed` times as fast. Returns 0, or -1 if memory is short. */
int replay(const trace *t, uint32_t pages, int learns, double speed, outcome *out)
{
    pt_owner o;
    pt_findings found = {0};
    uint64_t began = 1000000000000ull;
    uint8_t *keys = NULL;
    *out = (outcome){0};
    if (!open_index(&o, pages, learns))
        return -1;
    for (int64_t request = 0; request < t->requests; request++) {
        uint32_t count = (uint32_t)(t->starts[request + 1] - t->starts[request]);
        uint64_t now = began + (uint64_t)(t->seconds[request] * 1e9 / speed);
        count = count < pages ? count : pages;
        keys = realloc(keys, (count + 1) * (size_t)PT_KEY_BYTES);
        for (uint32_t at = 0; at < count; at++)
            key_of(t->pages[t->starts[request] + at], keys + at * (size_t)PT_KEY_BYTES);
        uint32_t hits = match(&o, keys, count, now);
        out->hits += hits;
        out->followed += o.cadence && o.cadence->shadow.follows;
        if (hits < count)
            store(&o, keys, count, now + (uint64_t)(STORE_NS / speed), t->hints ? t->hints[request] : 0, out);
        else if (t->hints)
            pt_hint_pages(&o, t->hints[request], pt_lasts(HINT_NS), keys, count, now + (uint64_t)(STORE_NS / speed));
    }
    pt_settle_all(&o, UINT64_MAX / 2);
    pt_check_integrity(&o, &found);
    out->findings = found.count;
    free(keys);
    close_index(&o);
    return 0;
}
