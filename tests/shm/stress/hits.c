/* hits.c - how much the policy that learns hits, on small loads with a clock of their own: one that
 * changes, one that it misjudges at first, one of a single prompt, and conversations. The same is done in
 * each run, so a part of the policy that is missing costs hits. Where moments wrap around, it hits as much. */
#include "scene.h"

enum { LONGEST = 64, SEEDS = 3 }; /* pages of a prompt; caches of which each load has the mean */
#define BETWEEN_NS 250000000ull /* requests */

/* A daemon that serves a load. */
typedef struct {
    world *world;
    pt_owner owner;
    uint64_t now, hits, pages; /* of the pages that were looked up */
} cache;

/* Returns a time five minutes before moments wrap around, as they do every 48 days. To the policy it differs from NOON
 * by nothing else. */
static uint64_t before_the_wrap(void)
{
    uint32_t left = 0u - pt_moment(NOON) - 300 * 1024;
    return NOON + (left & ~1u) * PT_MOMENT_NS;
}

static cache cache_new(uint32_t pages, uint64_t seed, uint64_t now)
{
    cache c = {.world = world_new_with(seed, pages, pages, (pt_reserves){0}), .now = now};
    c.owner = world_adopt(c.world, 0);
    EXPECT(pt_learn_returns(&c.owner, seed));
    return c;
}

static void cache_end(cache *c)
{
    pt_owner_end(&c->owner);
    world_end(c->world);
}

static void key_of_page(uint32_t page, uint8_t *key)
{
    rng random = rng_stream(page, 5);
    for (uint32_t word = 0; word < PT_KEY_BYTES / 8; word++) {
        uint64_t bits = rng_next(&random);
        memcpy(key + 8 * word, &bits, 8);
    }
}

/* Uses the pages of a prompt up to the first one that is not there, as a match does. Returns their number. */
static uint32_t use(cache *c, const uint8_t *keys, uint32_t count)
{
    uint32_t hits = 0, entries[LONGEST];
    while (hits < count && (entries[hits] = pt_entry_of(&c->owner, keys + hits * PT_KEY_BYTES)) != PT_NONE)
        hits++;
    for (uint32_t i = 0; i < hits; i++)
        pt_stamp(&c->owner, entries[i], c->now + hits - i);
    return hits;
}

/* A request of an engine: it uses the pages of a prompt that are there, and stores the others. */
static void serve(cache *c, const uint32_t *pages, uint32_t count, enum pt_hint hint)
{
    uint8_t keys[LONGEST * PT_KEY_BYTES];
    uint64_t sizes[LONGEST];
    pt_answer answers[LONGEST];
    for (uint32_t i = 0; i < count; i++) {
        key_of_page(pages[i], keys + i * PT_KEY_BYTES);
        sizes[i] = FRAME;
    }
    c->now += BETWEEN_NS;
    uint32_t hits = use(c, keys, count);
    c->hits += hits;
    c->pages += count;
    pt_prompt prompt = {.parent = hits ? keys + (hits - 1) * PT_KEY_BYTES : NULL};
    pt_request r = {.parts = 1, .now = c->now + 1000, .expires_ns = UINT64_MAX, .prompt_kind = PT_PROMPT_KNOWN,
                    .prompts = &prompt, .prompt_count = 1, .hint = hint, .lasts = PT_LASTS_MOST};
    pt_reserve(&c->owner, &r, keys + hits * PT_KEY_BYTES, sizes, count - hits, answers);
    for (uint32_t i = 0; i < count - hits; i++)
        if (answers[i].outcome == PT_GRANTED)
            pt_part_finish(&c->owner.view, answers[i].entry, 0);
    pt_settle_all(&c->owner, c->now + 2000);
}

/* Serves a prompt of `count` pages that no other prompt has. */
static void serve_alone(cache *c, uint32_t prompt, uint32_t count, enum pt_hint hint)
{
    uint32_t pages[LONGEST];
    for (uint32_t i = 0; i < count; i++)
        pages[i] = prompt * LONGEST + i;
    serve(c, pages, count, hint);
}

/* Returns the share of pages that were hit since the last call. */
static double share(cache *c)
{
    double hit = (double)c->hits / (double)c->pages;
    c->hits = c->pages = 0;
    return hit;
}

/* Prompts of two hints: one half returns in turn, the other half never does. */
static void serve_hinted(cache *c, uint32_t first, enum pt_hint returning, enum pt_hint once)
{
    for (uint32_t turn = 0; turn < 1200; turn++) {
        serve_alone(c, first + turn % 40, 10, returning);
        serve_alone(c, first + 100 + turn, 10, once);
    }
}

/* First those with one hint return, and then those with the other one, which is learned from the
 * stores in between. LRU would hit nothing. */
static double changed_load(cache *c)
{
    serve_hinted(c, 0, PT_HINT_OVER, PT_HINT_LATER);
    share(c);
    serve_hinted(c, 10000, PT_HINT_LATER, PT_HINT_OVER);
    return share(c);
}

/* Prompts that nearly fill the memory return in turn, and others never do. Then these return soon: LRU would hit half
 * of the pages. The policy leaves them out until it has learned, and the guard does not wait for that. */
static double misjudged_load(cache *c)
{
    for (uint32_t turn = 0; turn < 100; turn++) {
        for (uint32_t prompt = 0; prompt < 192; prompt++)
            serve_alone(c, prompt, 10, PT_HINT_NONE);
        serve_alone(c, 1000 + turn, 32, PT_HINT_NONE);
    }
    for (uint32_t turn = 0; turn < 160; turn++) {
        if (turn == 120)
            share(c);
        serve_alone(c, 2000 + turn, 21, PT_HINT_NONE);
        serve_alone(c, 2000 + (turn < 32 ? 0 : turn - 32), 21, PT_HINT_NONE);
    }
    return share(c);
}

/* Prompts that fill the memory return in turn after a minute, among others that never do. Then one prompt is
 * all that is used, for half a minute, while the policy expects the others: LRU would hit 0.99 of its pages. */
static double lonely_load(cache *c)
{
    for (uint32_t turn = 0; turn < 60; turn++) {
        for (uint32_t prompt = 0; prompt < 256; prompt++)
            serve_alone(c, prompt, 2, PT_HINT_NONE);
        serve_alone(c, 1000 + turn, 32, PT_HINT_NONE);
    }
    share(c);
    for (uint32_t turn = 0; turn < 100; turn++)
        serve_alone(c, 2000, 8, PT_HINT_NONE);
    return share(c);
}

/* Conversations that begin alike and grow. LRU would hit 0.77 of the pages. */
static double conversations(cache *c)
{
    enum { OPEN = 24, BEGIN = 8 };
    rng random = rng_stream(9, 9);
    uint32_t pages[OPEN][LONGEST], count[OPEN] = {0}, next = BEGIN;
    for (uint32_t turn = 0; turn < 6000; turn++) {
        uint32_t one = rng_below(&random, OPEN);
        if (count[one] < BEGIN || count[one] > LONGEST - 8 || rng_one_in(&random, 12))
            for (count[one] = 0; count[one] < BEGIN; count[one]++)
                pages[one][count[one]] = count[one];
        for (uint32_t more = 1 + rng_below(&random, 6); more; more--)
            pages[one][count[one]++] = next++;
        serve(c, pages[one], count[one], PT_HINT_NONE);
    }
    return share(c);
}

typedef struct {
    const char *name;
    double (*serve)(cache *);
    uint32_t pages; /* of the cache */
    double least; /* share of pages */
} load;

static double mean_share(const load *l, uint64_t begin)
{
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        cache c = cache_new(l->pages, seed, begin);
        sum += l->serve(&c);
        cache_end(&c);
    }
    return sum / SEEDS;
}

static void expect_hits(const load *l)
{
    double hit = mean_share(l, NOON), wrapped = mean_share(l, before_the_wrap());
    if (hit < l->least)
        finding("%s: %.3f of the pages are hit, less than %.3f", l->name, hit, l->least);
    if (hit != wrapped)
        finding("%s: %.4f of the pages are hit, %.4f where moments wrap around", l->name, hit, wrapped);
}

int main(int count, char **arguments)
{
    static const load loads[] = {
        {"a load that changes", changed_load, 512, 0.25},
        {"a load that is misjudged", misjudged_load, 2048, 0.2},
        {"a load of one prompt", lonely_load, 512, 0.92},
        {"conversations", conversations, 512, 0.72},
    };
    run r = run_begin("hits", count, arguments);
    for (uint32_t i = 0; i < sizeof loads / sizeof loads[0]; i++)
        expect_hits(&loads[i]);
    run_end(&r, "%zu loads,", sizeof loads / sizeof loads[0]);
    return 0;
}
