/* reader.c - engines on an index in which any byte may have changed, and changes while they read. They access nothing
 * outside their mappings and terminate; a page that they find has the requested key; and each pin that they set is
 * cleared. */
#include "client/event_reader.h"
#include "client/locate.h"
#include "interference.h"

#include "daemon_acts.h"
#include "damage.h"

static place here;

static void interfere(void) { damage(&here, choose_area(&here)); }

static act *const reads[] = {
    engine_match, engine_match, engine_match_groups, engine_repin, engine_copy, engine_release,
};
#define READS (sizeof reads / sizeof *reads)

/* Expects no pins. No pin has changed since the engines set it, so the bits are what the engines know them to be. */
static void expect_no_pins(place *p)
{
    while (p->pin_count)
        release_pins(p, 0);
    for (uint32_t i = 0; i < ENGINES; i++) {
        if (p->engines[i].frames)
            finding("%lu frames are still counted as pinned", (unsigned long)p->engines[i].frames);
        for (uint32_t entry = 0; entry < PLACE_ENTRIES; entry++)
            if (p->engines[i].own_pins[entry].pins)
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

/* Damages the index between two reads, and clears the pins that the damage set. */
static void damage_some(place *p)
{
    expect_no_pins(p);
    for (uint32_t left = 1 + choose(&p->choices, 6); left; left--)
        damage(p, choose_area(p));
    clear_bits(p);
}

/* Matches while bytes change. The counts of pins are private to the engine, so damage cannot change them;
 * it can change the bits in the words. */
static void match_while_it_changes(place *p)
{
    uint32_t seen[PROMPT], count, engine;
    uint64_t serials[PROMPT];
    uint8_t keys[PROMPT * PT_KEY_BYTES];
    pt_session *s = choose_engine(p, &engine);
    pt_matched to = {seen, serials, 0, 0};
    count = choose_keys(p, keys);
    interfere_after = 1 + choose(&p->choices, 64);
    pt_match(s, keys, count, &to);
    interfere_after = 0;
    if (to.count > to.reach || to.reach > count)
        finding("of %u keys %u were found, with a reach of %u", count, to.count, to.reach);
    pt_release(s, seen, to.count);
    damage_some(p);
}

/* Changes the chain of a page that an engine is about to copy. */
static void divert_a_frame_list(place *p)
{
    const pt_view *v = &p->owner.view;
    if (!p->pin_count)
        return;
    const pinned *pins = &p->pins[choose(&p->choices, p->pin_count)];
    if (!pins->count)
        return;
    pt_entry *e = &v->entries[pins->entries[choose(&p->choices, pins->count)]];
    uint32_t to = choose_one_in(&p->choices, 2) ? (uint32_t)choose_odd(&p->choices)
                                                : choose(&p->choices, 2 * PLACE_FRAMES);
    *(choose_one_in(&p->choices, 2) && e->first_frame < PLACE_FRAMES ? &v->frames[e->first_frame].next
                                                                     : &e->first_frame) = to;
    engine_copy(p);
}

/* Reads all events, and locates all pages. */
static void read_events(place *p)
{
    pt_event_reader reader = {0};
    pt_seen_event events[8];
    uint8_t key[PT_KEY_BYTES];
    for (uint32_t turn = 0, count = 8; turn < 4; turn++, count = 8)
        if (pt_read_events(&p->owner.view, &reader, events, &count) != PT_EVENTS_READ ? count : count > 8)
            finding("%u of 8 events were read", count);
    for (uint32_t id = 1; id <= PLACE_IDS; id++) {
        page_key(id, key);
        if (pt_locate(&p->owner.view, key) & ~(PT_TIER_MEMORY | PT_TIER_DISK))
            finding("a page is in a tier that does not exist");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    place *p = &here;
    place_begin(p, data, bytes);
    for (uint32_t left = choose(&p->choices, 24); left; left--)
        act_by_choice(p);
    while (p->choices.left) {
        uint32_t kind = choose(&p->choices, 9);
        if (kind == 8)
            divert_a_frame_list(p);
        else if (kind == 7)
            damage_some(p);
        else if (kind == 6)
            match_while_it_changes(p);
        else
            reads[choose(&p->choices, READS)](p);
    }
    read_events(p);
    expect_no_pins(p);
    expect_no_bits(p);
    return 0;
}
