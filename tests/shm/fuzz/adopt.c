/* adopt.c - a daemon adopts segments in which any byte may have changed, repeatedly. Whatever it finds: everything is
 * sound afterwards, no page that is kept has a serial that will be given again, engines find what they looked up or
 * nothing, and everything is free when all processes have ended. */
#include "daemon_acts.h"
#include "damage.h"

static place here;

static void expect_serials(place *p)
{
    const pt_view *v = &p->owner.view;
    for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
        if (pt_load_state(&v->locks[entry].word) != PT_FREE && v->entries[entry].serial >= v->header->next_serial)
            finding("entry %u has serial %lu, the next one is %lu", entry, v->entries[entry].serial,
                    v->header->next_serial);
}

/* Forgets the pins and grants of engines that lived through the damage: what they know
 * may belong to other pages by now. */
static void forget_all(place *p)
{
    p->grant_count = p->pin_count = 0;
    for (uint32_t i = 0; i < ENGINES; i++)
        place_forget(&p->engines[i]);
}

/* Changes the serial of an entry, a single field that random damage rarely meets, and removes the checksum that would
 * reveal it. */
static void misnumber(place *p)
{
    uint32_t entry = choose(&p->choices, PLACE_ENTRIES);
    p->owner.view.entries[entry].serial =
        choose_one_in(&p->choices, 2) ? UINT64_MAX - choose(&p->choices, 2) : choose_odd(&p->choices);
    atomic_store_explicit(&p->owner.view.locks[entry].checksum, 0, memory_order_relaxed);
}

static void damage_and_adopt(place *p)
{
    for (uint32_t left = 1 + choose(&p->choices, 6); left; left--)
        if (choose_one_in(&p->choices, 8))
            misnumber(p);
        else
            damage(p, choose_area(p));
    if (pt_unusable_reason(p->world->index, p->world->locks, p->world->sizes))
        return; /* rejected, as it should be */
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
        p->owner.view.spaces[s].used = 1; /* requests for an unused namespace are rejected */
    expect_sound(&p->owner, "after the dead processes were reaped");
}

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
    place_end(p);
    return 0;
}
