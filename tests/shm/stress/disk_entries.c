/* disk_entries.c - the life of a page on disk, step by step: written, evicted, found, read, stored again, dropped. */
#include "disk_scene.h"

/* ---- written, evicted, read ---- */

DISK_CASE(an_evicted_page_is_found_on_disk, 8, 4, 4, PT_WRITE_EVICTED)
{
    pt_answer a = store_written(s, "a");
    EXPECT(in_memory(s, "a") && evict(s) && used(s) == 0);
    EXPECT(state_of(s, a.entry) == PT_ON_DISK && on_disk_alone(s, "a"));
    store(s, "b");
    EXPECT(look(s, "ba").count == 1 && look(s, "ba").reach == 2);
    EXPECT(look(s, "ab").count == 0 && look(s, "ab").reach == 2); /* continues over pages in memory */
    EXPECT(look(s, "acb").reach == 1);
    EXPECT(dropped(s, ""));
}

DISK_CASE(a_page_on_disk_is_read, 8, 4, 4, PT_WRITE_EVICTED)
{
    pt_answer before = store_written(s, "a");
    EXPECT(fetch(s, "a").outcome == PT_PRESENT && evict(s));
    pt_answer a = fetch(s, "a");
    EXPECT(a.outcome == PT_GRANTED && a.entry == before.entry && a.serial != before.serial && used(s) == 1);
    EXPECT(on_disk_alone(s, "a") && fetch(s, "a").outcome == PT_PENDING);
    EXPECT(ask(s, &s->other, "a", FRAME, 0, 1).outcome == PT_PENDING);
    EXPECT(finish(s, &a, 0) && in_memory(s, "a"));
    settle(s, later(s));
    EXPECT(evict(s) && on_disk_alone(s, "a")); /* need not be written again */
    EXPECT(fetch(s, "x").outcome == PT_ABSENT);
}

DISK_CASE(a_page_on_disk_is_stored_again, 8, 4, 4, PT_WRITE_EVICTED)
{
    store_written(s, "a");
    EXPECT(evict(s));
    pt_answer first = ask(s, &s->one, "a", FRAME, 0, 2), second = ask(s, &s->other, "a", FRAME, 1, 2);
    EXPECT(first.outcome == PT_GRANTED && second.outcome == PT_GRANTED && on_disk_alone(s, "a"));
    EXPECT(finish(s, &first, 0) && finish(s, &second, 1) && in_memory(s, "a"));
    EXPECT(on_disk_frames(s) == 1 && dropped(s, ""));
}

DISK_CASE(an_abandoned_refill_keeps_the_copy_on_disk, 8, 4, 4, PT_WRITE_EVICTED)
{
    store_written(s, "a");
    EXPECT(evict(s));
    pt_answer a = fetch(s, "a");
    pt_part_abandon(&s->one.view, a.entry, 0);
    pt_answer again = fetch(s, "a"); /* at once: the first one is not settled yet */
    EXPECT(again.outcome == PT_GRANTED && again.entry != a.entry && on_disk_frames(s) == 1);
    pt_part_abandon(&s->one.view, again.entry, 0);
    pt_answer stored = ask(s, &s->other, "a", FRAME, 0, 1);
    EXPECT(stored.outcome == PT_GRANTED && s->owner.view.header->disk_pages == 1 && used(s) == 1);
    pt_reap(&s->owner, s->other.slot, later(s));
    expect_sound(&s->owner, "after a death");
    EXPECT(on_disk_alone(s, "a") && used(s) == 0 && dropped(s, ""));
}

DISK_CASE(a_copy_without_an_entry_is_dropped, 1, 4, 4, PT_WRITE_EVICTED)
{
    store_written(s, "a");
    EXPECT(evict(s));
    pt_answer a = fetch(s, "a");
    pt_part_abandon(&s->one.view, a.entry, 0);
    settle(s, later(s));
    EXPECT(nowhere(s, "a") && dropped(s, "a") && on_disk_frames(s) == 0);
}

DISK_CASE(a_page_of_another_size_replaces_it, 8, 4, 4, PT_WRITE_EVICTED)
{
    pt_answer a = store_written(s, "a");
    EXPECT(evict(s));
    EXPECT(pt_try(&s->other, a.entry) == PT_ON_DISK); /* a reader compares its key */
    EXPECT(ask(s, &s->one, "a", 2 * FRAME, 0, 1).outcome == PT_PENDING && dropped(s, ""));
    pt_keep(&s->other, a.entry, false);
    pt_answer other = ask(s, &s->one, "a", 2 * FRAME, 0, 1);
    EXPECT(other.outcome == PT_GRANTED && dropped(s, "a") && on_disk_frames(s) == 0);
    EXPECT(nowhere(s, "a") && finish(s, &other, 0) && in_memory(s, "a"));
    EXPECT(!report(s, "a", FRAME, NOON)); /* nor is it accepted from a report */
}

/* ---- being written ---- */

DISK_CASE(a_page_that_is_being_written_stays, 8, 1, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    store(s, "a");
    EXPECT(order(s, 1, &entry) == 1 && order(s, 1, &entry) == 0);
    EXPECT(!evict(s) && flush(s, PT_TIER_MEMORY | PT_TIER_DISK).kept == 1 && flush(s, PT_TIER_DISK).kept == 1);
    EXPECT(ask(s, &s->one, "b", FRAME, 0, 1).outcome == PT_REFUSED_FULL && in_memory(s, "a"));
    EXPECT(report(s, "a", FRAME, NOON) && dropped(s, "")); /* a drop would arrive after the write */
    end_order(s, entry, PT_WRITE_DONE);
    end_order(s, entry, PT_WRITE_DONE);
    end_order(s, 8, PT_WRITE_DONE);
    EXPECT(s->owner.view.header->counters.disk_written == 1 && evict(s) && on_disk_alone(s, "a"));
}

DISK_CASE(a_page_that_leaves_the_disk_is_dropped, 8, 4, 1, PT_WRITE_EVICTED)
{
    store_written(s, "a");
    EXPECT(evict(s));
    store_written(s, "b");
    EXPECT(dropped(s, "a") && nowhere(s, "a") && in_memory(s, "b"));
    EXPECT(flush(s, PT_TIER_DISK).dropped == 1 && dropped(s, "b") && in_memory(s, "b"));
    EXPECT(flush(s, PT_TIER_DISK).dropped == 0 && flush(s, PT_TIER_MEMORY).dropped == 1 && nowhere(s, "b"));
}

DISK_CASE(a_failed_write_is_not_retried, 8, 4, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    store(s, "a");
    EXPECT(order(s, 1, &entry) == 1);
    end_order(s, entry, PT_WRITE_AGAIN);
    EXPECT(order(s, 1, &entry) == 1);
    end_order(s, entry, PT_WRITE_FAILED);
    EXPECT(order(s, 1, &entry) == 0 && pt_unwritten(&s->owner).pages == 0);
    pt_disk_set_rule(&s->owner, PT_WRITE_THROUGH, later(s));
    EXPECT(pt_unwritten(&s->owner).pages == 1 && order(s, 1, &entry) == 1);
    end_order(s, entry, PT_WRITE_SKIPPED);
    EXPECT(evict(s) && nowhere(s, "a"));
    const pt_daemon_counts *counters = &s->owner.view.header->counters;
    EXPECT(counters->disk_lost == 0 && counters->disk_failed == 1 && counters->disk_skipped == 1);
}

DISK_CASE(writes_in_progress_take_room_on_the_disk, 8, 8, 3, PT_WRITE_EVICTED)
{
    uint32_t entries[2];
    store_written(s, "a");
    pt_answer b = ask(s, &s->one, "b", 2 * FRAME, 0, 1), c = ask(s, &s->one, "c", 2 * FRAME, 0, 1);
    EXPECT(finish(s, &b, 0) && finish(s, &c, 0));
    EXPECT(order(s, 2, entries) == 1 && entries[0] == b.entry);
    EXPECT(dropped(s, "") && on_disk_frames(s) == 1); /* evicting a would not have helped */
    end_order(s, b.entry, PT_WRITE_DONE);
    EXPECT(order(s, 1, entries) == 1 && entries[0] == c.entry && dropped(s, "ab") && on_disk_frames(s) == 0);
}

static pt_answer store_in(scene *s, uint32_t space, const char *name, uint64_t size)
{
    uint8_t key[PT_KEY_BYTES];
    pt_request r = request(s, &s->one);
    r.space = space;
    key_of(name, key);
    pt_answer a = reserve_page(&s->owner, &r, key, size);
    EXPECT(finish(s, &a, 0));
    return a;
}

DISK_CASE(no_page_leaves_for_one_that_does_not_fit, 8, 8, 4, PT_WRITE_EVICTED)
{
    const pt_quota quotas[2] = {PT_NO_QUOTA, {{0, 1}, {0.5, 1}}};
    uint32_t entries[2];
    EXPECT(pt_set_quotas(&s->owner, quotas, 2, (const uint8_t[SPACES]){0, 1}, later(s)));
    pt_answer a = store_in(s, 1, "a", 3 * FRAME), b = store_in(s, 0, "b", FRAME);
    EXPECT(order(s, 2, entries) == 2 && on_disk_frames(s) == 0);
    end_order(s, a.entry, PT_WRITE_DONE);
    end_order(s, b.entry, PT_WRITE_DONE);
    store_in(s, 0, "c", 2 * FRAME);
    /* without a, too little of its minimum is left */
    EXPECT(order(s, 1, entries) == 0 && dropped(s, "") && on_disk_frames(s) == 4);
}

/* ---- the order of eviction ---- */

DISK_CASE(only_pages_that_were_used_twice_are_written, 8, 4, 4, PT_WRITE_SECOND)
{
    uint32_t entry;
    pt_answer a = store(s, "a");
    settle(s, later(s));
    pt_answer b = store(s, "b");
    EXPECT(order(s, 1, &entry) == 0);
    pt_stamp(&s->owner, a.entry, later(s));
    EXPECT(evict(s) && nowhere(s, "b") && in_memory(s, "a") && b.entry != a.entry);
    EXPECT(order(s, 1, &entry) == 1 && entry == a.entry);
}

DISK_CASE(a_written_page_is_evicted_before_an_unwritten_one, 8, 8, 8, PT_WRITE_EVICTED)
{
    uint64_t noon = s->now;
    pt_answer ready = store_written(s, "a"), unwritten = store(s, "b");
    settle(s, later(s));
    pt_stamp(&s->owner, unwritten.entry, noon);
    pt_stamp(&s->owner, ready.entry, noon + 100);
    pt_disk_set_rule(&s->owner, PT_WRITE_EVICTED, noon + 1000); /* lists them again */
    EXPECT(pt_least_recently_used(&s->owner, UINT64_MAX, noon + 197).entry == unwritten.entry);
    EXPECT(pt_least_recently_used(&s->owner, UINT64_MAX, noon + 200).entry == ready.entry);
    EXPECT(pt_least_recently_used(&s->owner, UINT64_MAX, noon + 50).entry == unwritten.entry); /* no overflow */
}

/* ---- in the fleet ---- */

DISK_CASE(a_page_of_the_fleet_is_stored_by_the_fleets_worker, 8, 8, 8, PT_WRITE_EVICTED)
{
    const uint64_t sizes[] = {FRAME, 2 * FRAME - 1, 0, FRAME};
    const uint32_t spaces[MOST] = {0};
    pt_answer a[4];
    pt_located located = {{s->other.slot, 8, 0}, sizes, spaces};
    store(s, "a");
    fetch_all(s, "abcd", &located, a);
    EXPECT(a[0].outcome == PT_PRESENT && a[1].outcome == PT_GRANTED_TO_FLEET && a[2].outcome == PT_ABSENT);
    /* useless without the one before */
    EXPECT(a[3].outcome == PT_ABSENT && located.reader.granted == 2 && used(s) == 3);
    EXPECT(s->owner.view.entries[a[1].entry].writers[0] == s->other.slot && !in_memory(s, "b"));
    fetch_all(s, "b", &located, a + 2);
    EXPECT(a[2].outcome == PT_PENDING && ask(s, &s->one, "b", 2 * FRAME - 1, 0, 1).outcome == PT_PENDING);
    EXPECT(pt_part_finish(&s->other.view, a[1].entry, 0) && in_memory(s, "b"));
    settle(s, later(s));
    EXPECT(evict(s) && evict(s) && dropped(s, ""));
}

DISK_CASE(a_fetch_from_the_fleet_is_bounded, 8, 4, 4, PT_WRITE_EVICTED)
{
    const uint64_t sizes[] = {FRAME, 2 * FRAME, FRAME};
    const uint32_t spaces[MOST] = {0};
    pt_answer a[3];
    pt_located located = {{s->other.slot, 2, 0}, sizes, spaces};
    fetch_all(s, "abc", &located, a);
    EXPECT(a[0].outcome == PT_GRANTED_TO_FLEET && a[1].outcome == PT_REFUSED_FULL && a[2].outcome == PT_REFUSED_FULL);
    pt_reap(&s->owner, s->other.slot, later(s)); /* the worker dies */
    expect_sound(&s->owner, "after a death");
    EXPECT(nowhere(s, "a") && used(s) == 0);
    const uint64_t too_large[] = {5 * FRAME};
    located = (pt_located){{s->one.slot, 8, 0}, too_large, spaces};
    fetch_all(s, "a", &located, a);
    EXPECT(a[0].outcome == PT_REFUSED_FULL && used(s) == 0);
}

DISK_CASE(a_page_of_the_fleet_is_written_to_disk_when_it_is_used_again, 8, 8, 8, PT_WRITE_EVICTED)
{
    const uint64_t sizes[] = {FRAME, FRAME};
    const uint32_t spaces[MOST] = {0};
    uint32_t entry;
    pt_answer a[2];
    pt_located located = {{s->other.slot, 8, 0}, sizes, spaces};
    fetch_all(s, "ab", &located, a);
    EXPECT(pt_part_finish(&s->other.view, a[0].entry, 0) && pt_part_finish(&s->other.view, a[1].entry, 0));
    EXPECT(order(s, 1, &entry) == 0);
    pt_stamp(&s->owner, a[1].entry, later(s));
    EXPECT(evict(s) && nowhere(s, "a") && in_memory(s, "b"));
    EXPECT(order(s, 1, &entry) == 1 && entry == a[1].entry);
    end_order(s, entry, PT_WRITE_DONE);
}

DISK_CASE(a_page_on_disk_is_not_read_from_the_fleet, 8, 4, 4, PT_WRITE_EVICTED)
{
    const uint64_t sizes[] = {FRAME};
    const uint32_t spaces[MOST] = {0};
    pt_answer a;
    pt_located located = {{s->other.slot, 8, 0}, sizes, spaces};
    store_written(s, "a");
    EXPECT(evict(s));
    fetch_all(s, "a", &located, &a);
    EXPECT(a.outcome == PT_GRANTED && s->owner.view.entries[a.entry].writers[0] == s->one.slot &&
           located.reader.granted == 0);
    pt_reap(&s->owner, s->one.slot, later(s));
}

DISK_CASE(frames_before_unwritten_counts_frames_that_can_become_free, 8, 8, 8, PT_WRITE_EVICTED)
{
    EXPECT(pt_frames_before_unwritten(&s->owner, 0, 100) == 100); /* nothing is unwritten */
    store_written(s, "a");
    store_written(s, "b");
    pt_answer c = store(s, "c");
    settle(s, later(s));
    EXPECT(pt_frames_before_unwritten(&s->owner, 0, 100) == 5 + 2 && pt_frames_before_unwritten(&s->owner, 0, 5) == 5);
    pt_stamp(&s->owner, c.entry, NOON);
    pt_disk_set_rule(&s->owner, PT_WRITE_EVICTED, later(s));
    EXPECT(pt_frames_before_unwritten(&s->owner, 0, 100) == 5); /* c is the coldest of all */
    pt_disk_close(&s->owner, 0, later(s));
    EXPECT(pt_frames_before_unwritten(&s->owner, 0, 100) == 100);
}

DISK_CASE(pages_on_disk_are_evicted_for_their_entries, 3, 8, 8, PT_WRITE_EVICTED)
{
    store_written(s, "a");
    EXPECT(evict(s));
    pt_answer b = store_written(s, "b"), c = store_written(s, "c");
    EXPECT(ask(s, &s->one, "d", FRAME, 0, 1).outcome == PT_GRANTED && dropped(s, "a"));
    EXPECT(state_of(s, b.entry) == PT_READABLE && state_of(s, c.entry) == PT_READABLE);
    EXPECT(ask(s, &s->one, "e", FRAME, 0, 1).outcome == PT_GRANTED);
    /* from both tiers: c keeps its copy on disk */
    EXPECT(dropped(s, "b") && nowhere(s, "b") && on_disk_frames(s) == 1);
    pt_reap(&s->owner, s->one.slot, later(s));
}

int main(int count, char **arguments) { return run_cases("disk_entries", count, arguments); }
