/* dictionary.pml - dictionary reads against relinking: moves, the version of the home bucket, both dictionaries at an
 * adoption.
 *
 * Processes: two readers that search for keys, as often as they like; the daemon, any of whose steps may be its last; its
 * successors.
 *
 * Code: pt_find and pt_scan (match.h), pt_reach, pt_dict_room, pt_dict_add, pt_dict_drop, pt_dict_movable,
 * pt_dict_pull_home and pt_dict_clear (dict.h), and what pt_adopt does with dictionaries (adopt.h). A bucket has one slot
 * instead of seven, and a window three buckets instead of eight, so that few keys are displaced and moved. Entries have the
 * numbers of their keys; pin.pml covers entries that become other pages. A search repeats without limit (no PT_RETRIES).
 *
 * Of a version only one thing matters: was it incremented since a reader read it? A version that was cleared since then is
 * taken for unchanged, which is the worst case.
 *
 * Properties:
 *   1. A key that is in the dictionary from the beginning of a search to its end is found: no miss is false, whichever keys
 *      are moved and however many daemons take over at the same time.
 *   2. Between two operations of the daemon each key that it owns is in the dictionary once, and the displaced keys of each
 *      home are counted. */
#if defined(CASE_adoptions)
#define KEYS 2
#define DEATHS 2
#elif defined(CASE_two_readers)
#define KEYS 2
#define DEATHS 0
#else
#define KEYS 3
#define DEATHS 0
#endif
#define WINDOW KEYS /* buckets; keys 1 and 2 have the same home, key 3 the next one */
#define BUCKETS (KEYS == 3 -> 4 : 2)
#define READERS 2

#define HOME(k) (k == 3 -> 1 : 0)
#define DISTANCE(k, at) ((at + BUCKETS - HOME(k)) % BUCKETS)

#define IN_USE (number % 2)

typedef Dictionary {
    byte slots[4]; /* the key in each slot, 0: none */
    byte displaced[2]    /* of the homes */
}
Dictionary dict[2];
byte number; /* pt_header.dictionary */

bool owned[4]; /* the state of the entry is not PT_FREE */
bool there[4]; /* it is readable, and in the dictionary */

/* of each reader: the key that it searches, and in which dictionary; what happened to both since it began */
byte sought[READERS], sought_in[READERS];
bool steady[READERS], moved[READERS], cleared[READERS];

byte deaths;
bool dying, deriving;

/* Clears a dictionary that no reader scans, so that there are fewer states: the daemon clears it before it is used again
 * anyway. */
inline forget_old_dictionary()
{
    if
    :: !deriving && (!sought[0] || sought_in[0] == IN_USE) && (!sought[1] || sought_in[1] == IN_USE) ->
        dict[1 - IN_USE].slots[0] = 0;
        dict[1 - IN_USE].slots[1] = 0;
        dict[1 - IN_USE].slots[2] = 0;
        dict[1 - IN_USE].slots[3] = 0;
        dict[1 - IN_USE].displaced[0] = 0;
        dict[1 - IN_USE].displaced[1] = 0
    :: else
    fi
}

/* ---- the readers: pt_find ---- */

#define SLOT(distance) dict[sought_in[me]].slots[(HOME(k) + distance) % BUCKETS]

/* A hit ends the search. A pin on the entry tells whether it is readable, see pin.pml. */
inline scan_slot(distance)
{
    if
    :: SLOT(distance) == k && there[k] -> goto found
    :: else
    fi
}

proctype Reader(byte me)
{
    byte k, before, reach;
    bool same;
end:
    do
    :: atomic {
            if
            :: k = 1 /* or 2: they are alike */
            :: KEYS == 3 -> k = 3
            fi;
            sought[me] = k;
            steady[me] = there[k]
        }
again:
        atomic { before = number; sought_in[me] = number % 2; forget_old_dictionary() }
        atomic { moved[me] = false; cleared[me] = false } /* the home's version is read */
        reach = (dict[sought_in[me]].displaced[HOME(k)] -> WINDOW : 1);
        scan_slot(0);
        if
        :: reach > 1 -> scan_slot(1)
        :: else
        fi;
        if
        :: reach > 2 -> scan_slot(2)
        :: else
        fi;
        same = !moved[me] || cleared[me] || MUTANT_miss_believed;
        same = same && (number == before || MUTANT_miss_believed_over_adoption);
        if
        :: !same -> reach = 0; goto again
        :: else -> assert(!steady[me]) /* 1 */
        fi;
found:
        atomic {
            k = 0; before = 0; reach = 0; same = false;
            sought[me] = 0; steady[me] = false; moved[me] = false; cleared[me] = false; sought_in[me] = 0;
            forget_old_dictionary()
        }
    od
}

/* ---- the daemon ---- */

#define PLACE(at) dict[d].slots[(at) % BUCKETS]

inline pt_dict_clear()
{
    at = 0;
    do
    :: at < BUCKETS ->
        d_step {
            cleared[0] = cleared[0] || sought_in[0] == d;
            cleared[1] = cleared[1] || sought_in[1] == d
        }
        if
        :: at < 2 -> dict[d].displaced[at] = 0
        :: else
        fi;
        atomic { dict[d].slots[at] = 0; at++ }
    :: else -> break
    od
}

/* Stores the first empty slot in the window of k in `at`. */
inline pt_dict_room()
{
    d_step {
        at = HOME(k);
        do
        :: PLACE(at) -> at++
        :: else -> break
        od;
        at = at % BUCKETS;
        assert(DISTANCE(k, at) < WINDOW)
    }
}

inline pt_dict_add()
{
    pt_dict_room();
    if
    :: DISTANCE(k, at) -> dict[d].displaced[HOME(k)]++
    :: else
    fi;
    PLACE(at) = k
}

inline raise_version(home)
{
    d_step {
        moved[0] = moved[0] || (sought_in[0] == d && HOME(sought[0]) == home);
        moved[1] = moved[1] || (sought_in[1] == d && HOME(sought[1]) == home)
    }
}

/* Stores a key that may move to `at` in `moving`, and its distance from there in `step`; 0 if there is none. */
inline pt_dict_movable()
{
    d_step {
        moving = 0;
        step = 1;
        do
        :: step < WINDOW && moving == 0 ->
            if
            :: PLACE(at + step) && DISTANCE(PLACE(at + step), (at + step) % BUCKETS) >= step -> moving = PLACE(at + step)
            :: else -> step++
            fi
        :: else -> break
        od
    }
}

#define COUNT_HOME if :: DISTANCE(moving, (at + step) % BUCKETS) == step -> dict[d].displaced[HOME(moving)]-- :: else fi

inline pt_dict_pull_home()
{
    do
    :: pt_dict_movable();
        if
        :: moving == 0 -> break
        :: else
        fi;
#if MUTANT_old_place_cleared_first
        PLACE(at + step) = 0;
        PLACE(at) = moving;
        raise_version(HOME(moving));
        COUNT_HOME;
#elif MUTANT_version_raised_before_the_copy
        raise_version(HOME(moving));
        PLACE(at) = moving;
        PLACE(at + step) = 0;
        COUNT_HOME;
#elif MUTANT_version_raised_too_late
        PLACE(at) = moving;
        PLACE(at + step) = 0;
        COUNT_HOME;
        raise_version(HOME(moving));
#else
        PLACE(at) = moving;
        raise_version(HOME(moving));
        PLACE(at + step) = 0;
        COUNT_HOME;
#endif
        at = (at + step) % BUCKETS
    od
}

inline pt_dict_drop()
{
    d_step {
        at = HOME(k);
        do
        :: PLACE(at) != k -> at++
        :: else -> break
        od;
        at = at % BUCKETS
    }
    PLACE(at) = 0;
    if
    :: DISTANCE(k, at) -> dict[d].displaced[HOME(k)]--
    :: else
    fi;
    pt_dict_pull_home()
}

#define NO_READER (d != IN_USE && !(sought[0] && sought_in[0] == d) && !(sought[1] && sought_in[1] == d))

inline derive()
{
    pt_dict_clear();
    k = KEYS;
    do
    :: k && owned[k] -> pt_dict_add(); k--
    :: k && !owned[k] -> k--
    :: !k -> break
    od
}

inline there_are_all_owned() { there[1] = owned[1]; there[2] = owned[2]; there[3] = owned[3] }

/* pt_adopt: derives the other dictionary from the entries and switches to it. If no reader scans it, no reader can see the
 * steps. */
inline pt_adopt()
{
    atomic {
        d = (MUTANT_dictionary_in_use_rebuilt -> IN_USE : 1 - IN_USE);
        deriving = !MUTANT_dictionary_in_use_rebuilt
    }
#if MUTANT_switch_before_derived
    number++;
#endif
    if
    :: atomic { NO_READER -> derive() }
    :: atomic { !NO_READER -> skip }
        derive()
    fi;
#if MUTANT_dictionary_in_use_rebuilt
    number = number + 2;
#elif !MUTANT_switch_before_derived
    number++;
#endif
    atomic { deriving = false; there_are_all_owned(); forget_old_dictionary() }
}

inline leaves()
{
    d_step {
        there[k] = false;
        owned[k] = false;
        steady[0] = steady[0] && sought[0] != k;
        steady[1] = steady[1] && sought[1] != k
    }
}

/* 2 */
#define HAS(k) ((dict[d].slots[0] == k) + (dict[d].slots[1] == k) + (dict[d].slots[2] == k) + (dict[d].slots[3] == k))
#define IS_AWAY(home, at) (dict[d].slots[at] && HOME(dict[d].slots[at]) == home && at != home)
#define AWAY(home) (IS_AWAY(home, 0) + IS_AWAY(home, 1) + IS_AWAY(home, 2) + IS_AWAY(home, 3))
#define SOUND(k) (HAS(k) == (owned[k] -> 1 : 0))
inline pt_check()
{
    d_step {
        assert(SOUND(1) && SOUND(2) && SOUND(3));
        assert(dict[d].displaced[0] == AWAY(0) && dict[d].displaced[1] == AWAY(1))
    }
}

inline forget() { d = 0; k = 0; at = 0; moving = 0; step = 0 }

proctype Daemon()
{
    byte d, k, at, moving, step;
    {
        pt_adopt();
end:
        do
        :: atomic { forget(); d = IN_USE };
            pt_check();
            if
            :: k = 1
            :: k = 2
            :: KEYS == 3 -> k = 3
            fi;
            if
            :: !owned[k] -> owned[k] = true; pt_dict_add(); there[k] = true
            :: owned[k] -> leaves(); pt_dict_drop()
            fi
        od
    } unless { dying };
    atomic { forget(); deriving = false; dying = false; forget_old_dictionary(); run Daemon() }
}

active proctype Death()
{
    do
    :: deaths < DEATHS -> atomic { deaths++; dying = true }; dying == false
    :: break
    od
}

init
{
    atomic {
        run Daemon();
#ifdef CASE_two_readers
        run Reader(1);
#endif
        run Reader(0)
    }
}
