/* samples_order.pml - the memory order of a ring in which a process leaves what it looked up.
 *
 * Code: pt_sample_lookup (client/sample.h) against pt_lookups_read (daemon/mrc/lookups.h). The ring has room for one
 * record of one word; record n has the value n. The daemon dies at most once, and its successor continues where the ring says.
 *
 * Property: a record that the daemon reads is the one that it expects: neither older than the number that it read, nor
 * written over already. The daemon's store after its reads is release, and the process's load before its writes is acquire.
 * This model cannot show what these two prevent, as it runs the loads of a thread in their order (see c11.pml). */
#define THREADS 3
#define LOCATIONS 3
#define WRITES 5
#include "c11.pml"

#define RECORDS 3
#define WORD 0
#define WRITTEN 1
#define READ 2

#define PUBLISH (MUTANT_written_without_release -> RELAXED : RELEASE)
#define LOOK (MUTANT_written_read_without_acquire -> RELAXED : ACQUIRE)
#define FULL(next, done) (!MUTANT_written_over && next - done > 1)

proctype Process()
{
    byte next = 1, done;
    do
    :: next <= RECORDS ->
        load(0, READ, ACQUIRE, done);
        if
        :: FULL(next, done) -> skip
        :: else ->
            store(0, WORD, RELAXED, next);
            store(0, WRITTEN, PUBLISH, next);
            next++
        fi
    :: true -> break /* it dies, or has nothing to look up any more */
    od
}

proctype Daemons()
{
    byte me = 1, at, end, word;
    do
    :: load(me, READ, RELAXED, at);
        load(me, WRITTEN, LOOK, end);
        if
        :: end > at ->
            load(me, WORD, RELAXED, word);
            assert(word == end);
            store(me, READ, RELEASE, end)
        :: else
        fi
    :: me == 1 -> me = 2; thread[2].known[READ] = thread[1].known[READ]; thread[2].known[WRITTEN] = thread[1].known[WRITTEN];
        thread[2].known[WORD] = thread[1].known[WORD] /* it dies */
    :: true -> break
    od
}

init
{
    atomic {
        run Process();
        run Daemons()
    }
}
