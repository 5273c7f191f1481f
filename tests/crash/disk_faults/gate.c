/* gate.c - stands between a disk worker and its disk: records calls on files of one folder, and makes them go wrong if a
 * test asks for it.
 *
 * It is preloaded, and does nothing except in a process whose command line names the worker. $PT_GATE names a file that all
 * workers of a test share: gate.py writes the wanted fault there and reads the recorded calls. Calls are counted over all
 * threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define WORKER "pagetier.tiers.worker"
#define FILE_BYTES 24
#define NOTES (1u << 15)
#define MOST_PIECES 2048

/* In the order of gate.Call. */
enum call {
    WRITE, PWRITE, WRITEV, PREAD, FDATASYNC, FSYNC, MSYNC, FTRUNCATE, TRUNCATE, FALLOCATE, SYNC_FILE_RANGE,
    RENAME, UNLINK, MKDIR, RMDIR, OPEN
};
/* In the order of gate.Action. NO_ACTION: the call is made unchanged. */
enum action { NO_ACTION, DIE, TEAR, FAIL, SHORTEN, HANG };
enum { QUIET, ARMED };

/* The left-th call of the set `calls` on a file whose name ends in `file` goes wrong, and all later ones if lasting. */
typedef struct {
    _Atomic uint32_t state;
    uint32_t calls, action, error, lasting;
    _Atomic int32_t left;
    _Atomic uint32_t struck, pid;
    _Atomic uint32_t noted;
    char folder[256], file[FILE_BYTES];
} wanted;

typedef struct {
    _Atomic uint32_t whole; /* stored last */
    uint32_t call, pid;
    char file[FILE_BYTES];
} note;

typedef struct {
    wanted wanted;
    note notes[NOTES];
} control;

static control *shared;

static int is_worker(void)
{
    char command[1024];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, command, sizeof command);
    close(file);
    return length > 0 && memmem(command, (size_t)length, WORKER, sizeof WORKER - 1) != NULL;
}

__attribute__((constructor)) static void find_control(void)
{
    const char *path = getenv("PT_GATE");
    if (!path || !is_worker())
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    shared = mapped == MAP_FAILED ? NULL : mapped;
}

/* Returns the name below the folder; NULL for a path outside of it. */
static const char *below(const char *path)
{
    size_t length = strlen(shared->wanted.folder);
    if (!length || strncmp(path, shared->wanted.folder, length) || (path[length] && path[length] != '/'))
        return NULL;
    return path + length + (path[length] == '/');
}

static int ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), wanted = strlen(end);
    return length >= wanted && !strcmp(name + length - wanted, end);
}

static void take_note(enum call call, const char *name)
{
    uint32_t at = atomic_fetch_add(&shared->wanted.noted, 1);
    if (at >= NOTES)
        return;
    note *n = &shared->notes[at];
    n->call = call;
    n->pid = (uint32_t)getpid();
    snprintf(n->file, FILE_BYTES, "%s", name);
    atomic_store(&n->whole, 1);
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

/* Records a call on this path and returns the action to apply to it. */
static enum action struck(enum call call, const char *path)
{
    const char *name = shared ? below(path) : NULL;
    wanted *w = shared ? &shared->wanted : NULL;
    if (!name)
        return NO_ACTION;
    take_note(call, name);
    if (atomic_load(&w->state) != ARMED || !(w->calls & 1u << call) || !ends_in(name, w->file))
        return NO_ACTION;
    int32_t left = atomic_fetch_sub(&w->left, 1);
    if (left > 1 || (left < 1 && !w->lasting))
        return NO_ACTION;
    atomic_store(&w->pid, (uint32_t)getpid());
    atomic_fetch_add(&w->struck, 1);
    if (w->action == DIE)
        die();
    if (w->action == HANG)
        hang();
    if (w->action == FAIL)
        errno = (int)w->error;
    return w->action == HANG ? NO_ACTION : (enum action)w->action;
}

static enum action struck_at(enum call call, int file)
{
    char link[32], path[PATH_MAX];
    if (!shared || file < 0)
        return NO_ACTION;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return NO_ACTION;
    path[length] = 0;
    return struck(call, path);
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

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_BYTES(call, name, parameters, ...)                               \
    ssize_t name parameters                                                 \
    {                                                                       \
        enum action action = struck_at(call, file);                         \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        size = less(action, size);                                          \
        ssize_t done = REAL(name)(__VA_ARGS__);                             \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

#define ON_PIECES(call, name, parameters, ...)                              \
    ssize_t name parameters                                                 \
    {                                                                       \
        struct iovec fewer[MOST_PIECES];                                    \
        enum action action = struck_at(call, file);                         \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        if (count < 0 || count > MOST_PIECES) {                             \
            errno = EINVAL;                                                 \
            return -1;                                                      \
        }                                                                   \
        count = less_pieces(action, pieces, count, fewer);                  \
        ssize_t done = REAL(name)(file, fewer, __VA_ARGS__);                \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

#define ON(call, name, where, finding, parameters, ...)                     \
    int name parameters                                                     \
    {                                                                       \
        enum action action = finding(call, where);                          \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        int done = REAL(name)(__VA_ARGS__);                                 \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

ON_BYTES(WRITE, write, (int file, const void *bytes, size_t size), file, bytes, size)
ON_BYTES(PWRITE, pwrite, (int file, const void *bytes, size_t size, off_t at), file, bytes, size, at)
ON_BYTES(PWRITE, pwrite64, (int file, const void *bytes, size_t size, off64_t at), file, bytes, size, at)
ON_PIECES(WRITEV, writev, (int file, const struct iovec *pieces, int count), count)
ON_PIECES(WRITEV, pwritev, (int file, const struct iovec *pieces, int count, off_t at), count, at)
ON_PIECES(WRITEV, pwritev64, (int file, const struct iovec *pieces, int count, off64_t at), count, at)
ON_PIECES(PREAD, preadv, (int file, const struct iovec *pieces, int count, off_t at), count, at)
ON_PIECES(PREAD, preadv64, (int file, const struct iovec *pieces, int count, off64_t at), count, at)
ON_PIECES(PREAD, preadv2, (int file, const struct iovec *pieces, int count, off_t at, int flags), count, at, flags)
ON_PIECES(PREAD, preadv64v2, (int file, const struct iovec *pieces, int count, off64_t at, int flags), count, at, flags)
ON(FDATASYNC, fdatasync, file, struck_at, (int file), file)
ON(FSYNC, fsync, file, struck_at, (int file), file)
ON(FTRUNCATE, ftruncate, file, struck_at, (int file, off_t length), file, length)
ON(FTRUNCATE, ftruncate64, file, struck_at, (int file, off64_t length), file, length)
ON(TRUNCATE, truncate, path, struck, (const char *path, off_t length), path, length)
ON(TRUNCATE, truncate64, path, struck, (const char *path, off64_t length), path, length)
ON(FALLOCATE, fallocate, file, struck_at, (int file, int mode, off_t at, off_t size), file, mode, at, size)
ON(FALLOCATE, fallocate64, file, struck_at, (int file, int mode, off64_t at, off64_t size), file, mode, at, size)
ON(SYNC_FILE_RANGE, sync_file_range, file, struck_at, (int file, off64_t at, off64_t size, unsigned flags), file, at,
   size, flags)
ON(RENAME, rename, old, struck, (const char *old, const char *new), old, new)
ON(RENAME, renameat2, old, struck, (int from, const char *old, int to, const char *new, unsigned flags), from, old, to,
   new, flags)
ON(UNLINK, unlink, path, struck, (const char *path), path)
ON(MKDIR, mkdir, path, struck, (const char *path, mode_t mode), path, mode)
ON(RMDIR, rmdir, path, struck, (const char *path), path)

/* The file of a mapping is unknown here, so each msync counts as one of the tier. */
int msync(void *memory, size_t size, int flags)
{
    enum action action = shared ? struck(MSYNC, shared->wanted.folder) : NO_ACTION;
    if (action == FAIL)
        return -1;
    int done = REAL(msync)(memory, size, flags);
    end_if_torn(action);
    return done;
}

#define ON_OPEN(name)                                                       \
    int name(const char *path, int flags, ...)                              \
    {                                                                       \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        enum action action = struck(OPEN, path);                            \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        int done = REAL(name)(path, flags, mode);                           \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

ON_OPEN(open)
ON_OPEN(open64)
