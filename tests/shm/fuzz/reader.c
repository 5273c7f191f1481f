/* reader.c - engines over an index in which any byte may be another than it was, and changes while they look. They touch
 * nothing outside their mappings and come to an end; what they found was what they asked for; and each pin that they took
 * is given back. */
#include "meanwhile.h"

#include "daemon_acts.h"
#include "damage.h"

static place here;

static void meanwhile(void) { damage(&here, choose_area(&here)); }

static act *const reads[] = {engine_match, engine_match, engine_match_groups, engine_repin, engine_copy, engine_release};
#define READS (sizeof reads / sizeof *reads)

/* Pins that nobody has changed in between: so they are what the engines know them to be. */
static void expect_no_pins(place *p)
{
    while (p->pin_count)
        let_go_of(p, 0);
    for (uint32_t i = 0; i < ENGINES; i++) {
        if (p->engines[i].frames)
            finding("%lu frames are still counted as held", (unsigned long)p->engines[i].frames);
        for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
            if (p->engines[i].held[entry].pins)
                finding("entry %u is still counted as pinned", entry);
    }
}

static void expect_no_bits(place *p)
{
    for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
        if (atomic_load(&p->owner.view.locks[entry].word) & place_alive(p))
            finding("entry %u is still pinned", entry);
}

static void clear_bits(place *p)
{
    for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
        atomic_fetch_and(&p->owner.view.locks[entry].word, ~PT_PINS);
}

/* What stands when one of them looks: damage, and pins of nobody. */
static void damage_some(place *p)
{
    expect_no_pins(p);
    for (uint32_t left = 1 + choose(&p->choices, 6); left; left--)
        damage(p, choose_area(p));
    clear_bits(p);
}

/* The counts of pins are the engine's own: no damage reaches them. Of the bits in the words it does. */
static void look_at_what_changes(place *p)
{
    uint32_t seen[PROMPT], count, engine;
    uint64_t serials[PROMPT];
    uint8_t keys[PROMPT * PT_KEY_BYTES];
    pt_session *s = choose_engine(p, &engine);
    pt_matched to = {seen, serials, 0, 0};
    count = choose_keys(p, keys);
    meanwhile_looks = 1 + choose(&p->choices, 64);
    pt_match(s, keys, count, &to);
    meanwhile_looks = 0;
    if (to.count > to.reach || to.reach > count)
        finding("of %u keys %u were found, and reached %u", count, to.count, to.reach);
    pt_release(s, seen, to.count);
    damage_some(p);
}

/* The chain of a page that somebody is about to copy leads elsewhere. */
static void lead_astray(place *p)
{
    const pt_view *v = &p->owner.view;
    if (!p->pin_count)
        return;
    const pinned *pins = &p->pins[choose(&p->choices, p->pin_count)];
    if (!pins->count)
        return;
    pt_entry *e = &v->entries[pins->entries[choose(&p->choices, pins->count)]];
    uint32_t to = choose_one_in(&p->choices, 2) ? (uint32_t)choose_odd(&p->choices) : choose(&p->choices, 2 * PLACE_FRAMES);
    *(choose_one_in(&p->choices, 2) && e->first_frame < PLACE_FRAMES ? &v->frames[e->first_frame].next : &e->first_frame) = to;
    engine_copy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    place *p = &here;
    place_begin(p, data, bytes);
    for (uint32_t left = choose(&p->choices, 24); left; left--)
        act_by_choice(p);
    while (p->choices.left) {
        uint32_t kind = choose(&p->choices, 9);
        if (kind == 8)
            lead_astray(p);
        else if (kind == 7)
            damage_some(p);
        else if (kind == 6)
            look_at_what_changes(p);
        else
            reads[choose(&p->choices, READS)](p);
    }
    expect_no_pins(p);
    expect_no_bits(p);
    return 0;
}
