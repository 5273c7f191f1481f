/* disk_loss.c - losses, step by step: pages that a reader is comparing, disks with all their pages, daemons. */
#include "disk_scene.h"

/* ---- readers that have an entry pinned ---- */

DISK_CASE(no_entry_is_freed_while_a_reader_has_it_pinned, 2, 4, 4, PT_WRITE_EVICTED)
{
    pt_answer a = store_written(s, "a");
    EXPECT(evict(s) && pt_try(&s->other, a.entry) == PT_ON_DISK);
    EXPECT(flush(s, PT_TIER_DISK).kept == 1 &&
           !pt_disk_evict_one(&s->owner, s->owner.disk.devices, PT_NO_NEED, later(s)) && dropped(s, ""));
    pt_disk_close(&s->owner, 0, later(s));
    expect_sound(&s->owner, "after the disk went");
    EXPECT(state_of(s, a.entry) == PT_DOOMED && nowhere(s, "a"));
    store(s, "b");
    EXPECT(ask(s, &s->one, "c", FRAME, 0, 1).outcome == PT_GRANTED && in_memory(s, "c") == false && nowhere(s, "b"));
    pt_keep(&s->other, a.entry, false);
    settle(s, later(s));
    EXPECT(state_of(s, a.entry) == PT_FREE);
    pt_reap(&s->owner, s->one.slot, later(s));
}

static void adopt(scene *s)
{
    pt_owner_end(&s->owner);
    s->owner = world_adopt(s->world, pt_taken_slots(&s->one.view));
    expect_sound(&s->owner, "after the adoption");
}

DISK_CASE(no_entry_is_freed_under_a_pin_by_a_new_daemon, 2, 4, 4, PT_WRITE_EVICTED)
{
    pt_answer a = store_written(s, "a");
    EXPECT(evict(s) && pt_try(&s->other, a.entry) == PT_ON_DISK);
    for (int daemons = 0; daemons < 3; daemons++) {
        adopt(s);
        EXPECT(state_of(s, a.entry) == PT_DOOMED && s->owner.view.header->free_entries == 1);
    }
    pt_keep(&s->other, a.entry, false);
    settle(s, later(s));
    EXPECT(state_of(s, a.entry) == PT_FREE && s->owner.view.header->counters.dropped == 0);
}

/* ---- disks that open, close and shrink ---- */

DISK_CASE(reports_of_the_disk_are_validated, 8, 8, 3, PT_WRITE_EVICTED)
{
    store(s, "m");
    EXPECT(report(s, "m", FRAME, NOON) && report(s, "m", FRAME, NOON) && on_disk_frames(s) == 1 && dropped(s, ""));
    EXPECT(report(s, "a", FRAME, UINT64_MAX)); /* from another boot: it counts as now */
    EXPECT(report(s, "b", FRAME, s->now + 1000) && on_disk_frames(s) == 3);
    EXPECT(!report(s, "x", 4 * FRAME, NOON) && on_disk_frames(s) == 3 && dropped(s, ""));
    EXPECT(report(s, "c", FRAME, s->now) && dropped(s, "m") && report(s, "d", FRAME, s->now) && dropped(s, "a"));
    EXPECT(in_memory(s, "m") && look(s, "bcd").reach == 3);
}

DISK_CASE(a_disk_closes_with_all_its_pages, 8, 8, 8, PT_WRITE_EVICTED)
{
    uint32_t entry;
    store_written(s, "a");
    EXPECT(evict(s));
    store_written(s, "b");
    store(s, "c");
    EXPECT(order(s, 1, &entry) == 1);
    EXPECT(report(s, "d", FRAME, NOON));
    pt_answer d = fetch(s, "d");
    pt_disk_open(&s->owner, 0, 4, PT_WRITE_EVICTED, later(s)); /* another disk, though the first one was not closed */
    expect_sound(&s->owner, "after another disk came");
    EXPECT(nowhere(s, "a") && in_memory(s, "b") && in_memory(s, "c") && nowhere(s, "d") && on_disk_frames(s) == 0);
    EXPECT(fetch(s, "a").outcome == PT_ABSENT && pt_unwritten(&s->owner).pages == 2 && dropped(s, ""));
    EXPECT(finish(s, &d, 0) && in_memory(s, "d"));
}

DISK_CASE(a_device_that_closes_takes_its_own_pages_along, 12, 8, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    EXPECT(pt_disk_open(&s->owner, 1, 2, PT_WRITE_EVICTED, later(s)) && s->owner.view.header->disk_frames == 6);
    EXPECT(report(s, "a", FRAME, NOON) && report_on(s, 1, "b", FRAME, NOON));
    EXPECT(!report_on(s, 1, "a", FRAME, NOON)); /* it is on the other device: this copy is to be dropped */
    store_written(s, "c");
    store(s, "d");
    EXPECT(order_on(s, 1, 1, &entry) == 1);
    store(s, "e");
    EXPECT(order_on(s, 0, 1, &entry) == 1);
    damaged(s, "b"); /* the worker of one device says nothing about the pages of another one */
    EXPECT(on_disk_alone(s, "b"));
    pt_disk_close(&s->owner, 1, later(s));
    expect_sound(&s->owner, "after a device went");
    EXPECT(nowhere(s, "b") && on_disk_alone(s, "a") && in_memory(s, "d") && on_disk_frames(s) == 2);
    EXPECT(pt_unwritten(&s->owner).pages == 2 && dropped(s, ""));
    end_order(s, entry, PT_WRITE_DONE);
    EXPECT(on_disk_frames(s) == 3 && s->owner.view.header->disk_frames == 4);
    EXPECT(order_on(s, 1, 1, &entry) == 0 && order_on(s, 0, 1, &entry) == 1); /* d, on the device that is left */
}

DISK_CASE(each_device_evicts_its_own_pages_at_its_cap, 12, 8, 2, PT_WRITE_EVICTED)
{
    uint32_t entry;
    EXPECT(pt_disk_open(&s->owner, 1, 2, PT_WRITE_EVICTED, later(s)));
    EXPECT(report_on(s, 1, "a", FRAME, NOON) && report_on(s, 1, "b", FRAME, NOON + 1));
    EXPECT(report(s, "x", FRAME, NOON + 2));
    store(s, "c");
    EXPECT(order_on(s, 1, 1, &entry) == 1); /* though the other device has room, and x is warmer */
    EXPECT(dropped_from(s, 1, "a") && dropped(s, "") && on_disk_alone(s, "x") && on_disk_alone(s, "b"));
    pt_answer b = fetch(s, "b"), x = fetch(s, "x");
    EXPECT(finish(s, &b, 0) && finish(s, &x, 0));
}

DISK_CASE(a_disk_that_shrinks_continues_to_write, 8, 8, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    pt_answer large = ask(s, &s->one, "l", 3 * FRAME, 0, 1);
    EXPECT(finish(s, &large, 0));
    EXPECT(report(s, "a", FRAME, NOON) && report(s, "b", 2 * FRAME, NOON + 1));
    pt_answer small = store(s, "s");
    settle(s, later(s));
    pt_disk_shrink(&s->owner, 0, 2, later(s));
    expect_sound(&s->owner, "after the disk shrank");
    EXPECT(dropped(s, "a") && on_disk_frames(s) == 2);
    EXPECT(order(s, 1, &entry) == 1 && entry == small.entry); /* the large page does not block it */
    pt_disk_shrink(&s->owner, 0, 100, later(s));
    expect_sound(&s->owner, "after the disk shrank while a page was written");
    EXPECT(on_disk_frames(s) == 0 && s->owner.view.header->disk_frames == 1);
    end_order(s, entry, PT_WRITE_AGAIN);
    pt_disk_shrink(&s->owner, 0, 100, later(s));
    EXPECT(s->owner.view.header->disk_frames == 0);
}

DISK_CASE(a_damaged_page_is_dropped, 8, 8, 8, PT_WRITE_EVICTED)
{
    EXPECT(report(s, "a", FRAME, NOON) && report(s, "b", FRAME, NOON));
    pt_answer a = fetch(s, "a"), b = fetch(s, "b");
    damaged(s, "a"); /* before and after its part is abandoned */
    pt_part_abandon(&s->one.view, a.entry, 0);
    pt_part_abandon(&s->one.view, b.entry, 0);
    settle(s, later(s));
    EXPECT(nowhere(s, "a") && on_disk_alone(s, "b"));
    damaged(s, "b");
    damaged(s, "b");
    EXPECT(nowhere(s, "b") && dropped(s, "ab") && s->owner.view.header->counters.disk_damaged == 2);
}

DISK_CASE(a_new_daemon_begins_without_a_disk, 8, 8, 8, PT_WRITE_EVICTED)
{
    uint32_t entry;
    pt_header *h = s->owner.view.header;
    pt_answer a = store_written(s, "a"), b = store(s, "b");
    EXPECT(order(s, 1, &entry) == 1 && entry == b.entry);
    h->status_bytes = 4;
    atomic_store(&h->status_version, 7); /* the old daemon died while it changed the text */
    adopt(s);
    EXPECT(h->status_version % 2 == 0 && h->status_version > 7 && h->status_bytes == 0);
    end_order(s, entry, PT_WRITE_DONE); /* the worker that is still alive responds to the wrong daemon */
    EXPECT(h->disk_pages == 0 && in_memory(s, "a") && in_memory(s, "b") && a.entry != b.entry);
}

int main(int count, char **arguments) { return run_cases("disk_loss", count, arguments); }
