/* session_match.h - the Python type Session: the operations of an attached process. None
 * of them waits for another process. */
#pragma once

#include "pins.h"

#include "../core/client/sample.h"

#define BRIEF 512u /* keys that are matched without releasing the GIL: about 50 us */

static void session_unmap(Session *self)
{
    if (handle_usable(self)) {
        unmap_segment(&self->index);
        unmap_segment(&self->locks);
        unmap_segment(&self->arena);
        munmap(self->shared.own_pins, self->own_pins_bytes);
        pthread_mutex_destroy(&self->shared.lock);
    }
    self->open = false;
}

/* Clears all pin bits that this process still has set. */
static void session_unpin_all(pt_session *s)
{
    for (uint32_t entry = 0; entry < s->view.entry_count; entry++)
        if (s->own_pins[entry].pins)
            pt_unpin(&s->view.locks[entry].word, s->slot);
    PT_POINT("retire.unpinned");
}

/* retire() -> bool: closes the handle and releases its pins; False, and no effect, while
 * another thread copies or matches. */
static PyObject *session_retire(Session *self, PyObject *unused)
{
    (void)unused;
    if (handle_usable(self) && self->busy)
        Py_RETURN_FALSE;
    if (handle_usable(self))
        session_unpin_all(&self->shared);
    session_unmap(self);
    Py_RETURN_TRUE;
}

static void session_dealloc(Session *self)
{
    session_unmap(self);
    free_object((PyObject *)self);
}

/* Raises OSError if forked children would inherit the mapping: one that did would
 * keep the lock of its parent's slot. */
static bool keep_from_children(const mapping *m)
{
    return madvise(m->address, m->bytes, MADV_DONTFORK) == 0 || PyErr_SetFromErrno(PyExc_OSError) != NULL;
}

static bool session_map(Session *self, int index_fd, int locks_fd, int arena_fd)
{
    int both = PROT_READ | PROT_WRITE;
    return map_segment(index_fd, PROT_READ, &self->index) && map_segment(locks_fd, both, &self->locks) &&
           map_segment(arena_fd, both, &self->arena) && keep_from_children(&self->index) &&
           keep_from_children(&self->locks) && keep_from_children(&self->arena);
}

static void session_advise(Session *self)
{
    mapping *all[] = {&self->index, &self->locks, &self->arena};
    for (int i = 0; i < 3; i++)
        madvise(all[i]->address, all[i]->bytes, MADV_DONTDUMP);
    advise_table(&self->index);
    advise_table(&self->locks);
}

static bool session_start(Session *self, unsigned int slot)
{
    pt_sizes sizes = {self->index.bytes, self->locks.bytes, self->arena.bytes};
    const char *reason = pt_unusable_reason(self->index.address, self->locks.address, sizes);
    if (reason || slot >= PT_SLOTS) {
        PyErr_Format(ShmError, "cannot attach: %s (this build reads format %u)", reason ? reason : "no such slot",
                     PT_FORMAT);
        return false;
    }
    self->shared.view = pt_view_of(self->index.address, self->locks.address, self->arena.address);
    self->shared.slot = slot;
    self->shared.counts = &self->shared.view.counts[slot];
    self->own_pins_bytes = pt_round_up((uint64_t)self->shared.view.entry_count * sizeof *self->shared.own_pins);
    self->shared.own_pins = mmap(NULL, self->own_pins_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (self->shared.own_pins == MAP_FAILED)
        return PyErr_NoMemory() != NULL;
    /* a child's copy, which it never uses, only costs */
    madvise(self->shared.own_pins, self->own_pins_bytes, MADV_DONTFORK);
    madvise(self->shared.own_pins, self->own_pins_bytes, MADV_HUGEPAGE);
    pthread_mutex_init(&self->shared.lock, NULL);
    self->open = true;
    return true;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index_fd", "locks_fd", "arena_fd", "slot", NULL};
    int index_fd, locks_fd, arena_fd;
    unsigned int slot;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiI", names, &index_fd, &locks_fd, &arena_fd, &slot))
        return NULL;
    Session *self = (Session *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    self->forks = atomic_load_explicit(&forks, memory_order_relaxed);
    if (session_map(self, index_fd, locks_fd, arena_fd) && session_start(self, slot)) {
        session_advise(self);
        return (PyObject *)self;
    }
    unmap_segment(&self->index);
    unmap_segment(&self->locks);
    unmap_segment(&self->arena);
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* pt_look_up for the first match of a request, pt_match for another one. */
typedef void search(pt_session *s, const uint8_t *keys, uint32_t count, pt_matched *to);

static void session_search(Session *self, search *find, const uint8_t *keys, Pins *pins)
{
    pt_matched to = {pins->entries, pins->serials, 0, 0};
    find(&self->shared, keys, pins->asked, &to);
    pins->count = to.count;
    pins->reach = to.reach;
    pins->pinned = true;
}

/* Does what both kinds of match have in common, without counting. */
static Pins *session_find(Session *self, search *find, PyObject *type, PyObject *context, PyObject *given)
{
    array keys;
    if (!array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    Pins *pins = pins_new((PyTypeObject *)type, self, context, (uint32_t)keys.count);
    if (pins && handle_usable(self)) {
        if (pins->asked <= BRIEF) {
            session_search(self, find, keys.view.buf, pins);
        } else {
            self->busy++;
            Py_BEGIN_ALLOW_THREADS
            session_search(self, find, keys.view.buf, pins);
            Py_END_ALLOW_THREADS
            self->busy--;
        }
    }
    PyBuffer_Release(&keys.view);
    return pins;
}

/* Counts a match. The tokens from the first page on disk on are counted when they were loaded, or at the release. */
static void session_count_match(Session *self, Pins *pins, uint64_t page_tokens)
{
    uint64_t missed = (pins->asked - pins->reach) * page_tokens;
    pt_count_lookup(&self->shared, (pt_lookup){.hit_pages = pins->count,
                                               .miss_pages = pins->asked - pins->count,
                                               .memory_tokens = pins->count * page_tokens,
                                               .missed_tokens = missed});
    pins->page_tokens = (uint32_t)page_tokens;
    pins->uncounted = pins->reach - pins->count;
}

static bool session_is_pins(PyObject *type)
{
    return PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, PinsType);
}

/* match(type, context, keys, page_tokens): a new `type` with the longest readable prefix of keys, pinned. It
 * counts as a lookup in the statistics. */
static PyObject *session_match(Session *self, PyObject *const *args, Py_ssize_t count)
{
    unsigned long page_tokens = count == 4 ? PyLong_AsUnsignedLong(args[3]) : 0;
    if (PyErr_Occurred())
        return NULL;
    if (count < 3 || count > 4 || !session_is_pins(args[0])) {
        PyErr_SetString(PyExc_TypeError, "match(type, context, keys, page_tokens=0)");
        return NULL;
    }
    Pins *pins = session_find(self, pt_look_up, args[0], args[1], args[2]);
    if (pins && pins->pinned && handle_usable(self))
        session_count_match(self, pins, page_tokens);
    return (PyObject *)pins;
}

/* rematch(type, context, keys, first): a match that belongs to the lookup of `first`
 * and does not count as another one. */
static PyObject *session_rematch(Session *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !session_is_pins(args[0]) || !session_is_pins((PyObject *)Py_TYPE(args[3]))) {
        PyErr_SetString(PyExc_TypeError, "rematch(type, context, keys, first)");
        return NULL;
    }
    Pins *pins = session_find(self, pt_match, args[0], args[1], args[2]), *first = (Pins *)args[3];
    if (pins) {
        pins->first = first->first ? first->first : first;
        Py_INCREF((PyObject *)pins->first);
    }
    return (PyObject *)pins;
}

/* repin(type, context, entries, serials): pins what another process matched, up to the first page that is gone. */
static PyObject *session_repin(Session *self, PyObject *args)
{
    PyTypeObject *type;
    PyObject *context, *entries, *serials;
    array got[2];
    if (!PyArg_ParseTuple(args, "O!OOO", &PyType_Type, &type, &context, &entries, &serials))
        return NULL;
    if (!PyType_IsSubtype(type, PinsType)) {
        PyErr_SetString(PyExc_TypeError, "repin(type, context, entries, serials)");
        return NULL;
    }
    if (!arrays_open((array_wanted[]){{entries, 4, "entries"}, {serials, 8, "serials"}}, 2, got))
        return NULL;
    Pins *pins = pins_new(type, self, context, (uint32_t)got[0].count);
    if (pins && handle_usable(self)) {
        memcpy(pins->entries, got[0].view.buf, (size_t)got[0].view.len);
        memcpy(pins->serials, got[1].view.buf, (size_t)got[1].view.len);
        pins->count = pins->reach = pt_repin(&self->shared, pins->entries, pins->serials, pins->asked);
        pins->pinned = true;
    }
    arrays_close(got, 2);
    return (PyObject *)pins;
}

/* Returns whether the job may write to its page: only if this process was granted a part of it. */
static bool pt_job_is_ours(const pt_session *s, const pt_job *job)
{
    return pt_job_fits(&s->view, job) && pt_was_granted(&s->view.entries[job->entry], s->slot);
}

/* Fills `jobs` from the arrays, up to the first job that does not fit its page. Returns how many it filled. Only whole
 * pages are copied out of the arena. */
static uint32_t jobs_fill(const pt_session *s, const uint32_t *entries, const array *to, uint64_t offset,
                          enum pt_direction way, pt_job *jobs)
{
    const pt_view *v = &s->view;
    uint32_t i = 0;
    for (; i < to[0].count; i++) {
        uint64_t address = ((uint64_t *)to[0].view.buf)[i], bytes = ((uint64_t *)to[1].view.buf)[i];
        jobs[i] = (pt_job){entries[i], (uint8_t *)(uintptr_t)address, offset, bytes};
        if (!(way == PT_OUT_OF_ARENA ? pt_job_is_whole(v, &jobs[i]) : pt_job_is_ours(s, &jobs[i])))
            break;
    }
    return i;
}

static PyObject *jobs_run(Session *self, const uint32_t *entries, const array *to, uint64_t offset,
                          enum pt_direction way, unsigned int threads)
{
    uint64_t bytes = 0;
    pt_job *jobs = malloc((size_t)to[0].count * sizeof *jobs + 1);
    if (!jobs)
        return PyErr_NoMemory();
    uint32_t count = jobs_fill(&self->shared, entries, to, offset, way, jobs);
    self->busy++;
    Py_BEGIN_ALLOW_THREADS
    uint64_t began = pt_now_ns();
    pt_copy(&self->shared.view, jobs, count, way, threads);
    count_copy(&self->shared, way, began);
    Py_END_ALLOW_THREADS
    self->busy--;
    for (uint32_t i = 0; i < count; i++)
        bytes += jobs[i].bytes;
    free(jobs);
    if (way == PT_OUT_OF_ARENA) {
        pt_count(&self->shared.counts->loaded_pages, count);
        pt_count(&self->shared.counts->loaded_bytes, bytes);
    }
    return PyLong_FromUnsignedLong(count);
}

/* copy_out(pins, first, addresses, sizes, threads): copies pages from `first` on to plain memory; returns how many. */
static PyObject *session_copy_out(Session *self, PyObject *args)
{
    Pins *pins;
    unsigned int first, threads;
    PyObject *addresses, *sizes, *done = NULL;
    array to[2];
    if (!PyArg_ParseTuple(args, "O!IOOI", PinsType, &pins, &first, &addresses, &sizes, &threads))
        return NULL;
    if (!handle_usable(self) || !pins->pinned || pins->session != self)
        return PyLong_FromLong(0);
    if (!arrays_open((array_wanted[]){{addresses, 8, "addresses"}, {sizes, 8, "sizes"}}, 2, to))
        return NULL;
    pins->copying++;
    if (first > pins->count || to[0].count > pins->count - first)
        PyErr_Format(PyExc_ValueError, "%zd pages from page %u on, but %u are pinned", to[0].count, first, pins->count);
    else
        done = jobs_run(self, pins->entries + first, to, 0, PT_OUT_OF_ARENA, threads);
    pins->copying--;
    pins_drop(pins);
    arrays_close(to, 2);
    return done;
}

/* copy_in(entries, addresses, sizes, offset, threads): copies plain memory into granted
 * pages, from byte `offset` of each on. */
static PyObject *session_copy_in(Session *self, PyObject *args)
{
    PyObject *entries, *addresses, *sizes, *done;
    unsigned long long offset;
    unsigned int threads;
    array from[3];
    if (!PyArg_ParseTuple(args, "OOOKI", &entries, &addresses, &sizes, &offset, &threads))
        return NULL;
    if (!handle_usable(self))
        return PyLong_FromLong(0);
    if (!arrays_open((array_wanted[]){{addresses, 8, "addresses"}, {sizes, 8, "sizes"}, {entries, 4, "entries"}}, 3,
                     from))
        return NULL;
    done = jobs_run(self, from[2].view.buf, from, offset, PT_INTO_ARENA, threads);
    arrays_close(from, 3);
    return done;
}
