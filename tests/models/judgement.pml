/* judgement.pml - what a daemon takes for the death of the process in a slot (daemon/index/reaper.py); included by the models.
 *
 * A daemon that attached the process has the kernel's pidfd. A daemon that adopted the slot has no pidfd until the session
 * attaches again. It judges by the lock that every descriptor of the arena that was sent for this slot carries. The process's
 * mapping keeps that lock, so it is free only when the process can write no more.
 *
 * `sight` is what the namespaces of the daemon show of the process. It is evidence of nothing: only mutants read it. */
#define SEEN 0
#define UNSEEN 1 /* another PID namespace, hidepid, ProtectProc: ESRCH, ENOENT, EPERM */
#define OTHER_START 2 /* a time namespace: another start time */
#define OTHER_PROCESS 3 /* its PID names another process here, which has ended */

/* What a mutant takes for a death. */
#define LOOKS_DEAD(sight) ((MUTANT_reaped_by_visibility && sight == UNSEEN) || \
    (MUTANT_reaped_by_start_time && sight == OTHER_START) || (MUTANT_reaped_by_pid_alone && sight == OTHER_PROCESS))

inline look(sight)
{
#if MUTANT_reaped_by_visibility || MUTANT_reaped_by_start_time || MUTANT_reaped_by_pid_alone
    if
    :: sight = SEEN
    :: sight = UNSEEN
    :: sight = OTHER_START
    :: sight = OTHER_PROCESS
    fi
#else
    skip
#endif
}
