/* stepping.h - a function stops after so many of its instructions, and another one runs meanwhile: by the trap flag of
 * x86-64, which raises a signal after each instruction. Counted, not timed: the same number is the same place. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

typedef struct {
    uint64_t left; /* instructions until it sleeps */
    void (*meanwhile)(void *);
    void *given;
    bool over, slept;
} stepping;

#ifdef __x86_64__

#define CAN_STEP true
#define TRAP_FLAG 0x100

static volatile stepping stepped;

static void after_an_instruction(int signal, siginfo_t *info, void *context)
{
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    (void)signal, (void)info;
    if (!stepped.over && stepped.left) {
        stepped.left--;
        *flags |= TRAP_FLAG;
        return;
    }
    *flags &= ~(greg_t)TRAP_FLAG;
    if (stepped.over)
        return;
    stepped.slept = true;
    stepped.meanwhile(stepped.given);
}

/* Runs `asleep`, and after so many of its instructions `meanwhile`, to its end. False if `asleep` ended before that:
 * then `meanwhile` did not run. The caller guarantees that `meanwhile` waits for no lock that `asleep` takes, that of
 * malloc included. */
static inline bool sleeps_after(uint64_t instructions, void (*asleep)(void *), void (*meanwhile)(void *), void *given)
{
    struct sigaction action = {.sa_sigaction = after_an_instruction, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    stepped = (stepping){.left = instructions, .meanwhile = meanwhile, .given = given};
    __asm__ volatile("int3" ::: "memory");
    asleep(given);
    stepped.over = true;
    return stepped.slept;
}

#else

#define CAN_STEP false

static inline bool sleeps_after(uint64_t instructions, void (*asleep)(void *), void (*meanwhile)(void *), void *given)
{
    (void)instructions, (void)asleep, (void)meanwhile, (void)given;
    return false;
}

#endif
