/* observer.h - the Python type Observer: reads index and lock words through read-only mappings. */
#pragma once

#include "buffers.h"
#include "curves.h"
#include "tiers.h"

#include "../core/client/locate.h"

typedef struct {
    PyObject_HEAD
    mapping index, locks;
    pt_view view;
} Observer;

static PyObject *observer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index_fd", "locks_fd", NULL};
    int index_fd, locks_fd;
    const char *reason = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii", names, &index_fd, &locks_fd))
        return NULL;
    Observer *self = (Observer *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    if (map_segment(index_fd, PROT_READ, &self->index) && map_segment(locks_fd, PROT_READ, &self->locks)) {
        reason = pt_unusable_reason(self->index.address, self->locks.address,
                                    (pt_sizes){self->index.bytes, self->locks.bytes, 0});
        if (!reason) {
            self->view = pt_view_of(self->index.address, self->locks.address, NULL);
            return (PyObject *)self;
        }
        PyErr_Format(ShmError, "cannot read the segments: %s (this build reads format %u)", reason, PT_FORMAT);
    }
    Py_DECREF((PyObject *)self);
    return NULL;
}

static void observer_dealloc(Observer *self)
{
    unmap_segment(&self->index);
    unmap_segment(&self->locks);
    free_object((PyObject *)self);
}

static void add_counts(pt_a64 *sum, const pt_a64 *more, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        sum[i] += more[i];
}

#define COUNT(name) atomic_load_explicit(&sum.name, memory_order_relaxed),
#define USE(name) atomic_load_explicit(&uses.name, memory_order_relaxed),

static PyObject *describe_counts(pt_counts sum, pt_uses uses)
{
    const uint64_t numbers[] = {COUNT_FIELDS(COUNT) USE_FIELDS(USE)};
    return record_of_numbers(AttachmentCounts, numbers, sizeof numbers / sizeof *numbers);
}

/* Returns the sum of the counters of living and former processes. */
static PyObject *describe_all_counts(const pt_view *v)
{
    pt_counts sum = v->header->retired;
    pt_uses uses = *v->retired_uses;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++) {
        add_counts((pt_a64 *)&sum, (pt_a64 *)&v->counts[slot], PT_COUNTS);
        add_counts((pt_a64 *)&uses, (pt_a64 *)&v->uses[slot], PT_USES);
    }
    return describe_counts(sum, uses);
}

#define FIELD(name) v->header->name,
#define DAEMON_COUNT(name) v->header->counters.name,

/* Returns the numbers of the header: sizes, usage, and the counters of the daemon. */
static PyObject *describe_header(const pt_view *v)
{
    const uint64_t numbers[] = {HEADER_FIELDS(FIELD) DAEMON_COUNT_FIELDS(DAEMON_COUNT)};
    return record_of_numbers(IndexHeader, numbers, sizeof numbers / sizeof *numbers);
}

/* The pages and frames that a slot has pinned. */
typedef struct {
    unsigned long long pages, frames;
} pinned_by;

static void count_pins(const pt_view *v, pinned_by pins[PT_SLOTS])
{
    for (uint32_t entry = 0; entry < v->entry_count; entry++)
        for (uint64_t bits = atomic_load_explicit(&v->locks[entry].word, memory_order_relaxed) & PT_PINS; bits;
             bits &= bits - 1) {
            pins[__builtin_ctzll(bits)].pages++;
            pins[__builtin_ctzll(bits)].frames += v->entries[entry].frame_count;
        }
}

/* Returns the record of an attachment. `pins` is an array by slot, or NULL to leave out the pins. */
static PyObject *describe_attachment(const pt_view *v, uint32_t slot, const pinned_by *pins)
{
    const pt_slot *s = &v->slots[slot];
    char name[sizeof s->name + 1] = {0};
    memcpy(name, s->name, sizeof s->name);
    PyObject *counts = describe_counts(v->counts[slot], v->uses[slot]);
    PyObject *text = counts ? PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace") : NULL;
    if (!text) {
        Py_XDECREF(counts);
        return NULL;
    }
    unsigned pid = atomic_load_explicit(&s->pid, memory_order_acquire);
    unsigned long long started = s->started, token = s->token, attached_ns = s->attached_ns;
    unsigned long long kernel_id = s->kernel_id, lock = s->lock;
    pid = pid == PT_UNSEEN_PID ? 0 : pid;
    unsigned long long pages = pins ? pins[slot].pages : 0, bytes = pins ? pins[slot].frames * v->frame_bytes : 0;
    return record_of(AttachmentRecord, Py_BuildValue("(IIIKKKKKNNKK)", slot, pid, s->uid, started, token, attached_ns,
                                                     pages, bytes, text, counts, kernel_id, lock));
}

static PyObject *describe_attachments(const pt_view *v, const pinned_by *pins)
{
    PyObject *list = PyList_New(0);
    for (uint32_t slot = 0; list && slot < PT_SLOTS; slot++)
        if (v->slots[slot].pid && !append_new(list, describe_attachment(v, slot, pins))) {
            Py_DECREF(list);
            return NULL;
        }
    return list;
}

static PyObject *describe_space(const pt_view *v, uint32_t number)
{
    const pt_space *s = &v->spaces[number];
    char name[sizeof s->name + 1] = {0};
    memcpy(name, s->name, sizeof s->name);
    PyObject *text = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace");
    unsigned long long pages = s->pages, bytes = s->bytes, disk_pages = s->disk_pages, disk_bytes = s->disk_bytes;
    unsigned long long disk_stored = s->disk_stored, listed = s->listed, used_ns = s->used_ns;
    return text ? record_of(NamespaceRecord, Py_BuildValue("(Iy#NKKKKKKKIIII)", number, (const char *)s->digest,
                                                           (Py_ssize_t)sizeof s->digest, text, pages, bytes, disk_pages,
                                                           disk_bytes, disk_stored, listed, used_ns, s->page_tokens,
                                                           s->window, (unsigned)s->group, (unsigned)s->tenant))
                : NULL;
}

static PyObject *describe_spaces(const pt_view *v)
{
    PyObject *list = PyList_New(0);
    for (uint32_t number = 0; list && number < v->header->spaces; number++)
        if (v->spaces[number].used && !append_new(list, describe_space(v, number))) {
            Py_DECREF(list);
            return NULL;
        }
    return list;
}

/* attached() -> the number of attachments. */
static PyObject *observer_attached(Observer *self, PyObject *unused)
{
    (void)unused;
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        count += self->view.slots[slot].pid != 0;
    return PyLong_FromUnsignedLong(count);
}

static PyObject *observer_header(Observer *self, PyObject *unused)
{
    (void)unused;
    return describe_header(&self->view);
}

static PyObject *observer_counts(Observer *self, PyObject *unused)
{
    (void)unused;
    return describe_all_counts(&self->view);
}

static PyObject *observer_spaces(Observer *self, PyObject *unused)
{
    (void)unused;
    return describe_spaces(&self->view);
}

/* lookups() -> SampledLookups: what is known of lookups; None if these segments have no curve. */
static PyObject *observer_lookups(Observer *self, PyObject *unused)
{
    (void)unused;
    return describe_lookups(&self->view);
}

/* curves(sizes) -> [LookupCurve]: of all namespaces, then of each that has its own; sizes: f64, in frames. */
static PyObject *observer_curves(Observer *self, PyObject *sizes) { return describe_curves(&self->view, sizes); }

static PyObject *describe_attachments_with_pins(const pt_view *v)
{
    pinned_by pins[PT_SLOTS] = {0};
    count_pins(v, pins);
    return describe_attachments(v, pins);
}

static PyObject *observer_attachments_with_pins(Observer *self, PyObject *unused)
{
    (void)unused;
    return describe_attachments_with_pins(&self->view);
}

/* status() -> the status that the daemon published last; None while it is being changed. */
static PyObject *observer_status(Observer *self, PyObject *unused)
{
    (void)unused;
    pt_header *h = self->view.header;
    uint32_t before = atomic_load_explicit(&h->status_version, memory_order_acquire), bytes = h->status_bytes;
    if (before & 1 || bytes > PT_STATUS_BYTES)
        Py_RETURN_NONE;
    PyObject *text = PyBytes_FromStringAndSize(self->view.status, bytes);
    /* The copy is complete before the version is read again. If that is the same, no other text was begun since. */
    atomic_thread_fence(memory_order_acquire);
    if (!text || atomic_load_explicit(&h->status_version, memory_order_relaxed) == before)
        return text;
    Py_DECREF(text);
    Py_RETURN_NONE;
}

/* locate(keys) -> the tiers of each page, a TierFlag (u8). */
static PyObject *observer_locate(Observer *self, PyObject *keys_object)
{
    array keys;
    return array_open(keys_object, PT_KEY_BYTES, "keys", &keys) ? tiers_of_keys(&self->view, &keys) : NULL;
}

/* pages(space, start=0, entries=all) -> rows of LISTED_LAYOUT: a namespace's pages in entries from `start` on. */
static PyObject *observer_pages(Observer *self, PyObject *args)
{
    unsigned int space, start = 0, entries = UINT32_MAX;
    const pt_view *v = &self->view;
    if (!PyArg_ParseTuple(args, "I|II", &space, &start, &entries))
        return NULL;
    uint64_t end = (uint64_t)start + entries < v->entry_count ? (uint64_t)start + entries : v->entry_count;
    size_t room = 0, count = 0;
    pt_listed *rows = NULL;
    for (uint64_t entry = start; entry < end; entry++) {
        if (count == room) {
            pt_listed *larger = realloc(rows, (room = 2 * room + 64) * sizeof *rows);
            if (!larger) {
                free(rows);
                return PyErr_NoMemory();
            }
            rows = larger;
        }
        count += pt_list_page(v, (uint32_t)entry, space, &rows[count]);
    }
    PyObject *made = PyBytes_FromStringAndSize((char *)rows, (Py_ssize_t)(count * sizeof *rows));
    free(rows);
    return made;
}

static PyMethodDef observer_methods[] = {
    {"header", (PyCFunction)observer_header, METH_NOARGS, NULL},
    {"counts", (PyCFunction)observer_counts, METH_NOARGS, NULL},
    {"attached", (PyCFunction)observer_attached, METH_NOARGS, NULL},
    {"attachments_with_pins", (PyCFunction)observer_attachments_with_pins, METH_NOARGS, NULL},
    {"spaces", (PyCFunction)observer_spaces, METH_NOARGS, NULL},
    {"lookups", (PyCFunction)observer_lookups, METH_NOARGS, NULL},
    {"curves", (PyCFunction)observer_curves, METH_O, NULL},
    {"status", (PyCFunction)observer_status, METH_NOARGS, NULL},
    {"locate", (PyCFunction)observer_locate, METH_O, NULL},
    {"pages", (PyCFunction)observer_pages, METH_VARARGS, NULL},
    {0},
};
static PyType_Slot observer_slots_table[] = {
    {Py_tp_new, observer_new}, {Py_tp_dealloc, observer_dealloc}, {Py_tp_methods, observer_methods}, {0},
};
static PyType_Spec observer_spec = {
    .name = "pagetier.shm._core.Observer",
    .basicsize = sizeof(Observer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = observer_slots_table,
};
