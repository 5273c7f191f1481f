/* reserve.pml - reserve, parts, doom, expiry: a page of two parts, and its writers.
 *
 * Processes: two ranks of one engine, which cut pages into the same two parts; one rank of an engine that cuts them in
 * another way, and whose other rank never comes; the daemon. Any step of one rank may be its last, and any rank may end
 * while it is idle: it died or detached. Another process gets the slot of the first rank.
 *
 * A daemon reaps a process only when the kernel has said that it has ended (judgement.pml).
 *
 * Code: pt_reserve_one, pt_join, pt_grant and pt_fill (reserve.h), pt_part_finish (publish.h), pt_part_abandon
 * (parts.h), pt_settle, pt_judge and pt_doom (reservations.h), pt_drop_page (evict.h), pt_reap and
 * pt_release_unlisted_parts (attachments.h). The daemon may consider a reservation expired at any time. Left out: pins (pin.pml), the disk.
 *
 * One entry is enough: its frames may belong to any page as soon as they are free, so their bytes are set to 0 then. A
 * filling is either the one that is in the entry now or an earlier one: there are no serials, so that the model is finite.
 *
 * Properties, at every step:
 *   1. A page that becomes readable has all its parts, each written for this very filling, and all of one division.
 *   2. A writer writes only to the frames of the page that it was granted.
 *   3. A writer that publishes, or gets the result "stored", does so for its own page.
 *   4. An expired page is freed, unless a living process was granted a part and has not released it.
 *   5. A page that is handed to the eviction policy is in the dictionary.
 *   6. After a process that has ended was reaped, no page waits for parts if all parts that were granted belong to such
 *      processes.
 *   7. A page is doomed before it expires only for a part that was abandoned, or if all of its writers have ended and it is
 *      not complete: a writer that is attached keeps the page until it expires. */
#define ENTRIES 1
#include "judgement.pml"
#include "lockword.pml"

#define RANKS 3
#define PART(rank) (rank == 1 -> 1 : 0)
#define DIVISION(rank) (rank == 2 -> 1 : 0)
#define NOBODY 7
#define ENDED_WRITER 6
#define BOTH 3
#define NOW 1 /* of the filling that is in the entry */
#define OLD 2 /* of an earlier filling */

byte division;
byte writers[2];
byte done, gone; /* pt_lock.parts */
byte content[2]; /* the filling for which the part was written; 0: none */
bool opened; /* on the open list; otherwise the policy lists it */
bool linked;     /* in the dictionary */

/* The fate of the process that was granted each part, whatever writers[] says; whether the present process of a slot is
 * that process; and the parts that were granted to the other division. */
#define LIVES 1
#define ENDED 2
byte fate[2];
bool granted_now[RANKS];
byte other_cut;

/* of each rank: the filling for which it was granted a part, 0: none; whether it waits for a response */
byte mine[RANKS];
bool asks[RANKS], dying[RANKS], dead[RANKS];

/* ---- the ranks ---- */

inline publish()
{
    if
    :: state[0] == WRITING || MUTANT_published_by_store ->
        state[0] = READABLE;
        assert(content[0] == NOW && content[1] == NOW && mine[rank] == NOW); /* 1, 3 */
        assert(other_cut == 0 || other_cut == BOTH) /* 1 */
    :: else
    fi
}

inline pt_part_finish()
{
    atomic { done = done | BIT(PART(rank)); all = done == BOTH };
#if MUTANT_gone_before_published
    gone = gone | BIT(PART(rank));
#endif
    if
    :: atomic { all -> publish() }
    :: atomic { !all -> skip }
    fi;
    assert(state[0] == DOOMED || mine[rank] == NOW); /* 3: the state that it gets as its result */
    atomic { gone = gone | (MUTANT_gone_before_published -> 0 : BIT(PART(rank))); mine[rank] = 0; all = false }
}

proctype Rank(byte rank)
{
    bool all;
    {
        do
        :: break
        :: asks[rank] = true;
            !asks[rank];
            if
            :: mine[rank] ->
                if
                :: assert(mine[rank] == NOW && state[0] != FREE); /* 2 */
                    content[PART(rank)] = mine[rank];
                    pt_part_finish()
                :: atomic { gone = gone | BIT(PART(rank)); mine[rank] = 0 } /* pt_part_abandon */
                fi
            :: else
            fi
        od
    } unless { dying[rank] };
    atomic { all = false; dead[rank] = true }
}

/* One of the two ranks that make pages together, which are alike. The page of the third rank is never complete, whether it
 * dies or not. */
active proctype Death() { dying[0] = true }

/* ---- the daemon ---- */

/* The rank may be dead already: then no process reads the response. */
inline answer_granted(rank)
{
    mine[rank] = (dead[rank] -> 0 : NOW);
    granted_now[rank] = true;
    fate[PART(rank)] = LIVES;
    other_cut = other_cut | (DIVISION(rank) -> BIT(PART(rank)) : 0)
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

inline pt_fill(rank)
{
    d_step {
        mine[0] = (mine[0] -> OLD : 0);
        mine[1] = (mine[1] -> OLD : 0);
        mine[2] = (mine[2] -> OLD : 0);
        division = DIVISION(rank);
        writers[0] = NOBODY;
        writers[1] = NOBODY;
        writers[PART(rank)] = rank;
        forget_fates()
    }
#if !MUTANT_parts_not_reset
    atomic { done = 0; gone = 0 }
#endif
}

inline pt_grant(rank)
{
    pt_fill(rank);
    atomic { state[0] = WRITING; linked = true; opened = true; answer_granted(rank) }
}

inline pt_join(rank)
{
    if
    :: atomic { writers[PART(rank)] == NOBODY && (division == DIVISION(rank) || MUTANT_parts_of_two_divisions_join) ->
        writers[PART(rank)] = rank; answer_granted(rank) }
    :: else /* pending */
    fi
}

inline pt_doom(what)
{
    pt_change(0, WRITING, DOOMED, what);
    linked = linked && !what /* pt_unlink */
}

/* ALL_MARKED: according to writers[]. ALL_ENDED: in fact. */
#define ONE_MARKED (writers[0] == ENDED_WRITER || writers[1] == ENDED_WRITER)
#define ALL_MARKED ((writers[0] >= ENDED_WRITER && writers[1] >= ENDED_WRITER) || (MUTANT_one_ended_writer_dooms && ONE_MARKED))
#define ALL_ENDED ((!fate[0] || fate[0] == ENDED) && (!fate[1] || fate[1] == ENDED))

inline pt_judge()
{
    atomic { seen_done = done; seen_gone = gone };
    if
    :: (seen_gone & (BOTH ^ seen_done)) && !MUTANT_abandoned_page_published -> pt_doom(did)
    :: (!(seen_gone & (BOTH ^ seen_done)) || MUTANT_abandoned_page_published) && seen_gone == BOTH ->
        atomic {
            pt_change(0, WRITING, READABLE, did);
            assert(!did || (content[0] == NOW && content[1] == NOW)) /* 1 */
        }
    :: !(seen_gone & (BOTH ^ seen_done)) && (seen_gone != BOTH || MUTANT_whole_page_of_the_ended_doomed) && ALL_MARKED ->
        atomic {
            pt_doom(did);
            assert(!did || (ALL_ENDED && done != BOTH)) /* 7 */
        }
    :: expired -> pt_doom(did)
    :: else
    fi;
    d_step { seen_done = 0; seen_gone = 0; did = false }
}

#define GRANTED ((writers[0] == NOBODY -> 0 : 1) | (writers[1] == NOBODY -> 0 : 2))
#define HOLDS(rank) (mine[rank] && !dead[rank])

#define NOBODY_HOLDS (!HOLDS(0) && !HOLDS(1) && !HOLDS(2) && !dead[0] && !dead[1] && !dead[2])

inline pt_reclaim()
{
    d_step { content[0] = 0; content[1] = 0; writers[0] = NOBODY; writers[1] = NOBODY; division = 0; opened = false; forget_fates() }
#if !MUTANT_parts_not_reset
    atomic { done = 0; gone = 0 } /* no process reads them before they are reset: so there are fewer states */
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
    :: seen_state == DOOMED && ((seen_gone & GRANTED) == GRANTED || MUTANT_frames_taken_from_a_writer) ->
        state[0] = FREE;
        pt_reclaim()
    :: else
    fi;
    atomic { assert(!due || !opened); /* 4 */ seen_state = 0; seen_gone = 0; expired = false; due = false }
}

/* The page is in the dictionary if it is being written or readable. */
inline pt_reserve_one(rank)
{
    if
    :: opened -> pt_settle()
    :: else
    fi;
    if
    :: state[0] == WRITING -> pt_join(rank)
    :: state[0] == FREE -> pt_grant(rank)
    :: else /* present; or it is doomed, and another entry is granted */
    fi;
    asks[rank] = false
}

inline pt_drop_page() { pt_change(0, READABLE, FREE, did); linked = false; pt_reclaim(); did = false }

inline pt_release_unlisted_parts(rank, part, mark)
{
    if
    :: opened && writers[part] == rank && !MUTANT_parts_of_the_ended_stay -> gone = gone | BIT(part); writers[part] = mark
    :: else
    fi
}

/* The process that had the slot is no longer one of the page's writers. */
inline end_process(rank)
{
    mine[rank] = 0;
    dead[rank] = false;
    fate[PART(rank)] = (granted_now[rank] -> ENDED : fate[PART(rank)]);
    granted_now[rank] = false
}

#define MARK_OF(rank) (MUTANT_finished_parts_of_the_ended_stay -> rank : ENDED_WRITER)

/* The requests of the process that has ended are answered first: they were in the socket before. */
inline pt_reap(rank)
{
    pt_release_unlisted_parts(rank, PART(rank), MARK_OF(rank));
    d_step { end_process(rank) }
    if
    :: opened -> pt_settle()
    :: else
    fi;
    atomic {
        assert(!opened || !ALL_ENDED); /* 6 */
        if
        :: dying[rank] -> dying[rank] = false; run Rank(rank)
        :: else
        fi
    }
}

init
{
    byte seen_done, seen_gone, seen_state;
    byte sight;
    bool did, expired, due;
    look(sight);
    atomic { writers[0] = NOBODY; writers[1] = NOBODY; run Rank(0); run Rank(1); run Rank(2) }
end:
    do
    :: asks[0] -> pt_reserve_one(0)
    :: asks[1] -> pt_reserve_one(1)
    :: asks[2] -> pt_reserve_one(2)
    :: opened -> pt_settle()
    :: atomic { opened -> expired = true } pt_settle()
    :: state[0] == READABLE && !opened -> pt_drop_page()
#if MUTANT_reaped_by_visibility || MUTANT_reaped_by_start_time || MUTANT_reaped_by_pid_alone
    :: LOOKS_DEAD(sight) && !asks[0] -> pt_reap(0)
#endif
    :: dead[0] && !asks[0] -> pt_reap(0)
    :: dead[1] && !asks[1] -> pt_reap(1)
    :: dead[2] && !asks[2] -> pt_reap(2)
    od
}
