/* curve.c - replays a trace through the daemon's own index, and reads the curve that the daemon predicts. */
#include "core/client/sample.h"
#include "small_index.h"

#define WINDOW_NS 86400000000000ull
#define STORE_NS 1000000ull /* of the trace, from a lookup to its store */

typedef struct {
    double share; /* of the keys that are sampled */
    double endless; /* predicted for a cache without a limit */
    double absent[PT_ABSENCES]; /* shares of the tokens that were missed */
    double record_seconds, store_seconds; /* CPU time of the daemon for the records of lookups; for all stores */
    int64_t hits, findings;
} curve_outcome;

typedef struct {
    pt_owner owner;
    pt_session session;
    double seconds; /* CPU time of the daemon for the records */
    outcome stored;
} served;

/* Looks a prompt up as an engine does, and stores it if a page is missing. Returns the pages that it found. */
static uint32_t serve(served *v, const uint8_t *keys, uint32_t count, uint64_t now)
{
    pt_owner *o = &v->owner;
    uint32_t hits = match(o, keys, count, now);
    pt_prompt prompt = {0};
    pt_request r = {.now = now + STORE_NS, .prompts = &prompt};
    pt_sample_lookup(&v->session, keys, hits, count, 0);
    double began = thread_seconds();
    pt_lookups_drain(o->lookups, &o->view, now);
    v->seconds += thread_seconds() - began;
    if (hits < count)
        reserve(o, &r, keys, count, &v->stored);
    return hits;
}

static void describe(const served *v, const double *sizes, uint32_t count, double *ratios, curve_outcome *out)
{
    const pt_curve *c = v->owner.lookups->order.curve;
    double absent = 0;
    for (uint32_t i = 0; i < count; i++)
        ratios[i] = pt_curve_ratio(&c->all, sizes[i]);
    for (uint32_t i = 0; i < PT_ABSENCES; i++)
        absent += c->all.absences[i];
    for (uint32_t i = 0; i < PT_ABSENCES; i++)
        out->absent[i] = absent > 0 ? c->all.absences[i] / absent : 0;
    out->record_seconds = v->seconds;
    out->store_seconds = v->stored.store_seconds;
    out->share = 1 / pt_order_scale(&v->owner.lookups->order);
    out->endless = pt_curve_ratio(&c->all, HUGE_VAL);
}

static bool open_served(served *v, uint32_t pages, int learns)
{
    pt_owner *o = &v->owner;
    if (!open_index_with(o, pages, learns, (pt_reserves){.curve = PT_CURVE_BYTES, .samples = PT_SAMPLES_BYTES}))
        return false;
    o->view.spaces[0].page_tokens = 1;
    o->lookups = pt_lookups_create(&o->view, WINDOW_NS);
    v->session = (pt_session){.view = o->view, .lock = PTHREAD_MUTEX_INITIALIZER};
    return o->lookups != NULL;
}

/* Replays a trace through an index of `pages` pages. Writes the predicted hit ratio of LRU at each of the `count` sizes
 * to `ratios`. Returns 0, or -1 if memory is short. */
int predict(const trace *t, uint32_t pages, int learns, const double *sizes, uint32_t count, double *ratios,
            curve_outcome *out)
{
    served v = {0};
    pt_findings found = {0};
    uint64_t began = 1000000000000ull;
    uint8_t *keys = NULL;
    *out = (curve_outcome){0};
    if (!open_served(&v, pages, learns))
        return -1;
    for (int64_t request = 0; request < t->requests; request++) {
        uint32_t asked = (uint32_t)(t->starts[request + 1] - t->starts[request]);
        keys = realloc(keys, (asked + 1) * (size_t)PT_KEY_BYTES);
        for (uint32_t at = 0; at < asked; at++)
            key_of(t->pages[t->starts[request] + at], keys + at * (size_t)PT_KEY_BYTES);
        out->hits += asked ? serve(&v, keys, asked, began + (uint64_t)(t->seconds[request] * 1e9)) : 0;
    }
    describe(&v, sizes, count, ratios, out);
    pt_settle_all(&v.owner, UINT64_MAX / 2);
    pt_check_integrity(&v.owner, &found);
    out->findings = found.count;
    free(keys);
    close_index(&v.owner);
    return 0;
}
