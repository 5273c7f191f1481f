/* disk_slots.c - pages that take fewer slots of a device than their bytes would fill. */
#include "disk_scene.h"

/* Makes the slots of a device so many times smaller than a frame, and opens it with room for `slots`. */
static void divide(scene *s, uint32_t device, uint32_t by, uint64_t slots)
{
    pt_disk_close(&s->owner, device, later(s));
    EXPECT(pt_disk_divide(&s->owner, device, FRAME / by));
    EXPECT(pt_disk_open(&s->owner, device, slots, PT_WRITE_EVICTED, later(s)));
    expect_sound(&s->owner, "after a device was divided");
}

static void written_in(scene *s, uint32_t entry, uint32_t slots)
{
    pt_note_written(&s->owner, entry, slots);
    end_order(s, entry, PT_WRITE_DONE);
}

static pt_device *first(scene *s) { return &s->owner.disk.devices[0]; }

DISK_CASE(a_page_reserves_all_slots_and_gives_back_what_it_does_not_need, 8, 8, 4, PT_WRITE_EVICTED)
{
    uint32_t entries[4];
    divide(s, 0, 4, 9);
    EXPECT(s->owner.view.header->disk_frames == 2);
    store(s, "a"), store(s, "b"), store(s, "c");
    EXPECT(order(s, 4, entries) == 2 && first(s)->ordered_slots == 8); /* as if nothing could be compressed */
    written_in(s, entries[0], 2);
    EXPECT(first(s)->ordered_slots == 4 && first(s)->used_slots == 2 && on_disk_frames(s) == 1);
    EXPECT(order(s, 1, &entries[2]) == 1 && dropped(s, "a") && first(s)->ordered_slots == 8);
    written_in(s, entries[1], 3);
    EXPECT(first(s)->used_slots == 3 && first(s)->ordered_slots == 4 && on_disk_frames(s) == 1);
    written_in(s, entries[2], 0);
    EXPECT(first(s)->used_slots == 7 && first(s)->ordered_slots == 0 && on_disk_frames(s) == 2);
    EXPECT(s->owner.view.spaces[0].disk_stored == 7 * FRAME / 4);
}

DISK_CASE(a_report_of_more_slots_than_the_bytes_fill_counts_what_they_fill, 8, 8, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    divide(s, 0, 4, 8);
    store(s, "a");
    EXPECT(order(s, 1, &entry) == 1);
    written_in(s, entry, 1000);
    EXPECT(first(s)->used_slots == 4);
    pt_note_written(&s->owner, entry, 1); /* its write has ended */
    pt_note_written(&s->owner, UINT32_MAX, 1);
    expect_sound(&s->owner, "after a late report");
    EXPECT(first(s)->used_slots == 4);
}

DISK_CASE(reported_pages_take_the_slots_that_were_reported, 8, 8, 4, PT_WRITE_EVICTED)
{
    uint8_t keys[3][PT_KEY_BYTES];
    divide(s, 0, 4, 7);
    for (uint32_t i = 0; i < 3; i++) {
        key_of((char[]){"abc"[i], 0}, keys[i]);
        EXPECT(pt_disk_report(&s->owner, &(pt_stored){keys[i], FRAME, 0, NOON + i, 0, 3}, later(s)));
        expect_sound(&s->owner, "after a report");
    }
    EXPECT(dropped(s, "a") && first(s)->used_slots == 6); /* seven would be needed for less than the last slot */
    pt_answer b = fetch(s, "b");
    EXPECT(finish(s, &b, 0) && first(s)->used_slots == 6);
    pt_disk_shrink(&s->owner, 0, 4, later(s));
    expect_sound(&s->owner, "after the device shrank");
    EXPECT(first(s)->used_slots == 3);
}

DISK_CASE(a_rescued_page_keeps_its_slots, 8, 4, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    divide(s, 0, 4, 16);
    store(s, "a");
    EXPECT(order(s, 1, &entry) == 1);
    written_in(s, entry, 1);
    EXPECT(evict(s));
    pt_answer a = fetch(s, "a");
    pt_part_abandon(&s->one.view, a.entry, 0);
    pt_answer again = fetch(s, "a");
    EXPECT(again.outcome == PT_GRANTED && again.entry != a.entry && first(s)->used_slots == 1);
    pt_part_abandon(&s->one.view, again.entry, 0);
    settle(s, later(s));
    expect_sound(&s->owner, "after a rescue");
    EXPECT(first(s)->used_slots == 1);
}

DISK_CASE(a_device_with_slots_of_a_frame_counts_as_before_beside_another, 8, 8, 4, PT_WRITE_EVICTED)
{
    uint32_t entry;
    divide(s, 1, 4, 8);
    EXPECT(s->owner.view.header->disk_frames == 6);
    store(s, "a");
    EXPECT(order_on(s, 0, 1, &entry) == 1);
    written_in(s, entry, 0);
    store(s, "b");
    EXPECT(order_on(s, 1, 1, &entry) == 1);
    written_in(s, entry, 1);
    EXPECT(on_disk_frames(s) == 2 && first(s)->used_slots == 1 && first(s)[1].used_slots == 1);
    divide(s, 1, 1, 8); /* it comes back with slots of a frame, and empty */
    EXPECT(nowhere(s, "b") || in_memory(s, "b"));
    EXPECT(on_disk_frames(s) == 1 && s->owner.view.header->disk_frames == 12);
}

int main(int count, char **arguments) { return run_cases("disk_slots", count, arguments); }
