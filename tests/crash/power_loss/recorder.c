/* recorder.c - is preloaded into a process and appends its changes of files under one folder, in order, to a stream.
 *
 * A change is written down after it is done and before its thread continues; a sync when it begins and when it has
 * succeeded. So a change that precedes the begin of a sync in the stream was done when the sync began. Several processes
 * may share a stream. Writes through a descriptor that syncs by itself count as any others: more may be lost here than on
 * a disk. Changes that are not caught here (writes to mappings, direct system calls) are found by comparing the result of
 * the stream with the files. RECORD_UNDER names the folder, without links in its path; RECORD_TO names the stream. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, LENGTH, SYNCING, SYNCED, MADE, MOVED, SWAPPED, GONE, FOLDER, NO_FOLDER, MARK };

struct head {
    uint32_t kind, thread;
    uint64_t inode, offset, size;
};

static const char *under;
static size_t under_length;
static int stream = -1;

#define REAL(result, name, ...)                              \
    static result (*real_##name)(__VA_ARGS__);               \
    if (!real_##name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)

static void open_stream(void)
{
    REAL(int, open, const char *, int, ...);
    under = getenv("RECORD_UNDER");
    const char *to = getenv("RECORD_TO");
    if (under && to) {
        under_length = strlen(under);
        stream = real_open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
}

__attribute__((constructor)) static void begin(void)
{
    open_stream();
}

static int is_ours(const char *path)
{
    return stream >= 0 && path && !strncmp(path, under, under_length) && (path[under_length] == '/' || !path[under_length]);
}

static int path_of(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = stream < 0 ? -1 : readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0 && is_ours(path);
}

static void note(int kind, uint64_t inode, uint64_t offset, const void *data, uint64_t size)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    int before = errno;
    struct head head = {kind, (uint32_t)gettid(), inode, offset, size};
    struct iovec pieces[2] = {{&head, sizeof head}, {(void *)data, size}};
    if (real_writev(stream, pieces, 2) != (ssize_t)(sizeof head + size)) abort();
    errno = before;
}

static uint64_t inode_of(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) ? 0 : status.st_ino;
}

static uint64_t inode_at(const char *path)
{
    struct stat status;
    return lstat(path, &status) ? 0 : status.st_ino;
}

static void note_pieces(int descriptor, uint64_t offset, const struct iovec *pieces, int count, ssize_t done)
{
    char path[PATH_MAX];
    uint64_t inode;
    if (done <= 0 || !path_of(descriptor, path)) return;
    inode = inode_of(descriptor);
    for (int i = 0; i < count && done > 0; i++) {
        ssize_t size = (ssize_t)pieces[i].iov_len < done ? (ssize_t)pieces[i].iov_len : done;
        note(WRITE, inode, offset, pieces[i].iov_base, size);
        offset += size;
        done -= size;
    }
}

static uint64_t before_now(int descriptor, ssize_t done)
{
    off_t now = lseek(descriptor, 0, SEEK_CUR);
    return now < 0 ? 0 : (uint64_t)(now - (done > 0 ? done : 0));
}

void record_mark(const char *text)
{
    if (stream >= 0) note(MARK, 0, 0, text, strlen(text));
}

#define WRITES(name, offset_type)                                                              \
    ssize_t name(int descriptor, const void *data, size_t size, offset_type offset)            \
    {                                                                                          \
        REAL(ssize_t, name, int, const void *, size_t, offset_type);                           \
        ssize_t done = real_##name(descriptor, data, size, offset);                            \
        struct iovec piece = {(void *)data, size};                                             \
        note_pieces(descriptor, offset, &piece, 1, done);                                      \
        return done;                                                                           \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

#define WRITES_PIECES(name, offset_type)                                                            \
    ssize_t name(int descriptor, const struct iovec *pieces, int count, offset_type offset)         \
    {                                                                                               \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type);                           \
        ssize_t done = real_##name(descriptor, pieces, count, offset);                              \
        note_pieces(descriptor, offset, pieces, count, done);                                       \
        return done;                                                                                \
    }
WRITES_PIECES(pwritev, off_t)
WRITES_PIECES(pwritev64, off64_t)

ssize_t write(int descriptor, const void *data, size_t size)
{
    REAL(ssize_t, write, int, const void *, size_t);
    ssize_t done = real_write(descriptor, data, size);
    struct iovec piece = {(void *)data, size};
    int failed = errno;
    if (stream >= 0 && done > 0) note_pieces(descriptor, before_now(descriptor, done), &piece, 1, done);
    errno = failed;
    return done;
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    ssize_t done = real_writev(descriptor, pieces, count);
    int failed = errno;
    if (stream >= 0 && done > 0) note_pieces(descriptor, before_now(descriptor, done), pieces, count, done);
    errno = failed;
    return done;
}

#define CUTS(name, type)                                                                        \
    int name(int descriptor, type size)                                                         \
    {                                                                                           \
        REAL(int, name, int, type);                                                             \
        char path[PATH_MAX];                                                                    \
        int failed = real_##name(descriptor, size);                                             \
        if (!failed && path_of(descriptor, path)) note(LENGTH, inode_of(descriptor), size, "", 0); \
        return failed;                                                                          \
    }
CUTS(ftruncate, off_t)
CUTS(ftruncate64, off64_t)

#define CUTS_AT(name, type)                                                   \
    int name(const char *path, type size)                                     \
    {                                                                         \
        REAL(int, name, const char *, type);                                  \
        int failed = real_##name(path, size);                                 \
        if (!failed && is_ours(path)) note(LENGTH, inode_at(path), size, "", 0); \
        return failed;                                                        \
    }
CUTS_AT(truncate, off_t)
CUTS_AT(truncate64, off64_t)

#define SYNCS(name)                                                        \
    int name(int descriptor)                                               \
    {                                                                      \
        REAL(int, name, int);                                              \
        char path[PATH_MAX];                                               \
        int ours = path_of(descriptor, path);                              \
        uint64_t inode = ours ? inode_of(descriptor) : 0;                  \
        if (ours) note(SYNCING, inode, 0, path, strlen(path));             \
        int failed = real_##name(descriptor);                              \
        if (ours && !failed) note(SYNCED, inode, 0, path, strlen(path));   \
        return failed;                                                     \
    }
SYNCS(fsync)
SYNCS(fdatasync)

static mode_t mode_in(int flags, va_list more)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

/* Returns the path of a file that is named relative to an open folder. */
static const char *path_in(int folder, const char *path, char *full)
{
    if (path[0] == '/' || folder == AT_FDCWD || !path_of(folder, full)) return path;
    size_t length = strlen(full);
    snprintf(full + length, PATH_MAX - length, "/%s", path);
    return full;
}

static void note_opened(const char *path, int flags, uint64_t before, int descriptor)
{
    uint64_t inode;
    if (descriptor < 0 || !is_ours(path)) return;
    inode = inode_of(descriptor);
    if (flags & O_CREAT && !before) note(MADE, inode, 0, path, strlen(path));
    else if (flags & O_TRUNC) note(LENGTH, inode, 0, "", 0);
}

#define OPENS(name)                                              \
    int name(const char *path, int flags, ...)                   \
    {                                                            \
        REAL(int, name, const char *, int, ...);                 \
        va_list more;                                            \
        va_start(more, flags);                                   \
        mode_t mode = mode_in(flags, more);                      \
        va_end(more);                                            \
        uint64_t before = is_ours(path) ? inode_at(path) : 0;    \
        int descriptor = real_##name(path, flags, mode);         \
        note_opened(path, flags, before, descriptor);            \
        return descriptor;                                       \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                   \
    int name(int folder, const char *path, int flags, ...)               \
    {                                                                    \
        REAL(int, name, int, const char *, int, ...);                    \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        mode_t mode = mode_in(flags, more);                              \
        va_end(more);                                                    \
        char full[PATH_MAX];                                             \
        const char *whole = path_in(folder, path, full);                 \
        uint64_t before = is_ours(whole) ? inode_at(whole) : 0;          \
        int descriptor = real_##name(folder, path, flags, mode);         \
        note_opened(whole, flags, before, descriptor);                   \
        return descriptor;                                               \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

static void note_names(int kind, const char *one, const char *other)
{
    char names[2 * PATH_MAX];
    int length = snprintf(names, sizeof names, "%s%c%s", one, 0, other);
    note(kind, 0, 0, names, length);
}

int rename(const char *one, const char *other)
{
    REAL(int, rename, const char *, const char *);
    int failed = real_rename(one, other);
    if (!failed && is_ours(one)) note_names(MOVED, one, other);
    return failed;
}

int renameat(int from, const char *one, int to, const char *other)
{
    REAL(int, renameat, int, const char *, int, const char *);
    int failed = real_renameat(from, one, to, other);
    if (!failed && is_ours(one)) note_names(MOVED, one, other);
    return failed;
}

int renameat2(int from, const char *one, int to, const char *other, unsigned flags)
{
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    int failed = real_renameat2(from, one, to, other, flags);
    if (!failed && is_ours(one)) note_names(flags & 2 ? SWAPPED : MOVED, one, other);
    return failed;
}

#define NAMES(name, kind)                                                     \
    int name(const char *path)                                                \
    {                                                                         \
        REAL(int, name, const char *);                                        \
        int failed = real_##name(path);                                       \
        if (!failed && is_ours(path)) note(kind, 0, 0, path, strlen(path));   \
        return failed;                                                        \
    }
NAMES(unlink, GONE)
NAMES(rmdir, NO_FOLDER)

int unlinkat(int folder, const char *path, int flags)
{
    REAL(int, unlinkat, int, const char *, int);
    int failed = real_unlinkat(folder, path, flags);
    if (!failed && is_ours(path)) note(flags & AT_REMOVEDIR ? NO_FOLDER : GONE, 0, 0, path, strlen(path));
    return failed;
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, mkdir, const char *, mode_t);
    int failed = real_mkdir(path, mode);
    if (!failed && is_ours(path)) note(FOLDER, inode_at(path), 0, path, strlen(path));
    return failed;
}
