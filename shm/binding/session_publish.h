/* session_publish.h - the rest of the type Session: finishing and abandoning parts,
 * populating, counting, properties. */
#pragma once

#include "session_events.h"
#include "session_match_groups.h"
#include "session_copy.h"

/* Returns whether the entry is still the filling that was granted and the part belongs to this process. Parts of other
 * processes are left alone. */
static bool still_granted(const pt_session *s, uint32_t entry, uint64_t serial, uint32_t part)
{
    const pt_view *v = &s->view;
    return entry < v->entry_count && part < PT_PARTS && v->entries[entry].serial == serial &&
           v->entries[entry].writers[part] == s->slot;
}

/* Returns the bytes of a part, as if all parts of the page had as many: their sum is that of the page. */
static uint64_t part_bytes(const pt_entry *e, uint32_t part)
{
    return e->parts ? e->size * (part + 1) / e->parts - e->size * part / e->parts : 0;
}

static bool part_finish(Session *self, uint32_t entry, uint64_t serial, uint32_t part)
{
    const pt_view *v = &self->shared.view;
    uint64_t bytes = part_bytes(&v->entries[entry < v->entry_count ? entry : 0], part);
    bool stored = still_granted(&self->shared, entry, serial, part) && pt_part_finish(v, entry, part);
    pt_count(stored ? &self->shared.counts->stored_pages : &self->shared.counts->lost_pages, 1);
    pt_count(&self->shared.counts->stored_bytes, stored ? bytes : 0);
    return stored;
}

/* publish(entries, serials, part): finishes a part of each page; one byte per page: 1
 * stored, 0 doomed before it was finished. */
static PyObject *session_publish(Session *self, PyObject *args)
{
    PyObject *entries, *serials, *flags;
    unsigned int part;
    array of[2];
    if (!PyArg_ParseTuple(args, "OOI", &entries, &serials, &part))
        return NULL;
    if (!arrays_open((array_wanted[]){{entries, 4, "entries"}, {serials, 8, "serials"}}, 2, of))
        return NULL;
    flags = PyBytes_FromStringAndSize(NULL, of[0].count);
    for (Py_ssize_t i = 0; flags && i < of[0].count; i++)
        PyBytes_AsString(flags)[i] = handle_usable(self) && part_finish(self, ((uint32_t *)of[0].view.buf)[i],
                                                                        ((uint64_t *)of[1].view.buf)[i], part);
    arrays_close(of, 2);
    return flags;
}

/* abandon(entries, serials, part): releases parts without finishing them. */
static PyObject *session_abandon(Session *self, PyObject *args)
{
    PyObject *entries, *serials;
    unsigned int part;
    array of[2];
    if (!PyArg_ParseTuple(args, "OOI", &entries, &serials, &part))
        return NULL;
    if (!arrays_open((array_wanted[]){{entries, 4, "entries"}, {serials, 8, "serials"}}, 2, of))
        return NULL;
    for (Py_ssize_t i = 0; handle_usable(self) && i < of[0].count; i++) {
        uint32_t entry = ((uint32_t *)of[0].view.buf)[i];
        if (still_granted(&self->shared, entry, ((uint64_t *)of[1].view.buf)[i], part))
            pt_part_abandon(&self->shared.view, entry, part);
    }
    arrays_close(of, 2);
    Py_RETURN_NONE;
}

/* frames(entry) -> the frames of a page, u32; empty if the list is damaged. The caller has
 * the page pinned or was granted it. */
static PyObject *session_frames(Session *self, PyObject *args)
{
    unsigned int entry;
    if (!PyArg_ParseTuple(args, "I", &entry))
        return NULL;
    const pt_view *v = &self->shared.view;
    bool sound = handle_usable(self) && entry < v->entry_count && pt_frame_list_holds(v, entry);
    uint32_t count = sound ? v->entries[entry].frame_count : 0;
    PyObject *frames = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 4);
    for (uint32_t i = 0, frame = count ? v->entries[entry].first_frame : PT_NONE; frames && i < count; i++) {
        memcpy(PyBytes_AsString(frames) + 4 * i, &frame, 4);
        frame = v->frames[frame].next;
    }
    return frames;
}

/* populate(offset, length): maps a range of the arena before its first use. */
static PyObject *session_populate(Session *self, PyObject *args)
{
    unsigned long long offset, length;
    if (!PyArg_ParseTuple(args, "KK", &offset, &length))
        return NULL;
    if (!handle_usable(self))
        Py_RETURN_NONE;
    self->busy++;
    PyObject *done = populate_range(&self->arena, MADV_POPULATE_WRITE, offset, length);
    self->busy--;
    return done;
}

/* populate_index(): maps index and lock words before the first match. */
static PyObject *session_populate_index(Session *self, PyObject *unused)
{
    (void)unused;
    if (!handle_usable(self))
        Py_RETURN_NONE;
    self->busy++;
    PyObject *index = populate_range(&self->index, MADV_POPULATE_READ, 0, self->shared.view.header->at_events);
    PyObject *locks = index ? populate_range(&self->locks, MADV_POPULATE_WRITE, 0, self->locks.bytes) : NULL;
    self->busy--;
    Py_XDECREF(index);
    return locks;
}

/* retain_arena(): keeps the arena mapped for a user that this process cannot wait for, such as a GPU; retire()
 * returns False until release_arena(). */
static PyObject *session_retain_arena(Session *self, PyObject *unused)
{
    (void)unused;
    self->retained++;
    self->busy++;
    Py_INCREF((PyObject *)self);
    Py_RETURN_NONE;
}

/* release_arena(): ends one retain_arena(). */
static PyObject *session_release_arena(Session *self, PyObject *unused)
{
    (void)unused;
    if (!self->retained) {
        PyErr_SetString(PyExc_RuntimeError, "release_arena() without retain_arena()");
        return NULL;
    }
    self->retained--;
    self->busy--;
    Py_DECREF((PyObject *)self);
    Py_RETURN_NONE;
}

/* count_loaded(pages, bytes): counts what others copied out of pages that this
 * process had pinned, for the statistics. */
static PyObject *session_count_loaded(Session *self, PyObject *args)
{
    unsigned long long pages, bytes;
    if (!PyArg_ParseTuple(args, "KK", &pages, &bytes))
        return NULL;
    if (handle_usable(self)) {
        pt_count(&self->shared.counts->loaded_pages, pages);
        pt_count(&self->shared.counts->loaded_bytes, bytes);
    }
    Py_RETURN_NONE;
}

/* count_lookup(hit_pages, miss_pages, memory_tokens, disk_tokens, missed_tokens, remote_tokens=0,
 * memory_slower_tokens=0, disk_slower_tokens=0, remote_slower_tokens=0): counts one request's lookup, for
 * callers that match groups. */
static PyObject *session_count_lookup(Session *self, PyObject *args)
{
    unsigned long long hits, misses, memory, disk, missed, remote = 0, slower[3] = {0};
    if (!PyArg_ParseTuple(args, "KKKKK|KKKK", &hits, &misses, &memory, &disk, &missed, &remote, &slower[0], &slower[1],
                          &slower[2]))
        return NULL;
    if (handle_usable(self))
        pt_count_lookup(&self->shared, (pt_lookup){hits, misses, memory, disk, missed, remote, slower[0], slower[1],
                                                   slower[2]});
    Py_RETURN_NONE;
}

/* Returns the namespace of a page, PT_NONE if the page is in no tier. */
static uint32_t session_space_of(pt_session *s, const uint8_t *key)
{
    pthread_mutex_lock(&s->lock);
    pt_found found = pt_find(s, key);
    if (found.where == PT_IN_MEMORY)
        pt_release_one(s, found.entry);
    pthread_mutex_unlock(&s->lock);
    return found.where == PT_NOWHERE ? PT_NONE : s->view.entries[found.entry].space;
}

/* sample(keys, found): leaves a lookup that found the first `found` keys, for callers that match groups. */
static PyObject *session_sample_lookup(Session *self, PyObject *args)
{
    PyObject *given;
    unsigned int found;
    array keys;
    if (!PyArg_ParseTuple(args, "OI", &given, &found) || !array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    if (handle_usable(self) && found <= keys.count) {
        uint32_t space = found ? session_space_of(&self->shared, keys.view.buf) : PT_NONE;
        pt_sample_lookup(&self->shared, keys.view.buf, found, (uint32_t)keys.count, space);
    }
    PyBuffer_Release(&keys.view);
    Py_RETURN_NONE;
}

static PyObject *session_usable(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(handle_usable(self));
}

/* True after the daemon was stopped for good: the process should unmap the memory. */
static PyObject *session_closed(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!handle_usable(self) ||
                           atomic_load_explicit(&self->shared.view.header->closed, memory_order_acquire));
}

static PyObject *session_number(Session *self, void *which)
{
    uint64_t value = 0;
    if (handle_usable(self)) {
        const pt_header *h = self->shared.view.header;
        const uint64_t values[] = {h->segments_id, h->incarnation, h->frame_bytes, h->arena_bytes, self->shared.slot,
                                   (uintptr_t)self->shared.view.arena, h->disk_frames * h->frame_bytes};
        value = values[(uintptr_t)which];
    }
    return PyLong_FromUnsignedLongLong(value);
}

static PyMethodDef session_methods[] = {
    {"match", (PyCFunction)(void (*)(void))session_match, METH_FASTCALL, NULL},
    {"rematch", (PyCFunction)(void (*)(void))session_rematch, METH_FASTCALL, NULL},
    {"match_groups", (PyCFunction)session_match_groups, METH_VARARGS, NULL},
    {"repin", (PyCFunction)session_repin, METH_VARARGS, NULL},
    {"copy_out", (PyCFunction)session_copy_out, METH_VARARGS, NULL},
    {"copy_in", (PyCFunction)session_copy_in, METH_VARARGS, NULL},
    {"gather", (PyCFunction)session_gather, METH_VARARGS, NULL},
    {"scatter", (PyCFunction)session_scatter, METH_VARARGS, NULL},
    {"publish", (PyCFunction)session_publish, METH_VARARGS, NULL},
    {"abandon", (PyCFunction)session_abandon, METH_VARARGS, NULL},
    {"frames", (PyCFunction)session_frames, METH_VARARGS, NULL},
    {"count_loaded", (PyCFunction)session_count_loaded, METH_VARARGS, NULL},
    {"count_lookup", (PyCFunction)session_count_lookup, METH_VARARGS, NULL},
    {"sample", (PyCFunction)session_sample_lookup, METH_VARARGS, NULL},
    {"count_apart", (PyCFunction)session_count_apart, METH_NOARGS, NULL},
    {"count_time", (PyCFunction)session_count_time, METH_VARARGS, NULL},
    {"retain_arena", (PyCFunction)session_retain_arena, METH_NOARGS, NULL},
    {"release_arena", (PyCFunction)session_release_arena, METH_NOARGS, NULL},
    {"populate_index", (PyCFunction)session_populate_index, METH_NOARGS, NULL},
    {"read_events", (PyCFunction)session_read_events, METH_NOARGS, NULL},
    {"locate", (PyCFunction)session_locate, METH_O, NULL},
    {"retire", (PyCFunction)session_retire, METH_NOARGS, NULL},
    {"populate", (PyCFunction)session_populate, METH_VARARGS, NULL},
    {0},
};
static PyGetSetDef session_getset[] = {
    {"usable", (getter)session_usable, NULL, NULL, NULL},
    {"closed", (getter)session_closed, NULL, NULL, NULL},
    {"segments_id", (getter)session_number, NULL, NULL, (void *)0},
    {"incarnation", (getter)session_number, NULL, NULL, (void *)1},
    {"frame_bytes", (getter)session_number, NULL, NULL, (void *)2},
    {"arena_bytes", (getter)session_number, NULL, NULL, (void *)3},
    {"slot", (getter)session_number, NULL, NULL, (void *)4},
    {"arena_address", (getter)session_number, NULL, NULL, (void *)5},
    {"disk_bytes", (getter)session_number, NULL, NULL, (void *)6},
    {"disk_complete", (getter)session_disk_complete, NULL, NULL, NULL},
    {"asks_fleet", (getter)session_asks_fleet, NULL, NULL, NULL},
    {0},
};
static PyType_Slot session_slots[] = {
    {Py_tp_new, session_new},         {Py_tp_dealloc, session_dealloc}, {Py_tp_methods, session_methods},
    {Py_tp_getset, session_getset}, {0},
};
static PyType_Spec session_spec = {
    .name = "pagetier.shm._core.Session",
    .basicsize = sizeof(Session),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = session_slots,
};
