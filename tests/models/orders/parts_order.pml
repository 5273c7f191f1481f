/* parts_order.pml - the memory orders that the part bits need: two writers of one page, a reader, and a daemon that dooms
 * it.
 *
 * Code: pt_part_finish (publish.h), pt_change and pt_pin (lock_word.h), pt_settle (reservations.h): the daemon frees the
 * frames of a doomed page when all writers have released it.
 *
 * Property: a reader that finds the page readable knows both parts, and the next owner of the frames knows everything that
 * was written to them. */
#define THREADS 4
#define LOCATIONS 5
#define WRITES 7
#include "c11.pml"

#define WORD 0
#define PARTS 1
#define BYTES(me) (me + 2)
#define READS 4

#define READABLE 1
#define DOOMED 2
#define DONE(me) (1 << me)
#define GONE(me) (4 << me)

#define FINISH (MUTANT_done_bit_does_not_release -> ACQUIRE : (MUTANT_done_bit_does_not_acquire -> RELEASE : ACQ_REL))
#define LET_GO (MUTANT_gone_bit_does_not_release -> ACQUIRE : ACQ_REL)
#define SETTLE (MUTANT_settling_does_not_acquire -> RELAXED : ACQUIRE)

inline publish(me)
{
    atomic {
        if
        :: OLD_VALUE(WORD) == 0 -> modify(me, WORD, ACQ_REL, READABLE)
        :: else
        fi
    }
}

proctype Writer(byte me)
{
    byte parts;
    write_plain(me, BYTES(me), 1);
    if
    :: atomic { parts = OLD_VALUE(PARTS) | DONE(me); modify(me, PARTS, FINISH, parts) }
        if
        :: (parts & 3) == 3 -> publish(me)
        :: else
        fi
    :: skip /* pt_part_abandon */
    fi;
    atomic { parts = OLD_VALUE(PARTS) | GONE(me); modify(me, PARTS, LET_GO, parts) }
}

proctype Reader()
{
    byte state;
    atomic { state = OLD_VALUE(WORD); modify(2, WORD, ACQ_REL, OLD_VALUE(WORD)) }
    if
    :: state == READABLE -> read_plain(2, BYTES(0), READS); read_plain(2, BYTES(1), READS)
    :: else
    fi
}

proctype Daemon()
{
    byte state, parts;
end:
    atomic { OLD_VALUE(WORD) == 0 -> modify(3, WORD, ACQ_REL, DOOMED) }
    load(3, WORD, ACQUIRE, state);
    load(3, PARTS, SETTLE, parts);
    if
    :: state == DOOMED && (parts & 12) == 12 -> write_plain(3, BYTES(0), 2); write_plain(3, BYTES(1), 2)
    :: else
    fi
}

init
{
    atomic { run Writer(0); run Writer(1); run Reader(); run Daemon() }
}
