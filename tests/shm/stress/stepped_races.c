/* stepped_races.c - narrow races, step by step: a process stops after each of its instructions, once on purpose, while
 * another one does everything that could mislead it. The stress test meets these cases by chance, which may take it a
 * minute. */
#include "scene.h"
#include "stepping.h"

/* A walk pauses after one of so many instructions, and the seed selects which. All walks together pause after each of
 * them; few are enough to meet a race of several instructions, so each walk visits all races. ASan multiplies the
 * instructions, so its build walks once. */
#define EVERY 16u
#ifdef __SANITIZE_ADDRESS__
#define WALKS 1u
#else
#define WALKS EVERY
#endif
#define STEP 5u /* from a walk to the next: a few walks are spread over all instructions */

/* A scene and its results. */
typedef struct {
    scene s;
    const char *name; /* of the page that is searched */
    pt_answer page, next; /* the page of the test, and the page that is stored during the pause */
    pt_found found;
    uint8_t tiers; /* in which the page is located */
    pt_listed row;
    bool evicted, published, listed;
} trial;

/* Returns a scene without places for lookups: segments of a few pages take the kernel little time. */
static scene scene_bare(uint32_t entries, uint32_t frames)
{
    return scene_in(world_new_with(1, entries, frames, (pt_reserves){PT_PAGE, 0, 0}));
}

static pt_found look(pt_session *session, const char *name)
{
    uint8_t key[PT_KEY_BYTES];
    key_of(name, key);
    pthread_mutex_lock(&session->lock);
    pt_found found = pt_find(session, key);
    pthread_mutex_unlock(&session->lock);
    return found;
}

static bool is_readable(const scene *s, uint32_t entry, const char *name)
{
    const pt_view *v = &s->one.view;
    return pt_load_state(&v->locks[entry].word) == PT_READABLE &&
           strncmp((char *)v->entries[entry].key, name, PT_KEY_BYTES) == 0;
}

/* Evicts a page. A pinned page counts as used now, so it is considered once. */
static bool evict(scene *s)
{
    s->now += 10;
    return pt_evict_one(&s->owner, s->now, s->now);
}

static void store_settled(trial *n, const char *name)
{
    n->name = name;
    n->page = store(&n->s, name);
    settle(&n->s, n->s.now);
}

static void store_pinned(trial *n, const char *name)
{
    store_settled(n, name);
    EXPECT(repin(&n->s.other, &n->page));
}

static void was_found(trial *n)
{
    EXPECT(n->found.where == PT_IN_MEMORY && n->found.entry == n->page.entry);
    pt_release(&n->s.one, &n->page.entry, 1);
    pt_release(&n->s.other, &n->page.entry, 1);
}

/* ---- a search pauses during an adoption, until the next daemon has died while it cleared the
 * dictionary that the search scans ---- */

static void a_page_in_the_old_dictionary(trial *n)
{
    n->s = scene_bare(8, 8);
    store_pinned(n, "a");
}

static void search(void *given)
{
    trial *n = given;
    n->found = look(&n->s.one, n->name);
}

static void daemons_die(void *given)
{
    scene *s = &((trial *)given)->s;
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, pt_taken_slots(&s->one.view));
    pt_dict_clear(pt_dict_of(&s->owner.view, s->owner.view.header->dictionary + 1));
}

/* A session locates the page instead of searching it. */
static void locate(void *given)
{
    trial *n = given;
    uint8_t key[PT_KEY_BYTES];
    key_of(n->name, key);
    n->tiers = pt_locate(&n->s.one.view, key);
}

static void was_located(trial *n)
{
    EXPECT(n->tiers == PT_TIER_MEMORY);
    pt_release(&n->s.other, &n->page.entry, 1);
}

/* ---- a search pauses while its page moves home, to a bucket that it has already scanned ---- */

#define HOME "samehome"
#define MOVING HOME "h"

static uint32_t displaced(const scene *s)
{
    const pt_view *v = &s->one.view;
    return pt_buckets_now(v)[pt_home(v, (const uint8_t *)HOME)].displaced;
}

static void a_page_away_from_home(trial *n)
{
    char name[] = HOME "a";
    n->s = scene_bare(16, 16);
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++, name[sizeof name - 2]++)
        store(&n->s, name);
    EXPECT(!displaced(&n->s) && strcmp(name, MOVING) == 0);
    store_pinned(n, MOVING);
    EXPECT(displaced(&n->s) == 1);
}

static void it_moves_home(void *given)
{
    scene *s = &((trial *)given)->s;
    EXPECT(evict(s) && !displaced(s));
}

/* ---- a search pauses while the entry that it is about to pin becomes another page, with the same home and tag ---- */

#define ALIKE "samehomesametag:"

static void a_page_that_may_leave(trial *n)
{
    n->s = scene_bare(8, 2);
    store_settled(n, ALIKE "a");
}

static void its_entry_is_filled_again(void *given)
{
    trial *n = given;
    n->evicted = evict(&n->s);
    n->next = store(&n->s, ALIKE "b");
    EXPECT(n->evicted == (n->next.entry == n->page.entry));
}

static void was_found_or_evicted(trial *n)
{
    EXPECT((n->found.where == PT_NOWHERE) == n->evicted);
    if (n->evicted)
        return;
    EXPECT(n->found.entry == n->page.entry && is_readable(&n->s, n->found.entry, ALIKE "a"));
    pt_release(&n->s.one, &n->found.entry, 1);
}

static void was_located_or_evicted(trial *n)
{
    EXPECT(n->tiers == PT_TIER_MEMORY || (n->evicted && !n->tiers));
}

/* ---- a session pauses while it locates a page whose entry was another page, and becomes
 * this one while it is written ---- */

static void a_page_with_the_entry_of_another(trial *n)
{
    a_page_that_may_leave(n);
    n->name = ALIKE "b";
}

static void its_entry_is_being_filled(void *given)
{
    trial *n = given;
    EXPECT(evict(&n->s));
    n->next = ask(&n->s, &n->s.one, ALIKE "b", FRAME, 0, 1);
    EXPECT(n->next.outcome == PT_GRANTED && n->next.entry == n->page.entry);
}

static void was_nowhere(trial *n)
{
    EXPECT(!n->tiers);
    EXPECT(finish(&n->s, &n->next, 0));
}

/* ---- a session pauses while it locates a page that is being written, until its entry is that of a stored page ---- */

static void a_page_being_written(trial *n)
{
    n->s = scene_bare(8, 2);
    n->name = ALIKE "b";
    n->page = ask(&n->s, &n->s.one, n->name, FRAME, 0, 1);
    EXPECT(n->page.outcome == PT_GRANTED);
}

static void its_writer_gives_up(void *given)
{
    trial *n = given;
    pt_part_abandon(&n->s.one.view, n->page.entry, 0);
    settle(&n->s, n->s.now);
    n->next = store(&n->s, ALIKE "c");
    EXPECT(n->next.entry == n->page.entry);
}

static void never_came(trial *n) { EXPECT(!n->tiers); }

/* ---- an observer pauses while it lists a page, until only the key and the size of the entry's next page
 * are written ---- */

static void list(void *given)
{
    trial *n = given;
    n->listed = pt_list_page(&n->s.one.view, n->page.entry, 0, &n->row);
}

static void its_entry_has_another_key(void *given)
{
    trial *n = given;
    pt_entry *e = &n->s.owner.view.entries[n->page.entry];
    uint8_t key[PT_KEY_BYTES];
    EXPECT(evict(&n->s));
    key_of(ALIKE "b", key);
    pt_put_key(e, key);
    e->size = 1;
}

static void was_listed_while_stored(trial *n)
{
    uint8_t first[PT_KEY_BYTES], next[PT_KEY_BYTES];
    key_of(ALIKE "a", first);
    key_of(ALIKE "b", next);
    bool stored = pt_same_key(n->row.key, first) || (n->evicted && pt_same_key(n->row.key, next));
    EXPECT(!n->listed || (stored && n->row.size == FRAME && n->row.tiers == PT_TIER_MEMORY));
}

/* ---- a writer pauses while it publishes, and the daemon wants to reuse its entry ---- */

static void a_page_to_publish(trial *n)
{
    n->s = scene_bare(8, 2);
    n->page = ask(&n->s, &n->s.one, "a", FRAME, 0, 1);
}

static void publish(void *given)
{
    trial *n = given;
    n->published = finish(&n->s, &n->page, 0);
}

static void room_is_made(void *given)
{
    trial *n = given;
    settle(&n->s, n->s.now);
    evict(&n->s);
    n->next = ask(&n->s, &n->s.other, "b", FRAME, 0, 1);
    EXPECT(n->next.outcome == PT_GRANTED);
}

static void its_time_is_over(void *given)
{
    trial *n = given;
    n->s.now += TTL;
    room_is_made(n);
}

static void published_only_its_own(trial *n)
{
    EXPECT(n->published == !n->s.owner.view.header->counters.expired);
    EXPECT(!there(&n->s.other, "b") && finish(&n->s, &n->next, 0) && there(&n->s.other, "b"));
}

/* ---- a daemon pauses while it evicts, and an engine pins the page ---- */

static void the_only_page(trial *n)
{
    n->s = scene_bare(8, 1);
    store_settled(n, "a");
}

static void make_room(void *given)
{
    trial *n = given;
    n->evicted = evict(&n->s);
}

static void it_is_pinned(void *given)
{
    trial *n = given;
    n->found = look(&n->s.other, "a");
}

static void was_pinned_or_evicted(trial *n)
{
    expect_sound(&n->s.owner, "after an eviction");
    EXPECT((n->found.where == PT_NOWHERE) == n->evicted);
    if (n->evicted)
        return;
    EXPECT(is_readable(&n->s, n->found.entry, "a"));
    EXPECT(ask(&n->s, &n->s.one, "b", FRAME, 0, 1).outcome == PT_REFUSED_FULL);
    pt_release(&n->s.other, &n->found.entry, 1);
}

/* ---- all of them ---- */

typedef struct {
    void (*begin)(trial *), (*victim)(void *), (*intruder)(void *), (*check)(trial *);
} race;

static bool pauses_once(const race *t, uint64_t instructions)
{
    trial n = {0};
    t->begin(&n);
    bool paused = run_with_pause(instructions, t->victim, t->intruder, &n);
    if (paused) {
        t->check(&n);
    } else {
        pt_reap(&n.s.owner, n.s.one.slot, NOON);
        pt_reap(&n.s.owner, n.s.other.slot, NOON);
    }
    scene_end(&n.s);
    return paused;
}

/* Returns how often it paused: after the first of these instructions, and after each EVERY-th from there on. */
static uint64_t pauses_along(const race *t, uint64_t first)
{
    uint64_t at = first;
    while (pauses_once(t, at))
        at += EVERY;
    if (at < 2 * EVERY)
        finding("a process does not stop after its instructions: this machine ignores the trap flag");
    return (at - first) / EVERY;
}

int main(int count, char **arguments)
{
    static const race races[] = {
        {a_page_in_the_old_dictionary, search, daemons_die, was_found},
        {a_page_away_from_home, search, it_moves_home, was_found},
        {a_page_that_may_leave, search, its_entry_is_filled_again, was_found_or_evicted},
        {a_page_in_the_old_dictionary, locate, daemons_die, was_located},
        {a_page_away_from_home, locate, it_moves_home, was_located},
        {a_page_that_may_leave, locate, its_entry_is_filled_again, was_located_or_evicted},
        {a_page_with_the_entry_of_another, locate, its_entry_is_being_filled, was_nowhere},
        {a_page_being_written, locate, its_writer_gives_up, never_came},
        {a_page_that_may_leave, list, its_entry_has_another_key, was_listed_while_stored},
        {a_page_that_may_leave, list, its_entry_is_filled_again, was_listed_while_stored},
        {a_page_to_publish, publish, room_is_made, published_only_its_own},
        {a_page_to_publish, publish, its_time_is_over, published_only_its_own},
        {the_only_page, make_room, it_is_pinned, was_pinned_or_evicted},
    };
    const uint32_t all = sizeof races / sizeof races[0];
    uint64_t pauses = 0;
    run r = run_begin("stepped_races", count, arguments);
    if (!CAN_STEP) {
        printf("stepped_races  skipped: it steps with the trap flag of x86-64\n");
        return 0;
    }
    for (uint64_t walk = 0; walk < WALKS; walk++)
        for (uint32_t i = 0; i < all; i++)
            pauses += pauses_along(&races[i], (r.seed + walk * STEP) % EVERY);
    run_end(&r, "%u races, paused after %lu instructions, one of %u,", all, (unsigned long)pauses, EVERY / WALKS);
    return 0;
}
