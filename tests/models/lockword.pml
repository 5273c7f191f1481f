/* lockword.pml - shared by the models: the states, and the operations on the lock word as single steps
 * (shm/core/common/lock_word.h).
 *
 * An atomic operation in C on the one word is one step here, because pins and state of an entry are one word in the code. A
 * compare-and-swap loop (pt_change) is its last, successful iteration: the iterations before it change nothing. */

#define FREE 0
#define WRITING 1
#define READABLE 2
#define DOOMED 3
#define ON_DISK 4

#define NONE 15
#define BIT(n) (1 << (n))

byte pins[ENTRIES];
byte state[ENTRIES];

/* pt_pin: stores the state before the pin in `was`. */
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

/* pt_retire: only if the entry has no pin. */
inline pt_retire(e, from, to, done)
{
    d_step {
        if
        :: state[e] == from && pins[e] == 0 -> state[e] = to; done = true
        :: else -> done = false
        fi
    }
}
