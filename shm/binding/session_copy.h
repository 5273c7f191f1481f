/* session_copy.h - gather and scatter: reads the tables of a transfer from Python,
 * for plain memory and for sessions. */
#pragma once

#include "session_match.h"

#include "../core/client/copy_strided.h"

enum { PLANES, PAGES, BLOCKS, SKIP, TABLES };

/* The arguments that all four calls share. */
typedef struct {
    PyObject *objects[TABLES];
    long long block_tokens;
    unsigned int threads;
    array arrays[TABLES];
    pt_transfer transfer;
} tables;

#define TABLES_OF(t) \
    &(t).objects[PLANES], &(t).objects[PAGES], &(t).objects[BLOCKS], &(t).block_tokens, &(t).objects[SKIP], &(t).threads

static bool refused(const char *table, const char *why)
{
    PyErr_Format(PyExc_ValueError, "%s: %s", table, why);
    return false;
}

static bool tables_opened(int first, tables *t)
{
    static const struct {
        const char *name;
        Py_ssize_t element;
    } all[TABLES] = {{"planes", sizeof(pt_plane)}, {"pages", sizeof(pt_tokens)}, {"blocks", 4}, {"skip", 1}};
    for (int i = first; i < TABLES; i++)
        if (!array_open(t->objects[i], all[i].element, all[i].name, &t->arrays[i])) {
            arrays_close(t->arrays + first, i - first);
            return false;
        }
    return true;
}

static void tables_close_from(int first, tables *t) { arrays_close(t->arrays + first, TABLES - first); }

/* Opens the tables from number `first` on; those before it are empty. Returns false with an exception set if they are
 * not valid; after true the caller calls tables_close_from. */
static bool tables_open_from(int first, tables *t)
{
    memset(t->arrays, 0, sizeof t->arrays);
    if (!tables_opened(first, t))
        return false;
    const array *a = t->arrays;
    t->transfer = (pt_transfer){
        .planes = a[PLANES].view.buf, .plane_count = a[PLANES].count,
        .pages = a[PAGES].view.buf,   .page_count = a[PAGES].count,
        .blocks = a[BLOCKS].view.buf, .block_count = a[BLOCKS].count,
        .skip = a[SKIP].count ? a[SKIP].view.buf : NULL, .block_tokens = t->block_tokens,
    };
    if (!a[SKIP].count || a[SKIP].count == a[PAGES].count)
        return true;
    PyErr_Format(PyExc_ValueError, "skip: %zd flags for %zd pages", a[SKIP].count, a[PAGES].count);
    tables_close_from(first, t);
    return false;
}

/* The same for all tables. */
static bool tables_open(tables *t) { return tables_open_from(PLANES, t); }
static void tables_close(tables *t) { tables_close_from(PLANES, t); }

/* Validates the tables. Returns false with an exception set that says what is wrong. */
static bool tables_sound(const tables *t)
{
    pt_flaw flaw = pt_transfer_flaw(&t->transfer);
    if (flaw.why && flaw.row >= 0)
        PyErr_Format(PyExc_ValueError, "%s[%lld]: %s", flaw.table, (long long)flaw.row, flaw.why);
    else if (flaw.why)
        refused(flaw.table, flaw.why);
    return !flaw.why;
}

/* Sets the frames of a transfer in plain memory. Returns false with an exception set if they are not valid. */
static bool tables_frames(tables *t, long long arena, long long arena_bytes, long long frame_bytes, const array *frames)
{
    pt_transfer *of = &t->transfer;
    if (arena < 1 || arena_bytes < 0)
        return refused("arena", "not a valid range of memory");
    if (frame_bytes < 1)
        return refused("frame_bytes", "at least 1");
    of->arena = (uint8_t *)(uintptr_t)arena;
    of->frame_bytes = (uint64_t)frame_bytes;
    of->frame_count = (uint64_t)(arena_bytes / frame_bytes);
    of->frames = frames->view.buf;
    of->page_frames = of->page_count ? (uint64_t)(frames->count / of->page_count) : 0;
    if ((int64_t)of->page_frames * of->page_count != frames->count)
        return refused("frames", "not as many for each page");
    if (__builtin_mul_overflow(of->page_frames, of->frame_bytes, &of->page_bytes) || of->page_bytes > INT64_MAX)
        return refused("frames", "a page's bytes exceed 64 bits");
    return true;
}

static PyObject *plain_transfer(PyObject *args, enum pt_direction way)
{
    long long arena, arena_bytes, frame_bytes;
    PyObject *object;
    array frames;
    tables t;
    if (!PyArg_ParseTuple(args, "LLLOOOOLOI", &arena, &arena_bytes, &frame_bytes, &object, TABLES_OF(t)) ||
        !tables_open(&t))
        return NULL;
    if (!array_open(object, 4, "frames", &frames)) {
        tables_close(&t);
        return NULL;
    }
    bool sound = tables_frames(&t, arena, arena_bytes, frame_bytes, &frames) && tables_sound(&t);
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        pt_transfer_run(&t.transfer, way, t.threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&frames.view);
    tables_close(&t);
    return sound ? Py_NewRef(Py_None) : NULL;
}

/* gather(arena, arena_bytes, frame_bytes, frames, planes, pages, blocks,
 * block_tokens, skip, threads): cache -> arena. */
static PyObject *strided_gather(PyObject *module, PyObject *args)
{
    (void)module;
    return plain_transfer(args, PT_INTO_ARENA);
}

/* scatter(...), with the same arguments: arena -> cache. */
static PyObject *strided_scatter(PyObject *module, PyObject *args)
{
    (void)module;
    return plain_transfer(args, PT_OUT_OF_ARENA);
}

/* Reads the frames of a page of the transfer's size. Returns false if the process may not copy it in this direction, or
 * if the list of its frames is damaged. */
static bool frames_read(const pt_session *s, uint32_t entry, enum pt_direction way, uint64_t bytes, uint32_t *frames)
{
    if (entry >= s->view.entry_count)
        return false;
    if (way == PT_INTO_ARENA && !pt_was_granted(&s->view.entries[entry], s->slot))
        return false;
    return pt_frame_list_read(&s->view, entry, bytes, frames);
}

/* Collects the frames of the pages. The transfer ends before the first page whose frames cannot be read. */
static void transfer_collect(const pt_session *s, const uint32_t *entries, enum pt_direction way, pt_transfer *t,
                             uint32_t *frames)
{
    int64_t i = 0;
    for (; i < t->page_count; i++) {
        bool skipped = t->skip && t->skip[i];
        if (!skipped && !frames_read(s, entries[i], way, t->page_bytes, frames + (uint64_t)i * t->page_frames))
            break;
    }
    t->page_count = i;
    t->frames = frames;
}

static uint64_t pages_copied(const pt_transfer *t)
{
    uint64_t count = 0;
    for (int64_t i = 0; i < t->page_count; i++)
        count += !(t->skip && t->skip[i]);
    return count;
}

/* Runs a valid transfer. Returns how many pages from the first one on were done. */
static PyObject *session_transfer(Session *self, const uint32_t *entries, tables *tables, enum pt_direction way)
{
    pt_transfer *t = &tables->transfer;
    size_t bytes;
    uint32_t *frames = NULL;
    if (!__builtin_mul_overflow((size_t)t->page_count, t->page_frames * sizeof *frames, &bytes))
        frames = malloc(bytes + 1);
    if (!frames)
        return PyErr_NoMemory();
    transfer_collect(&self->shared, entries, way, t, frames);
    self->busy++;
    Py_BEGIN_ALLOW_THREADS
    uint64_t began = pt_now_ns();
    pt_transfer_run(t, way, tables->threads);
    count_copy(&self->shared, way, began);
    Py_END_ALLOW_THREADS
    self->busy--;
    free(frames);
    if (way == PT_OUT_OF_ARENA) {
        pt_count(&self->shared.counts->loaded_pages, pages_copied(t));
        pt_count(&self->shared.counts->loaded_bytes, pt_transfer_bytes(t));
    }
    return PyLong_FromLongLong(t->page_count);
}

/* Sets the session's part of the tables. Returns false with an exception set if the tables do not fit it. */
static bool session_tables(const Session *self, tables *t, long long page_bytes)
{
    const pt_view *v = &self->shared.view;
    pt_transfer *of = &t->transfer;
    if (page_bytes < 0)
        return refused("page_bytes", "must not be negative");
    of->arena = v->arena;
    of->frame_bytes = v->frame_bytes;
    of->frame_count = v->frame_count;
    of->page_bytes = (uint64_t)page_bytes;
    /* A page cannot be larger than the arena: of such a page no frame is collected. */
    of->page_frames = of->page_bytes > self->arena.bytes ? 0 : pt_frames_for(v, of->page_bytes);
    return tables_sound(t);
}

/* gather(entries, page_bytes, planes, pages, blocks, block_tokens, skip, threads):
 * copies a cache into granted pages. */
static PyObject *session_gather(Session *self, PyObject *args)
{
    PyObject *object, *done = NULL;
    long long page_bytes;
    array entries;
    tables t;
    if (!PyArg_ParseTuple(args, "OLOOOLOI", &object, &page_bytes, TABLES_OF(t)) || !tables_open(&t))
        return NULL;
    if (array_open(object, 4, "entries", &entries)) {
        if (entries.count != t.transfer.page_count)
            PyErr_Format(PyExc_ValueError, "entries: %zd for %zd pages", entries.count, t.arrays[PAGES].count);
        else if (!handle_usable(self))
            done = PyLong_FromLong(0);
        else if (session_tables(self, &t, page_bytes))
            done = session_transfer(self, entries.view.buf, &t, PT_INTO_ARENA);
        PyBuffer_Release(&entries.view);
    }
    tables_close(&t);
    return done;
}

/* scatter(pins, first, page_bytes, planes, pages, blocks, block_tokens, skip, threads):
 * copies pinned pages into a cache. */
static PyObject *session_scatter(Session *self, PyObject *args)
{
    Pins *pins;
    PyObject *done = NULL;
    unsigned int first;
    long long page_bytes;
    tables t;
    if (!PyArg_ParseTuple(args, "O!ILOOOLOI", PinsType, &pins, &first, &page_bytes, TABLES_OF(t)) || !tables_open(&t))
        return NULL;
    if (!handle_usable(self) || !pins->pinned || pins->session != self) {
        tables_close(&t);
        return PyLong_FromLong(0);
    }
    pins->copying++;
    if (first > pins->count || t.transfer.page_count > pins->count - first)
        PyErr_Format(PyExc_ValueError, "%zd pages from page %u on, but %u are pinned", t.arrays[PAGES].count, first,
                     pins->count);
    else if (session_tables(self, &t, page_bytes))
        done = session_transfer(self, pins->entries + first, &t, PT_OUT_OF_ARENA);
    pins->copying--;
    pins_drop(pins);
    tables_close(&t);
    return done;
}
