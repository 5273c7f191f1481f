/* owner_segments.h - the Python type Owner: the segments as the daemon uses them. One
 * thread at a time; no call blocks. */
#pragma once

#include <fnmatch.h>

#include "observer.h"

#include "../core/daemon/integrity.h"
#include "../core/daemon/idle_namespaces.h"
#include "../core/daemon/quotas.h"
#include "../core/daemon/lru.h"
#include "../core/daemon/reserve.h"
#include "../core/common/namespaces.h"

#define PATTERN_BYTES 128u

typedef struct {
    PyObject_HEAD
    mapping index, locks, arena;
    pt_owner shared;
    char patterns[PT_TENANTS][PATTERN_BYTES]; /* of the names of each tenant's namespaces */
} Owner;

static void owner_unmap(Owner *self)
{
    if (self->shared.kind)
        pt_owner_end(&self->shared);
    unmap_segment(&self->index);
    unmap_segment(&self->locks);
    unmap_segment(&self->arena);
}

static void owner_dealloc(Owner *self)
{
    owner_unmap(self);
    free_object((PyObject *)self);
}

static PyObject *owner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index_fd", "locks_fd", "arena_fd", NULL};
    int index_fd, locks_fd, arena_fd, both = PROT_READ | PROT_WRITE;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iii", names, &index_fd, &locks_fd, &arena_fd))
        return NULL;
    Owner *self = (Owner *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    if (!map_segment(index_fd, both, &self->index) || !map_segment(locks_fd, both, &self->locks) ||
        !map_segment(arena_fd, both, &self->arena)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    advise_table(&self->index);
    advise_table(&self->locks);
    madvise(self->arena.address, self->arena.bytes, MADV_DONTDUMP);
    return (PyObject *)self;
}

/* format(frame_bytes, frames, entries, spaces, segments_id, build): formats new
 * segments in the mapped, zeroed memory. */
static PyObject *owner_format(Owner *self, PyObject *args)
{
    unsigned long long frame_bytes, id;
    unsigned int frames, entries, spaces;
    const char *build;
    pt_header plan = {0};
    if (!PyArg_ParseTuple(args, "KIIIKs", &frame_bytes, &frames, &entries, &spaces, &id, &build))
        return NULL;
    pt_geometry geometry = pt_geometry_of(frame_bytes, frames, entries, spaces);
    pt_plan(&plan, &geometry);
    if (plan.index_bytes != self->index.bytes || plan.locks_bytes != self->locks.bytes ||
        plan.arena_bytes != self->arena.bytes) {
        PyErr_SetString(PyExc_ValueError, "the sizes of the segments do not match this geometry");
        return NULL;
    }
    pt_format(self->index.address, self->locks.address, &geometry, id, build);
    Py_RETURN_NONE;
}

/* unusable_reason(): the reason why this build cannot adopt the segments, None if it can. */
static PyObject *owner_unusable_reason(Owner *self, PyObject *unused)
{
    (void)unused;
    const char *reason = pt_unusable_reason(self->index.address, self->locks.address,
                                     (pt_sizes){self->index.bytes, self->locks.bytes, self->arena.bytes});
    if (!reason)
        Py_RETURN_NONE;
    return PyUnicode_FromString(reason);
}

/* attachments(): the attachments that have a slot. Before adoption the caller has to find
 * out which of their processes live. */
static PyObject *owner_attachments(Owner *self, PyObject *unused)
{
    (void)unused;
    pt_view v = pt_view_of(self->index.address, self->locks.address, self->arena.address);
    return describe_attachments(&v, NULL);
}

/* adopt(alive): derives everything from the entries; alive: bit mask of the slots whose process lives. Call
 * it once, after unusable_reason() returned None. All other methods except format, unusable_reason,
 * attachments and populate need it first. */
static PyObject *owner_adopt(Owner *self, PyObject *args)
{
    unsigned long long alive;
    bool done;
    if (!PyArg_ParseTuple(args, "K", &alive))
        return NULL;
    pt_view view = pt_view_of(self->index.address, self->locks.address, self->arena.address);
    done = pt_owner_begin(&self->shared, view, &pt_lru) && pt_adopt(&self->shared, alive);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static bool owner_ready(Owner *self);

/* learn_returns(): from now on the policy that learns when pages return chooses what leaves the arena. */
static PyObject *owner_learn_returns(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    uint64_t seed;
    if (getentropy(&seed, sizeof seed))
        return PyErr_SetFromErrno(PyExc_OSError);
    if (!pt_learn_returns(&self->shared, seed))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* forget_returns(): from now on the least recently used page leaves the arena first. */
static PyObject *owner_forget_returns(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    pt_forget_returns(&self->shared);
    Py_RETURN_NONE;
}

/* eviction() -> Eviction: which order is in force, and what it did since the segments were adopted. */
static PyObject *owner_eviction(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    const pt_owner *o = &self->shared;
    PyObject *learns = PyBool_FromLong(o->cadence != NULL);
    PyObject *learned = PyBool_FromLong(o->cadence && o->cadence->learned);
    PyObject *follows = PyBool_FromLong(o->cadence && o->cadence->shadow.follows);
    return record_of(Eviction, Py_BuildValue("(NNNKK)", learns, learned, follows, (unsigned long long)o->left_out,
                                             (unsigned long long)pt_guard_switches(o)));
}

static bool owner_ready(Owner *self)
{
    if (!self->shared.ready[0])
        PyErr_SetString(PyExc_RuntimeError, "adopt() must be called first");
    return self->shared.ready[0] != NULL;
}

/* Returns the tenant of the namespaces with this name: the first whose pattern matches the name, or the model in it,
 * which is everything before the digits of the digest. */
static uint8_t tenant_named(const Owner *self, const char *name)
{
    char model[PT_NAME_BYTES] = {0};
    strncpy(model, name, sizeof model - 1);
    if (strrchr(model, ' '))
        *strrchr(model, ' ') = 0;
    for (uint32_t tenant = 1; tenant < self->shared.tenants.count; tenant++)
        if (!fnmatch(self->patterns[tenant], name, 0) || !fnmatch(self->patterns[tenant], model, 0))
            return (uint8_t)tenant;
    return 0;
}

static bool tenant_exists(Owner *self, unsigned int tenant)
{
    bool exists = tenant < self->shared.tenants.count;
    if (!exists)
        PyErr_Format(PyExc_ValueError, "there is no tenant %u", tenant);
    return exists;
}

/* read_lookups(window_ns): reads what processes left in their rings. Lookups that are `window_ns` old count 1/e. */
static PyObject *owner_read_lookups(Owner *self, PyObject *args)
{
    unsigned long long window_ns;
    pt_owner *o = &self->shared;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "K", &window_ns))
        return NULL;
    if (!o->lookups && pt_has_curve(&o->view) && !(o->lookups = pt_lookups_create(&o->view, window_ns)))
        return PyErr_NoMemory();
    if (o->lookups)
        o->lookups->window_ns = window_ns;
    pt_lookups_drain(o->lookups, &o->view, pt_now_ns());
    Py_RETURN_NONE;
}

/* save_lookups() -> what is known of lookups, as bytes for restore_lookups(); empty if nothing is. */
static PyObject *owner_save_lookups(Owner *self, PyObject *unused)
{
    (void)unused;
    pt_owner *o = &self->shared;
    if (!owner_ready(self))
        return NULL;
    uint8_t *saved = o->lookups ? malloc(PT_SAVED_MOST) : NULL;
    if (o->lookups && !saved)
        return PyErr_NoMemory();
    size_t bytes = 0;
    if (saved) {
        pt_lookups_drain(o->lookups, &o->view, pt_now_ns());
        bytes = pt_curve_save(o->lookups, &o->view, pt_now_ns(), saved);
    }
    PyObject *done = PyBytes_FromStringAndSize((const char *)saved, (Py_ssize_t)bytes);
    free(saved);
    return done;
}

/* restore_lookups(saved) -> whether the bytes are those of a curve that continues; false if they cannot be used. */
static PyObject *owner_restore_lookups(Owner *self, PyObject *args)
{
    Py_buffer saved;
    pt_owner *o = &self->shared;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "y*", &saved))
        return NULL;
    pt_curve *scratch = calloc(1, sizeof *scratch);
    bool usable = scratch && pt_has_curve(&o->view) &&
                  pt_curve_restore(&o->view, saved.buf, (size_t)saved.len, pt_now_ns(), scratch);
    if (usable) {
        pt_lookups_destroy(o->lookups); /* the next read_lookups() derives it from the curve */
        o->lookups = NULL;
    }
    PyBuffer_Release(&saved);
    PyObject *done = scratch ? PyBool_FromLong(usable) : PyErr_NoMemory();
    free(scratch);
    return done;
}

/* populate(offset, length): allocates a range of the arena; OSError if memory is
 * short. May be called from any thread. */
static PyObject *owner_populate(Owner *self, PyObject *args)
{
    unsigned long long offset, length;
    if (!PyArg_ParseTuple(args, "KK", &offset, &length))
        return NULL;
    return populate_range(&self->arena, MADV_POPULATE_WRITE, offset, length);
}

/* allocate_lazily(arena_fd): from now on a frame is granted only after its memory was allocated, by a duplicate of this
 * descriptor; -1: through the mapping. */
static PyObject *owner_allocate_lazily(Owner *self, PyObject *args)
{
    int given, file;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "i", &given))
        return NULL;
    file = given < 0 ? -1 : fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (given >= 0 && file < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    pt_lazy_end(&self->shared.lazy);
    if (pt_lazy_begin(&self->shared.lazy, &self->shared.view, file))
        Py_RETURN_NONE;
    if (file >= 0)
        close(file);
    return PyErr_NoMemory();
}

/* lacks_memory: whether the last attempt to allocate the memory of a frame failed for lack of memory. */
static PyObject *owner_lacks_memory(Owner *self, void *unused)
{
    (void)unused;
    return owner_ready(self) ? PyBool_FromLong(self->shared.lazy.lacks) : NULL;
}

/* serve_events(): records events while there are readers. The memory of the ring is allocated for the first of them;
 * OSError if memory is short: then nothing is recorded. */
static PyObject *owner_serve_events(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    const pt_view *v = &self->shared.view;
    if (pt_events_wanted(v) && !pt_events_on(v)) {
        PyObject *done = populate_range(&self->index, MADV_POPULATE_WRITE, v->header->at_events,
                                        v->header->reserves.events);
        Py_XDECREF(done);
        if (!done)
            return NULL;
    }
    pt_serve_events(v);
    Py_RETURN_NONE;
}

/* Populates one of `shares` equal shares of a range that begins with a whole page. */
static PyObject *populate_share(const mapping *m, uint64_t from, uint64_t bytes, uint32_t share, uint32_t shares)
{
    uint64_t pages = (bytes + PT_PAGE - 1) / PT_PAGE;
    uint64_t begin = pages * share / shares * PT_PAGE, end = pages * (share + 1) / shares * PT_PAGE;
    end = end < bytes ? end : bytes;
    return populate_range(m, MADV_POPULATE_WRITE, from + begin, begin < end ? end - begin : 0);
}

/* populate_index(at_events, events_bytes, share, shares): allocates one of `shares` equal shares of the lock words and
 * of the index, except for the ring of events. May be called from any thread. */
static PyObject *owner_populate_index(Owner *self, PyObject *args)
{
    unsigned long long at, bytes;
    unsigned int share, shares;
    if (!PyArg_ParseTuple(args, "KKII", &at, &bytes, &share, &shares))
        return NULL;
    if (share >= shares)
        return PyErr_Format(PyExc_ValueError, "there is no share %u of %u", share, shares);
    const struct {
        mapping *segment;
        uint64_t from, to;
    } ranges[] = {{&self->index, 0, at},
                  {&self->index, at + bytes, self->index.bytes},
                  {&self->locks, 0, self->locks.bytes}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        PyObject *done =
            populate_share(ranges[i].segment, ranges[i].from, ranges[i].to - ranges[i].from, share, shares);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* mappings(): address and bytes of index, lock words and arena, for advice and questions about their memory. */
static PyObject *owner_mappings(Owner *self, PyObject *unused)
{
    (void)unused;
    unsigned long long of[3][2];
    const mapping *all[] = {&self->index, &self->locks, &self->arena};
    for (int i = 0; i < 3; i++) {
        of[i][0] = (uintptr_t)all[i]->address;
        of[i][1] = all[i]->bytes;
    }
    return Py_BuildValue("((KK)(KK)(KK))", of[0][0], of[0][1], of[1][0], of[1][1], of[2][0], of[2][1]);
}

/* publish_status(text): publishes the status of the daemon for observers. Raises ValueError if the text is too long. */
static PyObject *owner_publish_status(Owner *self, PyObject *args)
{
    const char *text;
    Py_ssize_t bytes;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "y#", &text, &bytes))
        return NULL;
    pt_header *h = self->shared.view.header;
    if (bytes > (Py_ssize_t)PT_STATUS_BYTES)
        return PyErr_Format(PyExc_ValueError, "a text of %zd bytes is longer than %u", bytes, PT_STATUS_BYTES);
    /* Odd first, so that no reader believes a text that is half written. Fence: a reader that sees a byte of the text
     * sees the odd version, too (tests/models/orders/status_order.pml). If the daemon dies before the version is even
     * again, its successor makes it so. */
    atomic_fetch_add_explicit(&h->status_version, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    PT_POINT("status.odd");
    memcpy(self->shared.view.status, text, (size_t)bytes);
    h->status_bytes = (uint32_t)bytes;
    PT_POINT("status.written");
    atomic_fetch_add_explicit(&h->status_version, 1, memory_order_release);
    Py_RETURN_NONE;
}
