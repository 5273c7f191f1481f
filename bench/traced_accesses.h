/* traced_accesses.h - the accesses of a program to two ranges of memory, in order. */
#pragma once

#include <stdint.h>

#define TRACED_MOST 65536u
#define TRACED_LINE 64u

enum traced_kind { TRACED_READ, TRACED_WRITE, TRACED_LOCKED, TRACED_PREFETCH, TRACED_PREFETCH_WRITE };

struct traced_access {
    enum traced_kind kind;
    uint32_t range;
    uint64_t offset; /* in the range */
};

void trace_range(int number, const void *begin, uint64_t bytes);
void trace_begin(void);
/* Returns the number of accesses since trace_begin. */
uint32_t trace_end(const struct traced_access **accesses);
void trace_note(const volatile void *address, enum traced_kind kind);
