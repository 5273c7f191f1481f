/* adoption.pml - adoptions with clients running: daemons die, other daemons take the segments over, and the clients
 * continue.
 *
 * Processes: a client that reads pages and a client that stores them; each may die after any step, and another process gets
 * its slot. The daemon, any of whose steps may be its last, also those of an adoption; its successors.
 *
 * A daemon takes a process for dead when its pidfd says so, or after an adoption when no mapping holds the slot's lock
 * (judgement.pml): both follow the last access of the process, so both are its `dead` here. attach.pml has the lock itself.
 * CASE_unjudged: no lock was taken, so a daemon judges nothing that it adopted. The slot of a dead process stays taken, with
 * its pins and its parts.
 *
 * Code: pt_adopt with everything that it calls (adopt.h), except for dictionaries (dictionary.pml); pt_reap and
 * pt_release_unlisted_parts (attachments.h), also when a storing client lists to a new daemon what it was granted;
 * pt_grant, pt_fill and pt_refill (reserve.h); pt_settle (reservations.h); pt_drop_page (evict.h); pt_free_on_disk
 * (disk_entries.h); pt_pin_key (match.h), for any entry; pt_part_finish (publish.h). Two entries share one frame; a page
 * has one part and one frame. CASE_halves: a page has two parts, and no process stores the second one, so that no page ever
 * becomes readable.
 *
 * Memory that may belong to another page is set to 0, so that a process that reads it is found at once.
 *
 * Properties:
 *   1. A client that pinned a readable page reads its bytes until it releases the page, and no key is compared while it is
 *      being written, whichever daemon takes over in between.
 *   2. A client that was granted a page writes to its frame and to no other, and publishes its own page or none.
 *   3. An adoption drops nothing: every entry that is not free is complete, at whatever step the daemon before died.
 *   4. Between two operations of a daemon the frame is free or belongs to one page, pins belong to slots that are taken,
 *      and each page that is being written has a writer that knows of it.
 *   5. After a dead process was reaped, or a daemon has taken over, no page waits for the other part of a dead process. */
#define ENTRIES 2
#include "judgement.pml"
#include "lockword.pml"

#define STORER 0 /* slots */
#define READER 1
#define NOBODY 7
#define ENDED_WRITER 6
#define NOW 1 /* of the filling that is in the entry */
#define OLD 2 /* of an earlier filling */
#define LIVES 3 /* of daemons */

/* what a daemon leaves to its successor */
bool key[ENTRIES]; /* false while it is being written, and of a free entry */
bool framed[ENTRIES]; /* first_frame is the frame, and frame_count is 1 */
byte owner = NOBODY;  /* of the frame: an entry */
byte writer[ENTRIES]; /* a slot, or the mark of a former writer */
bool done[ENTRIES], gone[ENTRIES];
byte content; /* of the frame: 1 + the number of the entry for which it was written; 0: other bytes */

/* what an adoption derives */
bool entry_free[ENTRIES], frame_free, opened[ENTRIES], listed[ENTRIES];

/* the clients */
byte mine[ENTRIES]; /* the filling for which the storing client was granted the page; 0: none */
bool asks, attached;
bool dying[2], dead[2];
#ifdef CASE_halves
#define PUBLISHES false
bool of_present[ENTRIES], died[ENTRIES]; /* the part belongs to the present process of the storing client's slot; to one that died */
#else
#define PUBLISHES true
#endif

byte daemons;
bool dying_daemon;

#ifdef CASE_unjudged
bool adopted[2]; /* the daemon that runs has not attached the process in this slot */
#define JUDGED_DEAD(slot) (dead[slot] && !adopted[slot])
#define KNOWN_DEAD 0
#define note_attached(slot) adopted[slot] = false
#else
#define JUDGED_DEAD(slot) dead[slot]
#define KNOWN_DEAD ((dead[0] -> BIT(0) : 0) | (dead[1] -> BIT(1) : 0))
#define note_attached(slot) skip
#endif

/* ---- the reading client ---- */

inline read_page(e)
{
    pt_pin(e, READER, seen);
    if
    :: atomic { seen == READABLE ->
            assert(key[e] && framed[e] && owner == e && content == e + 1); /* 1 */
            pt_unpin(e, READER) }
    :: atomic { seen == ON_DISK -> assert(key[e]); /* 1 */ pt_unpin(e, READER) }
    :: atomic { seen != READABLE && seen != ON_DISK -> pt_unpin(e, READER) }
    fi;
    seen = 0
}

proctype Reader()
{
    byte seen;
    {
end:
        do
        :: read_page(0)
        :: read_page(1)
        od
    } unless { dying[READER] };
    atomic { seen = 0; dead[READER] = true; dying[READER] = false }
}

/* ---- the storing client ---- */

inline pt_part_finish(e)
{
    done[e] = true;
#ifndef CASE_halves
    atomic {
        pt_change(e, WRITING, READABLE, did);
        assert(!did || (mine[e] == NOW && content == e + 1)) /* 2 */
    }
#endif
    atomic { gone[e] = true; mine[e] = 0; did = false }
}

inline write_page(e)
{
    assert(mine[e] == NOW && framed[e] && owner == e); /* 2 */
    content = e + 1;
    pt_part_finish(e)
}

proctype Storer()
{
    bool did;
    {
end:
        do
        :: atomic { attached && !asks -> asks = true }
            !asks
        :: mine[0] -> write_page(0)
        :: mine[1] -> write_page(1)
        :: atomic { mine[0] -> gone[0] = true; mine[0] = 0 } /* pt_part_abandon */
        od
    } unless { dying[STORER] };
    atomic { did = false; dead[STORER] = true; dying[STORER] = false }
}

/* ---- the daemon ---- */

#define EACH(e, operation) e = 0; operation; e = 1; operation

inline put_frame(e)
{
    d_step {
        if
        :: framed[e] -> owner = NOBODY; content = 0; frame_free = true; framed[e] = false
        :: else
        fi
    }
}

inline pt_reclaim(e)
{
    put_frame(e);
    d_step {
        key[e] = false; writer[e] = NOBODY; done[e] = false; gone[e] = false; entry_free[e] = true
#ifdef CASE_halves
        ; of_present[e] = false; died[e] = false
#endif
    }
}

inline take_frame(e)
{
    atomic { owner = e; frame_free = false; content = 0 }
    framed[e] = true
}

inline answer(e)
{
    atomic {
        mine[e] = (dead[STORER] -> 0 : NOW);
        asks = false
    }
}

inline pt_fill(e, from)
{
    atomic {
        writer[e] = STORER; mine[e] = (mine[e] -> OLD : 0)
#ifdef CASE_halves
        ; of_present[e] = true; died[e] = false
#endif
    }
#if MUTANT_state_before_frames
    atomic { done[e] = false; gone[e] = false }
    pt_change(e, from, WRITING, did);
    take_frame(e);
#else
    take_frame(e);
    atomic { done[e] = false; gone[e] = false }
    pt_change(e, from, WRITING, did);
#endif
    opened[e] = true;
    answer(e)
}

inline pt_grant(e)
{
    entry_free[e] = false;
    key[e] = true;
    pt_fill(e, FREE)
}

inline pt_drop_page(e, to)
{
#if MUTANT_frames_free_before_state
    atomic { owner = NOBODY; content = 0 }
#endif
    pt_retire(e, READABLE, to, did);
    if
    :: did ->
        listed[e] = false;
        if
        :: to == FREE -> pt_reclaim(e)
        :: else -> put_frame(e)
        fi
    :: else
    fi
}

inline pt_free_on_disk(e)
{
    pt_retire(e, ON_DISK, FREE, did);
    if
    :: did -> pt_reclaim(e)
    :: else
    fi
}

#define GONE(e) (writer[e] == NOBODY || gone[e])

inline pt_settle(e)
{
    if
    :: state[e] == WRITING && gone[e] && !done[e] -> pt_change(e, WRITING, DOOMED, did)
    :: state[e] == WRITING && gone[e] && done[e] && PUBLISHES -> pt_change(e, WRITING, READABLE, did)
    :: state[e] == WRITING && gone[e] && done[e] && !PUBLISHES && writer[e] == ENDED_WRITER ->
        pt_change(e, WRITING, DOOMED, did)
    :: state[e] == WRITING && writer[e] != ENDED_WRITER && (!gone[e] || (done[e] && !PUBLISHES)) ->
        pt_change(e, WRITING, DOOMED, did) /* expired */
    :: state[e] == WRITING && writer[e] != ENDED_WRITER && gone[e] && done[e] && !PUBLISHES -> skip /* it waits */
    :: state[e] != WRITING
    fi;
    if
    :: atomic { state[e] == READABLE && GONE(e) -> opened[e] = false; listed[e] = true }
    :: state[e] == DOOMED && pins[e] == 0 && GONE(e) ->
        pt_change(e, DOOMED, FREE, did);
        atomic { opened[e] = false; pt_reclaim(e) }
    :: else
    fi
}

inline settle_open(e)
{
    if
    :: opened[e] -> pt_settle(e)
    :: else
    fi
}

inline let_go_of_part(slot, e, mark)
{
    if
    :: opened[e] && writer[e] == slot -> gone[e] = true; writer[e] = mark
    :: else
    fi
}

inline note_death(e)
{
#ifdef CASE_halves
    died[e] = died[e] || of_present[e];
    of_present[e] = false
#else
    skip
#endif
}

inline new_client(slot)
{
    assert(!((pins[0] | pins[1]) & BIT(slot))); /* 4 */
    dead[slot] = false;
    note_attached(slot);
    if
    :: slot == STORER -> note_death(0); note_death(1); mine[0] = 0; mine[1] = 0; attached = true; run Storer()
    :: else -> run Reader()
    fi
}

/* pt_reap. The requests of the dead process are answered first: they were in the socket before. */
inline pt_reap(slot)
{
    pins[0] = pins[0] & (255 ^ BIT(slot));
    pins[1] = pins[1] & (255 ^ BIT(slot));
#if MUTANT_slot_free_before_its_writers_are_marked
    atomic { new_client(slot) }
#endif
    let_go_of_part(slot, 0, ENDED_WRITER);
    let_go_of_part(slot, 1, ENDED_WRITER);
    settle_open(0);
    settle_open(1);
#if !MUTANT_slot_free_before_its_writers_are_marked
    atomic { new_client(slot) }
#endif
}

/* The storing client attaches to a new daemon and lists what it was granted; the daemon releases the rest. */
inline attach_again()
{
    if
    :: opened[0] && writer[0] == STORER && !mine[0] && !MUTANT_lost_grant_kept -> gone[0] = true
    :: else
    fi;
    if
    :: opened[1] && writer[1] == STORER && !mine[1] && !MUTANT_lost_grant_kept -> gone[1] = true
    :: else
    fi;
    note_attached(STORER);
    attached = true
}

/* ---- adoption ---- */

inline pt_forget_derived()
{
    d_step {
        entry_free[0] = false; opened[0] = false; listed[0] = false;
        entry_free[1] = false; opened[1] = false; listed[1] = false;
        frame_free = false
    }
}

/* `known_dead` has the processes that were dead when the daemon began. */
inline clear_pins(e)
{
    pins[e] = (MUTANT_pins_of_the_living_cleared -> 0 :
              (MUTANT_pins_of_the_dead_stay -> pins[e] : pins[e] & (255 ^ known_dead)))
}

inline pt_adopt_entry(e)
{
    was = state[e];
    if
    :: (was == WRITING || was == READABLE || (was == DOOMED && !MUTANT_doomed_page_freed)) && framed[e] && owner == e ->
        atomic { seen_frame = true; opened[e] = true }
    :: (was == ON_DISK || (was == DOOMED && !framed[e])) && !MUTANT_entry_on_disk_freed ->
        pt_change(e, ON_DISK, DOOMED, did);
        atomic { writer[e] = NOBODY; framed[e] = false; opened[e] = true }
    :: else ->
        assert(was == FREE || MUTANT_doomed_page_freed || MUTANT_entry_on_disk_freed); /* 3 */
        state[e] = FREE;
        atomic { framed[e] = false; key[e] = false; entry_free[e] = true }
    fi
}

#define MARK_OF_ADOPTED(slot) (MUTANT_finished_parts_of_the_dead_adopted -> slot : ENDED_WRITER)

inline pt_free_dead_slots(slot)
{
    if
    :: known_dead & BIT(slot) ->
#if !MUTANT_parts_of_the_dead_adopted
        let_go_of_part(slot, 0, MARK_OF_ADOPTED(slot));
        let_go_of_part(slot, 1, MARK_OF_ADOPTED(slot));
#endif
        atomic { new_client(slot) }
    :: else
    fi
}

inline pt_adopt()
{
    pt_forget_derived();
    known_dead = KNOWN_DEAD;
    clear_pins(0);
    clear_pins(1);
    pt_adopt_entry(1);
    pt_adopt_entry(0);
    if
    :: !seen_frame -> atomic { owner = NOBODY; content = 0; frame_free = true }
    :: else
    fi;
    pt_free_dead_slots(STORER);
    pt_free_dead_slots(READER);
    settle_open(0);
    settle_open(1)
}

/* 4 */
inline check_entry(e)
{
    assert((state[e] == FREE) == entry_free[e]);
    assert(!framed[e] || owner == e);
    assert(opened[e] + listed[e] + entry_free[e] + (state[e] == ON_DISK) == 1);
    assert(!opened[e] || GONE(e) || writer[e] != STORER || !attached || mine[e] || dead[STORER]);
    assert(!(pins[e] & BIT(STORER)))
#ifdef CASE_halves
    ; assert(state[e] != WRITING || !died[e]) /* 5 */
#endif
}

inline pt_check()
{
    d_step {
        check_entry(0);
        check_entry(1);
        assert(frame_free + framed[0] + framed[1] == 1)
    }
}

inline forget() { did = false; seen_frame = false; was = 0; known_dead = 0 }

inline operation(e)
{
    if
    :: asks && entry_free[e] && frame_free -> pt_grant(e)
    :: asks && state[e] == ON_DISK && frame_free -> pt_fill(e, ON_DISK)
    :: state[e] == ON_DISK -> pt_free_on_disk(e)
    :: opened[e] -> pt_settle(e)
    :: listed[e] -> pt_drop_page(e, FREE)
    :: listed[e] -> pt_drop_page(e, ON_DISK)
    fi
}

proctype Daemon()
{
    byte was, known_dead, sight;
    bool did, seen_frame;
    {
        look(sight);
        pt_adopt();
        atomic { forget(); pt_check() }
end:
        do
        :: operation(0); atomic { forget(); pt_check() }
        :: operation(1); atomic { forget(); pt_check() }
        :: asks -> asks = false /* refused, present, pending */
        :: JUDGED_DEAD(STORER) && !asks -> pt_reap(STORER); atomic { forget(); pt_check() }
        :: JUDGED_DEAD(READER) -> pt_reap(READER); atomic { forget(); pt_check() }
#if MUTANT_reaped_by_visibility || MUTANT_reaped_by_start_time || MUTANT_reaped_by_pid_alone
        :: daemons && LOOKS_DEAD(sight) && !asks -> pt_reap(STORER); atomic { forget(); pt_check() }
        :: daemons && LOOKS_DEAD(sight) -> pt_reap(READER); atomic { forget(); pt_check() }
#endif
        :: !attached && !dead[STORER] -> attach_again()
        od
    } unless { dying_daemon };
    atomic { forget(); dying_daemon = false; asks = false; attached = false; daemons++;
#ifdef CASE_unjudged
        adopted[STORER] = true; adopted[READER] = true;
#endif
        run Daemon() }
}

/* Kills daemons, then one of the clients; with CASE_halves also in the other order, so that a daemon dies while it reaps. */
active proctype Death()
{
    bool one_died;
    do
    :: daemons < LIVES - 1 -> atomic { !dying_daemon -> dying_daemon = true }; !dying_daemon
#ifdef CASE_halves
    :: atomic { !one_died -> one_died = true; dying[STORER] = true }
#else
    :: dying[STORER] = true; break
    :: dying[READER] = true; break
#endif
    :: break
    od
}

init
{
    atomic {
        writer[0] = NOBODY;
        writer[1] = NOBODY;
        attached = true;
        run Daemon();
        run Reader();
        run Storer()
    }
}
