/* attach.pml - a session attaches, attaches again, and leaves at any time: its slot is free in the end, and never before.
 *
 * Processes: one session of a process that stays alive, and daemons, each of which may die after any step. The next daemon
 * finds the slot in the segments, and cannot see the process. It keeps the slot until the session attaches again, or until
 * no mapping and no descriptor in a socket holds the lock that was sent with the segments (judgement.pml). A daemon that has
 * the pidfd of the process judges so, too: the process may execute another program, which drops the mapping, and lives on.
 *
 * Code: ReconnectThread (client/reconnect.py), Connection._admit_peer, _unanswered and _free_unused
 * (daemon/server/connection.py), pt_attach and pt_reap (attachments.h). The session may stop at any step. It may also stop
 * waiting for a response, as it does with a daemon that is stopped: then it closes the connection and attaches again with
 * the same token. Connections are read in any order, each from its head; what a dead daemon has not read is lost. The
 * process closes all its descriptors whenever it likes, which changes nothing: its mapping keeps the lock. The daemon judges a
 * slot by its lock when another session of the process attaches (Reaper.free_unmapped); here it may do so at any time between
 * two requests. Left out: dead processes (adoption.pml), what other sessions do, rejections.
 *
 * CASE_unlocked: a daemon may fail to lock a descriptor that it sends. Its successors never judge that slot; it is free when
 * the session leaves, so there the process executes no other program: its slot would be taken until it ends.
 *
 * Properties:
 *   1. A slot is never freed while its session has the segments mapped.
 *   2. When the session has ended and the daemon has read everything, the slot is free. */
#include "judgement.pml"

#define LINKS 5 /* one more than deaths and timeouts, for the first connection */
#define DEATHS 2
#define WAITS_GIVEN_UP 1

bool taken;  /* pt_slot.pid, in the segments */
bool locks;  /* pt_slot.lock: every descriptor that was sent for this slot holds the lock */
bool mapped; /* by the session */
bool keeps_lock; /* the mapping is of a descriptor with the lock */
bool ended;

/* of each connection: what was sent, what the daemon has read and answered; closed by the session; its daemon is dead */
bool attach_sent[LINKS], attach_read[LINKS], welcome[LINKS];
bool detach_sent[LINKS], detach_read[LINKS], detached[LINKS];
bool closed[LINKS], lost[LINKS];
bool lock_sent[LINKS]; /* a descriptor with the lock lies in the socket, or has been received and is still open */

#define HELD (keeps_lock || lock_sent[0] || lock_sent[1] || lock_sent[2] || lock_sent[3] || lock_sent[4])

/* ---- the session ---- */

inline drop_mapping() { atomic { mapped = false; keeps_lock = false } }

inline unmap()
{
#if !MUTANT_detach_before_unmapping
    drop_mapping()
#else
    skip
#endif
}

/* Maps the segments, or keeps the mapping that it has; then closes the descriptors. */
inline map()
{
    atomic {
        if
        :: !mapped -> mapped = true; keeps_lock = lock_sent[link] && !MUTANT_lock_of_a_descriptor
        :: else
        fi
    }
    lock_sent[link] = false
}

inline next_link() { atomic { lock_sent[link] = false; link++ } }

inline detach()
{
    detach_sent[link] = true;
#if MUTANT_detach_before_unmapping
    drop_mapping();
#endif
    if
    :: detached[link] || MUTANT_detach_not_confirmed -> has_slot = false
    :: lost[link] && !detached[link] -> next_link()
    fi
}

proctype session()
{
    byte link = 0, patience = WAITS_GIVEN_UP;
    bool has_slot = false, answered;

attaching:
    answered = false;
    has_slot = true;
    attach_sent[link] = true;
    if
    :: welcome[link] -> answered = true
    :: lost[link] && !welcome[link] -> next_link(); goto next
    :: patience -> patience--; atomic { closed[link] = true; next_link() } goto next
    :: true -> goto leaving /* stopped while it attaches */
    fi;
    map();
    if
    :: lost[link] -> next_link(); goto next
    :: true -> goto leaving
#ifndef CASE_unlocked
    :: true -> goto executing
#endif
    fi;

next: /* without a connection */
    if
    :: goto attaching
    :: unmap(); goto again
    fi;

leaving:
    unmap();
#if MUTANT_no_detach_while_attaching
    if
    :: !answered -> atomic { closed[link] = true; lock_sent[link] = false }; goto end
    :: else
    fi;
#endif
    detach();

again:
    do
    :: !has_slot || MUTANT_no_detach_from_the_next_daemon -> break
    :: else -> attach_sent[link] = true; detach()
    od;

    goto end;

executing: /* another program: the kernel drops the mapping and then closes the connection, and nothing detaches */
    drop_mapping();
    atomic { closed[link] = true; lock_sent[link] = false };

end:
    ended = true
}

/* ---- the daemon ---- */

inline free_slot()
{
    assert(!mapped); /* 1 */
    atomic { taken = false; watched = false; noticed = false }
}

inline die()
{
    atomic {
        deaths--;
        watched = false;
        noticed = false;
        look(sight);
        lost[0] = attach_sent[0];
        lost[1] = attach_sent[1];
        lost[2] = attach_sent[2];
        lost[3] = attach_sent[3];
        lost[4] = attach_sent[4]
    }
}

inline lock_descriptor(at)
{
    if
    :: lock_sent[at] = !had || !MUTANT_lock_only_in_the_first_descriptor
#ifdef CASE_unlocked
    :: locks = MUTANT_unlocked_taken_for_locked
#endif
    fi
}

inline answer(at)
{
    if
    :: atomic { !closed[at] -> lock_descriptor(at); welcome[at] = true }
    :: else ->
        if
        :: !had || MUTANT_slot_of_a_closed_connection_is_always_freed -> free_slot()
        :: else
        fi
    fi
}

inline read_attach(at)
{
    attach_sent[at] && !attach_read[at] && !lost[at] ->
    attach_read[at] = true;
    had = taken;
    if
    :: closed[at] && !had && !MUTANT_slot_for_a_closed_connection -> lost[at] = true
    :: !closed[at] || had || MUTANT_slot_for_a_closed_connection ->
        atomic {
            locks = !had || locks;
            taken = true
        }
        if
        :: deaths -> die()
        :: atomic { !lost[at] -> watched = true; noticed = (noticed && MUTANT_returning_session_reaped) || (MUTANT_judged_before_the_answer && locks && !HELD); answer(at) }
        fi
    fi
}

inline read_detach(at)
{
    detach_sent[at] && attach_read[at] && !detach_read[at] && !lost[at] ->
    detach_read[at] = true;
    free_slot();
    if
    :: deaths -> die()
    :: detached[at] = true
    fi
}

inline judge()
{
    atomic {
        taken && (!watched || !MUTANT_watched_slot_not_judged_by_its_lock) && locks && !HELD && !noticed ->
        noticed = true /* the quarantine begins */
    }
}

proctype daemon()
{
    byte deaths = DEATHS, sight;
    bool had, watched, noticed;
    do
    :: judge()
    :: atomic { noticed -> free_slot() }
#if MUTANT_reaped_by_visibility || MUTANT_reaped_by_start_time || MUTANT_reaped_by_pid_alone
    :: atomic { taken && !watched && LOOKS_DEAD(sight) -> free_slot() }
#endif
    :: read_attach(0)
    :: read_attach(1)
    :: read_attach(2)
    :: read_attach(3)
    :: read_attach(4)
    :: read_detach(0)
    :: read_detach(1)
    :: read_detach(2)
    :: read_detach(3)
    :: read_detach(4)
    :: deaths -> die()
    :: timeout ->
        assert(ended); /* no process waits forever */
        assert(!taken); /* 2 */
        break
    od
}

init
{
    atomic {
        run session();
        run daemon()
    }
}
