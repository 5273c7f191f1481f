/* buffers.h - maps descriptors, and reads arrays that Python passes. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/daemon/adopt.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static PyObject *ShmError;

/* Frees an object of a heap type. Its instances hold a reference to the type. */
static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Appends an object to a list and releases it. Returns false with an exception set, also if the object is NULL. */
static bool append_new(PyObject *list, PyObject *item)
{
    bool done = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return done;
}

/* The number of forks. A handle that was created before a fork is unusable in the child,
 * which does not inherit the mappings. */
static pt_a64 forks;
static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }

typedef struct {
    void *address;
    uint64_t bytes;
} mapping;

/* Maps a whole segment. Returns false with an exception set. */
static bool map_segment(int fd, int protection, mapping *m)
{
    struct stat info;
    *m = (mapping){NULL, 0};
    if (fstat(fd, &info) == 0) {
        m->bytes = (uint64_t)info.st_size;
        m->address = mmap(NULL, m->bytes, protection, MAP_SHARED, fd, 0); /* EINVAL if it is empty */
        if (m->address != MAP_FAILED)
            return true;
        m->address = NULL;
    }
    PyErr_SetFromErrno(PyExc_OSError);
    return false;
}

static void unmap_segment(mapping *m)
{
    if (m->address)
        munmap(m->address, m->bytes);
    m->address = NULL;
}

/* Advises huge pages for a large table with random access. It is only advice, so errors do not matter. */
static void advise_table(const mapping *m) { madvise(m->address, m->bytes, MADV_HUGEPAGE); }

/* Populates [offset, offset + length) of a mapping (MADV_POPULATE_*), and what lies before it in its first page of the
 * kernel, which may be larger than the segments' own. Returns None, or raises OSError if memory is short. */
static PyObject *populate_range(const mapping *m, int how, unsigned long long offset, unsigned long long length)
{
    int failed;
    unsigned long long before = offset % (unsigned long long)sysconf(_SC_PAGESIZE);
    if (offset > m->bytes || length > m->bytes - offset) {
        PyErr_SetString(PyExc_ValueError, "the range lies outside the segment");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    failed = madvise((uint8_t *)m->address + offset - before, before + length, how);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* An array of fixed-size elements in any contiguous buffer. */
typedef struct {
    Py_buffer view;
    Py_ssize_t count;
} array;

/* Opens a buffer. Returns false with an exception set if the object is not a buffer
 * or not a whole number of elements. */
static bool array_open(PyObject *object, Py_ssize_t element, const char *name, array *a)
{
    if (PyObject_GetBuffer(object, &a->view, PyBUF_SIMPLE) < 0)
        return false;
    a->count = a->view.len / element;
    if (a->view.len == a->count * element && a->count < UINT32_MAX)
        return true;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes are no whole number of %zd-byte elements", name, a->view.len,
                 element);
    PyBuffer_Release(&a->view);
    return false;
}

/* Opens several arrays of equal length, or none. */
typedef struct {
    PyObject *object;
    Py_ssize_t element;
    const char *name;
} array_wanted;

static void arrays_close(array *arrays, int count)
{
    while (count--)
        PyBuffer_Release(&arrays[count].view);
}

static bool arrays_open(const array_wanted *wanted, int count, array *arrays)
{
    for (int i = 0; i < count; i++) {
        if (!array_open(wanted[i].object, wanted[i].element, wanted[i].name, &arrays[i])) {
            arrays_close(arrays, i);
            return false;
        }
        if (arrays[i].count != arrays[0].count) {
            PyErr_Format(PyExc_ValueError, "%s has %zd elements, %s has %zd", wanted[i].name, arrays[i].count,
                         wanted[0].name, arrays[0].count);
            arrays_close(arrays, i + 1);
            return false;
        }
    }
    return true;
}
