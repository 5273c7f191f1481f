/* huge_table.h - advises huge pages for a large table of the daemon's own with random access. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define PT_LEAST_HUGE_TABLE (2u << 20)

/* A store at a random place of a fresh table would make the kernel zero a page each time, for as long as it takes to
 * touch all of them: that cost an eviction half of its time. It is only advice, so errors do not matter. */
static inline void pt_advise_huge(void *table, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)table + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)table + bytes) / page * page;
    if (table && bytes >= PT_LEAST_HUGE_TABLE)
        madvise((void *)from, to - from, MADV_HUGEPAGE);
}
