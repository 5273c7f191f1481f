/* match_lines.c - prints the accesses to the segments of an engine that matches and releases a prefix.
 *
 * Usage: match_lines PAGES CHURN hit|miss. After CHURN pages were stored, and replaced older ones, entries are
 * scattered as in an old index. A miss is of a prefix that was not stored. A line of the output has a kind of access
 * (traced_accesses.h), a segment (0: the index, 1: the locks) and an offset. The output is the same on each machine. */
#include "traced_accesses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The compiler does not report these accesses. A key is 32 bytes within a line. */
#define PREFETCHED(address, writes, ...) trace_note(address, (writes) ? TRACED_PREFETCH_WRITE : TRACED_PREFETCH)
#define __builtin_prefetch(...) PREFETCHED(__VA_ARGS__, 0, 0)
#define memcmp(a, b, bytes) (trace_note(a, TRACED_READ), trace_note(b, TRACED_READ), __builtin_memcmp(a, b, bytes))

#include "client/publish.h"
#include "client/sample.h"
#include "daemon/adopt.h"
#include "daemon/lru.h"
#include "daemon/reserve.h"

#define FRAME 4096u
#define ENTRIES 8192u
#define MOST_PAGES 512u
#define TTL (1ull << 40)

typedef struct {
    pt_owner owner;
    pt_session session;
    uint64_t keys; /* that were made */
    uint64_t random;
} scene;

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "match_lines: %s\n", what);
    exit(1);
}

static void new_keys(scene *s, uint8_t *keys, uint32_t count)
{
    for (uint64_t word = 0; word < count * (uint64_t)PT_KEY_BYTES / 8; word++) {
        uint64_t value = pt_mixed(++s->keys);
        memcpy(keys + word * 8, &value, 8);
    }
}

static void store(scene *s, const uint8_t *keys, uint32_t count)
{
    static uint64_t sizes[MOST_PAGES];
    static pt_answer answers[MOST_PAGES];
    pt_request r = {.slot = s->session.slot, .parts = 1, .now = pt_now_ns()};
    r.expires_ns = r.now + TTL;
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = FRAME;
    pt_reserve(&s->owner, &r, keys, sizes, count, answers);
    for (uint32_t i = 0; i < count; i++)
        must(answers[i].outcome == PT_GRANTED && pt_part_finish(&s->owner.view, answers[i].entry, 0), "not stored");
}

static void *segment(int number, uint64_t bytes)
{
    void *memory = aligned_alloc(PT_PAGE, bytes);
    must(memory, "memory is short");
    trace_range(number, memory, bytes);
    return memset(memory, 0, bytes);
}

static void begin(scene *s)
{
    pt_geometry g = {FRAME, ENTRIES, ENTRIES, 4, {0, 0, PT_SAMPLES_BYTES}};
    pt_header plan = {0};
    pt_plan(&plan, &g);
    void *index = segment(0, plan.index_bytes), *locks = segment(1, plan.locks_bytes);
    pt_format(index, locks, &g, 1, "bench");
    pt_view v = pt_view_of(index, locks, NULL);
    v.spaces[0].used = 1;
    v.spaces[0].first = PT_NONE;
    must(pt_owner_begin(&s->owner, v, &pt_lru) && pt_adopt(&s->owner, 0), "memory is short");
    pt_process process = {.pid = 1, .started = 1, .name = "bench"};
    s->session.view = v;
    s->session.slot = pt_attach(&s->owner, &process, pt_now_ns());
    s->session.counts = &v.counts[s->session.slot];
    s->session.own_pins = calloc(ENTRIES, sizeof *s->session.own_pins);
    must(s->session.own_pins && !pthread_mutex_init(&s->session.lock, NULL), "memory is short");
}

/* Stores prompts of 1 to 40 pages. When the index is full, older ones leave. */
static void churn(scene *s, uint32_t pages)
{
    uint8_t keys[40 * PT_KEY_BYTES];
    for (uint32_t done = 0, count; done < pages; done += count) {
        s->random = pt_mixed(s->random + 1);
        count = 1 + (uint32_t)(s->random % 40);
        new_keys(s, keys, count);
        store(s, keys, count);
    }
}

static void match(scene *s, const uint8_t *keys, uint32_t pages)
{
    static uint32_t entries[MOST_PAGES];
    static uint64_t serials[MOST_PAGES];
    pt_matched to = {entries, serials, 0, 0};
    pt_look_up(&s->session, keys, pages, &to);
    must(!to.count || to.count == pages, "a part of the prefix was found");
    pt_release(&s->session, entries, to.count);
}

int main(int count, char **given)
{
    static scene s;
    static uint8_t keys[MOST_PAGES * PT_KEY_BYTES];
    uint32_t pages = count == 4 ? (uint32_t)atoi(given[1]) : 0;
    must(pages && pages <= MOST_PAGES, "usage: match_lines PAGES CHURN hit|miss");
    bool is_hit = !strcmp(given[3], "hit");
    begin(&s);
    churn(&s, (uint32_t)atoi(given[2]));
    new_keys(&s, keys, pages);
    if (is_hit)
        store(&s, keys, pages);
    trace_begin();
    match(&s, keys, pages);
    const struct traced_access *accesses;
    uint32_t noted = trace_end(&accesses);
    for (uint32_t i = 0; i < noted; i++)
        printf("%d %u %llu\n", (int)accesses[i].kind, accesses[i].range, (unsigned long long)accesses[i].offset);
    return 0;
}
