/* attach.pml - a session attaches, attaches again, and leaves at any moment: its slot is free in the end, and never before.
 *
 * Who: one session of a process that lives on, and daemons, of which each may die after any step. The next one finds the slot in
 * the segments, and its process alive, so it keeps it: nobody but the session can tell that the slot is free.
 *
 * What of the code: Keeper (client/reconnect.py), Connection._admit_peer, _unanswered and _free_unused (daemon/server/connection.py),
 * pt_attach and pt_reap (attachments.h). The session may stop at any step. It may also give up waiting for an answer, as it does with a daemon
 * that is stopped: then it closes the connection and comes again by the same token. Connections are read in any order, each
 * from its head; what a dead daemon has not read is gone. Left out: the dead (their slots are freed by their pidfd), other
 * sessions, refusals.
 *
 * What holds:
 *   1. A slot is never freed while its session has the segments mapped.
 *   2. When the session has ended and the daemon has read all, the slot is free.
 */
#define LINKS 5 /* one more than deaths, waits that are given up, and the first */
#define DEATHS 2
#define WAITS_GIVEN_UP 1

bool taken;  /* pt_slot.pid, in the segments */
bool mapped; /* the session has them */
bool ended;

/* of each connection: what was sent, what the daemon has read of it and answered; closed by the session; its daemon is dead */
bool attach_sent[LINKS], attach_read[LINKS], welcome[LINKS];
bool detach_sent[LINKS], detach_read[LINKS], detached[LINKS];
bool closed[LINKS], lost[LINKS];

/* ---- the session ---- */

inline let_go()
{
#ifndef MUTANT_goodbye_before_letting_go
    mapped = false
#else
    skip
#endif
}

inline say_goodbye()
{
    detach_sent[link] = true;
#ifdef MUTANT_goodbye_before_letting_go
    mapped = false;
#endif
#ifdef MUTANT_goodbye_not_confirmed
    has_slot = false
#else
    if
    :: detached[link] -> has_slot = false
    :: lost[link] && !detached[link] -> link++
    fi
#endif
}

proctype session()
{
    byte link = 0, patience = WAITS_GIVEN_UP;
    bool has_slot = false, greeted;

attaching:
    greeted = false;
    has_slot = true;
    attach_sent[link] = true;
    if
    :: welcome[link] -> greeted = true
    :: lost[link] && !welcome[link] -> link++; goto next
    :: patience -> patience--; closed[link] = true; link++; goto next
    :: true -> goto leaving /* stopped while it greets */
    fi;
    mapped = true; /* or it was */
    if
    :: lost[link] -> link++; goto next
    :: true -> goto leaving
    fi;

next: /* no connection */
    if
    :: goto attaching
    :: let_go(); goto again
    fi;

leaving:
    let_go();
#ifdef MUTANT_no_goodbye_while_greeting
    if
    :: !greeted -> closed[link] = true; goto end
    :: else
    fi;
#endif
    say_goodbye();

again:
    do
    :: !has_slot -> break
    :: else ->
#ifdef MUTANT_next_daemon_is_not_told
        break
#else
        attach_sent[link] = true;
        say_goodbye()
#endif
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
#ifdef MUTANT_slot_of_the_gone_is_always_freed
        :: true -> free_slot()
#else
        :: !had -> free_slot()
        :: else
#endif
        fi
    fi
}

inline read_attach(at)
{
    attach_sent[at] && !attach_read[at] && !lost[at] ->
    attach_read[at] = true;
    had = taken;
    if
#ifndef MUTANT_slot_for_the_gone
    :: closed[at] && !had -> lost[at] = true
    :: !closed[at] || had ->
#else
    :: true ->
#endif
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
        assert(ended);  /* nobody waits for ever */
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
