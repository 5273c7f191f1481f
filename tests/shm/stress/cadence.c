/* cadence.c - the policy that learns when pages return, on random prompts: no page leaves before one that is useless
 * without it, pages that no match reaches leave first, and its own memory is sound after each step. And random hazards,
 * for the index. */
#include "scene.h"

#define PAGES 24u /* fewer than PT_CANDIDATES, so that the policy compares all leaves */
#define NODES 363u /* prompts of up to 5 pages, each one of 3 */
#define DEPTH 5u
#define DETERMINED 2000u /* steps */

typedef struct {
    scene s;
    rng random;
    uint64_t stores, evicted, orphans;
} trial;

static int32_t parent_of(int32_t node) { return node / 3 - 1; }

static void node_key(int32_t node, uint8_t *key)
{
    char name[16];
    snprintf(name, sizeof name, "%u-page-%d", (uint32_t)node * 2654435761u, node);
    key_of(name, key);
}

/* Returns the entry of a page in memory, PT_NONE if it is not there. */
static uint32_t entry_of(const trial *t, int32_t node)
{
    uint8_t key[PT_KEY_BYTES];
    node_key(node, key);
    uint32_t entry = pt_entry_of(&t->s.owner, key);
    return entry != PT_NONE && pt_tiers(&t->s.owner.view.entries[entry]) & PT_TIER_MEMORY ? entry : PT_NONE;
}

/* ---- requests ---- */

static void learn(trial *t)
{
    EXPECT(pt_learn_returns(&t->s.owner, rng_next(&t->random)));
    t->s.owner.cadence->full_pages = PAGES;
    t->s.owner.cadence->learned = true;
}

static void finish_or_abandon(trial *t, const pt_answer *a)
{
    if (a->outcome == PT_GRANTED && rng_one_in(&t->random, 32))
        pt_part_abandon(&t->s.one.view, a->entry, 0);
    else if (a->outcome == PT_GRANTED)
        finish(&t->s, a, 0);
}

/* Uses the pages of a prompt that are there, as a match does. Returns how many there
 * are before the first missing one. */
static uint32_t use(trial *t, const int32_t *chain, uint32_t count)
{
    uint32_t hits = 0;
    while (hits < count && entry_of(t, chain[hits]) != PT_NONE)
        hits++;
    for (uint32_t i = 0; i < hits; i++)
        pt_stamp(&t->s.owner, entry_of(t, chain[i]), t->s.now + hits - i);
    return hits;
}

/* Matches a prompt and stores what is missing. */
static void serve(trial *t, const int32_t *chain, uint32_t count)
{
    uint8_t keys[DEPTH * PT_KEY_BYTES];
    uint64_t sizes[DEPTH];
    pt_answer answers[DEPTH];
    uint32_t hits = use(t, chain, count);
    for (uint32_t i = 0; i < count; i++) {
        node_key(chain[i], keys + i * PT_KEY_BYTES);
        sizes[i] = FRAME;
    }
    pt_prompt prompt = {.parent = hits ? keys + (hits - 1) * PT_KEY_BYTES : NULL};
    pt_request r = request(&t->s, &t->s.one);
    r.prompt_kind = PT_PROMPT_KNOWN;
    r.prompts = &prompt;
    r.prompt_count = 1;
    pt_reserve(&t->s.owner, &r, keys + hits * PT_KEY_BYTES, sizes, count - hits, answers);
    for (uint32_t i = 0; i < count - hits; i++)
        finish_or_abandon(t, &answers[i]);
    t->stores++;
}

static void serve_some(trial *t)
{
    int32_t chain[DEPTH], node = (int32_t)rng_below(&t->random, NODES);
    uint32_t count = 0, at;
    for (int32_t n = node; n >= 0; n = parent_of(n))
        count++;
    for (at = count; node >= 0; node = parent_of(node))
        chain[--at] = node;
    serve(t, chain, count);
}

/* ---- evictions ---- */

/* Returns whether the policy knows that `entry` is useless since the page before it left. */
static bool is_unreachable(const pt_cadence *c, uint32_t entry)
{
    const pt_cadence_page *p = &c->pages[entry];
    return p->parent != PT_NONE && c->pages[p->parent].life != p->parent_life;
}

typedef struct {
    uint32_t entries[NODES]; /* PT_NONE: not in memory */
    uint32_t parents[NODES]; /* the entries of the pages before them, as far as the policy knows */
    bool unreachable[NODES];
    bool any; /* a page that could leave is unreachable */
} memory;

static memory remember(const trial *t)
{
    const pt_owner *o = &t->s.owner;
    memory m = {0};
    for (int32_t node = 0; node < (int32_t)NODES; node++) {
        uint32_t entry = m.entries[node] = entry_of(t, node);
        m.parents[node] = entry == PT_NONE ? PT_NONE : pt_parent_of(o->cadence, entry);
        m.unreachable[node] = entry != PT_NONE && is_unreachable(o->cadence, entry);
        m.any |= m.unreachable[node] && !o->cadence->pages[entry].children && o->kind->lists(o->ready[0], entry);
    }
    return m;
}

/* Checks a page that left: nothing that is left is useless without it, and it was unreachable if any was. */
static void expect_least(trial *t, const memory *before, int32_t node)
{
    for (int32_t child = 3 * (node + 1); child < 3 * (node + 2) && child < (int32_t)NODES; child++)
        if (entry_of(t, child) != PT_NONE && before->parents[child] == before->entries[node])
            finding("page %d left before page %d, which is useless without it", node, child);
    if (before->any && !before->unreachable[node])
        finding("page %d left, and pages stayed that no match reaches", node);
    t->evicted++;
    t->orphans += before->unreachable[node];
}

/* Evicts a page. Reservations are settled first: while a page is being written, the page before
 * it may be the only one that can leave. */
static void evict(trial *t)
{
    settle(&t->s, later(&t->s));
    memory before = remember(t);
    pt_evict_until(&t->s.owner, PAGES, 1, later(&t->s));
    for (int32_t node = 0; node < (int32_t)NODES; node++)
        if (before.entries[node] != PT_NONE && entry_of(t, node) == PT_NONE)
            expect_least(t, &before, node);
}

static void step(trial *t)
{
    uint32_t chance = rng_below(&t->random, 256);
    if (chance < 64)
        evict(t);
    else if (chance < 72)
        settle(&t->s, later(&t->s));
    else if (chance < 73)
        pt_flush(&t->s.owner, -1, PT_TIER_MEMORY, later(&t->s));
    else if (chance < 74)
        pt_forget_returns(&t->s.owner);
    else
        serve_some(t);
    if (!t->s.owner.cadence)
        learn(t);
    expect_sound(&t->s.owner, "after a step");
}

/* Returns the largest ratio of a use's probability to the expected time in memory, over all times from a bin on. */
static double best_ratio(const pt_returns *t, const double *hazard, int first, int bin)
{
    double alive = 1, uses = 0, time = 0, best = 0;
    for (int until = bin; until < PT_AGES && alive >= 1e-3; until++) {
        double use = 1 - exp(-hazard[until] * (t->from[until + 1] - (until == first ? 0 : t->from[until])));
        uses += alive * use;
        time += alive * use / hazard[until];
        alive *= 1 - use;
        best = fmax(best, uses / time);
    }
    return best;
}

/* The core does not try all times, but its index is the best of all. */
static void expect_best_index(rng *random)
{
    pt_returns t;
    double hazard[PT_AGES];
    float index[PT_AGES];
    int first = (int)rng_below(random, PT_AGES);
    pt_returns_begin(&t);
    for (int bin = 0; bin < PT_AGES; bin++)
        hazard[bin] = exp2(-(double)rng_below(random, 24)) / t.from[bin + 1];
    pt_gittins(&t, hazard, first, index);
    for (int bin = first; bin < PT_AGES; bin++)
        EXPECT(fabs(index[bin] / best_ratio(&t, hazard, first, bin) - 1) < 1e-6);
}

int main(int count, char **arguments)
{
    run r = run_begin("cadence", count, arguments);
    rng random = rng_stream(r.seed, 1);
    for (uint32_t i = 0; i < 100; i++)
        expect_best_index(&random);
    trial t = {.s = scene_new(PAGES, PAGES), .random = rng_stream(r.seed, 0)};
    learn(&t);
    for (uint32_t steps = 0; steps < DETERMINED; steps++)
        step(&t);
    run_determined(&r, "%u steps: %lu stores, %lu evicted, %lu of them unreachable", DETERMINED, t.stores, t.evicted,
                   t.orphans);
    while (!run_over(&r))
        step(&t);
    settle(&t.s, later(&t.s));
    scene_end(&t.s);
    run_end(&r, "%lu stores, %lu evicted, %lu of them unreachable,", t.stores, t.evicted, t.orphans);
    return 0;
}
