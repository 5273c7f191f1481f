/* pin.pml - pins against eviction and reuse.
 *
 * Processes: two threads of one process and another process, all of which look up a page; a writer that writes what it was
 * granted; the daemon. Any step of the other process may be its last; its slot is then given to a new process.
 *
 * Code: pt_pin_key and pt_pin_serial (match.h), pt_try, pt_keep and pt_release_one (session.h), pt_grant, pt_fill and
 * pt_refill (reserve.h), pt_drop_page (evict.h), pt_free_on_disk (disk_entries.h), pt_disk_forget (disk_tier.h),
 * pt_end_write (write_behind.h), pt_settle (reservations.h), pt_clear_pins (attachments.h). Left out: the dictionary (a
 * reader has the number of this entry from a slot that may be stale), parts (reserve.pml), the order of eviction (a listed
 * page may be evicted at any time).
 *
 * One entry is enough: a pin protects the entry, and its frame until the frame is free and may belong to any page. Memory
 * that may belong to another page is set to 0, so that a process that reads it is found at once, not only if it contains
 * other bytes. Serials are reused, so that the model is finite.
 *
 * A step has at most one access to memory that another process may change concurrently. A thread takes the lock of its
 * process with the first access under it and releases the lock with the last one.
 *
 * Properties, at every step:
 *   1. A reader with the result "in memory" reads the bytes of the key, or of the serial, that it looked up, until it
 *      releases the page.
 *   2. A key that is compared is not being written.
 *   3. Between two operations of the daemon a page has a frame exactly if its state says so; when all readers have ended,
 *      no pin is left. */
#define ENTRIES 1
#include "lockword.pml"

#define OURS 0   /* the slot of the two threads */
#define THEIRS 1 /* of the other process */

byte key; /* 0 while it is being written, and of a free entry */
byte serial;
bool framed; /* it has its list of frames */
byte content; /* of the frames: the serial of the page whose bytes they contain; 0: of none */
bool on_disk; /* PT_TIER_DISK */
bool gone; /* the writer's "released" bit */
bool opened;  /* on the open list */
bool listed; /* by the eviction policy */

byte held[2]; /* pt_session.own_pins, of each slot */
bool locked;  /* pt_session.lock of the process with two threads */
byte readers;
bool dying, dead;

/* ---- the readers: pt_find or pt_repin, a copy out of the arena, pt_release ---- */

#define MAY_LOCK (slot == THEIRS || !locked)

inline take_lock() { locked = (slot == OURS -> true : locked) }
inline leave_lock() { locked = (slot == OURS -> false : locked) }

inline pt_try()
{
    if
    :: held[slot] -> seen = READABLE
    :: else -> pt_pin(0, slot, seen)
    fi
}

/* The rest of pt_keep, if the page is not wanted. */
inline take_back()
{
    if
    :: !held[slot] || MUTANT_pin_taken_by_a_wrong_guess -> pt_unpin(0, slot)
    :: else
    fi
}

inline pt_release_one()
{
    held[slot]--;
    if
    :: !held[slot] -> pt_unpin(0, slot)
    :: else
    fi
}

/* Compares the key, or the serial. A key is compared for a page on disk, too. */
inline compare()
{
    if
    :: asked_key && (seen == READABLE || seen == ON_DISK || (seen == WRITING && on_disk)) ->
        assert(key); /* 2 */
        same = key == asked_key
    :: asked_serial && seen == READABLE -> same = serial == asked_serial
    :: else -> same = false
    fi
}

inline read_page()
{
    assert(framed && content && content == serial);      /* 1 */
    assert(key == asked_key || serial == asked_serial)   /* 1 */
}

inline forget_question() { asked_key = 0; asked_serial = 0; seen = 0; same = false }

proctype Reader(byte slot)
{
    byte asked_key, asked_serial, seen;
    bool same;
    {
        do
        :: break
        :: true ->
            atomic {
                if
                :: MAY_LOCK -> asked_key = 1
                :: MAY_LOCK -> asked_serial = 1
                fi;
                take_lock();
#if MUTANT_key_before_pin
                same = key == asked_key
            }
            atomic { pt_try() }
#else
                pt_try()
            }
            atomic { compare() }
#endif
            if
            :: atomic { same && seen == READABLE -> held[slot]++; leave_lock() }
                atomic { MAY_LOCK -> read_page(); pt_release_one(); forget_question() }
            :: atomic { !(same && seen == READABLE) -> take_back(); leave_lock(); forget_question() }
            :: atomic { !held[slot] -> take_back(); leave_lock(); forget_question() } /* it has pinned as much as it may */
            fi
        od
    } unless { slot == THEIRS && dying };
    atomic { readers--; dead = dead || slot == THEIRS; forget_question() }
}

active proctype Death() { dying = true }

/* ---- the writer ---- */

active proctype Writer()
{
    bool done;
end:
    do
    :: state[0] == WRITING && !gone ->
        if
        :: content = 0;
           content = serial;
           pt_change(0, WRITING, READABLE, done)
        :: skip /* pt_part_abandon */
        fi;
        atomic { gone = true; done = false }
    od
}

/* ---- the daemon ---- */

/* Frees everything that an entry owned. */
inline pt_reclaim() { d_step { framed = false; content = 0; key = 0; serial = 0; gone = false } }

inline pt_fill()
{
    if /* any number: a reader that looks up 1 may have this serial from an earlier filling */
    :: serial = 1
    :: serial = 2
    fi;
    d_step { gone = false; framed = true }
}

inline pt_grant()
{
    if
    :: key = 1
    :: key = 2
    fi;
    pt_fill();
    atomic { pt_change(0, FREE, WRITING, done); opened = true }
}

inline pt_refill()
{
    pt_fill();
    atomic { pt_change(0, ON_DISK, WRITING, done); opened = true }
}

inline pt_drop_page()
{
#if MUTANT_frames_free_before_state
    content = 0;
#endif
#if MUTANT_evict_by_store
    done = state[0] == READABLE && pins[0] == 0;
    if
    :: done -> d_step { pins[0] = 0; state[0] = (on_disk -> ON_DISK : FREE) }
    :: else
    fi;
#elif MUTANT_pins_and_state_in_two_words
    if
    :: pins[0] == 0 -> pt_change(0, READABLE, (on_disk -> ON_DISK : FREE), done)
    :: else
    fi;
#else
    if
    :: on_disk -> pt_retire(0, READABLE, ON_DISK, done)
    :: else -> pt_retire(0, READABLE, FREE, done)
    fi;
#endif
    if
    :: atomic { done && on_disk -> listed = false; framed = false; content = 0 }
    :: atomic { done && !on_disk -> listed = false; pt_reclaim() }
    :: else
    fi
}

inline pt_free_on_disk()
{
#if MUTANT_disk_entry_freed_under_a_pin
    pt_change(0, ON_DISK, FREE, done);
#else
    pt_retire(0, ON_DISK, FREE, done);
#endif
    if
    :: atomic { done -> on_disk = false; pt_reclaim() }
    :: else
    fi
}

inline pt_disk_forget()
{
    pt_change(0, ON_DISK, DOOMED, done);
    atomic { opened = true; gone = true; on_disk = false }
}

/* A writer that released a page in PT_WRITING has abandoned it. The caller guarantees that it has released the page. */
inline pt_settle()
{
    atomic { pt_change(0, WRITING, DOOMED, done); on_disk = on_disk && !done }
    if
    :: atomic { state[0] == READABLE -> opened = false; listed = true }
    :: state[0] == DOOMED && (pins[0] == 0 || MUTANT_doomed_page_freed_under_a_pin) ->
        pt_change(0, DOOMED, FREE, done);
        atomic { opened = false; pt_reclaim() }
    :: else
    fi
}

/* pt_reap of the other process; a new process may get its slot. */
inline pt_reap()
{
    atomic {
        pins[0] = pins[0] & (255 ^ BIT(THEIRS));
        dead = false;
        held[THEIRS] = 0;
        if
        :: dying -> dying = false; readers++; run Reader(THEIRS)
        :: else
        fi
    }
}

/* 3 */
inline pt_check()
{
    assert(!framed || (state[0] != FREE && state[0] != ON_DISK));
    assert(framed || (state[0] != WRITING && state[0] != READABLE));
    assert(readers || dead || pins[0] == 0)
}

init
{
    bool done;
    atomic { readers = 3; run Reader(OURS); run Reader(OURS); run Reader(THEIRS) }
end:
    do
    :: state[0] == FREE -> pt_grant(); done = false; d_step { pt_check() }
    :: state[0] == ON_DISK -> pt_refill(); done = false; d_step { pt_check() }
    :: state[0] == ON_DISK -> pt_free_on_disk(); done = false; d_step { pt_check() }
    :: state[0] == ON_DISK -> pt_disk_forget(); done = false; d_step { pt_check() }
    :: listed && !on_disk -> on_disk = true /* pt_end_write */
    :: listed -> pt_drop_page(); done = false; d_step { pt_check() }
    :: opened && gone -> pt_settle(); done = false; d_step { pt_check() }
    :: dead -> pt_reap(); d_step { pt_check() }
    od
}
