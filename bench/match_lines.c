/* match_lines.c - prints the accesses to the segments of an engine that matches and releases a prefix.
 *
 * Usage: match_lines PAGES CHURN hit|held|miss. CHURN pages were stored before. A miss is of a prefix that was not
 * stored; "held": another request of the engine has it pinned. A line of the output has a kind of access
 * (traced_accesses.h), a segment (0: the index, 1: the locks) and an offset. The output is the same on each machine. */
#include "traced_accesses.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The compiler does not report these accesses. A key is 32 bytes within a line. */
#define PREFETCHED(address, writes, ...) trace_note(address, (writes) ? TRACED_PREFETCH_WRITE : TRACED_PREFETCH)
#define __builtin_prefetch(...) PREFETCHED(__VA_ARGS__, 0, 0)
#define memcmp(a, b, bytes) (trace_note(a, TRACED_READ), trace_note(b, TRACED_READ), __builtin_memcmp(a, b, bytes))

/* Each question for the time is a microsecond after the one before, so that the output does not depend on the clock. */
static int next_moment(struct timespec *now)
{
    static long long ns = 1000000000000ll;
    ns += 1000;
    *now = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}
#define clock_gettime(clock, now) next_moment(now)

#include "match_scene.h"

static void *scene_memory(int number, uint64_t bytes)
{
    void *memory = aligned_alloc(PT_PAGE, bytes);
    must(memory, "memory is short");
    trace_range(number, memory, bytes);
    return memset(memory, 0, bytes);
}

int main(int count, char **given)
{
    static scene s;
    static pinned held;
    static uint8_t keys[MOST_PAGES * PT_KEY_BYTES];
    uint32_t pages = count == 4 ? (uint32_t)atoi(given[1]) : 0;
    must(pages && pages <= MOST_PAGES, "usage: match_lines PAGES CHURN hit|held|miss");
    begin(&s);
    churn(&s, (uint32_t)atoi(given[2]));
    new_keys(&s, keys, pages);
    if (strcmp(given[3], "miss"))
        store(&s, keys, pages);
    if (!strcmp(given[3], "held"))
        match(&s.sessions[0], keys, pages, &held);
    trace_begin();
    match_and_release(&s.sessions[0], keys, pages);
    const struct traced_access *accesses;
    uint32_t noted = trace_end(&accesses);
    for (uint32_t i = 0; i < noted; i++)
        printf("%d %u %llu\n", (int)accesses[i].kind, accesses[i].range, (unsigned long long)accesses[i].offset);
    return 0;
}
