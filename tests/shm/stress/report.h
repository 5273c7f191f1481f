/* report.h - the output of every driver: one line at the end, or the first finding and exit status 1. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/integrity.h"
#include "client/copy.h"
#include "rng.h"

#if defined(__SANITIZE_THREAD__)
#define BUILT_WITH "tsan"
#elif defined(__SANITIZE_ADDRESS__)
#define BUILT_WITH "asan+ubsan"
#else
#define BUILT_WITH "plain"
#endif

typedef struct {
    const char *what;
    uint64_t seed;
    double seconds;
    uint64_t began_ns;
} run;

/* Begins a run. The arguments of every driver are SEED SECONDS. A run that hangs is ended by its alarm,
 * which lets one with a given amount of work take ten times as long on a busy machine. */
static inline run run_begin(const char *what, int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: %s SEED SECONDS\n", what);
        exit(2);
    }
    run r = {what, strtoull(arguments[1], NULL, 10), strtod(arguments[2], NULL), pt_now_ns()};
    alarm((unsigned)r.seconds + 240);
    return r;
}

static inline double run_seconds(const run *r) { return (double)(pt_now_ns() - r->began_ns) / 1e9; }
static inline bool run_over(const run *r) { return run_seconds(r) >= r->seconds; }

__attribute__((format(printf, 2, 3))) static inline void run_end(const run *r, const char *format, ...)
{
    va_list arguments;
    printf("%-14s %-10s seed %-10lu %5.1f s  ", r->what, BUILT_WITH, (unsigned long)r->seed, run_seconds(r));
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(" no findings\n");
}

/* Says what the seed alone determines: of a number of steps, not of a time, in one thread, without the clock. The lock
 * of a proof keeps it, so it must be the same on every machine and with every compiler. */
__attribute__((format(printf, 2, 3))) static inline void run_determined(const run *r, const char *format, ...)
{
    va_list arguments;
    printf("proof: %s, ", r->what);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

#ifndef FINDING_END /* a fuzzer defines it as an abort, so that it keeps the input */
#define FINDING_END() _exit(1)
#endif

/* Reports what is wrong, and ends the process at once: after a first finding nothing else can be trusted. */
__attribute__((format(printf, 1, 2), noreturn)) static inline void finding(const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "FINDING: %s\n", text);
    FINDING_END();
}

static inline void expect_sound(pt_owner *o, const char *when)
{
    static pt_findings found;
    if (!pt_check_integrity(o, &found))
        finding("%s: memory is short", when);
    if (found.count)
        finding("%s: %u errors, the first: %s", when, found.count, found.text[0]);
}
