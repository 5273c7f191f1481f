/* quotas.c - tenants with quotas, at random: what each has after every step, against what the quotas promise. */
#include "disk_scene.h"

#include "common/namespaces.h"
#include "daemon/cadence/hints.h"

#define NAMES 60u
#define LARGEST 3u /* frames of a page */

typedef struct {
    scene s;
    rng random;
    uint64_t steps, granted, refused, written;
    uint64_t before[PT_TENANTS], on_disk[PT_TENANTS]; /* frames before a step */
    /* a page on disk is being stored or read: it cannot leave, and a tenant's own pages may have left for nothing */
    bool busy;
} trial;

static pt_owner *owner(trial *t) { return &t->s.owner; }

static uint64_t least_of(trial *t, uint32_t tenant)
{
    return pt_least_frames(owner(t)->tenants.quotas[tenant].memory, owner(t)->view.frame_count);
}
static uint64_t on_device(trial *t, uint32_t tenant) { return pt_slots_on(owner(t)->disk.devices, tenant); }

static bool disk_is_busy(trial *t)
{
    const pt_owner *o = owner(t);
    bool busy = false;
    for (uint32_t entry = o->view.header->open_first; entry != PT_NONE; entry = o->view.entries[entry].list_next)
        busy |= pt_tiers(&o->view.entries[entry]) & PT_TIER_DISK;
    return busy;
}

/* Remembers what each tenant has, without what writers gave up. */
static void remember(trial *t)
{
    settle(&t->s, later(&t->s));
    for (uint32_t tenant = 0; tenant < SPACES; tenant++) {
        t->before[tenant] = owner(t)->tenants.frames[tenant];
        t->on_disk[tenant] = on_device(t, tenant);
    }
    t->busy = disk_is_busy(t);
}

/* Expects that no tenant lost pages below its minimum, but those that were to get frames: `asked`, as bits. */
static void expect_minimums(trial *t, uint32_t asked, const char *when)
{
    const pt_owner *o = owner(t);
    expect_sound(owner(t), when);
    for (uint32_t tenant = 0; tenant < o->tenants.count; tenant++) {
        uint64_t now = o->tenants.frames[tenant], least = least_of(t, tenant);
        uint64_t disk = on_device(t, tenant);
        uint64_t least_there = pt_least_frames(o->tenants.quotas[tenant].disk, o->disk.devices->slots);
        if (asked >> tenant & 1)
            continue;
        if (now < t->before[tenant] && now < least)
            finding("%s: tenant %u lost pages and has %lu frames of at least %lu", when, tenant, (unsigned long)now,
                    (unsigned long)least);
        if (!t->busy && disk < t->on_disk[tenant] && disk < least_there)
            finding("%s: tenant %u lost pages on disk and has %lu frames of at least %lu", when, tenant,
                    (unsigned long)disk, (unsigned long)least_there);
    }
}

/* Returns whether a page could leave for a tenant, by what quotas promise: its own, or, below its maximum, one of
 * another tenant that keeps its minimum without any one page. */
static bool could_leave(trial *t, uint32_t entry, uint32_t tenant, uint32_t frames, uint64_t now)
{
    const pt_owner *o = owner(t);
    uint32_t of = pt_tenant_of(o, entry);
    bool full = o->tenants.frames[tenant] + frames > o->tenants.most[tenant];
    if (!pt_list_of(o, entry) || atomic_load(&o->view.locks[entry].word) & PT_PINS ||
        atomic_load(&o->view.locks[entry].tick) >= now)
        return false;
    return of == tenant || (!full && o->tenants.frames[of] >= least_of(t, of) + LARGEST);
}

static void expect_refused_rightly(trial *t, uint32_t tenant, uint32_t frames, uint64_t now)
{
    for (uint32_t entry = 0; entry < owner(t)->view.entry_count; entry++)
        if (could_leave(t, entry, tenant, frames, now))
            finding("a page of tenant %u was refused while entry %u of tenant %u could leave", tenant, entry,
                    pt_tenant_of(owner(t), entry));
}

static void draw_key(trial *t, uint32_t *space, uint8_t *key)
{
    uint32_t number = rng_below(&t->random, NAMES);
    char name[16];
    snprintf(name, sizeof name, "%u page", number * 2654435761u);
    *space = number % SPACES;
    key_of(name, key);
}

static void store_one(trial *t)
{
    pt_owner *o = owner(t);
    uint8_t key[PT_KEY_BYTES];
    remember(t);
    pt_request r = request(&t->s, &t->s.one);
    uint32_t frames = 1 + rng_below(&t->random, LARGEST);
    draw_key(t, &r.space, key);
    uint32_t tenant = o->view.spaces[r.space].tenant;
    pt_answer a = reserve_page(o, &r, key, frames * FRAME);
    expect_minimums(t, 1u << tenant, "after a store");
    uint64_t most = o->tenants.most[tenant], used = o->tenants.frames[tenant];
    if (a.outcome == PT_GRANTED && used > most && used > t->before[tenant])
        finding("tenant %u has %lu frames of at most %lu", tenant, (unsigned long)used, (unsigned long)most);
    if (a.outcome == PT_REFUSED_FULL)
        expect_refused_rightly(t, tenant, frames, r.now);
    if (a.outcome == PT_GRANTED && !rng_one_in(&t->random, 16))
        rng_one_in(&t->random, 16) ? pt_part_abandon(&t->s.one.view, a.entry, 0) : (void)finish(&t->s, &a, 0);
    t->granted += a.outcome == PT_GRANTED;
    t->refused += a.outcome == PT_REFUSED_FULL;
}

/* Matches a page, and keeps or releases it. */
static void use_one(trial *t)
{
    uint8_t key[PT_KEY_BYTES];
    uint32_t space, entry = PT_NONE;
    uint64_t serial;
    pt_matched to = {&entry, &serial, 0, 0};
    draw_key(t, &space, key);
    pt_match(&t->s.other, key, 1, &to);
    if (to.count && !rng_one_in(&t->random, 4))
        pt_release(&t->s.other, &entry, 1);
    for (uint32_t e = 0; e < owner(t)->view.entry_count; e++)
        if (atomic_load(&owner(t)->view.locks[e].tick) < NOON)
            pt_stamp(owner(t), e, t->s.now);
}

/* Releases all pins, and all parts that were not finished. */
static void release_all(trial *t)
{
    const pt_view *v = &owner(t)->view;
    for (uint32_t entry = 0; entry < v->entry_count; entry++)
        while (t->s.other.own_pins[entry].pins)
            pt_release(&t->s.other, &entry, 1);
    for (uint32_t entry = v->header->open_first; entry != PT_NONE; entry = v->entries[entry].list_next)
        pt_part_abandon(v, entry, 0);
    settle(&t->s, later(&t->s));
}

/* Keeps a page: it leaves last. */
static void keep_one(trial *t)
{
    uint8_t key[PT_KEY_BYTES];
    uint32_t space;
    uint64_t now = later(&t->s);
    draw_key(t, &space, key);
    pt_keep_pages(owner(t), &(pt_keep_request){rng_below(&t->random, 2), PT_NONE, now + 100, 20}, key, 1, now);
}

/* Stores for each tenant, as bits, whose pages are to be written before its own. If there is no room for theirs, their
 * own pages may have left for nothing: the pages that will leave are estimated by the coldest ones. */
static void note_precedence(const pt_owner *o, uint32_t *earlier)
{
    uint32_t shut = 0;
    for (pt_candidate c; (c = pt_next_unwritten(o, shut)).entry != PT_NONE; shut |= 1u << pt_tenant_of(o, c.entry))
        earlier[pt_tenant_of(o, c.entry)] = shut;
}

static void write_one(trial *t)
{
    pt_owner *o = owner(t);
    uint32_t entry, earlier[PT_TENANTS];
    if (!o->disk.open)
        return;
    pt_list_truly(o, later(&t->s)); /* pages that were pinned are listed as used later */
    remember(t);
    uint64_t now = later(&t->s);
    note_precedence(o, earlier);
    if (!pt_start_writes(o, 0, UINT64_MAX, 1, now, &entry))
        return;
    uint32_t tenant = pt_tenant_of(o, entry);
    expect_minimums(t, earlier[tenant] | 1u << tenant, "after an order");
    uint64_t most = pt_most_frames(o->tenants.quotas[tenant].disk, o->disk.devices->slots);
    if (on_device(t, tenant) > most && on_device(t, tenant) > t->on_disk[tenant])
        finding("tenant %u has %lu frames on disk, of at most %lu", tenant, (unsigned long)on_device(t, tenant),
                (unsigned long)most);
    pt_end_write(o, entry, rng_one_in(&t->random, 8) ? PT_WRITE_AGAIN : PT_WRITE_DONE, now, 0);
    o->disk.devices->drop_count = 0;
    t->written++;
}

static void read_one(trial *t)
{
    uint8_t key[PT_KEY_BYTES];
    remember(t);
    pt_request r = request(&t->s, &t->s.one);
    pt_reader readers[PT_DEVICES] = {{r.slot, UINT64_MAX, 0}};
    pt_answer a;
    uint32_t space;
    draw_key(t, &space, key);
    pt_fetch(owner(t), &r, readers, NULL, key, 1, &a);
    expect_minimums(t, 1u << owner(t)->view.spaces[space].tenant, "after a fetch");
    if (a.outcome == PT_GRANTED)
        finish(&t->s, &a, 0);
}

/* The page that a writer still has is doomed, and its namespace loses its record to one of another tenant. */
static void reuse_a_namespace(trial *t)
{
    pt_owner *o = owner(t);
    uint32_t space = rng_below(&t->random, SPACES);
    settle(&t->s, t->s.now + 2 * TTL);
    pt_flush(o, space, PT_TIER_MEMORY | PT_TIER_DISK, later(&t->s));
    pt_space wanted = o->view.spaces[space];
    wanted.tenant = (uint8_t)rng_below(&t->random, o->tenants.count);
    EXPECT(pt_intern_space(&o->view, &wanted) == space);
    EXPECT(o->view.spaces[space].listed || o->view.spaces[space].tenant == wanted.tenant);
    expect_sound(o, "after a namespace got another tenant");
}

/* A page that is being written by a client cannot leave the disk at once, and keeps its room. */
static void shrink(trial *t)
{
    pt_disk_shrink(owner(t), 0, rng_below(&t->random, 8), later(&t->s));
    expect_sound(owner(t), "after the disk shrank");
}

/* Changes quotas, the policy, the disk or the daemon. */
static void change(trial *t)
{
    pt_owner *o = owner(t);
    switch (rng_below(&t->random, 7)) {
    case 0:
        pt_disk_open(o, 0, 4 + rng_below(&t->random, 40), PT_WRITE_EVICTED, later(&t->s));
        break;
    case 1:
        shrink(t);
        break;
    case 2:
        pt_owner_end(o);
        *o = world_adopt(t->s.world, pt_taken_slots(&o->view));
        world_draw_quotas(o, &t->random);
        break;
    case 3:
        EXPECT(o->cadence ? (pt_forget_returns(o), true) : pt_learn_returns(o, rng_next(&t->random)));
        if (o->cadence)
            o->cadence->full_pages = 8, o->cadence->learned = true;
        break;
    case 4:
        reuse_a_namespace(t);
        break;
    case 5:
        release_all(t);
        break;
    default:
        world_draw_quotas(o, &t->random);
        break;
    }
    o->disk.devices->drop_count = 0;
    expect_sound(o, "after a change");
}

static void evict_some(trial *t)
{
    remember(t);
    pt_evict_until(owner(t), 4 + rng_below(&t->random, 8), 4, later(&t->s));
    expect_minimums(t, 0, "after an eviction ahead of need");
    for (uint64_t now = later(&t->s); rng_one_in(&t->random, 4) && pt_trim(owner(t), 3, now);)
        expect_sound(owner(t), "after a trim");
}

static void step(trial *t)
{
    uint32_t chance = rng_below(&t->random, 100);
    if (chance < 60)
        store_one(t);
    else if (chance < 70)
        use_one(t);
    else if (chance < 72)
        release_all(t);
    else if (chance < 84)
        write_one(t);
    else if (chance < 90)
        read_one(t);
    else if (chance < 94)
        evict_some(t);
    else if (chance < 98)
        keep_one(t);
    else
        change(t);
}

/* A tenant has a page on disk that alone is more than its maximum; what would be left
 * without it is less than its minimum. */
static void keep_a_large_page(void)
{
    scene s = scene_new(64, 40);
    pt_quota quotas[SPACES] = {PT_NO_QUOTA, {{0, 1}, {0.2, 0.25}}, PT_NO_QUOTA};
    uint8_t tenants[SPACES] = {0, 1, 2}, key[PT_KEY_BYTES];
    uint32_t entry;
    key_of("large", key);
    EXPECT(pt_disk_open(&s.owner, 0, 8, PT_WRITE_THROUGH, later(&s)));
    EXPECT(pt_disk_report(&s.owner, &(pt_stored){key, 3 * FRAME, 1, NOON, 0, 0}, later(&s)));
    EXPECT(pt_set_quotas(&s.owner, quotas, SPACES, tenants, later(&s)));
    pt_answer other = ask(&s, &s.one, "other", 6 * FRAME, 0, 1);
    EXPECT(finish(&s, &other, 0));
    EXPECT(!order(&s, 1, &entry) && pt_slots_on(s.owner.disk.devices, 1) == 3);
    pt_disk_close(&s.owner, 0, later(&s));
    scene_end(&s);
}

/* Two tenants have exactly their minimum of a full disk. What one of them writes displaces its own
 * page, though that of the other is colder. */
static void keep_the_minimum_on_disk(void)
{
    scene s = scene_new(64, 40);
    pt_quota quotas[SPACES] = {PT_NO_QUOTA, {{0, 1}, {0.5, 1}}, {{0, 1}, {0.5, 1}}};
    uint8_t tenants[SPACES] = {0, 1, 2}, keys[3][PT_KEY_BYTES];
    uint32_t entry;
    EXPECT(pt_disk_open(&s.owner, 0, 2, PT_WRITE_THROUGH, later(&s)));
    EXPECT(pt_set_quotas(&s.owner, quotas, SPACES, tenants, later(&s)));
    for (uint32_t i = 0; i < 3; i++)
        key_of((char[]){(char)('a' + i), 0}, keys[i]);
    EXPECT(pt_disk_report(&s.owner, &(pt_stored){keys[0], FRAME, 1, NOON, 0, 0}, later(&s)));
    EXPECT(pt_disk_report(&s.owner, &(pt_stored){keys[1], FRAME, 2, NOON + 1, 0, 0}, later(&s)));
    pt_request r = request(&s, &s.one);
    r.space = 2;
    pt_answer a = reserve_page(&s.owner, &r, keys[2], FRAME);
    EXPECT(finish(&s, &a, 0) && order(&s, 1, &entry) == 1 && entry == a.entry);
    EXPECT(pt_slots_on(s.owner.disk.devices, 1) == 1 && pt_slots_on(s.owner.disk.devices, 2) == 1);
    end_order(&s, entry, PT_WRITE_DONE);
    pt_disk_close(&s.owner, 0, later(&s));
    scene_end(&s);
}

int main(int count, char **arguments)
{
    run r = run_begin("quotas", count, arguments);
    trial all = {0};
    keep_a_large_page();
    keep_the_minimum_on_disk();
    for (uint64_t seed = r.seed; seed == r.seed || !run_over(&r); seed++) {
        trial t = {.s = scene_new(64, 40), .random = rng_stream(seed, 0)};
        world_draw_quotas(&t.s.owner, &t.random);
        for (uint32_t n = 0; n < 3000; n++)
            step(&t);
        release_all(&t);
        pt_disk_close(&t.s.owner, 0, later(&t.s));
        pt_reap(&t.s.owner, t.s.one.slot, later(&t.s));
        scene_end(&t.s);
        all.steps += 3000, all.granted += t.granted, all.refused += t.refused, all.written += t.written;
        if (seed == r.seed)
            run_determined(&r, "%lu steps: %lu pages granted, %lu refused, %lu written", all.steps, all.granted,
                           all.refused, all.written);
    }
    run_end(&r, "%lu steps, %lu pages granted, %lu refused, %lu written,", all.steps, all.granted, all.refused,
            all.written);
    return 0;
}
