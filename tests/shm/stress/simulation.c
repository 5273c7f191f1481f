/* simulation.c - the simulated caches of other sizes: they stay consistent with any prompts, drops, damage and new daemons, and
 * count by how much they lead LRU. */
#include "scene.h"

enum { LONGEST = 12 };

typedef struct {
    uint8_t keys[LONGEST * PT_KEY_BYTES];
    uint32_t count;
} chain;

static pt_simulation *simulation_of(const scene *s) { return s->owner.lookups->simulation; }
static pt_curve_sums *all(const scene *s) { return &s->owner.lookups->order.curve->all; }

static double simulated_ratio(const scene *s, uint32_t size)
{
    return pt_curve_simulated_ratio(all(s), all(s), size, s->owner.view.frame_count);
}

/* Writes a key that is as random as a digest. */
static void key_of_number(uint64_t number, uint8_t *key)
{
    rng random = rng_stream(number, 77);
    for (uint32_t word = 0; word < PT_KEY_BYTES / 8; word++) {
        uint64_t bits = rng_next(&random);
        memcpy(key + 8 * word, &bits, 8);
    }
}

/* Returns the prompt that ends at the page `last` of a tree in which the page n comes after the page n / 2. */
static chain prompt_of(uint32_t last)
{
    chain c = {0};
    for (uint32_t at = last; at && c.count < LONGEST; at /= 2)
        c.count++;
    for (uint32_t i = 0; i < c.count; i++)
        key_of_number(last >> (c.count - 1 - i), c.keys + i * PT_KEY_BYTES);
    return c;
}

static pt_matched match_of(scene *s, const chain *c, uint32_t *entries, uint64_t *serials)
{
    pt_matched to = {entries, serials, 0, 0};
    pt_match(&s->one, c->keys, c->count, &to);
    pt_release(&s->one, entries, to.count);
    return to;
}

/* A request of an engine: it looks a prompt up, and stores what is missing after the page before it. */
static void serve(scene *s, const chain *c)
{
    uint32_t entries[LONGEST], found = 0;
    uint64_t serials[LONGEST], sizes[LONGEST];
    pt_answer answers[LONGEST];
    found = match_of(s, c, entries, serials).reach;
    pt_sample_lookup(&s->one, c->keys, found, c->count, 0);
    s->now += 1ull << 28;
    if (found == c->count)
        return pt_lookups_drain(s->owner.lookups, &s->owner.view, s->now);
    const uint8_t *keys = c->keys + found * PT_KEY_BYTES;
    pt_prompt prompt = {.parent = found ? keys - PT_KEY_BYTES : NULL};
    pt_request r = request(s, &s->one);
    r.prompts = &prompt, r.prompt_count = 1, r.chain_kind = PT_CHAIN_PROMPT;
    for (uint32_t i = 0; i < c->count - found; i++)
        sizes[i] = FRAME;
    pt_reserve(&s->owner, &r, keys, sizes, c->count - found, answers);
    for (uint32_t i = 0; i < c->count - found; i++)
        if (answers[i].outcome == PT_GRANTED)
            finish(s, &answers[i], 0);
    settle(s, s->now);
}

static void expect_cache(pt_simulation *m, const pt_simulated_cache *c)
{
    uint32_t children[PT_SIMULATED] = {0}, leaves = 0;
    uint64_t frames = 0;
    for (uint32_t key = 0; key < m->kept->keys; key++) {
        const pt_simulated_key *k = &m->kept->known[key];
        frames += k->caches & c->bit ? k->frames : 0;
        if (k->caches & c->bit && k->parent != PT_NO_KEY)
            children[k->parent]++;
    }
    for (uint32_t key = 0; key < m->kept->keys; key++) {
        bool leaf = m->kept->known[key].caches & c->bit && !children[key];
        if (children[key] != c->children[key] || leaf != (c->place[key] != PT_NO_KEY))
            finding("key %u is a leaf or has children, and the cache counts otherwise", key);
        if (leaf && c->leaves[c->place[key]] != key)
            finding("leaf %u has another place", key);
        leaves += leaf;
    }
    if (leaves != c->leaf_count || frames != c->frames || frames > c->room)
        finding("a cache has %lu frames of %lu and %u leaves", frames, c->room, leaves);
}

static void expect_caches(pt_simulation *m)
{
    for (uint32_t key = 0; key < m->kept->keys; key++)
        if (pt_simulated_find(m, m->kept->known[key].hash) != key || m->in_use[key])
            finding("key %u is not found, or still in use", key);
    for (uint32_t size = 0; size < PT_SIMULATED_SIZES; size++)
        expect_cache(m, &m->caches[size]);
}

static void learn(scene *s)
{
    EXPECT(pt_learn_returns(&s->owner, 88172645463325252ull) && simulation_of(s));
}

static void begin_again(scene *s)
{
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, 3);
}

CASE(caches_of_four_sizes_stay_within_them, 64, 64)
{
    rng random = rng_stream(4, 4);
    learn(s);
    for (uint32_t i = 0; i < 3000; i++) {
        chain c = prompt_of(1 + rng_below(&random, 900));
        serve(s, &c);
        if (i % 64 == 0)
            expect_caches(simulation_of(s));
        if (i % 500 == 499)
            pt_simulate_less(simulation_of(s), simulation_of(s)->kept->threshold / 4 * 3);
        if (i % 700 == 699) {
            begin_again(s);
            learn(s);
            EXPECT(simulation_of(s)->kept->keys > 10);
        }
    }
    expect_caches(simulation_of(s));
    const pt_simulated_cache *caches = simulation_of(s)->caches;
    EXPECT(caches[3].frames > caches[0].frames && all(s)->simulated > 1000 && isfinite(all(s)->leads[0]));
}

CASE(a_page_before_another_one_stays_in_each_cache, 64, 64)
{
    rng random = rng_stream(5, 5);
    learn(s);
    for (uint32_t i = 0; i < 1000; i++) {
        if (i == 500)
            pt_simulate_less(simulation_of(s), UINT32_MAX / 3);
        chain c = prompt_of(1 + rng_below(&random, 900));
        serve(s, &c);
        const pt_simulated *kept = simulation_of(s)->kept;
        for (uint32_t key = 0; key < kept->keys; key++)
            if (kept->known[key].parent != PT_NO_KEY)
                EXPECT(!(kept->known[key].caches & ~kept->known[kept->known[key].parent].caches));
    }
}

/* A cache of half the size has no room for both prompts, one of twice the size has room for more. */
CASE(they_lead_lru_by_what_they_hit, 16, 16)
{
    learn(s);
    chain a = prompt_of(1 << 9 | 1), b = prompt_of(1 << 9 | 3 << 7);
    serve(s, &a);
    serve(s, &b);
    EXPECT(simulation_of(s)->caches[3].frames > simulation_of(s)->caches[0].frames);
    serve(s, &a);
    EXPECT(all(s)->simulated > 0 && !all(s)->leads[3]);
    double ratios[] = {simulated_ratio(s, 0), simulated_ratio(s, 3)};
    EXPECT(ratios[0] <= ratios[1] && ratios[1] <= pt_curve_ratio(all(s), HUGE_VAL));
}

CASE(where_they_find_less_than_lru_the_policy_steps_back, 16, 16)
{
    learn(s);
    chain a = prompt_of(1 << 9 | 1);
    for (uint32_t i = 0; i < 3; i++)
        serve(s, &a);
    double least_recently_used = pt_curve_ratio(all(s), 8);
    EXPECT(least_recently_used > 0 && all(s)->simulated > 0);
    all(s)->leads[0] = all(s)->simulated / 8;
    EXPECT(simulated_ratio(s, 0) > least_recently_used);
    pt_curve_sums one = *all(s); /* a namespace that leads, while all together do not, and the reverse */
    all(s)->leads[0] = -all(s)->simulated / 8;
    EXPECT(simulated_ratio(s, 0) == least_recently_used);
    EXPECT(pt_curve_simulated_ratio(all(s), &one, 0, 16) == least_recently_used);
    EXPECT(pt_curve_simulated_ratio(&one, all(s), 0, 16) < least_recently_used);
}

CASE(a_prompt_does_not_evict_itself, 16, 16)
{
    learn(s);
    chain as_long_as_half = prompt_of(1 << 7), longer = prompt_of(1 << 8);
    serve(s, &as_long_as_half);
    EXPECT(simulation_of(s)->caches[0].frames == 8);
    serve(s, &longer);
    EXPECT(simulation_of(s)->caches[0].frames == 8 && simulation_of(s)->caches[1].frames == 9);
}

CASE(dropped_pages_are_in_no_cache, 32, 32)
{
    learn(s);
    chain c = prompt_of(900);
    serve(s, &c);
    pt_flush(&s->owner, PT_NONE, PT_TIER_MEMORY, later(s));
    for (uint32_t key = 0; key < simulation_of(s)->kept->keys; key++)
        EXPECT(!simulation_of(s)->kept->known[key].caches);
    expect_caches(simulation_of(s));
}

CASE(another_policy_ends_the_simulation, 32, 32)
{
    pt_simulated *kept = &s->owner.lookups->order.curve->simulated;
    chain c = prompt_of(900);
    learn(s);
    serve(s, &c);
    EXPECT(kept->active && kept->keys);
    begin_again(s); /* a daemon that evicts by LRU */
    pt_begin_simulation(&s->owner);
    EXPECT(!kept->active && !kept->keys);
    learn(s);
    EXPECT(kept->active);
    pt_forget_returns(&s->owner);
    EXPECT(!kept->active && !simulation_of(s));
    serve(s, &c);
}

CASE(the_oldest_absent_keys_are_forgotten, 64, 64)
{
    learn(s);
    for (uint32_t i = 0; i < 3 * PT_SIMULATED; i++) {
        chain c = {.count = 1};
        key_of_number(1000 + i, c.keys);
        serve(s, &c);
    }
    pt_simulation *m = simulation_of(s);
    EXPECT(m->kept->keys > PT_SIMULATED / 4 && m->kept->threshold == UINT32_MAX);
    expect_caches(m);
}

CASE(damaged_keys_do_no_harm_to_the_next_daemon, 32, 32)
{
    rng random = rng_stream(6, 6);
    learn(s);
    for (uint32_t times = 0; times < 200; times++) {
        chain c = prompt_of(1 + rng_below(&random, 900));
        pt_simulated *kept = simulation_of(s)->kept;
        kept->keys = 1 + rng_below(&random, 20);
        uint8_t *bytes = (uint8_t *)kept->known;
        for (uint32_t i = 0; i < kept->keys * sizeof kept->known[0]; i++)
            bytes[i] = times % 2 ? (uint8_t)rng_next(&random) : bytes[i];
        for (uint32_t key = 0; key < kept->keys; key++) { /* nearly right, so that some are accepted */
            pt_simulated_key *k = &kept->known[key];
            k->parent = rng_below(&random, 8) ? PT_NO_KEY : (uint16_t)rng_below(&random, key % 2 ? 20 : 65536);
            k->class %= PT_CLASSES, k->cadence %= PT_AGES, k->uses %= 8, k->lasts %= 16, k->caches %= 16, k->returned = key & 1;
            k->frames %= 8;
        }
        begin_again(s);
        learn(s);
        serve(s, &c);
        expect_caches(simulation_of(s));
    }
}

int main(int count, char **arguments) { return run_cases("simulation", count, arguments); }
