/* lru.c - the heap of the LRU policy against a plain array. */
#include "report.h"

#include "daemon/lru.h"

#define LISTED 300u

typedef struct {
    pt_policy *policy;
    rng random;
    bool there[LISTED];
    uint64_t ticks[LISTED], steps;
    uint32_t count;
} trial;

static uint64_t coldest_tick(const trial *t)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t entry = 0; entry < LISTED; entry++)
        if (t->there[entry] && t->ticks[entry] < least)
            least = t->ticks[entry];
    return least;
}

static void expect_coldest(const trial *t)
{
    uint64_t tick;
    uint32_t entry = pt_lru.coldest(t->policy, &tick);
    if (pt_lru.count(t->policy) != t->count)
        finding("%u entries are listed, not %u", pt_lru.count(t->policy), t->count);
    if (!t->count && entry != PT_NONE)
        finding("nothing is listed, and entry %u is the coldest", entry);
    if (t->count && (!t->there[entry] || t->ticks[entry] != tick || tick != coldest_tick(t)))
        finding("entry %u with tick %lu is not the coldest", entry, (unsigned long)tick);
}

static void step(trial *t)
{
    uint32_t entry = rng_below(&t->random, LISTED);
    uint64_t tick = rng_below(&t->random, 1000); /* few enough that some are equal */
    if (t->there[entry] && rng_one_in(&t->random, 2)) {
        pt_lru.remove(t->policy, entry);
        t->there[entry] = false;
        t->count--;
        return;
    }
    if (t->there[entry]) {
        pt_lru.used(t->policy, entry, tick);
    } else {
        pt_lru.add(t->policy, entry, tick);
        t->there[entry] = true;
        t->count++;
    }
    t->ticks[entry] = tick;
}

static void expect_listed(const trial *t)
{
    if (pt_lru.check(t->policy))
        finding("%s", pt_lru.check(t->policy));
    for (uint32_t entry = 0; entry < LISTED; entry++)
        if (pt_lru.lists(t->policy, entry) != t->there[entry])
            finding("entry %u is %s", entry, t->there[entry] ? "not listed" : "listed");
}

/* Removes all entries, the coldest first. */
static void drain(trial *t)
{
    while (t->count) {
        uint64_t tick;
        uint32_t entry = pt_lru.coldest(t->policy, &tick);
        expect_coldest(t);
        pt_lru.remove(t->policy, entry);
        t->there[entry] = false;
        t->count--;
    }
    expect_coldest(t);
}

int main(int count, char **arguments)
{
    run r = run_begin("lru", count, arguments);
    trial t = {.policy = pt_lru.create(LISTED, NULL), .random = rng_stream(r.seed, 0)};
    while (!run_over(&r)) {
        for (uint32_t n = 0; n < 5000; n++, t.steps++) {
            step(&t);
            expect_coldest(&t);
            expect_listed(&t);
        }
        drain(&t);
    }
    pt_lru.destroy(t.policy);
    run_end(&r, "%lu steps,", t.steps);
    return 0;
}
