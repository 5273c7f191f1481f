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

/* A page that a lower tier has. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    pt_disk_history history;
    uint64_t size, stamp;
    uint32_t space;
    uint32_t slots; /* that it takes; 0: as many as its bytes fill */
} pt_stored_page;

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
