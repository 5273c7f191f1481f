/* compression.h - compress and expand: the code of pages, over buffers of Python. */
#pragma once

#include "buffers.h"

#include "../core/common/compression/page_code.h"

/* The parts of a page, and the buffers that they lie in. */
typedef struct {
    PyObject *objects; /* a tuple */
    Py_buffer *views;
    pt_piece *pieces;
    pt_framed_page page;
    Py_ssize_t count;
} page_buffers;

static void page_close(page_buffers *p)
{
    while (p->count)
        PyBuffer_Release(&p->views[--p->count]);
    PyMem_Free(p->views);
    PyMem_Free(p->pieces);
    Py_XDECREF(p->objects);
}

/* Opens a sequence of buffers, of which none is empty. Returns false with an exception set. */
static bool page_open(PyObject *parts, int flags, page_buffers *p)
{
    *p = (page_buffers){.objects = PySequence_Tuple(parts)};
    Py_ssize_t count = p->objects ? PyTuple_Size(p->objects) : 0;
    p->views = PyMem_Calloc((size_t)count + 1, sizeof *p->views);
    p->pieces = PyMem_Calloc((size_t)count + 1, sizeof *p->pieces);
    if (p->objects && (!p->views || !p->pieces))
        PyErr_NoMemory();
    while (!PyErr_Occurred() && p->count < count) {
        Py_buffer *view = &p->views[p->count];
        if (PyObject_GetBuffer(PyTuple_GetItem(p->objects, p->count), view, flags) < 0)
            break;
        p->pieces[p->count++] = (pt_piece){view->buf, (uint64_t)view->len};
        p->page.bytes += (uint64_t)view->len;
        if (!view->len)
            PyErr_SetString(PyExc_ValueError, "a part of a page has no bytes");
    }
    p->page.frames = p->pieces;
    if (!PyErr_Occurred())
        return true;
    page_close(p);
    return false;
}

/* compress(parts, out) -> the number of bytes written to `out`, 0 if they would not fit. */
static PyObject *compress_page(PyObject *module, PyObject *args)
{
    PyObject *parts;
    Py_buffer out;
    page_buffers p;
    uint64_t length;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ow*", &parts, &out))
        return NULL;
    if (!page_open(parts, PyBUF_SIMPLE, &p)) {
        PyBuffer_Release(&out);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    length = pt_compress_page(pt_exponent_coder_here(), &p.page, out.buf, (uint64_t)out.len);
    Py_END_ALLOW_THREADS
    page_close(&p);
    PyBuffer_Release(&out);
    return PyLong_FromUnsignedLongLong(length);
}

/* expand(data, parts) -> whether `data` was what compress() writes, and zeros after it. */
static PyObject *expand_page(PyObject *module, PyObject *args)
{
    PyObject *parts;
    Py_buffer data;
    page_buffers p;
    bool whole;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*O", &data, &parts))
        return NULL;
    if (!page_open(parts, PyBUF_WRITABLE, &p)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    whole = pt_expand_page(pt_exponent_coder_here(), data.buf, (uint64_t)data.len, &p.page);
    Py_END_ALLOW_THREADS
    page_close(&p);
    PyBuffer_Release(&data);
    return PyBool_FromLong(whole);
}

/* compresses_fast() -> whether compress() and expand() use vector instructions here. */
static PyObject *compresses_fast(PyObject *module, PyObject *args)
{
    (void)module, (void)args;
    return PyBool_FromLong(pt_has_avx2());
}
