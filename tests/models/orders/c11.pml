/* c11.pml - memory as C11 defines it: a load need not return the last value, only none that is older than what the thread
 * knows.
 *
 * Each location has a list of writes in the order in which they came. A thread knows one write of each location, and reads
 * that one or a later one. A release write carries everything that its thread knows; an acquire load learns what the write
 * that it reads carries. A read-modify-write reads the last write, and its own write also carries what that one carried,
 * whatever its own order is (a release sequence).
 *
 * Left out of C11: writes that come into the list before older ones (here each location has one writer, or is only written
 * by read-modify-writes), and loads that see later stores of their own thread's future.
 *
 * The including file defines LOCATIONS, THREADS, and WRITES, the length of the longest list. */
#define RELAXED 0
#define ACQUIRE 1
#define RELEASE 2
#define ACQ_REL 3
#define ACQUIRES(order) (order & 1)
#define RELEASES(order) (order & 2)

typedef Write { byte value, known[LOCATIONS] }
typedef Location { Write writes[WRITES]; byte last }
typedef Thread { byte known[LOCATIONS] }
Location memory[LOCATIONS];
Thread thread[THREADS];

#define KNOWN(me, place) thread[me].known[place]
#define LAST(place) memory[place].last
#define NEWEST(place) memory[place].writes[LAST(place)]

hidden byte x_;

/* the thread knows everything that a write carries from now on */
inline learn(me, place, which)
{
    x_ = 0;
    do
    :: x_ < LOCATIONS ->
        KNOWN(me, x_) = (memory[place].writes[which].known[x_] > KNOWN(me, x_) -> memory[place].writes[which].known[x_] : KNOWN(me, x_));
        x_++
    :: else -> break
    od
}

inline carry(me, place)
{
    x_ = 0;
    do
    :: x_ < LOCATIONS ->
        NEWEST(place).known[x_] = (NEWEST(place).known[x_] > KNOWN(me, x_) -> NEWEST(place).known[x_] : KNOWN(me, x_));
        x_++
    :: else -> break
    od
}

inline append(me, place, what)
{
    assert(LAST(place) + 1 < WRITES);
    memory[place].writes[LAST(place) + 1].value = what; /* `what` may depend on the last value */
    LAST(place)++;
    KNOWN(me, place) = LAST(place)
}

/* atomic_load_explicit, into `to` */
inline load(me, place, order, to)
{
    atomic {
        do
        :: KNOWN(me, place) < LAST(place) -> KNOWN(me, place)++
        :: break
        od;
        to = memory[place].writes[KNOWN(me, place)].value;
        if
        :: ACQUIRES(order) -> learn(me, place, KNOWN(me, place))
        :: else
        fi
    }
}

/* atomic_store_explicit */
inline store(me, place, order, what)
{
    atomic {
        append(me, place, what);
        if
        :: RELEASES(order) -> carry(me, place)
        :: else
        fi;
        NEWEST(place).known[place] = LAST(place)
    }
}

/* A read-modify-write, within an atomic step. It reads `OLD_VALUE(place)` and writes `what`. */
#define OLD_VALUE(place) NEWEST(place).value
inline modify(me, place, order, what)
{
    if
    :: ACQUIRES(order) -> learn(me, place, LAST(place))
    :: else
    fi;
    append(me, place, what);
    x_ = 0;
    do
    :: x_ < LOCATIONS ->
        NEWEST(place).known[x_] = memory[place].writes[LAST(place) - 1].known[x_];
        x_++
    :: else -> break
    od;
    if
    :: RELEASES(order) -> carry(me, place)
    :: else
    fi;
    NEWEST(place).known[place] = LAST(place)
}

/* Plain memory: a thread that accesses it must know all earlier accesses; otherwise there is a data race. Reads count, too:
 * `reads` is a location that only counts them. */
inline read_plain(me, place, reads)
{
    atomic {
        assert(KNOWN(me, place) == LAST(place));
        append(me, reads, 0)
    }
}

inline write_plain(me, place, what)
{
    atomic {
        assert(KNOWN(me, place) == LAST(place));
        append(me, place, what)
    }
}

inline knows_of_all(me, reads) { assert(KNOWN(me, reads) == LAST(reads)) }
