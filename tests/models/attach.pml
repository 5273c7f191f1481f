/* attach.pml - a session attaches, attaches again, and leaves at any time: its slot is free in the end, and never before.
 *
 * Processes: one session of a process that stays alive, and daemons, each of which may die after any step. The next daemon
 * finds the slot in the segments, and its process alive, so it keeps the slot: only the session knows that the slot is
 * free.
 *
 * Code: ReconnectThread (client/reconnect.py), Connection._admit_peer, _unanswered and _free_unused
 * (daemon/server/connection.py), pt_attach and pt_reap (attachments.h). The session may stop at any step. It may also stop
 * waiting for a response, as it does with a daemon that is stopped: then it closes the connection and attaches again with
 * the same token. Connections are read in any order, each from its head; what a dead daemon has not read is lost. Left out:
 * dead processes (their slots are freed by their pidfds), other sessions, rejections.
 *
 * Properties:
 *   1. A slot is never freed while its session has the segments mapped.
 *   2. When the session has ended and the daemon has read everything, the slot is free. */
#define LINKS 5 /* one more than deaths and timeouts, for the first connection */
#define DEATHS 2
#define WAITS_GIVEN_UP 1

bool taken;  /* pt_slot.pid, in the segments */
bool mapped; /* by the session */
bool ended;

/* of each connection: what was sent, what the daemon has read and answered; closed by the session; its daemon is dead */
bool attach_sent[LINKS], attach_read[LINKS], welcome[LINKS];
bool detach_sent[LINKS], detach_read[LINKS], detached[LINKS];
bool closed[LINKS], lost[LINKS];

/* ---- the session ---- */

inline unmap() { mapped = mapped && MUTANT_detach_before_unmapping }

inline detach()
{
    detach_sent[link] = true;
#if MUTANT_detach_before_unmapping
    mapped = false;
#endif
    if
    :: detached[link] || MUTANT_detach_not_confirmed -> has_slot = false
    :: lost[link] && !detached[link] -> link++
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
    :: lost[link] && !welcome[link] -> link++; goto next
    :: patience -> patience--; closed[link] = true; link++; goto next
    :: true -> goto leaving /* stopped while it attaches */
    fi;
    mapped = true; /* or still mapped */
    if
    :: lost[link] -> link++; goto next
    :: true -> goto leaving
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
    :: !answered -> closed[link] = true; goto end
    :: else
    fi;
#endif
    detach();

again:
    do
    :: !has_slot || MUTANT_no_detach_from_the_next_daemon -> break
    :: else -> attach_sent[link] = true; detach()
    od;

end:
    ended = true
}

/* ---- the daemon ---- */

inline free_slot()
{
    assert(!mapped); /* 1 */
    taken = false
}

inline die()
{
    atomic {
        deaths--;
        lost[0] = attach_sent[0];
        lost[1] = attach_sent[1];
        lost[2] = attach_sent[2];
        lost[3] = attach_sent[3];
        lost[4] = attach_sent[4]
    }
}

inline answer(at)
{
    if
    :: !closed[at] -> welcome[at] = true
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
        taken = true;
        if
        :: deaths -> die()
        :: atomic { !lost[at] -> answer(at) }
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

proctype daemon()
{
    byte deaths = DEATHS;
    bool had;
    do
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
