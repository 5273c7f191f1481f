/* recorder.h - appends the changes of files under one folder, in order, to a stream.
 *
 * A change is written down after it is done and before its thread continues; a sync when it begins and when it
 * has succeeded. So a change that precedes the begin of a sync in the stream was done when the sync began.
 * Several processes may share a stream. Writes through a descriptor that syncs by itself count as any others:
 * more may be lost here than on a disk. Changes that are not caught here (writes to mappings, direct system
 * calls) are found by comparing the result of the stream with the files. $RECORD_UNDER names the folder, without
 * links in its path; $RECORD_TO names the stream. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* In the order of write_stream.Kind. */
enum change { WROTE = 1, LENGTH, SYNCING, SYNCED, MADE, MOVED, SWAPPED, GONE, FOLDER, NO_FOLDER, MARK };

struct head {
    uint32_t kind, thread;
    uint64_t inode, offset, size;
};

static const char *under;
static int stream = -1;

__attribute__((constructor)) static void open_stream(void)
{
    const char *to = getenv("RECORD_TO");
    under = getenv("RECORD_UNDER");
    if (under && to)
        stream = open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_ours(const char *path)
{
    size_t length = stream >= 0 ? strlen(under) : 0;
    return length && path && !strncmp(path, under, length) && (path[length] == '/' || !path[length]);
}

static int path_of(int file, char *path)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = stream < 0 ? -1 : readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0 && is_ours(path);
}

static uint64_t inode_of(int file)
{
    struct stat status;
    return fstat(file, &status) ? 0 : status.st_ino;
}

static uint64_t inode_at(const char *path)
{
    struct stat status;
    return is_ours(path) && !lstat(path, &status) ? status.st_ino : 0;
}

static void note(enum change kind, uint64_t inode, uint64_t offset, const void *data, uint64_t size)
{
    int before = errno;
    struct head head = {kind, (uint32_t)gettid(), inode, offset, size};
    struct iovec pieces[2] = {{&head, sizeof head}, {(void *)data, size}};
    if (REAL(writev)(stream, pieces, 2) != (ssize_t)(sizeof head + size))
        abort();
    errno = before;
}

void record_mark(const char *text)
{
    if (stream >= 0)
        note(MARK, 0, 0, text, strlen(text));
}

static void record_pieces(int file, off_t at, const struct iovec *pieces, int count, ssize_t done)
{
    char path[PATH_MAX];
    if (done <= 0 || !path_of(file, path))
        return;
    for (int i = 0; i < count && done > 0; i++) {
        ssize_t size = (ssize_t)pieces[i].iov_len < done ? (ssize_t)pieces[i].iov_len : done;
        note(WROTE, inode_of(file), (uint64_t)at, pieces[i].iov_base, (uint64_t)size);
        at += size;
        done -= size;
    }
}

static void record_bytes(int file, off_t at, const void *bytes, ssize_t done)
{
    struct iovec piece = {(void *)bytes, done > 0 ? (size_t)done : 0};
    record_pieces(file, at, &piece, 1, done);
}

/* Returns where a write without an offset began. */
static off_t began(int file, ssize_t done)
{
    off_t now = stream < 0 || done <= 0 ? 0 : lseek(file, 0, SEEK_CUR);
    return now < done ? 0 : now - done;
}

static void record_file(enum change kind, int file, off_t length)
{
    char path[PATH_MAX];
    if (path_of(file, path))
        note(kind, inode_of(file), (uint64_t)length, path, kind == LENGTH ? 0 : strlen(path));
}

/* Records the length of a file to which blocks were allocated: the call also makes it
 * longer, unless the mode forbids it. */
static void record_allocated(int file, int mode)
{
    struct stat status;
    if (!(mode & FALLOC_FL_KEEP_SIZE) && !fstat(file, &status))
        record_file(LENGTH, file, status.st_size);
}

static void record_cut(const char *path, off_t length)
{
    if (is_ours(path))
        note(LENGTH, inode_at(path), (uint64_t)length, "", 0);
}

static void record_name(enum change kind, const char *path)
{
    if (is_ours(path))
        note(kind, kind == FOLDER ? inode_at(path) : 0, 0, path, strlen(path));
}

static void record_names(enum change kind, const char *one, const char *other)
{
    char names[2 * PATH_MAX];
    if (is_ours(one))
        note(kind, 0, 0, names, (uint64_t)snprintf(names, sizeof names, "%s%c%s", one, 0, other));
}

static void record_opened(const char *path, int flags, uint64_t before, int file)
{
    if (file < 0 || !is_ours(path))
        return;
    if (flags & O_CREAT && !before)
        note(MADE, inode_of(file), 0, path, strlen(path));
    else if (flags & O_TRUNC)
        note(LENGTH, inode_of(file), 0, "", 0);
}

/* Returns the path of a file that is named relative to an open folder. */
static const char *path_in(int folder, const char *path, char *full)
{
    if (path[0] == '/' || folder == AT_FDCWD || !path_of(folder, full))
        return path;
    size_t length = strlen(full);
    snprintf(full + length, PATH_MAX - length, "/%s", path);
    return full;
}
