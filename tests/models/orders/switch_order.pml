/* switch_order.pml - the memory orders that the switch from one dictionary to the other needs, and the clearing of the old
 * one.
 *
 * Code: pt_adopt and pt_dict_clear (adopt.h, dict.h) of two daemons, one after the other, against pt_find (match.h). Each
 * dictionary has one slot; a key is in the first one and stays in the one that is in use. A daemon knows everything that
 * its predecessor did: the kernel reported the death.
 *
 * Property: no miss is believed, as the key is in the dictionary all the time. */
#define THREADS 3
#define LOCATIONS 3
#define WRITES 4
#include "c11.pml"

#define NUMBER 0
#define SLOT(number) (1 + (number & 1))

#define SWITCH (MUTANT_switched_without_release -> RELAXED : RELEASE)
#define CLEAR (MUTANT_cleared_without_release -> RELAXED : RELEASE)
#define NUMBER_READ (MUTANT_number_read_without_acquire -> RELAXED : ACQUIRE)
#define LOOK (MUTANT_slots_read_without_acquire -> RELAXED : ACQUIRE)

inline adopt(number)
{
    store(0, SLOT(number), CLEAR, 0);
    store(0, SLOT(number), RELEASE, 1);
    store(0, NUMBER, SWITCH, number)
}

proctype Daemons() { adopt(1); adopt(2) }

proctype Reader(byte me)
{
    byte before, slot, after;
    load(me, NUMBER, NUMBER_READ, before);
    load(me, SLOT(before), LOOK, slot);
    if
    :: !slot ->
        load(me, NUMBER, RELAXED, after);
        assert(after != before)
    :: else
    fi
}

init
{
    atomic {
        memory[SLOT(0)].writes[0].value = 1;
        run Daemons();
        run Reader(1);
        run Reader(2)
    }
}
