/* page_lifecycle.c - the life of a page, step by step: every case that the stress test
 * meets by chance, once on purpose. */
#include "scene.h"

/* ---- storing one page ---- */

CASE(a_page_is_stored, 8, 8)
{
    pt_answer a = ask(s, &s->one, "a", 2 * FRAME + 1, 0, 1);
    EXPECT(a.outcome == PT_GRANTED && used(s) == 3 && !there(&s->other, "a"));
    EXPECT(ask(s, &s->other, "a", 2 * FRAME + 1, 0, 1).outcome == PT_PENDING);
    EXPECT(finish(s, &a, 0) && there(&s->one, "a") && there(&s->other, "a"));
    EXPECT(ask(s, &s->other, "a", 2 * FRAME + 1, 0, 1).outcome == PT_PRESENT);
}

/* Reserves as many parts, but cut in another way. */
static enum pt_outcome asked_by_another_engine(scene *s, const char *name, uint32_t division)
{
    pt_request r = request(s, &s->other);
    uint8_t key[PT_KEY_BYTES];
    r.part = 1;
    r.parts = 2;
    r.division = division;
    key_of(name, key);
    return reserve_page(&s->owner, &r, key, FRAME).outcome;
}

CASE(parts_join, 8, 8)
{
    pt_answer first = ask(s, &s->one, "a", FRAME, 0, 2);
    EXPECT(ask(s, &s->other, "a", FRAME, 1, 3).outcome == PT_PENDING);
    EXPECT(ask(s, &s->other, "a", FRAME + 1, 1, 2).outcome == PT_PENDING);
    EXPECT(ask(s, &s->other, "a", FRAME, 0, 2).outcome == PT_PENDING);
    EXPECT(asked_by_another_engine(s, "a", 7) == PT_PENDING);
    EXPECT(finish(s, &first, 0) && !there(&s->one, "a"));
    pt_answer second = ask(s, &s->other, "a", FRAME, 1, 2);
    EXPECT(second.outcome == PT_GRANTED && second.entry == first.entry && second.serial == first.serial);
    EXPECT(finish(s, &second, 1) && there(&s->one, "a"));
}

CASE(a_late_writer_cannot_publish, 8, 2)
{
    pt_answer late = ask(s, &s->one, "a", FRAME, 0, 1);
    settle(s, s->now + TTL);
    EXPECT(s->owner.view.header->counters.expired == 0);
    settle(s, s->now + TTL + 1);
    EXPECT(s->owner.view.header->counters.expired == 1 && used(s) == 1);
    pt_answer again = ask(s, &s->other, "a", FRAME, 0, 1);
    EXPECT(again.outcome == PT_GRANTED && again.entry != late.entry && again.serial != late.serial);
    EXPECT(ask(s, &s->other, "b", FRAME, 0, 1).outcome == PT_REFUSED_FULL); /* the late writer still has its frame */
    EXPECT(!finish(s, &late, 0) && !there(&s->one, "a"));
    settle(s, NOON);
    EXPECT(used(s) == 1 && finish(s, &again, 0) && there(&s->one, "a"));
}

CASE(an_abandoned_part_dooms_the_page, 8, 8)
{
    pt_answer a = ask(s, &s->one, "a", FRAME, 0, 2), b = ask(s, &s->other, "a", FRAME, 1, 2);
    pt_part_abandon(&s->one.view, a.entry, 0);
    settle(s, NOON);
    EXPECT(used(s) == 1 && ask(s, &s->one, "a", FRAME, 0, 2).outcome == PT_GRANTED && used(s) == 2);
    EXPECT(!finish(s, &b, 1) && !there(&s->one, "a"));
    settle(s, NOON);
    EXPECT(used(s) == 1);
    pt_reap(&s->owner, s->one.slot, NOON);
    EXPECT(used(s) == 0);
}

/* ---- deaths ---- */

CASE(a_dead_writer_dooms_the_page, 8, 8)
{
    ask(s, &s->one, "a", FRAME, 0, 2);
    pt_answer living = ask(s, &s->other, "a", FRAME, 1, 2);
    pt_reap(&s->owner, s->one.slot, NOON);
    expect_sound(&s->owner, "after a death");
    EXPECT(used(s) == 1 && !finish(s, &living, 1));
    settle(s, NOON);
    EXPECT(used(s) == 0);
}

CASE(a_writer_that_dies_after_its_bit_has_published, 8, 8)
{
    pt_answer a = ask(s, &s->one, "a", FRAME, 0, 1);
    atomic_fetch_or(&s->one.view.locks[a.entry].parts, 1); /* and no further */
    EXPECT(!there(&s->other, "a"));
    pt_reap(&s->owner, s->one.slot, NOON);
    expect_sound(&s->owner, "after a death");
    EXPECT(there(&s->other, "a"));
}

static pt_answer stores_part(scene *s, const pt_session *writer, const char *name, uint32_t part)
{
    pt_answer a = ask(s, writer, name, FRAME, part, 3);
    EXPECT(a.outcome == PT_GRANTED && finish(s, &a, part));
    return a;
}

/* A writer that joined keeps the page as long as it lives, in whatever order the writers die. */
static void writers_die(scene *s, const pt_session *before, const pt_session *last)
{
    stores_part(s, &s->one, "a", 0);
    stores_part(s, &s->other, "a", 1);
    pt_reap(&s->owner, before->slot, s->now);
    settle(s, s->now);
    EXPECT(used(s) == 1 && s->owner.view.header->counters.doomed == 0);
    pt_reap(&s->owner, last->slot, s->now);
    expect_sound(&s->owner, "after the last death");
    EXPECT(used(s) == 0 && s->owner.view.header->counters.doomed == 1 && s->owner.view.header->counters.expired == 0);
}

CASE(a_page_ends_with_its_second_writer, 8, 8) { writers_die(s, &s->one, &s->other); }
CASE(a_page_ends_with_its_first_writer, 8, 8) { writers_die(s, &s->other, &s->one); }

CASE(a_writer_that_joined_and_lives_finishes_the_page, 8, 8)
{
    stores_part(s, &s->one, "a", 0);
    stores_part(s, &s->other, "a", 1);
    pt_reap(&s->owner, s->one.slot, s->now);
    EXPECT(attach(&s->owner, 3) == s->one.slot);
    stores_part(s, &s->one, "a", 2);
    EXPECT(there(&s->other, "a"));
}

CASE(a_whole_page_outlives_its_writers, 8, 8)
{
    pt_answer a = ask(s, &s->one, "a", FRAME, 0, 2);
    EXPECT(ask(s, &s->other, "a", FRAME, 1, 2).outcome == PT_GRANTED);
    atomic_fetch_or(&s->one.view.locks[a.entry].parts, 3); /* and neither gets any further */
    pt_reap(&s->owner, s->one.slot, s->now);
    pt_reap(&s->owner, s->other.slot, s->now);
    expect_sound(&s->owner, "after both deaths");
    EXPECT(attach(&s->owner, 3) == s->one.slot && there(&s->one, "a"));
}

/* Its page waits for a writer that is attached, and the next process in its slot is not taken for it. */
CASE(a_writer_that_left_costs_no_page_of_another_one, 8, 8)
{
    stores_part(s, &s->one, "a", 0);
    stores_part(s, &s->other, "a", 1);
    pt_reap(&s->owner, s->one.slot, s->now);
    EXPECT(attach(&s->owner, 3) == s->one.slot);
    pt_reap(&s->owner, s->one.slot, s->now);
    EXPECT(used(s) == 1);
    stores_part(s, &s->other, "a", 2);
    EXPECT(there(&s->other, "a"));
}

/* Writers may be dead when a daemon takes over, or marked as ended by the daemon before. */
CASE(a_new_daemon_knows_which_writers_are_dead, 8, 8)
{
    stores_part(s, &s->one, "only the dead", 0);
    stores_part(s, &s->one, "one lives", 0);
    stores_part(s, &s->other, "one lives", 1);
    uint32_t third = attach(&s->owner, 3);
    pt_session left = {.view = s->one.view, .slot = third};
    stores_part(s, &left, "one detached", 0);
    stores_part(s, &s->other, "one detached", 1);
    pt_reap(&s->owner, third, s->now);
    pt_owner_end(&s->owner);
    for (int daemons = 0; daemons < 2; daemons++) {
        s->owner = world_adopt(s->world, 1ull << s->other.slot);
        expect_sound(&s->owner, "after the adoption");
        EXPECT(used(s) == 2 && s->owner.view.header->counters.doomed == 1);
        if (!daemons)
            pt_owner_end(&s->owner);
    }
    settle(s, 2 * NOON);
    EXPECT(used(s) == 0);
}

CASE(the_pins_of_a_dead_process_are_cleared, 8, 1)
{
    pt_answer a = store(s, "a");
    settle(s, NOON);
    EXPECT(repin(&s->other, &a));
    EXPECT(ask(s, &s->one, "b", FRAME, 0, 1).outcome == PT_REFUSED_FULL);
    pt_reap(&s->owner, s->other.slot, NOON);
    EXPECT(ask(s, &s->one, "b", FRAME, 0, 1).outcome == PT_GRANTED);
    EXPECT(!repin(&s->one, &a));
    pt_reap(&s->owner, s->one.slot, NOON);
}

static bool is_held(const void *serial, uint64_t asked) { return *(const uint64_t *)serial == asked; }

CASE(grants_of_a_lost_response_are_released, 8, 8)
{
    pt_answer held = ask(s, &s->one, "a", FRAME, 0, 1);
    ask(s, &s->one, "b", FRAME, 0, 1);
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, pt_taken_slots(&s->one.view));
    pt_release_unlisted_parts(&s->owner, s->one.slot, is_held, &held.serial);
    settle(s, NOON);
    EXPECT(used(s) == 1 && finish(s, &held, 0) && there(&s->other, "a"));
}

CASE(slots_run_out_and_become_free, 8, 8)
{
    for (uint32_t number = 3; number <= PT_SLOTS; number++)
        EXPECT(attach(&s->owner, number) != PT_NONE);
    EXPECT(attach(&s->owner, PT_SLOTS + 1) == PT_NONE);
    EXPECT(attach(&s->owner, 2) == s->other.slot);
    pt_reap(&s->owner, s->other.slot, NOON);
    EXPECT(attach(&s->owner, PT_SLOTS + 1) == s->other.slot);
}

/* ---- eviction and rejection ---- */

CASE(the_tail_of_a_prompt_is_evicted_first, 8, 8)
{
    pt_request r = {.slot = s->one.slot, .part = 0, .parts = 1, .now = NOON, .expires_ns = NOON + TTL};
    uint8_t keys[4 * PT_KEY_BYTES];
    uint64_t sizes[4] = {FRAME, FRAME, FRAME, FRAME}, serials[4];
    uint32_t entries[4];
    pt_answer answers[4];
    for (uint32_t i = 0; i < 4; i++)
        page_key(1 + i, keys + i * PT_KEY_BYTES);
    pt_reserve(&s->owner, &r, keys, sizes, 4, answers);
    for (uint32_t i = 0; i < 4; i++)
        EXPECT(finish(s, &answers[i], 0));
    settle(s, NOON);
    for (uint32_t left = 4; left-- > 0;) {
        EXPECT(pt_evict_one(&s->owner, UINT64_MAX, UINT64_MAX - 2 * PT_TICK_SLACK_NS));
        pt_matched to = {entries, serials, 0, 0};
        pt_match(&s->other, keys, 4, &to);
        EXPECT(to.count == left && to.reach == left);
        pt_release(&s->other, entries, left);
    }
}

CASE(a_tick_in_the_future_does_not_keep_a_page, 8, 1)
{
    pt_answer a = store(s, "a");
    atomic_store(&s->one.view.locks[a.entry].tick, UINT64_MAX);
    settle(s, NOON - 1);
    EXPECT(ask(s, &s->one, "b", FRAME, 0, 1).outcome == PT_GRANTED);
    pt_reap(&s->owner, s->one.slot, NOON);
}

CASE(pages_in_use_are_not_flushed, 8, 8)
{
    pt_answer pinned = store(s, "a"), writing = ask(s, &s->one, "b", FRAME, 0, 1);
    store(s, "c");
    EXPECT(repin(&s->other, &pinned));
    pt_flushed flushed = pt_flush(&s->owner, PT_NONE, 3, NOON);
    expect_sound(&s->owner, "after a flush");
    EXPECT(flushed.dropped == 1 && flushed.kept == 2 && there(&s->one, "a") && !there(&s->one, "c"));
    EXPECT(finish(s, &writing, 0) && there(&s->one, "b"));
    pt_release(&s->other, &pinned.entry, 1);
}

CASE(sizes_that_cannot_fit_are_rejected, 8, 2)
{
    EXPECT(ask(s, &s->one, "a", 0, 0, 1).outcome == PT_REFUSED_SIZE);
    EXPECT(ask(s, &s->one, "a", 2 * FRAME + 1, 0, 1).outcome == PT_REFUSED_SIZE);
    EXPECT(ask(s, &s->one, "a", UINT64_MAX, 0, 1).outcome == PT_REFUSED_SIZE);
    store(s, "b");
    EXPECT(ask(s, &s->one, "a", 2 * FRAME, 0, 1).outcome == PT_GRANTED); /* evicts b if necessary */
    EXPECT(!there(&s->other, "b"));
    pt_reap(&s->owner, s->one.slot, NOON);
}

int main(int count, char **arguments) { return run_cases("page_lifecycle", count, arguments); }
