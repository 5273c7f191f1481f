/* large_kernel_pages.c - a kernel whose pages have 64 KiB, as many for aarch64 do: preloaded, it rejects advice about
 * memory that does not begin with such a page. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE (64ul << 10)

long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? (long)LARGE : next(name);
}

static void *map(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (address)
        return map(address, bytes, protection, flags, file, offset);
    uintptr_t room = (uintptr_t)map(NULL, bytes + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if ((void *)room == MAP_FAILED)
        return MAP_FAILED;
    return map((void *)((room + LARGE - 1) / LARGE * LARGE), bytes, protection, flags | MAP_FIXED, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return mmap(address, bytes, protection, flags, file, offset);
}

int madvise(void *address, size_t bytes, int advice)
{
    if ((uintptr_t)address % LARGE == 0)
        return (int)syscall(SYS_madvise, address, bytes, advice);
    errno = EINVAL;
    return -1;
}
