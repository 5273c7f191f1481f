/* adoption.c - adoptions of segments that no crash leaves: segments with damaged bytes, and keys that fit the
 * dictionary in one order but not in another. Nothing outside the segments is accessed (ASan, and guard pages),
 * everything is sound afterwards, and every page whose own bytes were not damaged is still there. */
#include "client.h"

#define MANY 64u /* entries, frames */

typedef struct {
    world *world;
    pt_owner owner;
    pt_session session;
    rng random;
    uint64_t trials, kept, dropped;
    uint8_t memory[PAGE_MAX];
} trial;

static void begin(trial *t, uint32_t entries, uint32_t frames)
{
    t->world = world_new(1, entries, frames);
    t->owner = world_adopt(t->world, 0);
    pt_process p = {.pid = 1, .started = 1, .name = "adoption"};
    session_begin(&t->session, t->world, pt_attach(&t->owner, &p, pt_now_ns()));
}

static void end(trial *t)
{
    pt_owner_end(&t->owner);
    session_end(&t->session);
    world_end(t->world);
}

static void adopt(trial *t)
{
    pt_owner_end(&t->owner);
    t->owner = world_adopt(t->world, 1ull << t->session.slot);
    expect_sound(&t->owner, "after the adoption");
    if (rng_one_in(&t->random, 2) && !pt_learn_returns(&t->owner, 1))
        finding("memory is short");
    expect_sound(&t->owner, "with the policy that learns");
}

/* ---- damage ---- */

static void store_some(trial *t)
{
    pt_request r = {.slot = t->session.slot, .parts = 1, .now = pt_now_ns(), .expires_ns = UINT64_MAX};
    for (uint32_t n = 0; n < MANY; n++) {
        uint32_t id = page_with_parts(&t->random, 1);
        uint8_t key[PT_KEY_BYTES];
        page_key(id, key);
        pt_answer a = reserve_page(&t->owner, &r, key, page_size(id));
        if (a.outcome == PT_GRANTED && !rng_one_in(&t->random, 8))
            page_write(&t->session.view, a.entry, id, 0, t->memory), pt_part_finish(&t->session.view, a.entry, 0);
    }
}

/* Damages a few bytes of an area, sometimes a whole record with zeros or ones. */
static void damage(trial *t, void *area, size_t bytes)
{
    for (uint32_t n = rng_below(&t->random, 6); n; n--) {
        size_t length = rng_one_in(&t->random, 4) ? 4 + rng_below(&t->random, 28) : 1;
        size_t at = rng_below(&t->random, (uint32_t)(bytes - length));
        uint8_t with = (uint8_t)(rng_one_in(&t->random, 2) ? -(int)rng_below(&t->random, 2)
                                                           : (int)rng_next(&t->random));
        memset((uint8_t *)area + at, with, length);
    }
}

/* Links pages so that it looks true: half of all links lead into circles. */
static void link_anywhere(trial *t)
{
    pt_history *histories = t->session.view.histories;
    for (uint32_t n = rng_below(&t->random, MANY); n; n--) {
        uint32_t entry = rng_below(&t->random, MANY), parent = rng_below(&t->random, MANY);
        histories[entry].parent = parent;
        histories[entry].parent_life = histories[parent].life;
    }
}

static void damage_all(trial *t)
{
    const pt_view *v = &t->session.view;
    pt_header *h = v->header;
    damage(t, v->entries, MANY * sizeof *v->entries);
    damage(t, v->frames, MANY * sizeof *v->frames);
    damage(t, v->locks, MANY * sizeof *v->locks);
    damage(t, v->buckets[0], (size_t)(v->bucket_mask + 1) * sizeof(pt_bucket));
    damage(t, v->buckets[1], (size_t)(v->bucket_mask + 1) * sizeof(pt_bucket));
    link_anywhere(t);
    damage(t, v->histories, MANY * sizeof *v->histories);
    damage(t, v->learned, sizeof(pt_learned));
    damage(t, &h->free_entry, offsetof(pt_header, counters) - offsetof(pt_header, free_entry));
}

/* The fields that make up a page, as they were before the damage. */
typedef struct {
    pt_entry entries[MANY];
    pt_frame frames[MANY];
    uint64_t words[MANY], checksums[MANY];
} record;

static void remember(const pt_view *v, record *r)
{
    memcpy(r->entries, v->entries, sizeof r->entries);
    memcpy(r->frames, v->frames, sizeof r->frames);
    for (uint32_t entry = 0; entry < MANY; entry++) {
        r->words[entry] = atomic_load(&v->locks[entry].word);
        r->checksums[entry] = atomic_load(&v->locks[entry].checksum);
    }
}

static bool is_whole(const pt_view *v, const record *r, uint32_t entry)
{
    if (memcmp(&r->entries[entry], &v->entries[entry], sizeof(pt_entry)) ||
        r->words[entry] != atomic_load(&v->locks[entry].word))
        return false;
    if (r->checksums[entry] != atomic_load(&v->locks[entry].checksum))
        return false;
    for (uint32_t frame = r->entries[entry].first_frame; frame != PT_NONE; frame = r->frames[frame].next)
        if (memcmp(&r->frames[frame], &v->frames[frame], sizeof(pt_frame)))
            return false;
    return pt_state_of(r->words[entry]) == PT_READABLE;
}

/* Expects that a page which is still served is the same page: the same key, and the same frames in the same order. An
 * entry that lost its checksum is accepted. */
static void expect_same(const pt_view *v, const record *r, uint32_t entry)
{
    const pt_entry *is = &v->entries[entry], *was = &r->entries[entry];
    if (pt_load_state(&v->locks[entry].word) != PT_READABLE || !atomic_load(&v->locks[entry].checksum))
        return;
    if (memcmp(is->key, was->key, PT_KEY_BYTES) || is->serial != was->serial || is->size != was->size)
        finding("entry %u is served as another page than before", entry);
    uint32_t frame = is->first_frame, before = was->first_frame;
    for (; frame == before && frame != PT_NONE; frame = v->frames[frame].next)
        before = r->frames[before].next;
    if (frame != before)
        finding("entry %u is served from other frames than before", entry);
}

static void damage_and_adopt(trial *t)
{
    static record before;
    bool whole[MANY];
    const pt_view *v = &t->session.view;
    begin(t, MANY, MANY);
    store_some(t);
    remember(v, &before);
    damage_all(t);
    for (uint32_t entry = 0; entry < MANY; entry++)
        whole[entry] = is_whole(v, &before, entry);
    adopt(t);
    for (uint32_t entry = 0; entry < MANY; entry++) {
        if (whole[entry] && !pt_repin(&t->session, &entry, &before.entries[entry].serial, 1))
            finding("entry %u was undamaged, and its page is gone", entry);
        expect_same(v, &before, entry);
        *(whole[entry] ? &t->kept : &t->dropped) += 1;
    }
    end(t);
    t->trials++;
}

/* ---- adoption in another order ---- */

/* 56 keys of one home fill its window. After them come as many keys of a second home, in the window's last bucket, as
 * fit. An adoption adds these first, and then some of the 56 find no room. */
#define FIRST (PT_WINDOW * PT_BUCKET_SLOTS)
#define ALL (2 * FIRST - PT_BUCKET_SLOTS)

static uint32_t store_crowd(trial *t, uint32_t *entries, uint64_t *serials)
{
    uint32_t stored = 0;
    pt_request r = {.slot = t->session.slot, .parts = 1, .now = pt_now_ns(), .expires_ns = UINT64_MAX};
    for (uint32_t n = 0; n < ALL; n++) {
        uint64_t words[4] = {n < FIRST ? 0 : PT_WINDOW - 1, n, n, n};
        pt_answer a = reserve_page(&t->owner, &r, (uint8_t *)words, 8);
        if (a.outcome != PT_GRANTED)
            continue;
        page_fill(t->memory, n, 0, 8);
        pt_copy(&t->session.view, &(pt_job){a.entry, t->memory, 0, 8}, 1, PT_INTO_ARENA, 1);
        pt_part_finish(&t->session.view, a.entry, 0);
        entries[stored] = a.entry;
        serials[stored++] = a.serial;
    }
    return stored;
}

/* Expects that a pinned page keeps its bytes, whether it found room or not, and that nothing but room is lost. */
static void adopt_in_another_order(trial *t)
{
    uint32_t entries[ALL];
    uint64_t serials[ALL];
    begin(t, 2 * ALL, 2 * ALL);
    uint32_t stored = store_crowd(t, entries, serials);
    if (stored != ALL || pt_repin(&t->session, entries, serials, stored) != stored)
        finding("%u of %u pages were stored", stored, ALL);
    adopt(t);
    store_some(t);
    for (uint32_t n = 0; n < ALL; n++)
        page_verify(&t->session.view, entries[n], n, 8, t->memory);
    pt_release(&t->session, entries, ALL);
    pt_reap(&t->owner, t->session.slot, pt_now_ns());
    expect_all_returned(&t->owner);
    end(t);
}

int main(int count, char **arguments)
{
    static trial t;
    run r = run_begin("adoption", count, arguments);
    t.random = rng_stream(r.seed, 0);
    adopt_in_another_order(&t);
    while (!run_over(&r))
        damage_and_adopt(&t);
    run_end(&r, "%lu damaged segments, %lu pages kept,", t.trials, t.kept);
    return 0;
}
