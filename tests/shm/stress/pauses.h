/* pauses.h - stops threads for a while at any instruction, as SIGSTOP or a busy core does to a process.
 *
 * This finds narrow races on two cores. (TSan delivers signals at system calls only: there it has no effect.) */
#pragma once

#include <errno.h>
#include <signal.h>

#include "rng.h"

typedef struct {
    pthread_t thread, *targets;
    uint32_t count;
    rng random;
    _Atomic bool stop;
} pauser;

static void pause_here(int signal)
{
    struct timespec now;
    int error = errno;
    (void)signal;
    clock_gettime(CLOCK_MONOTONIC, &now);
    usleep(1 + (useconds_t)now.tv_nsec / 64 % (now.tv_nsec / 16 % 4 ? 200 : 2000));
    errno = error;
}

static void *pauser_life(void *given)
{
    pauser *p = given;
    while (!atomic_load(&p->stop)) {
        usleep(50);
        pthread_kill(p->targets[rng_below(&p->random, p->count)], SIGUSR1);
    }
    return NULL;
}

/* The caller guarantees that the targets are not joined before pauser_end. */
static inline void pauser_begin(pauser *p, pthread_t *targets, uint32_t count, rng random)
{
    struct sigaction action = {.sa_handler = pause_here, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    p->targets = targets;
    p->count = count;
    p->random = random;
    pthread_create(&p->thread, NULL, pauser_life, p);
}

static inline void pauser_end(pauser *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
}
