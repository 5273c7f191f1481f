/* device_limit.c - limits how many bytes a process reads from and writes to its files in a second: LD_PRELOAD it into a
 * daemon, and each of its disk workers becomes a device of BENCH_DEVICE_LIMIT bytes a second, in each direction. A
 * device serves one call after the other, so a call waits until those before it and itself are paid for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    pthread_mutex_t lock;
    int64_t free_at; /* when all calls until now are paid for */
} direction;

static direction reading = {PTHREAD_MUTEX_INITIALIZER, 0}, writing = {PTHREAD_MUTEX_INITIALIZER, 0};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static ssize_t paid(direction *d, ssize_t bytes)
{
    const char *limit = getenv("BENCH_DEVICE_LIMIT");
    if (!limit || bytes <= 0)
        return bytes;
    pthread_mutex_lock(&d->lock);
    int64_t now = now_ns(), begins = d->free_at > now ? d->free_at : now;
    int64_t ends = d->free_at = begins + (int64_t)((double)bytes / atof(limit) * 1e9);
    pthread_mutex_unlock(&d->lock);
    struct timespec until = {ends / 1000000000, ends % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
        ;
    return bytes;
}

#define LIMITED(name, type, size, way)                    \
    ssize_t name(int fd, type data, size count, off_t at) \
    {                                                     \
        static ssize_t (*real)(int, type, size, off_t);   \
        if (!real)                                        \
            *(void **)&real = dlsym(RTLD_NEXT, #name);    \
        return paid(&way, real(fd, data, count, at));     \
    }

LIMITED(pwrite, const void *, size_t, writing)
LIMITED(pwrite64, const void *, size_t, writing)
LIMITED(pwritev, const struct iovec *, int, writing)
LIMITED(pwritev64, const struct iovec *, int, writing)
LIMITED(pread, void *, size_t, reading)
LIMITED(pread64, void *, size_t, reading)
LIMITED(preadv, const struct iovec *, int, reading)
LIMITED(preadv64, const struct iovec *, int, reading)

#define LIMITED_WITH_FLAGS(name, way)                                              \
    ssize_t name(int fd, const struct iovec *data, int count, off_t at, int flags) \
    {                                                                              \
        static ssize_t (*real)(int, const struct iovec *, int, off_t, int);        \
        if (!real)                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                             \
        return paid(&way, real(fd, data, count, at, flags));                       \
    }

LIMITED_WITH_FLAGS(preadv2, reading)
LIMITED_WITH_FLAGS(preadv64v2, reading)
LIMITED_WITH_FLAGS(pwritev2, writing)
LIMITED_WITH_FLAGS(pwritev64v2, writing)

#define SMALL 4096 /* messages and lines of a log are free */

ssize_t write(int fd, const void *data, size_t bytes)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "write");
    ssize_t done = real(fd, data, bytes);
    return done < SMALL ? done : paid(&writing, done);
}

ssize_t writev(int fd, const struct iovec *data, int count)
{
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "writev");
    ssize_t done = real(fd, data, count);
    return done < SMALL ? done : paid(&writing, done);
}
