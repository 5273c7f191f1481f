/* injector.h - decides what happens at a site: a failpoint, which any process meets in a core that was built with them,
 * or a call to the disk, which a process whose command line names the worker makes on files of one folder.
 *
 * $PT_INJECT names a file that all processes of a test share: injector.py writes there what to inject, and reads what
 * was met. Calls are counted over all threads. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define WORKER "pagetier.tiers.worker"
#define NAME_BYTES 40
#define RECORDS 4096u
#define MOST_PIECES 2048

/* In the order of injector.Site. */
enum site {
    WRITE, PWRITE, WRITEV, PREAD, FDATASYNC, FSYNC, MSYNC, FTRUNCATE, TRUNCATE, FALLOCATE, SYNC_FILE_RANGE,
    RENAME, UNLINK, MKDIR, RMDIR, OPEN, FAILPOINT
};
/* In the order of injector.Action. NO_ACTION: the call is made unchanged. */
enum action { NO_ACTION, DIE, TEAR, FAIL, SHORTEN, HANG, STOP };
enum { QUIET, ARMED };

/* The left-th of the wanted sites goes wrong, and all later ones if lasting. They are met by the process `pid` (0: by
 * any), and are the failpoint `name`, or calls on a file whose name ends in `name`. */
typedef struct {
    _Atomic uint32_t state;
    uint32_t sites, action, error, lasting, pid;
    _Atomic int32_t left;
    _Atomic uint32_t struck, struck_pid;
    char folder[256], name[NAME_BYTES];
} wanted;

typedef struct {
    _Atomic uint32_t pid, times, named;
    uint32_t site;
    char name[NAME_BYTES];
} record;

typedef struct {
    wanted wanted;
    record records[RECORDS];
} control;

static control *shared;
static int is_worker;

static int names_worker(void)
{
    char command[1024];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, command, sizeof command);
    close(file);
    return length > 0 && memmem(command, (size_t)length, WORKER, sizeof WORKER - 1) != NULL;
}

__attribute__((constructor)) static void find_control(void)
{
    const char *path = getenv("PT_INJECT");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    is_worker = names_worker();
    shared = mapped == MAP_FAILED ? NULL : mapped;
}

static uint32_t hash(enum site site, const char *name, uint32_t pid)
{
    uint32_t h = (2166136261u + site) ^ pid;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

/* Two threads that meet a site for the first time at once may take two records, whose numbers injector.py adds up. */
static void count(enum site site, const char *name, uint32_t pid)
{
    for (uint32_t i = 0, at = hash(site, name, pid); i < RECORDS; i++) {
        record *r = &shared->records[(at + i) % RECORDS];
        uint32_t unused = 0;
        if (atomic_compare_exchange_strong(&r->pid, &unused, pid)) {
            r->site = site;
            strncpy(r->name, name, NAME_BYTES - 1);
            atomic_store(&r->named, 1);
        } else if (unused != pid || !atomic_load(&r->named) || r->site != site ||
                   strncmp(r->name, name, NAME_BYTES - 1)) {
            continue;
        }
        atomic_fetch_add(&r->times, 1);
        return;
    }
}

static void hang(void)
{
    while (atomic_load(&shared->wanted.state) == ARMED)
        usleep(1000);
}

static _Noreturn void die(void)
{
    for (;;)
        kill(getpid(), SIGKILL);
}

static int is_wanted(enum site site, const char *name, uint32_t pid)
{
    wanted *w = &shared->wanted;
    size_t length = strlen(name), end = strlen(w->name);
    if (atomic_load(&w->state) != ARMED || !(w->sites & 1u << site) || (w->pid && w->pid != pid))
        return 0;
    if (length < end || strcmp(name + length - end, w->name) || (site == FAILPOINT && length != end))
        return 0;
    int32_t left = atomic_fetch_sub(&w->left, 1);
    return left == 1 || (left < 1 && w->lasting);
}

/* Records a site and returns the action to apply to it. */
static enum action met(enum site site, const char *name)
{
    wanted *w = &shared->wanted;
    uint32_t pid = (uint32_t)getpid();
    count(site, name, pid);
    if (!is_wanted(site, name, pid))
        return NO_ACTION;
    atomic_store(&w->struck_pid, pid);
    atomic_fetch_add(&w->struck, 1);
    switch (w->action) {
    case DIE:
        die();
    case STOP:
        raise(SIGSTOP); /* to this thread, so that it does not continue */
        return NO_ACTION;
    case HANG:
        hang();
        return NO_ACTION;
    case FAIL:
        errno = (int)w->error;
    }
    return (enum action)w->action;
}

void pt_crossed(const char *name)
{
    if (shared)
        met(FAILPOINT, name);
}

/* Returns the action to apply to a call on this path. */
static enum action struck(enum site site, const char *path)
{
    if (!shared || !is_worker)
        return NO_ACTION;
    const char *folder = shared->wanted.folder;
    size_t length = strlen(folder);
    if (!length || strncmp(path, folder, length) || (path[length] && path[length] != '/'))
        return NO_ACTION;
    return met(site, path + length + (path[length] == '/'));
}

static enum action struck_at(enum site site, int file)
{
    char link[32], path[PATH_MAX];
    if (!shared || !is_worker || file < 0)
        return NO_ACTION;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return NO_ACTION;
    path[length] = 0;
    return struck(site, path);
}

/* Returns half of the bytes for a partial call. */
static size_t less(enum action action, size_t length)
{
    return action == TEAR || action == SHORTEN ? length / 2 : length;
}

static int less_pieces(enum action action, const struct iovec *pieces, int count, struct iovec *fewer)
{
    size_t left = 0;
    memcpy(fewer, pieces, (size_t)count * sizeof *pieces);
    if (action != TEAR && action != SHORTEN)
        return count;
    for (int i = 0; i < count; i++)
        left += pieces[i].iov_len;
    left /= 2;
    for (int i = 0; i < count; i++) {
        if (fewer[i].iov_len >= left) {
            fewer[i].iov_len = left;
            return i + 1;
        }
        left -= fewer[i].iov_len;
    }
    return count;
}

static void end_if_torn(enum action action)
{
    if (action == TEAR)
        die();
}
