/* status_order.pml - the memory orders of the status of the daemon: a text that it writes while watchers copy it.
 *
 * Code: publish_status() (owner_segments.h) against status() (observer.h). The text has two words; those of the text of
 * version 2n are n. The version is odd while a text is written.
 *
 * A fence makes the relaxed accesses beside it carry and learn: the words that are written after the daemon's carry what
 * it knew there, and the watcher's learns what the words that it has read carry.
 *
 * Property: the words of a text that a watcher believes belong to the version that it read. */
#define THREADS 2
#define LOCATIONS 3
#define WRITES 5
#include "c11.pml"

#define VERSION 0
#define WORD(which) (1 + which)

#define TEXTS 2

#define WORDS (MUTANT_no_fence_after_the_odd_version -> RELAXED : RELEASE)
#define EVEN (MUTANT_even_version_stored_without_release -> RELAXED : RELEASE)
#define READ_BEFORE (MUTANT_version_read_without_acquire -> RELAXED : ACQUIRE)

proctype Daemon()
{
    byte text;
    do
    :: text < TEXTS ->
        text++;
        atomic { modify(0, VERSION, RELAXED, OLD_VALUE(VERSION) + 1) };
        store(0, WORD(0), WORDS, text);
        store(0, WORD(1), WORDS, text);
        atomic { modify(0, VERSION, EVEN, OLD_VALUE(VERSION) + 1) }
    :: else -> break
    od
}

inline fence()
{
    if
    :: MUTANT_no_fence_before_the_version_is_read_again
    :: else ->
        atomic {
            learn(1, WORD(0), KNOWN(1, WORD(0)));
            learn(1, WORD(1), KNOWN(1, WORD(1)))
        }
    fi
}

proctype Watcher()
{
    byte before, after, first, second;
    load(1, VERSION, READ_BEFORE, before);
    if
    :: before % 2 == 0 ->
        load(1, WORD(0), RELAXED, first);
        load(1, WORD(1), RELAXED, second);
        fence();
        after = before;
        if
        :: MUTANT_version_not_read_again
        :: else -> load(1, VERSION, RELAXED, after)
        fi;
        assert(after != before || (2 * first == before && 2 * second == before))
    :: else
    fi
}

init
{
    atomic { run Daemon(); run Watcher() }
}
