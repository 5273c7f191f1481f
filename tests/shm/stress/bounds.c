/* bounds.c - what one process may keep pinned, and what its pins may cost others, step by step. */
#include "scene.h"

static uint64_t bounded(const pt_session *s) { return atomic_load(&s->view.uses[s->slot].bounded); }

CASE(matches_end_at_the_quota_of_pinned_frames, 8, 4)
{
    pt_answer pages[3] = {store(s, "a"), store(s, "b"), store(s, "c")};
    uint32_t entries[3] = {pages[0].entry, pages[1].entry, pages[2].entry};
    uint64_t serials[3] = {pages[0].serial, pages[1].serial, pages[2].serial};
    settle(s, NOON);
    atomic_store(&s->owner.view.header->pin_frames, 2);
    for (int times = 0; times < 2; times++) { /* a page that is pinned twice counts once */
        EXPECT(pt_repin(&s->other, entries, serials, 3) == 2 && s->other.frames == 2);
        EXPECT(!there(&s->other, "c") && there(&s->other, "a") && there(&s->one, "c"));
    }
    EXPECT(bounded(&s->other) == 4 && !bounded(&s->one));
    EXPECT(!(atomic_load(&s->other.view.locks[entries[2]].word) & PT_PINS));
    atomic_store(&s->owner.view.header->pin_frames, 3);
    EXPECT(there(&s->other, "c"));
    atomic_store(&s->owner.view.header->pin_frames, 2);
    for (int times = 0; times < 2; times++)
        pt_release(&s->other, entries, 2);
    EXPECT(!s->other.frames && there(&s->other, "c"));
    atomic_store(&s->owner.view.header->pin_frames, 0);
    EXPECT(pt_repin(&s->other, entries, serials, 3) == 3);
    pt_release(&s->other, entries, 3);
}

enum { MANY = PT_PASSES + 500 };

/* Reserves `count` pages of one frame each, under random keys; returns how many were granted. */
static uint32_t reserve_many(scene *s, uint32_t count, rng *names, pt_answer *answers)
{
    static uint8_t keys[MANY * PT_KEY_BYTES];
    static uint64_t sizes[MANY];
    uint64_t now = s->now += 10 * MANY;
    pt_request r = {.slot = s->one.slot, .parts = 1, .now = now, .expires_ns = now + PT_LEASE_NS};
    uint32_t granted = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < PT_KEY_BYTES; at += 8)
            memcpy(keys + i * PT_KEY_BYTES + at, &(uint64_t){rng_next(names)}, 8);
        sizes[i] = FRAME;
    }
    pt_reserve(&s->owner, &r, keys, sizes, count, answers);
    for (uint32_t i = 0; i < count; i++)
        granted += answers[i].outcome == PT_GRANTED && finish(s, &answers[i], 0);
    return granted;
}

CASE(unpinned_pages_are_found_among_very_many_pinned_ones, MANY, MANY)
{
    static pt_answer answers[MANY], more[2];
    static uint32_t entries[MANY];
    static uint64_t serials[MANY];
    rng names = rng_stream(1, 1);
    EXPECT(reserve_many(s, MANY, &names, answers) == MANY);
    settle(s, s->now);
    for (uint32_t i = 0; i < MANY; i++)
        entries[i] = answers[i].entry, serials[i] = answers[i].serial;
    EXPECT(pt_repin(&s->other, entries, serials, MANY) == MANY);
    for (int times = 0; times < 2; times++) {
        EXPECT(!reserve_many(s, 2, &names, more) && s->owner.leased_until > s->now);
        pt_release(&s->other, &entries[times], 1);
        pt_release(&s->other, &entries[MANY - 1 - times], 1);
        EXPECT(reserve_many(s, 2, &names, more) == 2);
        settle(s, s->now);
        EXPECT(repin(&s->other, &more[0]) && repin(&s->other, &more[1]));
        EXPECT(!pt_repin(&s->other, &entries[times], &serials[times], 1));
    }
    pt_reap(&s->owner, s->other.slot, s->now);
    EXPECT(reserve_many(s, 2, &names, more) == 2);
}

CASE(every_open_reservation_gets_its_turn, 16, 16)
{
    pt_answer all[8];
    for (uint32_t i = 0; i < 8; i++)
        all[i] = ask(s, &s->one, (char[]){(char)('a' + i), 0}, FRAME, 0, 1);
    EXPECT(finish(s, &all[7], 0));
    for (uint32_t turn = 0; turn < 4; turn++) {
        EXPECT(s->owner.view.header->open_entries == 8);
        pt_settle_first(&s->owner, NOON, turn < 3 ? 2 : 1);
        expect_sound(&s->owner, "after a step");
    }
    pt_settle_first(&s->owner, NOON, 1);
    EXPECT(s->owner.view.header->open_entries == 7);
    pt_settle_first(&s->owner, s->now + 2 * TTL, 100);
    EXPECT(s->owner.view.header->counters.expired == 7);
    pt_reap(&s->owner, s->one.slot, NOON);
}

int main(int count, char **arguments) { return run_cases("bounds", count, arguments); }
