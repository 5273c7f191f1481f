/* pins.h - the Python type Pins: the pinned pages of one match, released once. */
#pragma once

#include <structmember.h>

#include "session_handle.h"

typedef struct Pins {
    PyObject_HEAD
    Session *session;
    PyObject *context; /* what was looked up, kept for the caller */
    struct Pins *first; /* of a rematch: the match whose lookup it belongs to */
    unsigned int asked, count, reach;
    uint32_t page_tokens, uncounted; /* uncounted: pages at the end of reach whose tokens are not counted yet */
    uint64_t on_disk, unread; /* of a match of groups: tokens that are only on disk; unread: not counted yet */
    uint64_t slower_on_disk, slower_remote; /* tokens that are computed because loading them is slower */
    unsigned int from_disk; /* pages that were loaded from disk, as far as they are counted */
    bool pinned, due; /* due: released, but not yet unpinned */
    uint32_t copying; /* calls that copy these pages without the GIL; guarded by the GIL */
    uint64_t *serials; /* followed by the entries, in the same block */
    uint32_t *entries;
} Pins;

static PyTypeObject *PinsType;

/* Allocates the serials and the entries of `pages` pages in one block. Returns NULL with an exception set. */
static uint64_t *pins_room(uint32_t pages)
{
    uint64_t *room = malloc((size_t)pages * 12 + 1);
    if (!room)
        PyErr_NoMemory();
    return room;
}

/* Returns a new object of `type` (Pins or a subclass) for `asked` pages, which owns `room` from then on. Returns NULL
 * with an exception set, also if `room` is NULL with an exception set. */
static Pins *pins_in(uint64_t *room, PyTypeObject *type, Session *session, PyObject *context, uint32_t asked)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Pins *self = room ? (Pins *)alloc(type, 0) : NULL;
    if (!self)
        return NULL;
    self->serials = room;
    self->entries = (uint32_t *)(room + asked);
    self->asked = asked;
    self->session = session;
    Py_XINCREF((PyObject *)session);
    self->context = context;
    Py_INCREF(context);
    return self;
}

static Pins *pins_new(PyTypeObject *type, Session *session, PyObject *context, uint32_t asked)
{
    uint64_t *room = pins_room(asked);
    Pins *self = pins_in(room, type, session, context, asked);
    if (!self)
        free(room);
    return self;
}

/* miss(type, context, asked): an empty match, for callers without a session. */
static PyObject *pins_miss(PyObject *module, PyObject *args)
{
    PyTypeObject *type;
    PyObject *context;
    unsigned int asked;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OI", &PyType_Type, &type, &context, &asked))
        return NULL;
    if (!PyType_IsSubtype(type, PinsType)) {
        PyErr_SetString(PyExc_TypeError, "miss(type, context, asked)");
        return NULL;
    }
    Pins *pins = pins_new(type, NULL, context, 0);
    if (pins)
        pins->asked = asked;
    return (PyObject *)pins;
}

/* Unpins released pages as soon as no thread copies them any more. */
static void pins_drop(Pins *self)
{
    if (!self->due || self->copying)
        return;
    self->due = false;
    if (handle_usable(self->session))
        pt_release(&self->session->shared, self->entries, self->count);
}

/* Ends the lookup: pages that were not loaded by now are counted as missed. */
static void pins_count_missed(Pins *self)
{
    uint64_t missed = self->uncounted * (uint64_t)self->page_tokens + self->unread;
    if ((missed || self->slower_remote) && handle_usable(self->session)) {
        pt_uses *uses = &self->session->shared.view.uses[self->session->shared.slot];
        pt_count(&uses->missed_tokens, missed);
        pt_count(&uses->disk_slower_tokens, missed < self->slower_on_disk ? missed : self->slower_on_disk);
        pt_count(&uses->remote_slower_tokens, self->slower_remote);
    }
    self->uncounted = 0;
    self->unread = 0;
    self->slower_remote = 0;
}

/* Counts the pages before `end` that are not counted yet, each in the tier where it was found. */
static void pins_count_until(Pins *self, uint32_t end)
{
    pt_uses *uses = &self->session->shared.view.uses[self->session->shared.slot];
    uint32_t from = self->reach - self->uncounted, on_disk = 0;
    for (uint32_t page = from; page < end; page++)
        on_disk += self->entries[page] & PT_FROM_DISK ? 1 : 0;
    pt_count(&uses->disk_tokens, on_disk * (uint64_t)self->page_tokens);
    pt_count(&uses->memory_tokens, (end - from - on_disk) * (uint64_t)self->page_tokens);
    self->uncounted = self->reach - end;
    self->from_disk += on_disk;
}

/* count_loaded(pages): records that the first `pages` pages were loaded, those behind the
 * pinned ones with the help of the disk. */
static PyObject *pins_count_loaded(Pins *self, PyObject *arg)
{
    unsigned long pages = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred())
        return NULL;
    Pins *first = self->first ? self->first : self;
    uint32_t end = pages < first->reach ? (uint32_t)pages : first->reach;
    if (end > first->reach - first->uncounted && handle_usable(first->session))
        pins_count_until(first, end);
    Py_RETURN_NONE;
}

/* count_later(tokens): makes a match of groups one that counts as a lookup. So many tokens after the hit are only on
 * disk: they count as missed at the release, unless they were loaded by then. */
static PyObject *pins_count_later(Pins *self, PyObject *arg)
{
    unsigned long long tokens = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    self->page_tokens = 1;
    self->on_disk = self->unread = tokens;
    Py_RETURN_NONE;
}

/* count_from_disk(tokens): records that the first ones of those tokens were loaded. */
static PyObject *pins_count_from_disk(Pins *self, PyObject *arg)
{
    unsigned long long tokens = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    uint64_t end = tokens < self->on_disk ? tokens : self->on_disk, counted = self->on_disk - self->unread;
    if (self->unread && end > counted && handle_usable(self->session)) {
        pt_count(&self->session->shared.view.uses[self->session->shared.slot].disk_tokens, end - counted);
        self->unread = self->on_disk - end;
    }
    Py_RETURN_NONE;
}

/* count_slower(on_disk, remote): records the tokens that are computed because loading them from the disk or the fleet
 * is slower. They are counted at the release, those on disk unless they were loaded by then. */
static PyObject *pins_count_slower(Pins *self, PyObject *args)
{
    unsigned long long on_disk, remote;
    if (!PyArg_ParseTuple(args, "KK", &on_disk, &remote))
        return NULL;
    Pins *first = self->first ? self->first : self;
    if (first->page_tokens) { /* the match counts as a lookup */
        first->slower_on_disk = on_disk;
        first->slower_remote = remote;
    }
    Py_RETURN_NONE;
}

static void pins_end(Pins *self)
{
    pins_count_missed(self);
    self->due |= self->pinned;
    self->pinned = false;
    pins_drop(self);
}

static void pins_dealloc(Pins *self)
{
    pins_end(self);
    free(self->serials);
    Py_XDECREF(self->context);
    Py_XDECREF((PyObject *)self->first);
    Py_XDECREF((PyObject *)self->session);
    free_object((PyObject *)self);
}

static PyObject *pins_release(Pins *self, PyObject *unused)
{
    (void)unused;
    pins_end(self);
    Py_RETURN_NONE;
}

static PyObject *pins_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    return self;
}

static PyObject *pins_exit(Pins *self, PyObject *const *unused, Py_ssize_t count)
{
    (void)unused, (void)count;
    pins_end(self);
    Py_RETURN_NONE;
}

static Py_ssize_t pins_length(Pins *self) { return self->count; }

static PyObject *pins_entries(Pins *self, void *unused)
{
    (void)unused;
    return PyBytes_FromStringAndSize((char *)self->entries, (Py_ssize_t)self->count * 4);
}

static PyObject *pins_serials(Pins *self, void *unused)
{
    (void)unused;
    return PyBytes_FromStringAndSize((char *)self->serials, (Py_ssize_t)self->count * 8);
}

/* Returns the bytes of each page, u64; empty after release(). */
static PyObject *pins_sizes(Pins *self, void *unused)
{
    (void)unused;
    uint32_t count = self->pinned && handle_usable(self->session) ? self->count : 0;
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    for (uint32_t i = 0; sizes && i < count; i++)
        memcpy(PyBytes_AsString(sizes) + 8 * i, &self->session->shared.view.entries[self->entries[i]].size, 8);
    return sizes;
}

static PyMethodDef pins_methods[] = {
    {"release", (PyCFunction)pins_release, METH_NOARGS, NULL},
    {"count_loaded", (PyCFunction)pins_count_loaded, METH_O, NULL},
    {"count_later", (PyCFunction)pins_count_later, METH_O, NULL},
    {"count_from_disk", (PyCFunction)pins_count_from_disk, METH_O, NULL},
    {"count_slower", (PyCFunction)pins_count_slower, METH_VARARGS, NULL},
    {"__enter__", (PyCFunction)pins_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))pins_exit, METH_FASTCALL, NULL},
    {0},
};
static PyGetSetDef pins_getset[] = {
    {"entries", (getter)pins_entries, NULL, NULL, NULL},
    {"serials", (getter)pins_serials, NULL, NULL, NULL},
    {"sizes", (getter)pins_sizes, NULL, NULL, NULL},
    {0},
};
static PyMemberDef pins_members[] = {
    {"asked", T_UINT, offsetof(Pins, asked), READONLY, NULL},
    {"available_pages", T_UINT, offsetof(Pins, reach), READONLY, NULL},
    {"from_disk", T_UINT, offsetof(Pins, from_disk), READONLY, NULL},
    {"pinned", T_BOOL, offsetof(Pins, pinned), READONLY, NULL},
    {"session", T_OBJECT, offsetof(Pins, session), READONLY, NULL},
    {"context", T_OBJECT, offsetof(Pins, context), READONLY, NULL},
    {0},
};
static PyType_Slot pins_slots[] = {
    {Py_tp_dealloc, pins_dealloc}, {Py_tp_methods, pins_methods}, {Py_tp_getset, pins_getset},
    {Py_tp_members, pins_members}, {Py_sq_length, pins_length},   {0},
};
static PyType_Spec pins_spec = {
    .name = "pagetier.shm._core.Pins",
    .basicsize = sizeof(Pins),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pins_slots,
};
