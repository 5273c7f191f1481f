/* groups.c - matches over groups of random shapes, against a plain search over all hits: the length
 * of the hit, what stays pinned and how often, what is stamped. A page is in memory, on disk or
 * nowhere, and looked up once in a match. */
#include "disk_scene.h"
#include "client/match_groups.h"

#define POOL 48u /* pages in memory, and as many on disk */
#define COUNT 4u /* groups */
#define PAGES 10u
#define DETERMINED 2000u /* matches */

static scene s;
static uint32_t entries[2 * POOL]; /* of the pages; those on disk first */

static void page_name(uint32_t name, uint8_t *key)
{
    memset(key, 0, PT_KEY_BYTES);
    memcpy(key, &name, sizeof name);
}

static void add(uint32_t name)
{
    uint8_t key[PT_KEY_BYTES];
    pt_request r = request(&s, &s.one);
    page_name(name, key);
    pt_answer a = reserve_page(&s.owner, &r, key, FRAME);
    EXPECT(a.outcome == PT_GRANTED && finish(&s, &a, 0));
    entries[name] = a.entry;
}

static void begin(void)
{
    s = scene_new(2 * POOL, POOL);
    pt_disk_open(&s.owner, 0, POOL, PT_WRITE_EVICTED, s.now);
    for (uint32_t name = 0; name < POOL; name++)
        add(name);
    uint32_t written[POOL], count = order(&s, POOL, written);
    for (uint32_t i = 0; i < count; i++)
        end_order(&s, written[i], PT_WRITE_DONE);
    while (evict(&s))
        ;
    for (uint32_t name = POOL; name < 2 * POOL; name++)
        add(name);
    settle(&s, later(&s));
}

/* ---- random groups ---- */

typedef struct {
    pt_group group;
    uint32_t names[PAGES]; /* from 2 * POOL on: nowhere */
    uint32_t seen[PAGES];
    uint64_t serials[PAGES];
    uint8_t keys[PAGES * PT_KEY_BYTES];
} asked;

typedef struct {
    uint32_t used[3]; /* pages that were looked up on disk, in memory, nowhere */
    uint32_t count;
    asked groups[COUNT];
    uint64_t limit, grain, bound;
    uint32_t unit;
    uint64_t head; /* the tick of a page that would end where the prompt begins; 0 until one was seen */
} inquiry;

/* Draws a page. Most pages are in memory, so that hits are long enough to differ. */
static uint32_t draw_name(inquiry *q, rng *r)
{
    uint32_t chance = rng_below(r, 8), where = chance == 0 ? 2 : chance == 1 ? 0 : 1;
    return where * POOL + q->used[where]++;
}

static void draw_group(inquiry *q, asked *a, rng *r)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 6};
    static const uint64_t needs[] = {PT_NEEDS_ALL, 0, 1, 1, 3, 7, 12};
    a->group = (pt_group){.keys = a->keys, .count = rng_below(r, PAGES + 1), .page_tokens = sizes[rng_below(r, 5)],
                          .needs = needs[rng_below(r, 7)], .seen = a->seen, .serials = a->serials};
    for (uint32_t page = 0; page < a->group.count; page++) {
        a->names[page] = draw_name(q, r);
        page_name(a->names[page], a->keys + page * PT_KEY_BYTES);
    }
}

static void draw(inquiry *q, rng *r)
{
    memset(q, 0, sizeof *q);
    q->count = 1 + rng_below(r, COUNT);
    q->limit = q->bound = rng_one_in(r, 2) ? UINT64_MAX : rng_below(r, 40);
    q->grain = 1;
    for (uint32_t i = 0; i < q->count; i++) {
        const pt_group *g = &q->groups[i].group;
        draw_group(q, &q->groups[i], r);
        q->grain = q->grain / pt_gcd(q->grain, g->page_tokens) * g->page_tokens;
        q->unit = (uint32_t)pt_gcd(q->unit, g->page_tokens);
        q->bound = g->count * g->page_tokens < q->bound ? g->count * g->page_tokens : q->bound;
    }
}

/* ---- the expected result ---- */

static bool needs_page(const pt_group *g, uint64_t tokens, uint32_t page)
{
    uint64_t begin = page * (uint64_t)g->page_tokens, end = begin + g->page_tokens;
    return end <= tokens && (g->needs >= tokens || end > tokens - g->needs);
}

static bool agrees(const asked *a, uint64_t tokens, uint32_t first_good)
{
    for (uint32_t page = 0; page < a->group.count; page++)
        if (needs_page(&a->group, tokens, page) && (a->names[page] < first_good || a->names[page] >= 2 * POOL))
            return false;
    return true;
}

/* Returns the length of the longest hit with pages from the name `first_good` on. */
static uint64_t longest(const inquiry *q, uint32_t first_good)
{
    for (uint64_t tokens = q->bound - q->bound % q->grain; tokens; tokens -= q->grain) {
        uint32_t agreed = 0;
        while (agreed < q->count && agrees(&q->groups[agreed], tokens, first_good))
            agreed++;
        if (agreed == q->count)
            return tokens;
    }
    return 0;
}

static uint64_t tick_of(uint32_t name) { return atomic_load(&s.other.view.locks[entries[name]].tick); }

static void expect_pin(const asked *a, uint32_t page, bool pinned)
{
    const pt_group *g = &a->group;
    uint32_t entry = entries[a->names[page]];
    EXPECT(s.other.own_pins[entry].pins == pinned);
    EXPECT(!(atomic_load(&s.other.view.locks[entry].word) & 1ull << s.other.slot) == !pinned);
    EXPECT(!pinned || (page >= g->first && page < g->first + g->pins && a->seen[page] == entry &&
                       a->serials[page] == s.other.view.entries[entry].serial));
}

/* Expects stamps on the pages that the hit needs, with or without the disk; groups that
 * need all their pages may have more. */
static void expect_tick(inquiry *q, const asked *a, uint32_t page, bool used)
{
    const pt_group *g = &a->group;
    uint64_t tick = tick_of(a->names[page]), head = tick + (page + 1) * (uint64_t)g->page_tokens / q->unit;
    if (tick && !q->head)
        q->head = head;
    EXPECT(!tick || head == q->head);
    EXPECT(tick || !used);
    EXPECT(!tick || used || g->needs >= q->bound - q->bound % q->grain);
}

static void expect_group(inquiry *q, const asked *a, const pt_agreed *agreed)
{
    for (uint32_t page = 0; page < a->group.count; page++) {
        bool pinned = needs_page(&a->group, agreed->tokens, page);
        if (a->names[page] >= 2 * POOL)
            continue;
        expect_pin(a, page, pinned);
        expect_tick(q, a, page, pinned || needs_page(&a->group, agreed->reach, page));
    }
}

static void expect_nothing_pinned(void)
{
    for (uint32_t entry = 0; entry < 2 * POOL; entry++)
        EXPECT(!s.other.frames && !s.other.own_pins[entry].pins &&
               !(atomic_load(&s.other.view.locks[entry].word) & PT_PINS));
}

static bool try(rng *r)
{
    static inquiry q;
    pt_group groups[COUNT];
    draw(&q, r);
    pt_agreed agreed = {.limit = q.limit};
    for (uint32_t entry = 0; entry < 2 * POOL; entry++)
        atomic_store(&s.other.view.locks[entry].tick, 0);
    for (uint32_t i = 0; i < q.count; i++)
        groups[i] = q.groups[i].group;
    pt_match_groups(&s.other, groups, q.count, &agreed);
    if (agreed.tokens != longest(&q, POOL) || agreed.reach != longest(&q, 0))
        finding("%lu tokens with a reach of %lu instead of %lu and %lu", agreed.tokens, agreed.reach, longest(&q, POOL),
                longest(&q, 0));
    for (uint32_t i = 0; i < q.count; i++) {
        q.groups[i].group = groups[i];
        expect_group(&q, &q.groups[i], &agreed);
    }
    for (uint32_t i = 0; i < q.count; i++)
        pt_release(&s.other, groups[i].seen + groups[i].first, groups[i].pins);
    expect_nothing_pinned();
    return agreed.tokens;
}

int main(int count, char **arguments)
{
    run r = run_begin("groups", count, arguments);
    rng random = rng_stream(r.seed, 0);
    uint64_t matches = 0, hits = 0;
    begin();
    for (; matches < DETERMINED; matches++)
        hits += try(&random);
    run_determined(&r, "%lu matches: %lu hits", matches, hits);
    for (; !run_over(&r); matches++)
        hits += try(&random);
    s.now = pt_now_ns() > s.now ? pt_now_ns() : s.now;
    pt_disk_close(&s.owner, 0, later(&s));
    scene_end(&s);
    run_end(&r, "%lu matches, %lu hits,", matches, hits);
    return 0;
}
