/* traced_accesses.c - what a program that is compiled with -fsanitize=thread calls at each access to memory: notes
 * those to two ranges (traced_accesses.h). It is compiled without that option, and no sanitizer is linked. */
#include "traced_accesses.h"

#include <stdbool.h>

static struct {
    const char *begin, *end;
} ranges[2];

static struct traced_access noted[TRACED_MOST];
static bool tracing;
static uint32_t count;

void trace_range(int number, const void *begin, uint64_t bytes)
{
    ranges[number].begin = begin;
    ranges[number].end = (const char *)begin + bytes;
}

void trace_begin(void)
{
    count = 0;
    tracing = true;
}

uint32_t trace_end(const struct traced_access **accesses)
{
    tracing = false;
    *accesses = noted;
    return count;
}

void trace_note(const volatile void *address, enum traced_kind kind)
{
    const char *at = (const char *)(uintptr_t)address;
    for (uint32_t range = 0; tracing && count < TRACED_MOST && range < 2; range++)
        if (at >= ranges[range].begin && at < ranges[range].end)
            noted[count++] = (struct traced_access){kind, range, (uint64_t)(at - ranges[range].begin)};
}

#define ACCESS(name, kind) \
    void name(void *at) { trace_note(at, kind); }
#define ACCESSES(bytes) \
    ACCESS(__tsan_read##bytes, TRACED_READ) \
    ACCESS(__tsan_write##bytes, TRACED_WRITE) \
    ACCESS(__tsan_unaligned_read##bytes, TRACED_READ) \
    ACCESS(__tsan_unaligned_write##bytes, TRACED_WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_atomic_thread_fence(int order) { (void)order; }
void __tsan_atomic_signal_fence(int order) { (void)order; }

static void note_range(const char *at, unsigned long bytes, enum traced_kind kind)
{
    for (unsigned long i = 0; i < bytes; i++)
        if (i == 0 || (uintptr_t)(at + i) % TRACED_LINE == 0)
            trace_note(at + i, kind);
}
void __tsan_read_range(void *at, unsigned long bytes) { note_range(at, bytes, TRACED_READ); }
void __tsan_write_range(void *at, unsigned long bytes) { note_range(at, bytes, TRACED_WRITE); }

#define CHANGE(bits, name, how) \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *at, uint##bits##_t by, int order) \
    { \
        (void)order; \
        trace_note(at, TRACED_LOCKED); \
        return how(at, by, __ATOMIC_SEQ_CST); \
    }
#define ATOMIC(bits) \
    CHANGE(bits, exchange, __atomic_exchange_n) \
    CHANGE(bits, fetch_add, __atomic_fetch_add) \
    CHANGE(bits, fetch_sub, __atomic_fetch_sub) \
    CHANGE(bits, fetch_or, __atomic_fetch_or) \
    CHANGE(bits, fetch_and, __atomic_fetch_and) \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int order) \
    { \
        (void)order; \
        trace_note(at, TRACED_READ); \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t to, int order) \
    { \
        (void)order; \
        trace_note(at, TRACED_WRITE); \
        __atomic_store_n(at, to, __ATOMIC_SEQ_CST); \
    } \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t *at, uint##bits##_t *from, \
                                                      uint##bits##_t to, int order, int otherwise) \
    { \
        (void)order; \
        (void)otherwise; \
        trace_note(at, TRACED_LOCKED); \
        return __atomic_compare_exchange_n(at, from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t *at, uint##bits##_t *from, \
                                                    uint##bits##_t to, int order, int otherwise) \
    { \
        return __tsan_atomic##bits##_compare_exchange_strong(at, from, to, order, otherwise); \
    }
ATOMIC(8)
ATOMIC(32)
ATOMIC(64)
