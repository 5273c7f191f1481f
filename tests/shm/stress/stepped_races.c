/* stepped_races.c - a process sleeps after each of its instructions, once on purpose, while another one does what must not
 * fool it: narrow races, turn by turn. The stress meets them by chance, and that may take it a minute. */
#include "scene.h"
#include "stepping.h"

/* ASan makes so many instructions of each that a run tries one of so many; which ones, the seed says. */
#ifdef __SANITIZE_ADDRESS__
#define EVERY 16u
#else
#define EVERY 1u
#endif

/* A scene, and what came of it. */
typedef struct {
    scene s;
    pt_answer page, next; /* the one that it is about, and the one that comes meanwhile */
    pt_found found;
    bool evicted, published;
} night;

static pt_found look(pt_session *who, const char *name)
{
    uint8_t key[PT_KEY_BYTES] = {0};
    strncpy((char *)key, name, sizeof key - 1);
    pthread_mutex_lock(&who->lock);
    pt_found found = pt_find(who, key);
    pthread_mutex_unlock(&who->lock);
    return found;
}

static bool is_readable(const scene *s, uint32_t entry, const char *name)
{
    const pt_view *v = &s->one.view;
    return pt_load_state(&v->locks[entry].word) == PT_READABLE &&
           strncmp((char *)v->entries[entry].key, name, PT_KEY_BYTES) == 0;
}

/* What is pinned counts as used now: it comes up once. */
static bool evict(scene *s)
{
    s->now += 10;
    return pt_evict_one(&s->owner, s->now, s->now);
}

static void store_settled(night *n, const char *name)
{
    n->page = store(&n->s, name);
    settle(&n->s, n->s.now);
}

static void store_pinned(night *n, const char *name)
{
    store_settled(n, name);
    EXPECT(pt_repin(&n->s.other, &n->page.entry, &n->page.serial, 1) == 1);
}

static void was_found(night *n)
{
    EXPECT(n->found.where == PT_IN_MEMORY && n->found.entry == n->page.entry);
    pt_release(&n->s.one, &n->page.entry, 1);
    pt_release(&n->s.other, &n->page.entry, 1);
}

/* ---- a search sleeps over an adoption, and till the next daemon died over the dictionary that it looks in ---- */

static void a_page_in_the_old_dictionary(night *n)
{
    n->s = scene_new(8, 8);
    store_pinned(n, "a");
}

static void search(void *given)
{
    night *n = given;
    n->found = look(&n->s.one, "a");
}

static void daemons_die(void *given)
{
    scene *s = &((night *)given)->s;
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, pt_taken_slots(&s->one.view));
    pt_dict_clear(pt_dict_of(&s->owner.view, s->owner.view.header->dictionary + 1));
}

/* ---- a search sleeps while the page that it looks for moves home, to where it has looked already ---- */

#define HOME "samehome"
#define MOVING HOME "h"

static uint32_t displaced(const scene *s)
{
    const pt_view *v = &s->one.view;
    return pt_buckets_now(v)[pt_home(v, (const uint8_t *)HOME)].displaced;
}

static void a_page_away_from_home(night *n)
{
    char name[] = HOME "a";
    n->s = scene_new(16, 16);
    for (uint32_t i = 0; i < PT_BUCKET_SLOTS; i++, name[sizeof name - 2]++)
        store(&n->s, name);
    EXPECT(!displaced(&n->s) && strcmp(name, MOVING) == 0);
    store_pinned(n, MOVING);
    EXPECT(displaced(&n->s) == 1);
}

static void search_the_moving(void *given)
{
    night *n = given;
    n->found = look(&n->s.one, MOVING);
}

static void it_moves_home(void *given)
{
    scene *s = &((night *)given)->s;
    EXPECT(evict(s) && !displaced(s));
}

/* ---- a search sleeps while the entry that it is about to pin becomes another page, with the same home and tag ---- */

#define ALIKE "samehomesametag:"

static void a_page_that_may_leave(night *n)
{
    n->s = scene_new(8, 2);
    store_settled(n, ALIKE "a");
}

static void search_the_leaving(void *given)
{
    night *n = given;
    n->found = look(&n->s.one, ALIKE "a");
}

static void its_entry_is_filled_again(void *given)
{
    night *n = given;
    n->evicted = evict(&n->s);
    n->next = store(&n->s, ALIKE "b");
    EXPECT(n->evicted == (n->next.entry == n->page.entry));
}

static void was_found_or_evicted(night *n)
{
    EXPECT((n->found.where == PT_NOWHERE) == n->evicted);
    if (n->evicted)
        return;
    EXPECT(n->found.entry == n->page.entry && is_readable(&n->s, n->found.entry, ALIKE "a"));
    pt_release(&n->s.one, &n->found.entry, 1);
}

/* ---- a writer sleeps while it publishes, and the daemon would like to have its entry ---- */

static void a_page_to_publish(night *n)
{
    n->s = scene_new(8, 2);
    n->page = ask(&n->s, &n->s.one, "a", FRAME, 0, 1);
}

static void publish(void *given)
{
    night *n = given;
    n->published = finish(&n->s, &n->page, 0);
}

static void room_is_made(void *given)
{
    night *n = given;
    settle(&n->s, n->s.now);
    evict(&n->s);
    n->next = ask(&n->s, &n->s.other, "b", FRAME, 0, 1);
    EXPECT(n->next.outcome == PT_GRANTED);
}

static void its_time_is_over(void *given)
{
    night *n = given;
    n->s.now += TTL;
    room_is_made(n);
}

static void published_only_its_own(night *n)
{
    EXPECT(n->published == !n->s.owner.view.header->deeds.expired);
    EXPECT(!there(&n->s.other, "b") && finish(&n->s, &n->next, 0) && there(&n->s.other, "b"));
}

/* ---- a daemon sleeps while it evicts, and an engine pins the page ---- */

static void the_only_page(night *n)
{
    n->s = scene_new(8, 1);
    store_settled(n, "a");
}

static void make_room(void *given)
{
    night *n = given;
    n->evicted = evict(&n->s);
}

static void it_is_pinned(void *given)
{
    night *n = given;
    n->found = look(&n->s.other, "a");
}

static void was_kept_or_evicted(night *n)
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
    void (*begin)(night *), (*asleep)(void *), (*meanwhile)(void *), (*awake)(night *);
} turn;

static bool sleeps_once(const turn *t, uint64_t instructions)
{
    night n = {0};
    t->begin(&n);
    bool slept = sleeps_after(instructions, t->asleep, t->meanwhile, &n);
    if (slept) {
        t->awake(&n);
    } else {
        pt_reap(&n.s.owner, n.s.one.slot, NOON);
        pt_reap(&n.s.owner, n.s.other.slot, NOON);
    }
    scene_end(&n.s);
    return slept;
}

/* How often it slept. */
static uint64_t sleeps_everywhere(const turn *t, uint64_t first)
{
    uint64_t at = first;
    while (sleeps_once(t, at))
        at += EVERY;
    if (at < 2 * EVERY)
        finding("a process does not stop after its instructions: this machine does not mind the trap flag");
    return (at - first) / EVERY;
}

int main(int count, char **arguments)
{
    static const turn turns[] = {
        {a_page_in_the_old_dictionary, search, daemons_die, was_found},
        {a_page_away_from_home, search_the_moving, it_moves_home, was_found},
        {a_page_that_may_leave, search_the_leaving, its_entry_is_filled_again, was_found_or_evicted},
        {a_page_to_publish, publish, room_is_made, published_only_its_own},
        {a_page_to_publish, publish, its_time_is_over, published_only_its_own},
        {the_only_page, make_room, it_is_pinned, was_kept_or_evicted},
    };
    const uint32_t all = sizeof turns / sizeof turns[0];
    uint64_t sleeps = 0;
    (void)count;
    run r = run_begin("asleep", arguments);
    if (!CAN_STEP) {
        printf("asleep     skipped: it steps with the trap flag of x86-64\n");
        return 0;
    }
    for (uint32_t i = 0; i < all; i++)
        sleeps += sleeps_everywhere(&turns[i], r.seed % EVERY);
    run_end(&r, "%u turns, asleep after %lu instructions, one of %u,", all, (unsigned long)sleeps, EVERY);
    return 0;
}
