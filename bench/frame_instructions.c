/* frame_instructions.c - stores, matches and copies prompts, for callgrind to count the instructions of each.
 *
 * Usage: frame_instructions FRAME_BYTES PAGE_BYTES PAGES FRAMES. The pages of a prompt have a size. Frames have room
 * for more than ROUNDS prompts, and are all used before the first count. Each count is dumped under the name of its
 * operation; those with copies are of one prompt, the others of ROUNDS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <valgrind/callgrind.h>

#include "client/copy.h"
#include "client/publish.h"
#include "client/sample.h"
#include "daemon/adopt.h"
#include "daemon/lru.h"
#include "daemon/reserve.h"

#define ROUNDS 64u
#define TTL (1ull << 40)
#define MOST_PAGES 4096u

typedef struct {
    pt_owner owner;
    pt_session session;
    uint64_t made; /* words of keys */
    uint32_t pages;
    uint64_t page_bytes;
    uint8_t *keys, *memory;
    uint64_t *sizes;
    pt_answer *answers;
    pt_job *jobs;
} scene;

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "frame_instructions: %s\n", what);
    exit(1);
}

static void *zeroed(uint64_t bytes) /* takes memory when it is written */
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(memory != MAP_FAILED, "memory is short");
    return memory;
}

static void begin(scene *s, uint64_t frame_bytes, uint32_t frames)
{
    pt_geometry g = {(uint32_t)frame_bytes, frames, frames, 4, {0, 0, PT_SAMPLES_BYTES}};
    pt_header plan = {0};
    pt_plan(&plan, &g);
    void *index = zeroed(plan.index_bytes), *locks = zeroed(plan.locks_bytes);
    pt_format(index, locks, &g, 1, "bench");
    pt_view v = pt_view_of(index, locks, zeroed(frame_bytes * frames));
    v.spaces[0].used = 1;
    v.spaces[0].first = PT_NONE;
    must(pt_owner_begin(&s->owner, v, &pt_lru) && pt_adopt(&s->owner, 0), "memory is short");
    pt_process process = {.pid = 1, .started = 1, .name = "bench"};
    s->session.view = v;
    s->session.slot = pt_attach(&s->owner, &process, pt_now_ns());
    s->session.counts = &v.counts[s->session.slot];
    s->session.own_pins = zeroed(frames * sizeof *s->session.own_pins);
    must(!pthread_mutex_init(&s->session.lock, NULL), "no lock");
    s->keys = zeroed(ROUNDS * (uint64_t)s->pages * PT_KEY_BYTES);
    s->memory = zeroed(s->pages * s->page_bytes);
    s->sizes = zeroed(s->pages * sizeof *s->sizes);
    s->answers = zeroed(s->pages * sizeof *s->answers);
    s->jobs = zeroed(s->pages * sizeof *s->jobs);
    for (uint32_t i = 0; i < s->pages; i++)
        s->sizes[i] = s->page_bytes;
}

static uint8_t *keys_of(const scene *s, uint32_t round)
{
    return s->keys + round % ROUNDS * (uint64_t)s->pages * PT_KEY_BYTES;
}

static void store(scene *s, uint32_t round, bool copies)
{
    uint8_t *keys = keys_of(s, round);
    for (uint64_t word = 0; word < s->pages * (uint64_t)PT_KEY_BYTES / 8; word++) {
        uint64_t value = pt_mixed(++s->made);
        memcpy(keys + word * 8, &value, 8);
    }
    pt_request r = {.slot = s->session.slot, .parts = 1, .now = pt_now_ns()};
    r.expires_ns = r.now + TTL;
    pt_reserve(&s->owner, &r, keys, s->sizes, s->pages, s->answers);
    for (uint32_t i = 0; i < s->pages; i++) {
        must(s->answers[i].outcome == PT_GRANTED, "not granted");
        s->jobs[i] = (pt_job){s->answers[i].entry, s->memory + i * s->page_bytes, 0, s->page_bytes};
    }
    if (copies)
        pt_copy(&s->owner.view, s->jobs, s->pages, PT_INTO_ARENA, 1);
    for (uint32_t i = 0; i < s->pages; i++)
        must(pt_part_finish(&s->owner.view, s->answers[i].entry, 0), "not published");
}

static void match(scene *s, uint32_t round, bool copies)
{
    static uint32_t found[MOST_PAGES];
    static uint64_t serials[MOST_PAGES];
    pt_matched to = {found, serials, 0, 0};
    pt_look_up(&s->session, keys_of(s, round), s->pages, &to);
    must(to.count == s->pages, "not found");
    if (copies)
        pt_copy(&s->session.view, s->jobs, s->pages, PT_OUT_OF_ARENA, 1);
    pt_release(&s->session, found, to.count);
}

int main(int count, char **given)
{
    static scene s;
    must(count == 5, "usage: frame_instructions FRAME_BYTES PAGE_BYTES PAGES FRAMES");
    s.page_bytes = strtoull(given[2], NULL, 10), s.pages = (uint32_t)atoi(given[3]);
    must(s.pages && s.pages <= MOST_PAGES, "too many pages");
    uint32_t frames = (uint32_t)atoi(given[4]), round = 0;
    begin(&s, strtoull(given[1], NULL, 10), frames);
    for (uint64_t used = 0; used < 2ull * frames * s.owner.view.frame_bytes; used += s.pages * s.page_bytes)
        store(&s, round++, false);
    CALLGRIND_ZERO_STATS;
    for (uint32_t i = 0; i < ROUNDS; i++)
        store(&s, round++, false);
    CALLGRIND_DUMP_STATS_AT("store");
    for (uint32_t i = 0; i < ROUNDS; i++)
        match(&s, i, false);
    CALLGRIND_DUMP_STATS_AT("match");
    store(&s, 0, true);
    CALLGRIND_DUMP_STATS_AT("store_and_copy");
    match(&s, 0, true);
    CALLGRIND_DUMP_STATS_AT("match_and_copy");
    return 0;
}
