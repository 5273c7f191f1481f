/* lookups.c - what the daemon learns of lookups, step by step: which pages count, at which distance, and why they were
 * absent; and the rings, under a process that writes all the time and one that writes nonsense. */
#include "scene.h"

enum { LONG = 8 };

typedef struct {
    uint8_t keys[LONG * PT_KEY_BYTES];
    uint32_t count;
} chain;

/* Returns the pages with these letters. */
static chain chain_of(const char *letters)
{
    chain c = {.count = (uint32_t)strlen(letters)};
    for (uint32_t i = 0; i < c.count; i++)
        key_of((char[]){letters[i], letters[i], letters[i], letters[i], letters[i], 0}, c.keys + i * PT_KEY_BYTES);
    return c;
}

static pt_curve_sums *all(const scene *s) { return &s->owner.lookups->order.curve->all; }

/* Looks a prompt up. Returns how many pages it has. */
static uint32_t look_up(scene *s, const char *letters)
{
    chain c = chain_of(letters);
    uint32_t entries[LONG];
    uint64_t serials[LONG];
    pt_matched to = {entries, serials, 0, 0};
    pt_match(&s->one, c.keys, c.count, &to);
    pt_release(&s->one, entries, to.count);
    pt_sample_lookup(&s->one, c.keys, to.reach, c.count, 0);
    return to.reach;
}

/* Stores pages after the page `before`, a letter or 0. Returns how many were granted. */
static uint32_t store_after(scene *s, char before, const char *letters)
{
    chain c = chain_of(letters), parent = chain_of((char[]){before, 0});
    uint64_t sizes[LONG];
    pt_answer answers[LONG];
    pt_prompt prompt = {.parent = before ? parent.keys : NULL};
    pt_request r = request(s, &s->one);
    uint32_t granted = 0;
    r.prompts = &prompt, r.prompt_count = 1, r.prompt_kind = PT_PROMPT_KNOWN;
    for (uint32_t i = 0; i < c.count; i++)
        sizes[i] = FRAME;
    pt_reserve(&s->owner, &r, c.keys, sizes, c.count, answers);
    for (uint32_t i = 0; i < c.count; i++)
        granted += answers[i].outcome == PT_GRANTED && finish(s, &answers[i], 0);
    settle(s, s->now);
    return granted;
}

/* A request of an engine: it looks a prompt up, and stores all of it. */
static void serve(scene *s, const char *letters)
{
    look_up(s, letters);
    store_after(s, 0, letters);
}

static double absent(const scene *s, enum pt_absence why) { return all(s)->absences[why]; }
static bool near(double a, double b) { return fabs(a - b) < 1e-3; }

CASE(distances_are_those_of_an_lru_cache_that_evicts_tails_first, 32, 32)
{
    serve(s, "abc");
    serve(s, "de");
    serve(s, "abcf"); /* b: d, e and a came after it, and itself */
    EXPECT(near(all(s)->missed, 6) && near(all(s)->found, 3) && near(all(s)->cold, 6));
    EXPECT(near(all(s)->bins[3], 1) && near(all(s)->bins[4], 1) && near(all(s)->bins[5], 1));
    EXPECT(near(pt_curve_ratio(all(s), 2), 0) && near(pt_curve_ratio(all(s), 4), 2. / 9));
    EXPECT(near(pt_curve_ratio(all(s), HUGE_VAL), 3. / 9));
}

CASE(only_pages_that_were_looked_up_count, 32, 32)
{
    serve(s, "ab");
    EXPECT(store_after(s, 'b', "xyz") == 3); /* an answer */
    EXPECT(near(all(s)->missed, 2));
    EXPECT(look_up(s, "abxyz") == 5);
    pt_lookups_drain(s->owner.lookups, &s->owner.view, s->now);
    EXPECT(near(all(s)->missed, 2) && near(all(s)->found, 5) && near(absent(s, PT_NEVER_STORED), 2));
}

CASE(a_prompt_that_is_stored_in_pieces_counts_whole, 32, 32)
{
    look_up(s, "abcdef");
    store_after(s, 0, "ab");
    store_after(s, 'b', "cd");
    store_after(s, 'd', "efgh"); /* g and h were not looked up */
    EXPECT(near(all(s)->missed, 6) && near(absent(s, PT_NEVER_STORED), 6));
}

CASE(the_reason_for_an_absence_is_known, 16, 4)
{
    pt_space *other = &s->owner.view.spaces[1];
    serve(s, "ab");
    serve(s, "cdef"); /* evicts a and b */
    serve(s, "ab");
    EXPECT(near(absent(s, PT_EVICTED_FROM_MEMORY), 2) && near(absent(s, PT_NEVER_STORED), 6));
    pt_flush(&s->owner, PT_NONE, PT_TIER_MEMORY, later(s));
    serve(s, "ab");
    EXPECT(near(absent(s, PT_DROPPED), 2) && near(pt_curve_ratio(all(s), HUGE_VAL), 2. / 10)); /* no cache has them */
    chain a = chain_of("a"), moved = a;
    for (uint32_t i = 0; i < PT_KEY_BYTES; i++)
        moved.keys[i] ^= s->owner.view.spaces[0].digest[i] ^ other->digest[i];
    pt_request r = request(s, &s->one);
    r.space = 1;
    pt_sample_lookup(&s->one, moved.keys, 0, 1, 1);
    pt_answer answer = reserve_page(&s->owner, &r, moved.keys, FRAME);
    EXPECT(answer.outcome == PT_GRANTED && finish(s, &answer, 0) && near(absent(s, PT_IN_OTHER_NAMESPACE), 1));
}

DISK_CASE(pages_that_the_disk_evicted_are_known, 16, 8, 2, PT_WRITE_EVICTED)
{
    serve(s, "a");
    chain a = chain_of("a");
    uint32_t entry = pt_entry_of(&s->owner, a.keys);
    pt_put_on_disk(&s->owner, entry, 1);
    EXPECT(pt_flush_page(&s->owner, entry, PT_TIER_MEMORY, later(s)) &&
           pt_disk_evict_one(&s->owner, &s->owner.disk.devices[0], PT_NO_NEED, later(s)));
    serve(s, "a");
    EXPECT(near(absent(s, PT_EVICTED_FROM_DISK), 1));
}

CASE(a_new_daemon_continues_with_what_is_known, 32, 32)
{
    serve(s, "abc");
    look_up(s, "abc");
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, 3);
    pt_lookups_drain(s->owner.lookups, &s->owner.view, s->now);
    EXPECT(near(all(s)->missed, 3) && near(all(s)->found, 3) && near(all(s)->bins[3], 1));
    s->owner.lookups->order.curve->all.found = NAN; /* damage */
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, 3);
    EXPECT(!all(s)->found && !s->owner.lookups->order.curve->keys);
}

CASE(lookups_fade_within_the_window, 32, 32)
{
    serve(s, "abc");
    double before = all(s)->missed;
    pt_lookups_drain(s->owner.lookups, &s->owner.view, s->now + PT_FADE_EVERY_NS / 2);
    EXPECT(near(all(s)->missed, before));
    pt_lookups_drain(s->owner.lookups, &s->owner.view, s->now + WINDOW_NS);
    EXPECT(near(all(s)->missed, before * exp(-1)) && near(absent(s, PT_NEVER_STORED), before * exp(-1)));
    EXPECT(near(s->owner.lookups->order.curve->absent_ever[PT_NEVER_STORED], before));
}

/* ---- many keys ---- */

/* Expects that the sums over the places are those of the keys. */
static void expect_order(const pt_use_order *o)
{
    uint64_t frames = 0;
    for (uint32_t place = PT_PLACES - 1; place; place--) {
        if (pt_order_after(o, place) != frames)
            finding("%lu frames come after place %u, not %lu", frames, place, pt_order_after(o, place));
        if (o->at[place] && o->curve->sampled[o->at[place] - 1].place != place)
            finding("the key at place %u has another place", place);
        frames += o->at[place] ? o->curve->sampled[o->at[place] - 1].frames : 0;
    }
    for (uint32_t key = 0; key < o->curve->keys; key++)
        if (pt_order_find(o, o->curve->sampled[key].hash) != &o->curve->sampled[key])
            finding("key %u is not found", key);
}

CASE(fewer_keys_are_sampled_when_there_are_too_many, 8, 8)
{
    pt_lookups *l = s->owner.lookups;
    rng random = rng_stream(1, 1);
    uint64_t now = s->now;
    for (uint32_t i = 0; i < 3 * PT_SAMPLED; i++) {
        uint64_t hash = rng_next(&random);
        if (pt_is_sampled(hash, l->order.curve->threshold))
            pt_use_sampled(l, hash, 1 + (uint32_t)(hash & 3), now);
    }
    expect_order(&l->order);
    double known = l->order.curve->keys * pt_order_scale(&l->order);
    EXPECT(l->order.curve->threshold < UINT32_MAX / 2 && known > 2.9 * PT_SAMPLED && known < 3.1 * PT_SAMPLED);
    uint32_t threshold = l->order.curve->threshold;
    for (uint32_t i = 0; i < 3 * PT_SAMPLED; i++) { /* two windows later the old keys go instead */
        uint64_t hash = rng_next(&random);
        if (pt_is_sampled(hash, l->order.curve->threshold))
            pt_use_sampled(l, hash, 1, now + 2 * WINDOW_NS);
    }
    expect_order(&l->order);
    EXPECT(l->order.curve->threshold == threshold);
}

CASE(damaged_keys_do_no_harm_to_the_next_daemon, 8, 8)
{
    rng random = rng_stream(3, 3);
    for (uint32_t times = 0; times < 20; times++) {
        pt_curve *c = s->owner.lookups->order.curve;
        c->keys = 1 + rng_below(&random, 500);
        for (uint32_t key = 0; key < c->keys; key++)
            c->sampled[key] = (pt_sampled){rng_next(&random) >> 1, rng_below(&random, 600), (uint16_t)rng_next(&random),
                                           0, 1};
        pt_owner_end(&s->owner);
        s->owner = world_adopt(s->world, 3);
        serve(s, "abc");
        expect_order(&s->owner.lookups->order);
        EXPECT(s->owner.lookups->order.curve->keys > 2);
    }
    s->owner.lookups->order.curve->sampled[0].place = UINT32_MAX;
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, 3);
    EXPECT(!s->owner.lookups->order.curve->keys);
}

/* ---- the rings ---- */

enum { LOOKUPS = 40000, PAGES_OF_ONE = 5 };

/* Looks up prompts of which the first pages are found, as fast as it can. */
static void *look_up_often(void *of)
{
    pt_session *session = of;
    chain c = chain_of("abcde");
    for (uint32_t i = 0; i < LOOKUPS; i++)
        pt_sample_lookup(session, c.keys, 1 + i % PAGES_OF_ONE, PAGES_OF_ONE, i & 1);
    return NULL;
}

CASE(no_record_is_torn_or_counted_twice, 16, 16)
{
    pthread_t thread;
    pt_lookups *l = s->owner.lookups;
    pt_curve *c = l->order.curve;
    serve(s, "abcde");
    uint64_t before = c->lookups;
    pthread_create(&thread, NULL, look_up_often, &s->one);
    for (bool over = false; !over;) {
        over = pthread_tryjoin_np(thread, NULL) == 0;
        pt_lookups_read(l, &s->owner.view, &l->rings[s->one.slot], s->now);
    }
    double found = 0;
    for (uint32_t i = 0; i < 2; i++)
        found += pt_sums_of(c, &s->owner.view.spaces[i])->found;
    uint64_t lost = atomic_load(&l->rings[s->one.slot].lost), read = c->lookups - before;
    EXPECT(read + lost == LOOKUPS && read && near(found, all(s)->found));
    EXPECT(all(s)->found <= (double)(read * PAGES_OF_ONE) && c->keys == PAGES_OF_ONE);
    expect_order(&l->order);
}

CASE(nonsense_in_a_ring_does_no_harm, 16, 16)
{
    rng random = rng_stream(2, 2);
    pt_lookups *l = s->owner.lookups;
    pt_samples *ring = &l->rings[s->other.slot];
    for (uint32_t times = 0; times < 300; times++) {
        for (uint32_t i = 0; i < PT_SAMPLE_WORDS; i++)
            atomic_store(&ring->words[i], rng_next(&random) >> rng_below(&random, 64));
        atomic_store(&ring->read, rng_next(&random) >> rng_below(&random, 64));
        atomic_store(&ring->written, atomic_load(&ring->read) + (rng_next(&random) >> rng_below(&random, 64)));
        atomic_store(&ring->lost, rng_next(&random));
        pt_lookups_drain(l, &s->owner.view, s->now);
        look_up(s, "abc");
        EXPECT(atomic_load(&ring->read) == atomic_load(&ring->written));
    }
    expect_order(&l->order);
    EXPECT(l->order.curve->threshold >= PT_LEAST_THRESHOLD / 2 && isfinite(pt_curve_looked_up(all(s))));
}

int main(int count, char **arguments) { return run_cases("lookups", count, arguments); }
