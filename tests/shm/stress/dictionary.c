/* dictionary.c - the writer's side of the dictionary against a model: random keys are added and
 * dropped around a few homes, until windows overflow. After each step every key is where it should be,
 * and as near to its home as possible. */
#include "world.h"

#define KEYS 200u
#define BUCKETS 128u
#define DETERMINED 10000u /* steps */

typedef struct {
    pt_view v;
    pt_dict d;
    rng random;
    uint64_t serial;
    bool there[KEYS];
    uint32_t count, crowd; /* crowd: the number of homes that the keys share */
    pt_bucket *before; /* a copy, to verify that a failed operation changes nothing */
    uint64_t steps, overflows;
} trial;

static size_t table_bytes(const trial *t) { return ((size_t)t->d.mask + 1) * sizeof *t->d.buckets; }

static uint64_t slot_at(const trial *t, uint32_t bucket, uint32_t i)
{
    return atomic_load(&t->d.buckets[bucket & t->d.mask].slots[i]);
}

static uint32_t room_in(const trial *t, uint32_t bucket)
{
    uint32_t room = 0;
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++)
        room += !slot_at(t, bucket, i);
    return room;
}

static bool window_is_full(const trial *t, uint32_t home)
{
    uint32_t room = 0;
    for (uint32_t distance = 0; distance < PT_WINDOW; distance++)
        room += room_in(t, home + distance);
    return !room;
}

/* ---- invariants ---- */

static void expect_near_home(const trial *t, uint32_t bucket, uint64_t slot, uint32_t *displaced)
{
    uint32_t entry = pt_slot_entry(slot), distance = pt_slot_distance(slot);
    if (entry >= KEYS || !t->there[entry])
        finding("bucket %u: entry %u was dropped, or never added", bucket, entry);
    if (pt_home(&t->v, t->v.entries[entry].key) != ((bucket - distance) & t->d.mask))
        finding("bucket %u: entry %u is not at distance %u from its home", bucket, entry, distance);
    for (uint32_t nearer = 1; nearer <= distance; nearer++)
        if (room_in(t, bucket - nearer))
            finding("bucket %u: entry %u could live %u nearer to its home", bucket, entry, nearer);
    displaced[(bucket - distance) & t->d.mask] += distance > 0;
}

static void expect_order(const trial *t)
{
    uint32_t displaced[BUCKETS] = {0}, count = 0;
    for (uint32_t bucket = 0; bucket <= t->d.mask; bucket++)
        for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++)
            if (slot_at(t, bucket, i)) {
                expect_near_home(t, bucket, slot_at(t, bucket, i), displaced);
                count++;
            }
    if (count != t->count)
        finding("%u keys are in the dictionary instead of %u", count, t->count);
    for (uint32_t bucket = 0; bucket <= t->d.mask; bucket++)
        if (displaced[bucket] != atomic_load(&t->d.buckets[bucket].displaced))
            finding("bucket %u: %u keys live elsewhere, its counter says %u", bucket, displaced[bucket],
                    atomic_load(&t->d.buckets[bucket].displaced));
}

static void expect_found(const trial *t)
{
    for (uint32_t entry = 0; entry < KEYS; entry++) {
        uint32_t found = pt_dict_find(&t->v, t->d, t->v.entries[entry].key);
        if (found != (t->there[entry] ? entry : PT_NONE))
            finding("the key of entry %u leads to %u", entry, found);
    }
}

static void expect_unchanged(const trial *t, const char *what)
{
    if (memcmp(t->before, t->d.buckets, table_bytes(t)))
        finding("%s, and the dictionary changed", what);
}

/* ---- steps ---- */

static void new_key(trial *t, uint32_t entry)
{
    uint64_t home = UINT32_MAX - 3ull + rng_below(&t->random, t->crowd); /* around the end of the table */
    uint64_t words[4] = {home, rng_below(&t->random, 4), ++t->serial, rng_next(&t->random)};
    memcpy(t->v.entries[entry].key, words, PT_KEY_BYTES);
}

static void add(trial *t, uint32_t entry)
{
    new_key(t, entry);
    bool full = window_is_full(t, pt_home(&t->v, t->v.entries[entry].key));
    t->there[entry] = pt_dict_add(&t->v, t->d, entry);
    t->count += t->there[entry];
    if (t->there[entry] == full)
        finding("a key was %s a window %s room", full ? "added to" : "not added to", full ? "without" : "with");
    if (!full)
        return;
    expect_unchanged(t, "a key was rejected");
    t->overflows++;
}

static void drop(trial *t, uint32_t entry)
{
    bool dropped = pt_dict_drop(&t->v, t->d, entry);
    if (dropped != t->there[entry])
        finding("dropping entry %u returned %d", entry, dropped);
    if (!dropped)
        expect_unchanged(t, "a missing entry was dropped");
    t->count -= dropped;
    t->there[entry] = false;
}

/* `wanted`: the number of steps in a hundred that add a key rather than drop one. */
static void step(trial *t, uint32_t wanted)
{
    uint32_t entry = rng_below(&t->random, KEYS);
    memcpy(t->before, t->d.buckets, table_bytes(t));
    if (!t->there[entry] && rng_below(&t->random, 100) < wanted)
        add(t, entry);
    else
        drop(t, entry);
    expect_order(t);
    expect_found(t);
    t->steps++;
}

static void phase(trial *t)
{
    uint32_t wanted = 20 + rng_below(&t->random, 80);
    t->crowd = 1 + rng_below(&t->random, 24);
    for (uint32_t n = 0; n < 500; n++)
        step(t, wanted);
}

int main(int count, char **arguments)
{
    run r = run_begin("dictionary", count, arguments);
    world *w = world_new(r.seed, KEYS, 1);
    trial t = {.v = world_view(w), .random = rng_stream(r.seed, 0)};
    t.d = pt_dict_of(&t.v, 0);
    if (t.d.mask >= BUCKETS)
        finding("the dictionary has more buckets than this test allows for");
    t.before = malloc(table_bytes(&t));
    while (t.steps < DETERMINED)
        phase(&t);
    run_determined(&r, "%lu steps: %lu overflows", t.steps, t.overflows);
    while (!run_over(&r))
        phase(&t);
    free(t.before);
    run_end(&r, "%lu steps, %lu overflows,", t.steps, t.overflows);
    return 0;
}
