/* event_order.pml - the memory orders of the ring of events: a daemon changes where a page is and records it, may die
 * between the two, and a reader that is not waited for keeps what it believes of the page up to date.
 *
 * Code: pt_record, pt_serve_events and pt_stop_events (events.h) against pt_read_events (event_reader.h) and pt_locate. The
 * ring has two places of two words. STATE stands for the entry; it counts the changes of the page. The epoch is odd while
 * changes are recorded.
 *
 * Properties: the words of one event belong together; a reader that reads an event finds the page as it was then or later;
 * and once the daemon rests, a reader that reads the ring once more believes the truth. */
#define THREADS 2
#define LOCATIONS 8
#define WRITES 7
#include "c11.pml"

#define HEAD 0
#define EPOCH 1
#define READERS 2
#define STATE 3
#define WORD(event, which) (4 + 2 * ((event) % PLACES) + which)

#define PLACES 2
#define CHANGES 4

#define RECORD (MUTANT_head_stored_without_release -> RELAXED : RELEASE)
#define WORDS (MUTANT_words_stored_without_release -> RELAXED : RELEASE)
#define RAISE (MUTANT_epoch_stored_without_release -> RELAXED : RELEASE)
#define READ_HEAD (MUTANT_head_read_without_acquire -> RELAXED : ACQUIRE)
#define READ_WORDS (MUTANT_words_read_without_acquire -> RELAXED : ACQUIRE)
#define READ_EPOCH (MUTANT_epoch_read_without_acquire -> RELAXED : ACQUIRE)
#define MARGIN (MUTANT_place_being_written_is_read -> 1 : 0)

bool rests;

inline record(event)
{
    store(0, WORD(event, 0), WORDS, event + 1);
    store(0, WORD(event, 1), WORDS, event + 1);
    store(0, HEAD, RECORD, event + 1)
}

inline change_and_record()
{
    if
    :: MUTANT_recorded_before_the_change -> record(head); store(0, STATE, RELAXED, changes + 1)
    :: else -> store(0, STATE, RELAXED, changes + 1); record(head)
    fi;
    head++
}

/* the daemon, and its successor after its death: they know the same */
proctype Daemon()
{
    byte changes, head, epoch, readers;
    do
    :: changes < CHANGES && epoch % 2 -> change_and_record(); changes++
    :: changes < CHANGES && !(epoch % 2) -> store(0, STATE, RELAXED, changes + 1); changes++
    :: epoch == 0 || epoch == 2 -> /* a turn */
        load(0, READERS, ACQUIRE, readers);
        if
        :: readers -> epoch++; store(0, EPOCH, RAISE, epoch)
        :: else
        fi
    :: epoch == 1 && changes < CHANGES -> /* dies after a change that is not recorded; the successor begins */
        store(0, STATE, RELAXED, changes + 1);
        changes++;
        if
        :: MUTANT_successor_goes_on -> epoch = 3
        :: else -> epoch = 2; store(0, EPOCH, RAISE, epoch)
        fi
    :: changes == CHANGES && epoch % 2 -> break
    od;
    rests = true
}

byte believed, cursor, known;

/* pt_read_events, and the peek that follows it */
inline read()
{
    load(1, EPOCH, READ_EPOCH, epoch);
    load(1, HEAD, READ_HEAD, head);
    if
    :: epoch != known ->
        known = epoch;
        cursor = head;
        load(1, STATE, RELAXED, believed)
    :: epoch == known && epoch % 2 && head != cursor ->
        first = 0; second = 0;
        if
        :: head - cursor <= PLACES ->
            load(1, WORD(cursor, 0), READ_WORDS, first);
            load(1, WORD(cursor, 1), READ_WORDS, second)
        :: else
        fi;
        last = head;
        if
        :: MUTANT_head_not_read_again
        :: else -> load(1, HEAD, RELAXED, last)
        fi;
        if
        :: last - cursor >= PLACES + MARGIN -> cursor = head /* lost */
        :: else -> assert(first == cursor + 1 && second == cursor + 1); cursor++
        fi;
        load(1, STATE, RELAXED, believed);
        assert(believed >= first)
    :: else
    fi
}

proctype Reader()
{
    byte epoch, head, last, first, second, turns;
    store(1, READERS, RELAXED, 1);
    do
    :: turns < 2 && !rests -> read(); turns++
    :: rests -> break
    od;
    /* all stores have arrived by now */
    atomic { KNOWN(1, EPOCH) = LAST(EPOCH); KNOWN(1, HEAD) = LAST(HEAD) }
    turns = 0;
    do
    :: turns < CHANGES + 2 -> read(); turns++
    :: else -> break
    od;
    assert(known % 2);
    assert(cursor == head);
    assert(believed == CHANGES)
}

init
{
    atomic { run Daemon(); run Reader() }
}
