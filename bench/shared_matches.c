/* shared_matches.c - two processes match and release prompts at once, and note when each batch began and ended.
 *
 * Usage: shared_matches PAGES same|other|held ROUNDS WORK_NS. Both match the same prompt or one each; "held": the same
 * one, which another request of each process has pinned. In every second round of 10 ms the second process pauses. A
 * match is followed by so much work that needs no shared memory. Prints for each process, the first one first, the
 * number of its batches and their times in ns: 64-bit words. */
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "match_scene.h"

#define BATCH_PAGES 512u /* about 10 us: short beside the time slices of a busy machine */
#define MOST_BATCHES (1u << 20)
#define ROUND_US 10000u
#define PAUSE_US 200u

enum round { TOGETHER, ALONE, OVER };

typedef struct {
    uint64_t began, ended;
} batch;

typedef struct {
    _Alignas(64) _Atomic(int) round;
    _Alignas(64) uint64_t counts[PROCESSES];
    batch batches[PROCESSES][MOST_BATCHES];
} board;

typedef struct {
    const uint8_t *keys;
    uint32_t pages;
    uint64_t work_ns;
} task;

static void *scene_memory(int number, uint64_t bytes)
{
    (void)number;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED, "memory is short");
    return memory;
}

static void work(uint64_t ns)
{
    for (uint64_t ends = pt_now_ns() + ns; ns && pt_now_ns() < ends;)
        ;
}

static batch run_batch(pt_session *s, const task *t)
{
    batch b = {.began = pt_now_ns()};
    for (uint32_t pages = 0; pages < BATCH_PAGES; pages += t->pages) {
        match_and_release(s, t->keys, t->pages);
        work(t->work_ns);
    }
    b.ended = pt_now_ns();
    return b;
}

/* Runs in a process of its own, on a processor of its own if there are enough. */
static void run(board *b, pt_session *s, uint32_t number, const task *t)
{
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET(number, &processors);
    sched_setaffinity(0, sizeof processors, &processors);
    uint64_t *count = &b->counts[number];
    do {
        b->batches[number][(*count)++] = run_batch(s, t);
        while (number && atomic_load(&b->round) == ALONE)
            usleep(PAUSE_US);
    } while (*count < MOST_BATCHES && atomic_load(&b->round) != OVER);
}

static void start(scene *s, board *b, const task *tasks, bool held)
{
    for (uint32_t number = 0; number < PROCESSES; number++) {
        pid_t child = fork();
        must(child >= 0, "no process");
        if (child)
            continue;
        pinned pins;
        if (held)
            match(&s->sessions[number], tasks[number].keys, tasks[number].pages, &pins);
        run(b, &s->sessions[number], number, &tasks[number]);
        _exit(0);
    }
}

static void end(board *b)
{
    atomic_store(&b->round, OVER);
    for (uint32_t number = 0; number < PROCESSES; number++) {
        int status = 1;
        must(wait(&status) > 0 && !status, "a process failed");
    }
    for (uint32_t number = 0; number < PROCESSES; number++) {
        fwrite(&b->counts[number], sizeof *b->counts, 1, stdout);
        fwrite(b->batches[number], sizeof(batch), b->counts[number], stdout);
    }
}

int main(int count, char **given)
{
    static scene s;
    static uint8_t keys[PROCESSES][MOST_PAGES * PT_KEY_BYTES];
    uint32_t pages = count == 5 ? (uint32_t)atoi(given[1]) : 0;
    must(pages && pages <= MOST_PAGES, "usage: shared_matches PAGES same|other|held ROUNDS WORK_NS");
    begin(&s);
    churn(&s, 2 * ENTRIES);
    task tasks[PROCESSES];
    for (uint32_t number = 0; number < PROCESSES; number++) {
        new_keys(&s, keys[number], pages);
        store(&s, keys[number], pages);
        bool other = !strcmp(given[2], "other");
        tasks[number] = (task){keys[other ? number : 0], pages, (uint64_t)atoi(given[4])};
    }
    board *b = scene_memory(0, sizeof *b);
    start(&s, b, tasks, !strcmp(given[2], "held"));
    for (int round = 0; round < atoi(given[3]); round++) {
        atomic_store(&b->round, round % 2 ? ALONE : TOGETHER);
        usleep(ROUND_US);
    }
    end(b);
    return 0;
}
