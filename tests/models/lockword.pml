/* lockword.pml - what the models share: states, and the lock word's operations as single steps (shm/core/common/lock_word.h).
 *
 * A C atomic operation on the one word is one step here, as pins and state of an entry are one word there. A loop around a
 * compare-and-swap (pt_change) is its last, successful turn: the turns before change nothing.
 */

#define FREE 0
#define WRITING 1
#define READABLE 2
#define DOOMED 3
#define ON_DISK 4

#define NONE 15
#define BIT(n) (1 << (n))

byte pins[ENTRIES];
byte state[ENTRIES];

/* pt_pin: the state as it was goes to `was`. */
inline pt_pin(e, slot, was) { d_step { was = state[e]; pins[e] = pins[e] | BIT(slot) } }

inline pt_unpin(e, slot) { pins[e] = pins[e] & (255 ^ BIT(slot)) }

/* pt_change: `done` says whether the state was `from`. */
inline pt_change(e, from, to, done)
{
    d_step {
        if
        :: state[e] == from -> state[e] = to; done = true
        :: else -> done = false
        fi
    }
}

/* pt_retire: only if nobody holds a pin. */
inline pt_retire(e, from, to, done)
{
    d_step {
        if
        :: state[e] == from && pins[e] == 0 -> state[e] = to; done = true
        :: else -> done = false
        fi
    }
}
