/* owner_hints.h - methods of Owner: what engines and operators say of pages. */
#pragma once

#include "../core/daemon/cadence/hints.h"
#include "owner_reservations.h"

static uint64_t ends_after(uint64_t now, uint64_t ttl_ns)
{
    return ttl_ns < UINT64_MAX - now ? now + ttl_ns : UINT64_MAX;
}

/* hint(hint, ttl_ns, keys) -> number of the pages that exist: they have the hint now. */
static PyObject *owner_hint(Owner *self, PyObject *args)
{
    unsigned int hint;
    unsigned long long ttl;
    PyObject *keys;
    array in;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "IKO", &hint, &ttl, &keys))
        return NULL;
    if (hint >= PT_HINTS)
        return PyErr_Format(PyExc_ValueError, "hint %u does not exist", hint);
    if (!array_open(keys, PT_KEY_BYTES, "keys", &in))
        return NULL;
    uint32_t found = pt_hint_pages(&self->shared, (enum pt_hint)hint, pt_lasts(ttl), in.view.buf, (uint32_t)in.count,
                                   pt_now_ns());
    PyBuffer_Release(&in.view);
    return PyLong_FromUnsignedLong(found);
}

/* keep(uid, ttl_ns, most_frames, space, keys) -> number of the pages that are kept now. */
static PyObject *owner_keep(Owner *self, PyObject *args)
{
    unsigned int uid, space;
    unsigned long long ttl, most;
    PyObject *keys;
    array in;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "IKKIO", &uid, &ttl, &most, &space, &keys) ||
        !array_open(keys, PT_KEY_BYTES, "keys", &in))
        return NULL;
    uint64_t now = pt_now_ns();
    pt_keep_request r = {uid, space, ends_after(now, ttl), most};
    uint32_t kept = pt_keep_pages(&self->shared, &r, in.view.buf, (uint32_t)in.count, now);
    PyBuffer_Release(&in.view);
    return PyLong_FromUnsignedLong(kept);
}

/* unkeep(uid, space, keys) -> number of the pages that exist and are not kept now. */
static PyObject *owner_unkeep(Owner *self, PyObject *args)
{
    unsigned int uid, space;
    PyObject *keys;
    array in;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "IIO", &uid, &space, &keys) ||
        !array_open(keys, PT_KEY_BYTES, "keys", &in))
        return NULL;
    pt_keep_request r = {uid, space, 0, 0};
    uint32_t free = pt_unkeep_pages(&self->shared, &r, in.view.buf, (uint32_t)in.count, pt_now_ns());
    PyBuffer_Release(&in.view);
    return PyLong_FromUnsignedLong(free);
}

/* keep_at_most(frames): ends keeps, the oldest of the user that keeps most first, until so many frames are kept. */
static PyObject *owner_keep_at_most(Owner *self, PyObject *args)
{
    unsigned long long frames;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "K", &frames))
        return NULL;
    if (self->shared.cadence)
        pt_keep_at_most(&self->shared.cadence->keeps, frames, pt_now_ns());
    Py_RETURN_NONE;
}

/* kept() -> KeptPages: what is kept now. */
static PyObject *owner_kept(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    static const pt_keeps nothing;
    const pt_keeps *k = self->shared.cadence ? &self->shared.cadence->keeps : &nothing;
    uint64_t frames = pt_kept_frames(k, pt_now_ns());
    return record_of_numbers(KeptPages, (uint64_t[]){frames, k->ended_early}, 2);
}

/* keys_in_memory(space) -> the keys of a namespace's pages in memory, of those stored first first. */
static PyObject *owner_keys_in_memory(Owner *self, PyObject *args)
{
    unsigned int space;
    const pt_view *v = &self->shared.view;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &space))
        return NULL;
    if (space >= v->header->spaces)
        return PyErr_Format(PyExc_ValueError, "namespace %u does not exist", space);
    uint64_t count = 0, at = 0;
    for (uint32_t entry = v->spaces[space].first; entry != PT_NONE; entry = v->entries[entry].space_next)
        count += !!(pt_tiers(&v->entries[entry]) & PT_TIER_MEMORY);
    uint8_t *keys = malloc(count * PT_KEY_BYTES + 1);
    if (!keys)
        return PyErr_NoMemory();
    for (uint32_t entry = v->spaces[space].first; entry != PT_NONE; entry = v->entries[entry].space_next)
        if (pt_tiers(&v->entries[entry]) & PT_TIER_MEMORY)
            memcpy(keys + (count - ++at) * PT_KEY_BYTES, v->entries[entry].key, PT_KEY_BYTES);
    PyObject *made = PyBytes_FromStringAndSize((char *)keys, (Py_ssize_t)(count * PT_KEY_BYTES));
    free(keys);
    return made;
}

static PyObject *owner_learns(Owner *self, void *unused)
{
    (void)unused;
    return owner_ready(self) ? PyBool_FromLong(self->shared.cadence != NULL) : NULL;
}
