/* stepping.h - stops a function after a number of its instructions and runs another one during the pause, by
 * the trap flag of x86-64, which raises a signal after each instruction. Instructions are counted, not
 * timed: the same number is the same place. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

typedef struct {
    uint64_t left; /* instructions until the pause */
    void (*intruder)(void *);
    void *given;
    bool over, paused;
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
    stepped.paused = true;
    stepped.intruder(stepped.given);
}

/* Runs `victim`, and after so many of its instructions all of `intruder`. Returns false if `victim` ended
 * before that: then `intruder` did not run. The caller guarantees that `intruder` waits for no lock that
 * `victim` takes, including that of malloc. */
static inline bool run_with_pause(uint64_t instructions, void (*victim)(void *), void (*intruder)(void *), void *given)
{
    struct sigaction action = {.sa_sigaction = after_an_instruction, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    stepped = (stepping){.left = instructions, .intruder = intruder, .given = given};
    __asm__ volatile("int3" ::: "memory");
    victim(given);
    stepped.over = true;
    return stepped.paused;
}

#else

#define CAN_STEP false

static inline bool run_with_pause(uint64_t instructions, void (*victim)(void *), void (*intruder)(void *), void *given)
{
    (void)instructions, (void)victim, (void)intruder, (void)given;
    return false;
}

#endif
