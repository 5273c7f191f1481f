/* crossing.c - implements failpoints in the build of the crash tests: a crossing is counted, and kills or stops its
 * process if a test asks for it.
 *
 * A process that crosses a failpoint reads a control file that all processes of a scene share ($PT_POINTS names it).
 * control.py arms failpoints in that file and reads the counts. Without the variable a failpoint does nothing here either. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME_BYTES 40
#define RECORDS 4096u

enum { QUIET, ARMED, FIRED };

/* Sends `signal` to the process `pid` (0: to any process) when it crosses `name` for the `left`-th time. */
typedef struct {
    _Atomic uint32_t state, pid;
    _Atomic int32_t left;
    uint32_t signal;
    _Atomic uint32_t fired;
    char name[NAME_BYTES];
    uint32_t pad;
} wanted;

typedef struct {
    _Atomic uint32_t pid, times, named;
    char name[NAME_BYTES];
    uint32_t pad;
} record;

typedef struct {
    wanted wanted;
    record records[RECORDS];
} control;

static control *shared;

__attribute__((constructor)) static void find_control(void)
{
    const char *path = getenv("PT_POINTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    shared = mapped == MAP_FAILED ? NULL : mapped;
}

static uint32_t hash(const char *name, uint32_t pid)
{
    uint32_t h = 2166136261u ^ pid;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

/* Two threads with their first crossing at the same time may take two records, whose counts control.py adds up. */
static void count(const char *name, uint32_t pid)
{
    for (uint32_t i = 0, at = hash(name, pid); i < RECORDS; i++) {
        record *r = &shared->records[(at + i) % RECORDS];
        uint32_t unused = 0;
        if (atomic_compare_exchange_strong(&r->pid, &unused, pid)) {
            strncpy(r->name, name, NAME_BYTES - 1);
            atomic_store(&r->named, 1);
        } else if (unused != pid || !atomic_load(&r->named) || strcmp(r->name, name)) {
            continue;
        }
        atomic_fetch_add(&r->times, 1);
        return;
    }
}

static void fire_if_wanted(const char *name, uint32_t pid)
{
    wanted *w = &shared->wanted;
    if (atomic_load(&w->state) != ARMED || (w->pid && w->pid != pid) || strcmp(w->name, name))
        return;
    if (atomic_fetch_sub(&w->left, 1) != 1)
        return;
    atomic_store(&w->fired, pid);
    atomic_store(&w->state, FIRED);
    raise((int)w->signal); /* to this thread, so that it does not continue */
}

__attribute__((visibility("default"))) void pt_crossed(const char *name)
{
    if (!shared)
        return;
    uint32_t pid = (uint32_t)getpid();
    count(name, pid);
    fire_if_wanted(name, pid);
}
