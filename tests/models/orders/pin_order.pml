/* pin_order.pml - the memory orders that the lock word needs: pins of two readers, a writer that publishes, a daemon that
 * evicts.
 *
 * Code: pt_pin, pt_unpin, pt_change and pt_retire (lock_word.h). BYTES stands for everything that is read under a pin: the
 * page's bytes, and its key, which are written before the state leaves PT_WRITING, and after the page was evicted.
 *
 * Property: a thread that accesses the bytes knows all earlier accesses to them. */
#define THREADS 4
#define LOCATIONS 4
#define WRITES 8
#include "c11.pml"

#define WORD 0
#define BYTES 1
#define READS(me) (me + 1) /* of thread 1 and 2 */

#define READABLE 4 /* the lock word: two pin bits, and the state */
#define FREE 8
#define BIT(me) me

#define PIN (MUTANT_pin_does_not_acquire -> RELEASE : ACQ_REL)
#define UNPIN (MUTANT_unpin_does_not_release -> RELAXED : RELEASE)
#define PUBLISH (MUTANT_publishing_does_not_release -> ACQUIRE : ACQ_REL)
#define RETIRE (MUTANT_retiring_does_not_acquire -> RELEASE : ACQ_REL)

proctype Writer()
{
    write_plain(0, BYTES, 1);
    atomic { modify(0, WORD, PUBLISH, OLD_VALUE(WORD) | READABLE) }
}

proctype Reader(byte me)
{
    byte seen;
    atomic { seen = OLD_VALUE(WORD); modify(me, WORD, PIN, OLD_VALUE(WORD) | BIT(me)) }
    if
    :: seen & READABLE -> read_plain(me, BYTES, READS(me))
    :: else
    fi;
    atomic { modify(me, WORD, UNPIN, OLD_VALUE(WORD) & (255 ^ BIT(me))) }
}

proctype Daemon()
{
end:
    atomic { OLD_VALUE(WORD) == READABLE -> modify(3, WORD, RETIRE, FREE) }
    atomic { knows_of_all(3, READS(1)); knows_of_all(3, READS(2)) }
    write_plain(3, BYTES, 2)
}

init
{
    atomic { run Writer(); run Reader(1); run Reader(2); run Daemon() }
}
