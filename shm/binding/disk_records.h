/* disk_records.h - records of pages as py-lmdb returns them: tuples of a key and a value. A tier may have millions, of
 * which the disk's worker reads a list at a time. */
#pragma once

#include "records.h"

#include "../core/daemon/disk_records.h"

static int whole_number(PyObject *object, void *number)
{
    *(uint64_t *)number = PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

/* Refers to a record of a list. Returns false with an exception set if it is not a tuple of two bytes. */
static bool record_at(PyObject *records, Py_ssize_t number, pt_disk_record *r)
{
    char *key, *value;
    Py_ssize_t key_bytes, value_bytes;
    PyObject *item = PyList_GetItem(records, number);
    if (!item || !PyTuple_Check(item) || PyTuple_Size(item) != 2) {
        PyErr_SetString(PyExc_TypeError, "a record must be a tuple of a key and a value");
        return false;
    }
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(item, 0), &key, &key_bytes) < 0 ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(item, 1), &value, &value_bytes) < 0)
        return false;
    *r = (pt_disk_record){(uint8_t *)key, (uint8_t *)value, (size_t)key_bytes, (size_t)value_bytes};
    return true;
}

static bool is_after(const pt_disk_record *r, const char *key, size_t bytes)
{
    size_t common = r->key_bytes < bytes ? r->key_bytes : bytes;
    int order = memcmp(r->key, key, common);
    return order > 0 || (order == 0 && r->key_bytes > bytes);
}

/* keys_ascend(records, after) -> whether each key is greater than the one before it, the first one than `after`. */
static PyObject *keys_ascend(PyObject *module, PyObject *args)
{
    PyObject *list;
    const char *before;
    Py_ssize_t bytes;
    pt_disk_record r;
    bool ascend = true;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!y#", &PyList_Type, &list, &before, &bytes))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(list) && ascend; i++) {
        if (!record_at(list, i, &r))
            return NULL;
        ascend = is_after(&r, before, (size_t)bytes);
        before = (const char *)r.key;
        bytes = (Py_ssize_t)r.key_bytes;
    }
    return PyBool_FromLong(ascend);
}

/* frames_named(records, frame_bytes) -> how many frames records of the lmdb store name, None if one is damaged. */
static PyObject *frames_named(PyObject *module, PyObject *args)
{
    PyObject *list;
    uint64_t frame_bytes, frames = 0;
    pt_disk_record r;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O&", &PyList_Type, &list, whole_number, &frame_bytes))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        if (!record_at(list, i, &r))
            return NULL;
        if (!pt_add_frames(&r, frame_bytes, &frames))
            Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(frames);
}

/* stored_pages(records, format, largest_page, slot_bytes) -> rows of pt_stored_page, of the valid records only. */
static PyObject *stored_pages(PyObject *module, PyObject *args)
{
    PyObject *list;
    pt_record_limits limits;
    pt_disk_record r;
    Py_ssize_t valid = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O&O&O&", &PyList_Type, &list, whole_number, &limits.format, whole_number,
                          &limits.largest_page, whole_number, &limits.slot_bytes))
        return NULL;
    const Py_ssize_t count = PyList_Size(list), row_bytes = sizeof(pt_stored_page);
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, count * row_bytes);
    char *to = rows ? PyByteArray_AsString(rows) : NULL;
    for (Py_ssize_t i = 0; rows && i < count; i++) {
        pt_stored_page page;
        if (!record_at(list, i, &r))
            Py_CLEAR(rows);
        else if (pt_read_stored(&r, &limits, &page))
            memcpy(to + row_bytes * valid++, &page, sizeof page);
    }
    if (rows && PyByteArray_Resize(rows, row_bytes * valid) < 0)
        Py_CLEAR(rows);
    return rows;
}

/* What the records of a list say of the slots. */
typedef struct {
    PyObject *wrong, *losers; /* lists of keys and of marks */
    uint32_t *owners;
    uint64_t slots, slot_bytes, beyond, newest;
} slot_owners;

/* Adds the writes that own slots of a claim to the losers, each at least once. Returns false with an exception set. */
static bool add_owners(slot_owners *s, const pt_claim *claim)
{
    uint32_t last = 0;
    for (size_t i = 0; i < claim->slots.count; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (const uint32_t *owner = s->owners + extent.first; extent.frames; extent.frames--, owner++) {
            if (*owner && *owner != last && !append_new(s->losers, PyLong_FromUnsignedLong(*owner)))
                return false;
            last = *owner;
        }
    }
    return true;
}

/* Takes the slots of a valid claim, unless a newer write owns one of them. Returns false with an exception set. */
static bool settle(slot_owners *s, const pt_claim *claim)
{
    s->newest = s->newest < claim->serial ? claim->serial : s->newest;
    if (pt_take_free(s->owners, claim))
        return true;
    uint32_t other = pt_newest_owner(s->owners, claim);
    if (other && pt_is_newer(other, claim->mark))
        return append_new(s->losers, PyLong_FromUnsignedLong(claim->mark));
    if (other && !add_owners(s, claim))
        return false;
    pt_take_slots(s->owners, claim);
    return true;
}

static bool claim_record(slot_owners *s, const pt_disk_record *r)
{
    pt_claim claim;
    enum pt_claim_result result = pt_read_claim(r, s->slot_bytes, s->slots, &claim);
    if (result == PT_CLAIM_VALID)
        return settle(s, &claim);
    s->beyond += result == PT_CLAIM_BEYOND;
    return append_new(s->wrong, PyBytes_FromStringAndSize((const char *)r->key, (Py_ssize_t)r->key_bytes));
}

static bool claim_all(slot_owners *s, PyObject *list)
{
    const Py_ssize_t count = PyList_Size(list);
    pt_disk_record r, next;
    if (count && !record_at(list, 0, &next))
        return false;
    for (Py_ssize_t i = 1; i <= count; i++) {
        r = next;
        if (i < count && !record_at(list, i, &next))
            return false;
        pt_prefetch_owners(&next, s->owners, s->slots);
        if (!claim_record(s, &r))
            return false;
    }
    return true;
}

/* claim_slots(records, slot_bytes, owners) -> ClaimedSlots. */
static PyObject *claim_slots(PyObject *module, PyObject *args)
{
    PyObject *list, *claimed = NULL;
    Py_buffer owners;
    slot_owners s = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O&w*", &PyList_Type, &list, whole_number, &s.slot_bytes, &owners))
        return NULL;
    s.owners = owners.buf;
    s.slots = (uint64_t)owners.len / sizeof *s.owners;
    s.wrong = PyList_New(0);
    s.losers = PyList_New(0);
    if ((uintptr_t)owners.buf % sizeof *s.owners)
        PyErr_SetString(PyExc_ValueError, "the owners are not aligned");
    else if (s.wrong && s.losers && claim_all(&s, list))
        claimed = record_of(ClaimedSlots, Py_BuildValue("(OOKK)", s.wrong, s.losers, s.beyond, s.newest));
    Py_XDECREF(s.wrong);
    Py_XDECREF(s.losers);
    PyBuffer_Release(&owners);
    return claimed;
}
