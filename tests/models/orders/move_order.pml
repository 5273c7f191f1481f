/* move_order.pml - the memory orders that a move in the dictionary needs: a key moves home while two readers search it.
 *
 * Code: pt_dict_pull_home (dict.h) against pt_find, pt_scan and pt_reach (match.h, dict.h). The key is in the second bucket
 * of its window and moves to the first; no other key is displaced.
 *
 * Property: no miss is believed, as the key is in the dictionary all the time. */
#define THREADS 3
#define LOCATIONS 4
#define WRITES 3
#include "c11.pml"

#define VERSION 0
#define DISPLACED 1
#define NEW_PLACE 2
#define OLD_PLACE 3

#define RAISE (MUTANT_version_raised_without_release -> RELAXED : RELEASE)
#define CLEAR (MUTANT_old_place_cleared_without_release -> RELAXED : RELEASE)
#define COUNT (MUTANT_displaced_counted_without_release -> RELAXED : RELEASE)
#define BEFORE (MUTANT_version_read_without_acquire -> RELAXED : ACQUIRE)
#define LOOK (MUTANT_slots_read_without_acquire -> RELAXED : ACQUIRE)
#define REACH (MUTANT_displaced_read_without_acquire -> RELAXED : ACQUIRE)

proctype Mover()
{
    /* the order of the first write does not matter here: the version carries it */
    store(0, NEW_PLACE, RELEASE, 1);
    atomic { modify(0, VERSION, RAISE, 1) }
    store(0, OLD_PLACE, CLEAR, 0);
    atomic { modify(0, DISPLACED, COUNT, 0) }
}

proctype Reader(byte me)
{
    byte before, reach, slot, after;
    load(me, VERSION, BEFORE, before);
    load(me, DISPLACED, REACH, reach);
    load(me, NEW_PLACE, LOOK, slot);
    if
    :: slot -> goto found
    :: else
    fi;
    if
    :: reach ->
        load(me, OLD_PLACE, LOOK, slot);
        if
        :: slot -> goto found
        :: else
        fi
    :: else
    fi;
    load(me, VERSION, RELAXED, after);
    assert(after != before);
found:
    skip
}

init
{
    atomic {
        memory[OLD_PLACE].writes[0].value = 1;
        memory[DISPLACED].writes[0].value = 1;
        run Mover();
        run Reader(1);
        run Reader(2)
    }
}
