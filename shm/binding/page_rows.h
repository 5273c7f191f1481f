/* page_rows.h - the rows of messages: what a client asks of a page, the answer, what a lower
 * tier is asked to write and to read, and what it has. layouts.h exports their fields. */
#pragma once

#include "records.h"

#include "../core/daemon/cadence/disk_history.h"
#include "../core/daemon/requests.h"

/* A page of a write to a lower tier: what names it, what the tier keeps of it, and where it is in memory. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    pt_disk_history history;
    uint64_t size, serial;
    uint64_t stamp; /* its recency on disk: its tick, moved to the clock of the disk's stamps */
    uint32_t entry, space;
    uint32_t reservation, unused;
} pt_page_to_write;

/* A page that is to be read from a lower tier: the answer of the index, and where the page goes if it was granted. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t size, serial;
    uint32_t entry, space;
    uint8_t outcome; /* enum pt_outcome */
    uint8_t device; /* of a page that was granted; PT_DEVICES: the fleet */
    uint8_t unused[6];
} pt_page_to_read;

/* A page that may have to be found in the fleet. A row has no padding. */
typedef struct __attribute__((packed)) {
    uint8_t key[PT_KEY_BYTES];
    uint32_t space; /* the position of its namespace in the message's table */
} pt_page_to_find;

/* A page that is to be read from disk, or from the fleet if it was located there. A row has no padding. */
typedef struct __attribute__((packed)) {
    uint8_t key[PT_KEY_BYTES];
    uint64_t size; /* in the fleet; 0: not there */
    uint32_t space; /* as above */
} pt_located_page;

/* page_requests(keys, sizes) -> rows of pt_page_request. */
static PyObject *page_requests(PyObject *module, PyObject *args)
{
    PyObject *keys, *sizes;
    array in[2];
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &keys, &sizes) ||
        !arrays_open((array_wanted[]){{keys, PT_KEY_BYTES, "keys"}, {sizes, 8, "sizes"}}, 2, in))
        return NULL;
    const uint8_t *key = in[0].view.buf, *size = in[1].view.buf;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, in[0].count * (Py_ssize_t)sizeof(pt_page_request));
    pt_page_request *row = rows ? (pt_page_request *)PyBytes_AsString(rows) : NULL;
    for (Py_ssize_t i = 0; rows && i < in[0].count; i++, row++, key += PT_KEY_BYTES, size += 8) {
        memcpy(row->key, key, PT_KEY_BYTES);
        memcpy(&row->size, size, 8);
    }
    arrays_close(in, 2);
    return rows;
}

/* The pages of a reservation as the core takes them: `keys` has the memory of both. */
typedef struct {
    uint8_t *keys;
    uint64_t *sizes;
    uint32_t count;
} requested_pages;

/* Reads rows of any alignment. Returns false with an exception set; otherwise the caller frees `sizes`. */
static bool pages_read(const uint8_t *row, size_t count, requested_pages *pages)
{
    pages->count = (uint32_t)count;
    pages->sizes = malloc(count * (8 + PT_KEY_BYTES) + 1);
    pages->keys = (uint8_t *)(pages->sizes + count);
    if (!pages->sizes)
        PyErr_NoMemory();
    for (size_t i = 0; pages->sizes && i < count; i++, row += sizeof(pt_page_request)) {
        memcpy(pages->keys + PT_KEY_BYTES * i, row + offsetof(pt_page_request, key), PT_KEY_BYTES);
        memcpy(pages->sizes + i, row + offsetof(pt_page_request, size), 8);
    }
    return pages->sizes;
}

static bool requested_pages_of(PyObject *rows, requested_pages *pages)
{
    array in;
    if (!array_open(rows, sizeof(pt_page_request), "pages", &in))
        return false;
    bool made = pages_read(in.view.buf, (size_t)in.count, pages);
    PyBuffer_Release(&in.view);
    return made;
}

/* Returns the frames that pages need, UINT64_MAX if they are more. */
static uint64_t frames_of(const requested_pages *pages, uint64_t frame_bytes)
{
    uint64_t sum = 0, size = 0, frames = 0;
    for (uint32_t i = 0; i < pages->count; i++) {
        if (pages->sizes[i] != size) { /* pages are mostly of one size, and a division is slow */
            size = pages->sizes[i];
            frames = size / frame_bytes + (size % frame_bytes > 0);
        }
        sum = frames > UINT64_MAX - sum ? UINT64_MAX : sum + frames;
    }
    return sum;
}

/* Copies one field of `count` rows of `stride` bytes; `width` is a constant at each call. */
static inline void copy_field(uint8_t *to, size_t to_stride, const uint8_t *from, size_t from_stride, size_t width,
                              Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++, to += to_stride, from += from_stride)
        memcpy(to, from, width);
}

/* pages_to_find(keys, spaces) -> rows of pt_page_to_find. */
static PyObject *pages_to_find(PyObject *module, PyObject *args)
{
    const size_t row = sizeof(pt_page_to_find);
    PyObject *keys, *spaces;
    array in[2];
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &keys, &spaces) ||
        !arrays_open((array_wanted[]){{keys, PT_KEY_BYTES, "keys"}, {spaces, 4, "spaces"}}, 2, in))
        return NULL;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, in[0].count * (Py_ssize_t)row);
    uint8_t *to = rows ? (uint8_t *)PyBytes_AsString(rows) : NULL;
    if (to) {
        copy_field(to, row, in[0].view.buf, PT_KEY_BYTES, PT_KEY_BYTES, in[0].count);
        copy_field(to + offsetof(pt_page_to_find, space), row, in[1].view.buf, 4, 4, in[0].count);
    }
    arrays_close(in, 2);
    return rows;
}

/* located_pages(keys, sizes, spaces) -> rows of pt_located_page. */
static PyObject *located_pages(PyObject *module, PyObject *args)
{
    const size_t row = sizeof(pt_located_page);
    PyObject *keys, *sizes, *spaces;
    array in[3];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &keys, &sizes, &spaces) ||
        !arrays_open((array_wanted[]){{keys, PT_KEY_BYTES, "keys"}, {sizes, 8, "sizes"}, {spaces, 4, "spaces"}}, 3,
                     in))
        return NULL;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, in[0].count * (Py_ssize_t)row);
    uint8_t *to = rows ? (uint8_t *)PyBytes_AsString(rows) : NULL;
    if (to) {
        copy_field(to, row, in[0].view.buf, PT_KEY_BYTES, PT_KEY_BYTES, in[0].count);
        copy_field(to + offsetof(pt_located_page, size), row, in[1].view.buf, 8, 8, in[0].count);
        copy_field(to + offsetof(pt_located_page, space), row, in[2].view.buf, 4, 4, in[0].count);
    }
    arrays_close(in, 3);
    return rows;
}

/* spaces_below(rows, limit) -> whether the namespace of each row of pt_page_to_find is below the limit. */
static PyObject *spaces_below(PyObject *module, PyObject *args)
{
    PyObject *rows;
    unsigned limit;
    array in;
    (void)module;
    if (!PyArg_ParseTuple(args, "OI", &rows, &limit) || !array_open(rows, sizeof(pt_page_to_find), "pages", &in))
        return NULL;
    bool below = true;
    for (Py_ssize_t i = 0; below && i < in.count; i++)
        below = ((const pt_page_to_find *)in.view.buf)[i].space < limit;
    PyBuffer_Release(&in.view);
    return PyBool_FromLong(below);
}

/* Writes bytes as lower-case hexadecimal digits. */
static void write_digits(char *to, const uint8_t *from, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        to[2 * i] = digits[from[i] >> 4];
        to[2 * i + 1] = digits[from[i] & 15];
    }
}

/* Returns the bytes of the longest of these strings in UTF-8; -1 with an exception set. */
static Py_ssize_t longest_of(PyObject *strings)
{
    Py_ssize_t longest = 0, length = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(strings); i++) {
        if (!PyUnicode_AsUTF8AndSize(PyList_GetItem(strings, i), &length))
            return -1;
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* Returns the name of a page: what the list of prefixes has for its namespace, and the digits of its key. `name` has
 * room for it. */
static PyObject *page_name(const pt_page_to_find *page, PyObject *prefixes, char *name)
{
    Py_ssize_t length = 0;
    PyObject *prefix = PyList_GetItem(prefixes, (Py_ssize_t)page->space); /* borrowed */
    const char *text = prefix ? PyUnicode_AsUTF8AndSize(prefix, &length) : NULL;
    if (!text)
        return NULL;
    memcpy(name, text, (size_t)length);
    write_digits(name + length, page->key, PT_KEY_BYTES);
    return PyUnicode_FromStringAndSize(name, length + 2 * PT_KEY_BYTES);
}

/* page_names(rows, prefixes) -> the name of each row of pt_page_to_find. */
static PyObject *page_names(PyObject *module, PyObject *args)
{
    PyObject *rows, *prefixes;
    array in;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!", &rows, &PyList_Type, &prefixes) ||
        !array_open(rows, sizeof(pt_page_to_find), "pages", &in))
        return NULL;
    Py_ssize_t longest = longest_of(prefixes);
    char *name = longest < 0 ? NULL : malloc((size_t)longest + 2 * PT_KEY_BYTES);
    PyObject *names = name ? PyList_New(in.count) : longest < 0 ? NULL : PyErr_NoMemory();
    for (Py_ssize_t i = 0; names && i < in.count; i++) {
        PyObject *one = page_name((const pt_page_to_find *)in.view.buf + i, prefixes, name);
        if (!one || PyList_SetItem(names, i, one) < 0)
            Py_CLEAR(names);
    }
    free(name);
    PyBuffer_Release(&in.view);
    return names;
}

/* Located pages as the core takes them: `sizes` has the memory of all three. */
typedef struct {
    uint64_t *sizes;
    uint32_t *spaces;
    uint8_t *keys;
    uint32_t count;
} asked_pages;

/* Reads rows of pt_located_page. Returns false with an exception set; otherwise the caller frees `sizes`. */
static bool asked_pages_of(PyObject *rows, asked_pages *pages)
{
    array in;
    if (!array_open(rows, sizeof(pt_located_page), "pages", &in))
        return false;
    const pt_located_page *row = in.view.buf;
    size_t count = (size_t)in.count;
    pages->count = (uint32_t)count;
    pages->sizes = malloc(count * sizeof *row + 1);
    pages->spaces = (uint32_t *)(void *)(pages->sizes + count);
    pages->keys = (uint8_t *)(pages->spaces + count);
    if (!pages->sizes)
        PyErr_NoMemory();
    for (size_t i = 0; pages->sizes && i < count; i++) {
        pages->sizes[i] = row[i].size;
        pages->spaces[i] = row[i].space;
        memcpy(pages->keys + PT_KEY_BYTES * i, row[i].key, PT_KEY_BYTES);
    }
    PyBuffer_Release(&in.view);
    return pages->sizes;
}

/* located_columns(rows) -> (keys, sizes): two fields of rows of pt_located_page. */
static PyObject *located_columns(PyObject *module, PyObject *rows)
{
    array in;
    (void)module;
    if (!array_open(rows, sizeof(pt_located_page), "pages", &in))
        return NULL;
    const pt_located_page *row = in.view.buf;
    PyObject *keys = PyBytes_FromStringAndSize(NULL, PT_KEY_BYTES * in.count);
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, 8 * in.count);
    if (keys && sizes) {
        copy_field((uint8_t *)PyBytes_AsString(keys), PT_KEY_BYTES, row->key, sizeof *row, PT_KEY_BYTES, in.count);
        copy_field((uint8_t *)PyBytes_AsString(sizes), 8, (const uint8_t *)row + offsetof(pt_located_page, size),
                   sizeof *row, 8, in.count);
    }
    PyBuffer_Release(&in.view);
    return Py_BuildValue("(NN)", keys, sizes);
}

/* answer_columns(rows) -> the fields of rows of pt_answer: outcomes (u8), entries (u32) and serials (u64). */
static PyObject *answer_columns(PyObject *module, PyObject *rows)
{
    array in;
    (void)module;
    if (!array_open(rows, sizeof(pt_answer), "pages", &in))
        return NULL;
    PyObject *outcomes = PyBytes_FromStringAndSize(NULL, in.count);
    PyObject *entries = PyBytes_FromStringAndSize(NULL, 4 * in.count);
    PyObject *serials = PyBytes_FromStringAndSize(NULL, 8 * in.count);
    for (Py_ssize_t i = 0; outcomes && entries && serials && i < in.count; i++) {
        pt_answer answer;
        memcpy(&answer, (const pt_answer *)in.view.buf + i, sizeof answer);
        PyBytes_AsString(outcomes)[i] = (char)answer.outcome;
        memcpy(PyBytes_AsString(entries) + 4 * i, &answer.entry, 4);
        memcpy(PyBytes_AsString(serials) + 8 * i, &answer.serial, 8);
    }
    PyBuffer_Release(&in.view);
    return record_of(ReservedPages, Py_BuildValue("(NNN)", outcomes, entries, serials));
}
