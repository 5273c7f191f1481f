/* reserve.pml - reserve, parts, doom, expiry: a page of two parts, and those who write them.
 *
 * Who: two ranks of one engine, which cut pages into the same two parts; one rank of an engine that cuts them otherwise, and
 * whose other rank never comes; the daemon. Any step of one rank may be its last, and any rank may end while it has nothing
 * to do; another process gets the slot of the first. CASE_detach: the first rank detaches instead, another process gets its
 * slot, and may end, too.
 *
 * What of the code: pt_reserve_one, pt_join, pt_grant and pt_fill (reserve.h), pt_part_finish and pt_part_abandon (publish.h),
 * pt_settle, pt_judge and pt_doom (reservations.h), pt_drop_page (evict.h), pt_reap, pt_detach and pt_let_go_of_parts (attachments.h). An expired
 * reservation is one that the daemon takes for such: at any time. Left out: pins (pin.pml), the disk.
 *
 * One entry is enough: its frames may be anybody's as soon as they are free, so their bytes are set to 0 then. A filling
 * is either the one that is in the entry now or an old one: no serials, so that the model has an end.
 *
 * What holds, at every step:
 *   1. A page that becomes readable has all its parts, each written for this very filling, and all of one division.
 *   2. A writer writes to no frame but those of the page that it was granted.
 *   3. Who publishes, or is told that he stored, means his own page.
 *   4. Once a page has expired it is given back, unless somebody lives who was granted a part and has not let go of it.
 *   5. A page that is handed to those that may leave is in the dictionary.
 *   6. Once a dead process was reaped, no page waits for parts of which all that were granted belong to dead processes.
 *   7. A page is doomed early only for a part that was given up, or if all of its writers have died and it is not whole: one
 *      that lives, or that detached after its part was done, keeps it until it expires.
 */
#define ENTRIES 1
#include "lockword.pml"

#define RANKS 3
#define PART(who) (who == 1 -> 1 : 0)
#define DIVISION(who) (who == 2 -> 1 : 0)
#define NOBODY 7
#define DEAD_WRITER 6
#define DETACHED_WRITER 5
#define BOTH 3
#define NOW 1 /* of the filling that is in the entry */
#define OLD 2 /* of one that was there before */

byte division;
byte writers[2];
byte done, gone; /* pt_lock.parts */
byte content[2]; /* what filling the part was written for; 0: none */
bool opened;     /* on the open list; else the policy has it */
bool linked;     /* in the dictionary */

/* What became of the process that was granted each part, whatever writers[] says; whether the process that has a slot now is
 * that one; and the parts that were granted to the other division. */
#define LIVES 1
#define DIED 2
#define LEFT 3
byte fate[2];
bool granted_now[RANKS];
byte other_cut;

/* of each rank: for what filling it was granted a part, 0: none. It asks, and it is answered. */
byte mine[RANKS];
bool asks[RANKS], dying[RANKS], dead[RANKS];
#ifdef CASE_detach
bool may_leave = true, left; /* the first rank */
#endif

/* ---- the ranks ---- */

inline publish()
{
#ifdef MUTANT_published_by_store
    state[0] = READABLE;
    assert(content[0] == NOW && content[1] == NOW && mine[who] == NOW) /* 1, 3 */
#else
    if
    :: state[0] == WRITING ->
        state[0] = READABLE;
        assert(content[0] == NOW && content[1] == NOW && mine[who] == NOW); /* 1, 3 */
        assert(other_cut == 0 || other_cut == BOTH) /* 1 */
    :: else
    fi
#endif
}

inline pt_part_finish()
{
    atomic { done = done | BIT(PART(who)); all = done == BOTH };
#ifdef MUTANT_gone_before_published
    gone = gone | BIT(PART(who));
#endif
    if
    :: atomic { all -> publish() }
    :: atomic { !all -> skip }
    fi;
    assert(state[0] == DOOMED || mine[who] == NOW); /* 3: the state that he is told */
#ifndef MUTANT_gone_before_published
    atomic { gone = gone | BIT(PART(who)); mine[who] = 0; all = false }
#else
    atomic { mine[who] = 0; all = false }
#endif
}

proctype Rank(byte who)
{
    bool all;
    {
        do
        :: break
#ifdef CASE_detach
        :: atomic { who == 0 && may_leave -> may_leave = false; left = true; break }
#endif
        :: asks[who] = true;
            !asks[who];
            if
            :: mine[who] ->
                if
                :: assert(mine[who] == NOW && state[0] != FREE); /* 2 */
                    content[PART(who)] = mine[who];
                    pt_part_finish()
                :: atomic { gone = gone | BIT(PART(who)); mine[who] = 0 } /* pt_part_abandon */
                fi
            :: else
            fi
        od
    } unless { dying[who] };
    atomic { all = false; dead[who] = true }
}

/* One of the two that make pages together, which are alike; the page of the third is never whole, whether it dies or not. */
#ifndef CASE_detach
active proctype Death() { dying[0] = true }
#endif

/* ---- the daemon ---- */

/* The rank may be dead already: then nobody reads the answer. */
inline answer_granted(who)
{
    mine[who] = (dead[who] -> 0 : NOW);
    granted_now[who] = true;
    fate[PART(who)] = LIVES;
    other_cut = other_cut | (DIVISION(who) -> BIT(PART(who)) : 0)
}

inline forget_fates()
{
    fate[0] = 0;
    fate[1] = 0;
    granted_now[0] = false;
    granted_now[1] = false;
    granted_now[2] = false;
    other_cut = 0
}

inline pt_fill(who)
{
    d_step {
        mine[0] = (mine[0] -> OLD : 0);
        mine[1] = (mine[1] -> OLD : 0);
        mine[2] = (mine[2] -> OLD : 0);
        division = DIVISION(who);
        writers[0] = NOBODY;
        writers[1] = NOBODY;
        writers[PART(who)] = who;
        forget_fates()
    }
#ifndef MUTANT_parts_not_reset
    atomic { done = 0; gone = 0 }
#endif
}

inline pt_grant(who)
{
    pt_fill(who);
    atomic { state[0] = WRITING; linked = true; opened = true; answer_granted(who) }
}

inline pt_join(who)
{
    if
#ifdef MUTANT_parts_of_two_divisions_join
    :: atomic { writers[PART(who)] == NOBODY ->
#else
    :: atomic { writers[PART(who)] == NOBODY && division == DIVISION(who) ->
#endif
        writers[PART(who)] = who; answer_granted(who) }
    :: else /* pending */
    fi
}

inline pt_doom(what)
{
    pt_change(0, WRITING, DOOMED, what);
    linked = linked && !what /* pt_unlink */
}

/* writers[] says so; and so it is. */
#ifdef MUTANT_one_dead_writer_dooms
#define ALL_DEAD (writers[0] == DEAD_WRITER || writers[1] == DEAD_WRITER)
#else
#define ALL_DEAD (writers[0] >= DEAD_WRITER && writers[1] >= DEAD_WRITER)
#endif
#define ALL_DIED ((!fate[0] || fate[0] == DIED) && (!fate[1] || fate[1] == DIED))

inline pt_judge()
{
    atomic { seen_done = done; seen_gone = gone };
    if
#ifdef MUTANT_abandoned_page_published
    :: seen_gone == BOTH ->
#else
    :: seen_gone & (BOTH ^ seen_done) -> pt_doom(did)
    :: !(seen_gone & (BOTH ^ seen_done)) && seen_gone == BOTH ->
#endif
        atomic {
            pt_change(0, WRITING, READABLE, did);
            assert(!did || (content[0] == NOW && content[1] == NOW)) /* 1 */
        }
#ifdef MUTANT_whole_page_of_the_dead_doomed
    :: !(seen_gone & (BOTH ^ seen_done)) && ALL_DEAD ->
#else
    :: !(seen_gone & (BOTH ^ seen_done)) && seen_gone != BOTH && ALL_DEAD ->
#endif
        atomic {
            pt_doom(did);
            assert(!did || (ALL_DIED && done != BOTH)) /* 7 */
        }
    :: expired -> pt_doom(did)
    :: else
    fi;
    d_step { seen_done = 0; seen_gone = 0; did = false }
}

#define GRANTED ((writers[0] == NOBODY -> 0 : 1) | (writers[1] == NOBODY -> 0 : 2))
#define HOLDS(who) (mine[who] && !dead[who])

#define NOBODY_HOLDS (!HOLDS(0) && !HOLDS(1) && !HOLDS(2) && !dead[0] && !dead[1] && !dead[2])

inline pt_reclaim()
{
    d_step { content[0] = 0; content[1] = 0; writers[0] = NOBODY; writers[1] = NOBODY; division = 0; opened = false; forget_fates() }
#ifndef MUTANT_parts_not_reset
    atomic { done = 0; gone = 0 } /* nobody reads them before they are reset: so there is less to check */
#endif

}

inline pt_settle()
{
    if
    :: state[0] == WRITING -> pt_judge()
    :: else
    fi;
    seen_state = state[0];
    atomic { seen_gone = gone; due = expired && NOBODY_HOLDS };
    if
    :: atomic { seen_state == READABLE && (seen_gone & GRANTED) == GRANTED -> opened = false; assert(linked) /* 5 */ }
#ifdef MUTANT_frames_taken_from_a_writer
    :: seen_state == DOOMED ->
#else
    :: seen_state == DOOMED && (seen_gone & GRANTED) == GRANTED ->
#endif
        state[0] = FREE;
        pt_reclaim()
    :: else
    fi;
    atomic { assert(!due || !opened); /* 4 */ seen_state = 0; seen_gone = 0; expired = false; due = false }
}

/* The page is in the dictionary if it is being written or whole. */
inline pt_reserve_one(who)
{
    if
    :: opened -> pt_settle()
    :: else
    fi;
    if
    :: state[0] == WRITING -> pt_join(who)
    :: state[0] == FREE -> pt_grant(who)
    :: else /* present; or it is doomed, and another entry is granted */
    fi;
    asks[who] = false
}

inline pt_drop_page() { pt_change(0, READABLE, FREE, did); linked = false; pt_reclaim(); did = false }

inline pt_let_go_of_parts(who, part, mark)
{
#ifndef MUTANT_parts_of_the_dead_stay
    if
    :: opened && writers[part] == who -> gone = gone | BIT(part); writers[part] = mark
    :: else
    fi
#else
    skip
#endif
}

/* The process that had the slot is none of its writers any more. */
inline end_process(who, what)
{
    mine[who] = 0;
    dead[who] = false;
    fate[PART(who)] = (granted_now[who] -> what : fate[PART(who)]);
    granted_now[who] = false
}

#ifdef MUTANT_finished_parts_of_the_dead_stay
#define MARK_OF_DEAD(who) who
#else
#define MARK_OF_DEAD(who) DEAD_WRITER
#endif
#if defined(MUTANT_detaching_is_a_death)
#define MARK_OF_DETACHED(who) DEAD_WRITER
#elif defined(MUTANT_writers_that_detached_keep_their_slot)
#define MARK_OF_DETACHED(who) who
#else
#define MARK_OF_DETACHED(who) DETACHED_WRITER
#endif

/* What the dead had asked is answered first: it was in the socket before. */
inline pt_reap(who)
{
    pt_let_go_of_parts(who, PART(who), MARK_OF_DEAD(who));
    d_step { end_process(who, DIED) }
    if
    :: opened -> pt_settle()
    :: else
    fi;
    atomic {
        assert(!opened || !ALL_DIED); /* 6 */
        if
        :: dying[who] -> dying[who] = false; run Rank(who)
        :: else
        fi
    }
}

/* A process says that it touches nothing any more. */
inline pt_detach(who)
{
    pt_let_go_of_parts(who, PART(who), MARK_OF_DETACHED(who));
    d_step { end_process(who, LEFT) }
    if
    :: opened -> pt_settle()
    :: else
    fi;
    atomic { left = false; run Rank(who) }
}

init
{
    byte seen_done, seen_gone, seen_state;
    bool did, expired, due;
    atomic { writers[0] = NOBODY; writers[1] = NOBODY; run Rank(0); run Rank(1); run Rank(2) }
end:
    do
    :: asks[0] -> pt_reserve_one(0)
    :: asks[1] -> pt_reserve_one(1)
    :: asks[2] -> pt_reserve_one(2)
    :: opened -> pt_settle()
    :: atomic { opened -> expired = true } pt_settle()
    :: state[0] == READABLE && !opened -> pt_drop_page()
#ifdef CASE_detach
    :: left && dead[0] && !asks[0] -> pt_detach(0)
    :: !left && dead[0] && !asks[0] -> pt_reap(0)
#else
    :: dead[0] && !asks[0] -> pt_reap(0)
#endif
    :: dead[1] && !asks[1] -> pt_reap(1)
    :: dead[2] && !asks[2] -> pt_reap(2)
    od
}
