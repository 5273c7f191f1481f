/* adopt.c - a daemon takes over segments in which any byte may be another than it was, again and again. Whatever it finds:
 * all is sound after it, no page that is kept has a number that will be used again, engines find what they ask for or
 * nothing, and all comes back when everybody is gone. */
#include "daemon_acts.h"
#include "damage.h"

static place here;

static void expect_serials(place *p)
{
    const pt_view *v = &p->owner.view;
    for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
        if (pt_load_state(&v->locks[entry].word) != PT_FREE && v->entries[entry].serial >= v->header->next_serial)
            finding("entry %u has serial %lu, the next one is %lu", entry, v->entries[entry].serial, v->header->next_serial);
}

/* Engines that lived over the damage hold what they held; what they knew of it may be another's by now. */
static void forget_all(place *p)
{
    p->grant_count = p->pin_count = 0;
    for (uint32_t i = 0; i < ENGINES; i++)
        place_forget(&p->engines[i]);
}

/* What is a single field of a record, and would hardly be met by chance; in an entry without a seal, which would tell. */
static void misnumber(place *p)
{
    uint32_t entry = choose(&p->choices, PLACE_ENTRIES);
    p->owner.view.entries[entry].serial =
        choose_one_in(&p->choices, 2) ? UINT64_MAX - choose(&p->choices, 2) : choose_odd(&p->choices);
    atomic_store_explicit(&p->owner.view.locks[entry].seal, 0, memory_order_relaxed);
}

static void damage_and_adopt(place *p)
{
    for (uint32_t left = 1 + choose(&p->choices, 6); left; left--)
        if (choose_one_in(&p->choices, 8))
            misnumber(p);
        else
            damage(p, choose_area(p));
    if (pt_why_not(p->world->index, p->world->locks, p->world->sizes))
        return; /* refused, as it should be */
    forget_all(p);
    place_adopt(p, choose_one_in(&p->choices, 2) ? choose_odd(&p->choices) : 0);
    expect_sound(&p->owner, "after the adoption");
    expect_serials(p);
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        if (p->owner.view.slots[slot].pid)
            pt_reap(&p->owner, slot, pt_now_ns());
    for (uint32_t i = 0; i < ENGINES; i++)
        place_attach(p, i);
    for (uint32_t s = 0; s < SPACES; s++)
        p->owner.view.spaces[s].used = 1; /* requests for one that is not are refused */
    expect_sound(&p->owner, "after the dead are buried");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    place *p = &here;
    place_begin(p, data, bytes);
    while (p->choices.left) {
        if (choose_one_in(&p->choices, 5))
            damage_and_adopt(p);
        else
            act_by_choice(p);
    }
    forget_all(p);
    pt_disk_close(&p->owner, pt_now_ns()); /* what it was to write it answers no more */
    for (uint32_t i = 0; i < ENGINES; i++)
        pt_reap(&p->owner, p->engines[i].slot, pt_now_ns());
    expect_all_returned(&p->owner);
    return 0;
}
