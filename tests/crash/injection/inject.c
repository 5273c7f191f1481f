/* inject.c - stands between a process and its disk, and at its failpoints: injector.h makes them go wrong if a test
 * asks for it, recorder.h writes down what the calls have changed. It is preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#include "injector.h"
#include "recorder.h"

/* A call of the kind `site`. `after` records what it has changed, when it has returned `done`. */
#define ON_BYTES(site, name, parameters, after, ...)                        \
    ssize_t name parameters                                                 \
    {                                                                       \
        enum action action = struck_at(site, file);                         \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        size = less(action, size);                                          \
        ssize_t done = REAL(name)(__VA_ARGS__);                             \
        after;                                                              \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

#define ON_PIECES(site, name, parameters, after, ...)                       \
    ssize_t name parameters                                                 \
    {                                                                       \
        struct iovec fewer[MOST_PIECES];                                    \
        enum action action = struck_at(site, file);                         \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        if (count < 0 || count > MOST_PIECES) {                             \
            errno = EINVAL;                                                 \
            return -1;                                                      \
        }                                                                   \
        count = less_pieces(action, pieces, count, fewer);                  \
        ssize_t done = REAL(name)(file, fewer, __VA_ARGS__);                \
        after;                                                              \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

#define ON(action_at, name, parameters, after, ...)                         \
    int name parameters                                                     \
    {                                                                       \
        enum action action = action_at;                                     \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        int done = REAL(name)(__VA_ARGS__);                                 \
        if (!done)                                                          \
            after;                                                          \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

static enum action struck_sync(enum site site, int file)
{
    enum action action = struck_at(site, file);
    if (action != FAIL)
        record_file(SYNCING, file, 0);
    return action;
}

#define NOTHING (void)0
#define BYTES_AT record_bytes(file, at, bytes, done)
#define PIECES_AT record_pieces(file, at, fewer, count, done)

ON_BYTES(WRITE, write, (int file, const void *bytes, size_t size), record_bytes(file, began(file, done), bytes, done),
         file, bytes, size)
ON_BYTES(PWRITE, pwrite, (int file, const void *bytes, size_t size, off_t at), BYTES_AT, file, bytes, size, at)
ON_BYTES(PWRITE, pwrite64, (int file, const void *bytes, size_t size, off64_t at), BYTES_AT, file, bytes, size, at)
ON_PIECES(WRITEV, writev, (int file, const struct iovec *pieces, int count),
          record_pieces(file, began(file, done), fewer, count, done), count)
ON_PIECES(WRITEV, pwritev, (int file, const struct iovec *pieces, int count, off_t at), PIECES_AT, count, at)
ON_PIECES(WRITEV, pwritev64, (int file, const struct iovec *pieces, int count, off64_t at), PIECES_AT, count, at)
ON_PIECES(WRITEV, pwritev2, (int file, const struct iovec *pieces, int count, off_t at, int flags), PIECES_AT, count,
          at, flags)
ON_PIECES(WRITEV, pwritev64v2, (int file, const struct iovec *pieces, int count, off64_t at, int flags), PIECES_AT,
          count, at, flags)
ON_PIECES(PREAD, preadv, (int file, const struct iovec *pieces, int count, off_t at), NOTHING, count, at)
ON_PIECES(PREAD, preadv64, (int file, const struct iovec *pieces, int count, off64_t at), NOTHING, count, at)
ON_PIECES(PREAD, preadv2, (int file, const struct iovec *pieces, int count, off_t at, int flags), NOTHING, count, at,
          flags)
ON_PIECES(PREAD, preadv64v2, (int file, const struct iovec *pieces, int count, off64_t at, int flags), NOTHING, count,
          at, flags)
ON(struck_sync(FDATASYNC, file), fdatasync, (int file), record_file(SYNCED, file, 0), file)
ON(struck_sync(FSYNC, file), fsync, (int file), record_file(SYNCED, file, 0), file)
ON(struck_at(FTRUNCATE, file), ftruncate, (int file, off_t length), record_file(LENGTH, file, length), file, length)
ON(struck_at(FTRUNCATE, file), ftruncate64, (int file, off64_t length), record_file(LENGTH, file, length), file, length)
ON(struck(TRUNCATE, path), truncate, (const char *path, off_t length), record_cut(path, length), path, length)
ON(struck(TRUNCATE, path), truncate64, (const char *path, off64_t length), record_cut(path, length), path, length)
ON(struck_at(FALLOCATE, file), fallocate, (int file, int mode, off_t at, off_t size), record_allocated(file, mode),
   file, mode, at, size)
ON(struck_at(FALLOCATE, file), fallocate64, (int file, int mode, off64_t at, off64_t size),
   record_allocated(file, mode), file, mode, at, size)
ON(struck_at(SYNC_FILE_RANGE, file), sync_file_range, (int file, off64_t at, off64_t size, unsigned flags), NOTHING,
   file, at, size, flags)
ON(struck(RENAME, old), rename, (const char *old, const char *new), record_names(MOVED, old, new), old, new)
ON(struck(RENAME, old), renameat, (int from, const char *old, int to, const char *new), record_names(MOVED, old, new),
   from, old, to, new)
ON(struck(RENAME, old), renameat2, (int from, const char *old, int to, const char *new, unsigned flags),
   record_names(flags & RENAME_EXCHANGE ? SWAPPED : MOVED, old, new), from, old, to, new, flags)
ON(struck(UNLINK, path), unlink, (const char *path), record_name(GONE, path), path)
ON(struck(UNLINK, path), unlinkat, (int folder, const char *path, int flags),
   record_name(flags & AT_REMOVEDIR ? NO_FOLDER : GONE, path), folder, path, flags)
ON(struck(MKDIR, path), mkdir, (const char *path, mode_t mode), record_name(FOLDER, path), path, mode)
ON(struck(RMDIR, path), rmdir, (const char *path), record_name(NO_FOLDER, path), path)
/* The file of a mapping is unknown here, so each msync counts as one of the tier. */
ON(shared ? struck(MSYNC, shared->wanted.folder) : NO_ACTION, msync, (void *memory, size_t size, int flags), NOTHING,
   memory, size, flags)

#define ON_OPEN(name, parameters, action_at, whole, ...)                    \
    int name parameters                                                     \
    {                                                                       \
        char full[PATH_MAX];                                                \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        (void)full;                                                         \
        const char *at = whole;                                             \
        enum action action = action_at;                                     \
        if (action == FAIL)                                                 \
            return -1;                                                      \
        uint64_t before = inode_at(at);                                     \
        int done = REAL(name)(__VA_ARGS__, flags, mode);                    \
        record_opened(at, flags, before, done);                             \
        end_if_torn(action);                                                \
        return done;                                                        \
    }

ON_OPEN(open, (const char *path, int flags, ...), struck(OPEN, path), path, path)
ON_OPEN(open64, (const char *path, int flags, ...), struck(OPEN, path), path, path)
ON_OPEN(openat, (int in, const char *path, int flags, ...), NO_ACTION, path_in(in, path, full), in, path)
ON_OPEN(openat64, (int in, const char *path, int flags, ...), NO_ACTION, path_in(in, path, full), in, path)
