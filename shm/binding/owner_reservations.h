/* owner_reservations.h - the type Owner: pages and processes, after adoption. */
#pragma once

#include "owner_segments.h"
#include "page_rows.h"

#include "../core/daemon/write_quota.h"

static bool request_sound(Owner *self, const pt_request *r)
{
    const pt_view *v = &self->shared.view;
    if (r->slot < PT_SLOTS && r->space < v->header->spaces && v->spaces[r->space].used && r->parts >= 1 &&
        r->parts <= PT_PARTS && r->part < r->parts && r->prompt_kind <= PT_PROMPT_NONE)
        return true;
    PyErr_Format(PyExc_ValueError, "slot %u, namespace %u, part %u of %u or prompt kind %u is invalid", r->slot,
                 r->space, r->part, r->parts, (unsigned)r->prompt_kind);
    return false;
}

/* Reads a prompt, a tuple of the number of its first page in the request, the key of the page before it (b"": none, or
 * not known), which it refers to, and the number of its first page in the prompt, counted from 0 (-1: not known). */
static bool prompt_of(PyObject *given, pt_prompt *prompt)
{
    const char *before = NULL;
    Py_ssize_t bytes = 0;
    PyObject *depth = NULL;
    int overflow = 0;
    if (!PyTuple_Check(given))
        PyErr_SetString(PyExc_TypeError, "a prompt is a tuple");
    if (PyErr_Occurred() || !PyArg_ParseTuple(given, "I|y#O", &prompt->begin, &before, &bytes, &depth))
        return false;
    if (bytes && bytes != PT_KEY_BYTES)
        return PyErr_Format(PyExc_ValueError, "the key of the page before a prompt has %zd bytes", bytes), false;
    prompt->parent = bytes ? (const uint8_t *)before : NULL;
    long long number = depth ? PyLong_AsLongLongAndOverflow(depth, &overflow) : -1;
    if (overflow > 0 || number > PT_MOST_DEPTH)
        number = PT_MOST_DEPTH;
    prompt->depth = number < 0 ? 0 : (uint32_t)number + 1;
    return !PyErr_Occurred();
}

/* What became of the pages of a reservation. */
typedef struct {
    unsigned int granted, full;
    unsigned long long granted_bytes;
    const uint64_t *oversized; /* the size of the first page that never fits; NULL: none */
} batch_counts;

static batch_counts count_answers(const pt_answer *answers, const requested_pages *pages, uint32_t count)
{
    batch_counts c = {0};
    for (uint32_t i = count; i--;) {
        bool is_granted = answers[i].outcome == PT_GRANTED;
        c.granted += is_granted;
        c.granted_bytes += is_granted ? pages->sizes[i] : 0;
        c.full += answers[i].outcome == PT_REFUSED_FULL;
        c.oversized = answers[i].outcome == PT_REFUSED_SIZE ? &pages->sizes[i] : c.oversized;
    }
    return c;
}

/* Reserves pages. The last ones, which the request refuses, are answered as refused, and not counted. */
static batch_counts reserve_pages(Owner *self, const pt_request *r, const requested_pages *pages, pt_answer *answers)
{
    uint32_t count = pages->count - r->refused;
    self->shared.last_reservation = r->reservation;
    pt_reserve(&self->shared, r, pages->keys, pages->sizes, count, answers);
    for (uint32_t i = count; i < pages->count; i++)
        answers[i] = (pt_answer){PT_REFUSED_FULL, PT_NONE, 0};
    return count_answers(answers, pages, count);
}

/* frames_for(pages) -> the frames that pages need, 2**64-1 if they are more. */
static PyObject *owner_frames_for(Owner *self, PyObject *rows)
{
    requested_pages pages;
    if (!owner_ready(self) || !requested_pages_of(rows, &pages))
        return NULL;
    uint64_t frames = frames_of(&pages, self->shared.view.frame_bytes);
    free(pages.sizes);
    return PyLong_FromUnsignedLongLong(frames);
}

/* attach(pid, uid, started, token, name, kernel_id, lock) -> slot, -1 if all are taken; the present slot of an
 * attachment that has one. pid 0: it is not visible. */
static PyObject *owner_attach(Owner *self, PyObject *args)
{
    pt_process p;
    unsigned long long started, token, kernel_id = 0, lock = 0;
    if (!owner_ready(self) ||
        !PyArg_ParseTuple(args, "IIKKs|KK", &p.pid, &p.uid, &started, &token, &p.name, &kernel_id, &lock))
        return NULL;
    p.pid = p.pid ? p.pid : PT_UNSEEN_PID;
    p.started = started;
    p.token = token;
    p.kernel_id = kernel_id;
    p.lock = lock;
    uint32_t slot = pt_attach(&self->shared, &p, pt_now_ns());
    return PyLong_FromLong(slot == PT_NONE ? -1 : (long)slot);
}

static int serial_order(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Serials in ascending order. */
typedef struct {
    uint64_t *sorted;
    size_t count;
} serial_list;

static bool serial_is_listed(const void *context, uint64_t serial)
{
    const serial_list *l = context;
    return bsearch(&serial, l->sorted, l->count, sizeof serial, serial_order) != NULL;
}

/* Sorts serials: a process may have as many pages open as it lists, and other requests are waiting. Returns false with
 * an exception set; otherwise the caller frees `sorted`. */
static bool serials_read(PyObject *given, serial_list *l)
{
    array in;
    if (!array_open(given, 8, "serials", &in))
        return false;
    l->count = (size_t)in.count;
    l->sorted = malloc(l->count * sizeof *l->sorted + 1);
    if (l->sorted) {
        memcpy(l->sorted, in.view.buf, l->count * sizeof *l->sorted);
        qsort(l->sorted, l->count, sizeof *l->sorted, serial_order);
    } else {
        PyErr_NoMemory();
    }
    PyBuffer_Release(&in.view);
    return l->sorted;
}

/* keep_only(slot, serials): releases all parts that were granted to a slot, except those that its process lists. */
static PyObject *owner_keep_only(Owner *self, PyObject *args)
{
    unsigned int slot;
    PyObject *serials;
    serial_list listed;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "IO", &slot, &serials) || !serials_read(serials, &listed))
        return NULL;
    pt_release_unlisted_parts(&self->shared, slot, serial_is_listed, &listed);
    pt_settle_all(&self->shared, pt_now_ns());
    free(listed.sorted);
    Py_RETURN_NONE;
}

/* reap(slot): frees the slot of a process that died or detached, and releases everything that it had. */
static PyObject *owner_reap(Owner *self, PyObject *args)
{
    unsigned int slot;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &slot))
        return NULL;
    if (slot < PT_SLOTS && self->shared.view.slots[slot].pid)
        pt_reap(&self->shared, slot, pt_now_ns());
    Py_RETURN_NONE;
}

/* settle(most) -> number of open entries left: settles reservations whose writers have finished, given up or exceeded
 * their time, at most `most` of them; 0: all. */
static PyObject *owner_settle(Owner *self, PyObject *args)
{
    unsigned int most = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "|I", &most))
        return NULL;
    if (most)
        pt_settle_first(&self->shared, pt_now_ns(), most);
    else
        pt_settle_all(&self->shared, pt_now_ns());
    return PyLong_FromUnsignedLong(self->shared.view.header->open_entries);
}

/* Reads the one argument of a method, an existing slot. Returns false with an exception set. */
static bool slot_of(Owner *self, PyObject *args, unsigned int *slot)
{
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", slot))
        return false;
    if (*slot >= PT_SLOTS)
        PyErr_SetString(PyExc_ValueError, "the slot does not exist");
    return *slot < PT_SLOTS;
}

/* lock_of(slot) -> the byte that its descriptors have locked; 0: not all of them have. */
static PyObject *owner_lock_of(Owner *self, PyObject *args)
{
    unsigned int slot;
    if (!slot_of(self, args, &slot))
        return NULL;
    return PyLong_FromUnsignedLongLong(self->shared.view.slots[slot].lock);
}

/* forget_lock(slot): a descriptor without the lock will be sent. */
static PyObject *owner_forget_lock(Owner *self, PyObject *args)
{
    unsigned int slot;
    if (!slot_of(self, args, &slot))
        return NULL;
    self->shared.view.slots[slot].lock = 0;
    Py_RETURN_NONE;
}

/* process_of(slot) -> (0, kernel_id), or without one (pid, started), of the process that
 * has the slot; (0, 0): it is free. */
static PyObject *owner_process_of(Owner *self, PyObject *args)
{
    unsigned int slot;
    if (!slot_of(self, args, &slot))
        return NULL;
    const pt_slot *s = &self->shared.view.slots[slot];
    unsigned pid = atomic_load_explicit(&s->pid, memory_order_relaxed);
    bool named = pid && s->kernel_id;
    return Py_BuildValue("(IK)", named ? 0 : pid, (unsigned long long)(named ? s->kernel_id : pid ? s->started : 0));
}

/* frames_writing(slot) -> frames of open reservations in which the process of the slot has a part. */
static PyObject *owner_frames_writing(Owner *self, PyObject *args)
{
    unsigned int slot;
    if (!slot_of(self, args, &slot))
        return NULL;
    return PyLong_FromUnsignedLongLong(pt_frames_writing(&self->shared, slot));
}

/* set_pin_quota(frames): limits the frames that one attachment may have pinned; 0: no limit. */
static PyObject *owner_set_pin_quota(Owner *self, PyObject *args)
{
    unsigned int frames;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &frames))
        return NULL;
    atomic_store_explicit(&self->shared.view.header->pin_frames, frames, memory_order_relaxed);
    Py_RETURN_NONE;
}

/* set_fleet_breaker(state): 0: engines may ask the fleet. */
static PyObject *owner_set_fleet_breaker(Owner *self, PyObject *args)
{
    unsigned int state;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &state))
        return NULL;
    atomic_store_explicit(&self->shared.view.header->fleet_breaker, state, memory_order_relaxed);
    Py_RETURN_NONE;
}

/* matches_at_quota() -> number of matches of the present attachments that ended at that limit. */
static PyObject *owner_matches_at_quota(Owner *self, PyObject *unused)
{
    uint64_t sum = 0;
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    for (uint32_t slot = 0; slot < PT_SLOTS; slot++)
        sum += atomic_load_explicit(&self->shared.view.uses[slot].bounded, memory_order_relaxed);
    return PyLong_FromUnsignedLongLong(sum);
}

/* attachments_with_pins() -> attachments() with what each has pinned. Walks the lock words. */
static PyObject *owner_attachments_with_pins(Owner *self, PyObject *unused)
{
    (void)unused;
    return owner_ready(self) ? describe_attachments_with_pins(&self->shared.view) : NULL;
}

/* evict(frames, limit) -> pages evicted: until `frames` frames are free, at most `limit` pages. */
static PyObject *owner_evict(Owner *self, PyObject *args)
{
    unsigned int frames, limit;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "II", &frames, &limit))
        return NULL;
    return PyLong_FromUnsignedLong(pt_evict_until(&self->shared, frames, limit, pt_now_ns()));
}

/* flush(space, tiers) -> (dropped, kept): removes the pages of a namespace (-1: of all) from the tiers. */
static PyObject *owner_flush(Owner *self, PyObject *args)
{
    int space;
    unsigned int tiers;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "iI", &space, &tiers))
        return NULL;
    pt_flushed done = pt_flush(&self->shared, space < 0 ? PT_NONE : (uint32_t)space, (uint8_t)tiers, pt_now_ns());
    return record_of(FlushedPages, Py_BuildValue("(II)", done.dropped, done.kept));
}

/* forget(keys) -> FlushedPages: removes pages from all tiers and overwrites their bytes in memory. */
static PyObject *owner_forget(Owner *self, PyObject *args)
{
    PyObject *given;
    array keys;
    pt_flushed done = {0, 0};
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "O", &given) || !array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    bool able = pt_forget(&self->shared, keys.view.buf, (uint32_t)keys.count, pt_now_ns(), &done);
    PyBuffer_Release(&keys.view);
    return able ? record_of_numbers(FlushedPages, (uint64_t[]){done.dropped, done.kept}, 2) : PyErr_NoMemory();
}

/* space(digest, name, page_tokens, window, group) -> number of the namespace, -1 if the
 * table is full of namespaces with pages. */
static PyObject *owner_space(Owner *self, PyObject *args)
{
    pt_space made = {.used = 1, .first = PT_NONE, .used_ns = pt_now_ns()};
    Py_buffer digest;
    const char *name;
    unsigned int group;
    if (!owner_ready(self) ||
        !PyArg_ParseTuple(args, "y*sIII", &digest, &name, &made.page_tokens, &made.window, &group))
        return NULL;
    Py_ssize_t bytes = digest.len;
    memcpy(made.digest, digest.buf, bytes < PT_KEY_BYTES ? (size_t)bytes : PT_KEY_BYTES);
    PyBuffer_Release(&digest);
    if (bytes != PT_KEY_BYTES)
        return PyErr_Format(PyExc_ValueError, "a namespace's digest has %u bytes, not %zd", PT_KEY_BYTES, bytes);
    made.group = (uint8_t)group;
    strncpy(made.name, name, sizeof made.name - 1);
    made.tenant = tenant_named(self, made.name);
    uint32_t number = pt_intern_space(&self->shared.view, &made);
    return PyLong_FromLong(number == PT_NONE ? -1 : (long)number);
}

/* spare_spaces() -> number of namespaces that the table has room for. */
static PyObject *owner_spare_spaces(Owner *self, PyObject *unused)
{
    (void)unused;
    return owner_ready(self) ? PyLong_FromUnsignedLong(pt_spare_spaces(&self->shared.view)) : NULL;
}

/* drop_idle(idle_ns, budget) -> IdleStep(result, pages, namespace): one pt_idle_step; namespace: the
 * record of the namespace that was dropped. */
static PyObject *owner_drop_idle(Owner *self, PyObject *args)
{
    unsigned long long idle;
    unsigned int budget;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "KI", &idle, &budget))
        return NULL;
    uint64_t now = pt_now_ns();
    enum pt_idle_found found = pt_idle_step(&self->shared, idle < now ? now - idle : 0, now, budget);
    const pt_idle *i = &self->shared.idle;
    PyObject *space = found == PT_IDLE_DROPPED ? describe_space(&self->shared.view, i->space) : Py_NewRef(Py_None);
    PyObject *result = space ? PyObject_CallFunction(IdleResult, "i", (int)found) : NULL;
    if (result)
        return record_of(IdleStep, Py_BuildValue("(NKN)", result, (unsigned long long)i->pages, space));
    Py_XDECREF(space);
    return NULL;
}

/* check_integrity() -> descriptions of what is wrong, one sentence each; empty if nothing is. */
static PyObject *owner_check(Owner *self, PyObject *unused)
{
    (void)unused;
    pt_findings *found = owner_ready(self) ? malloc(sizeof *found) : NULL;
    if (!found)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    PyObject *list = pt_check_integrity(&self->shared, found) ? PyList_New(0) : PyErr_NoMemory();
    for (uint32_t i = 0; list && i < found->count && i < PT_FINDINGS; i++)
        append_new(list, PyUnicode_FromString(found->text[i]));
    if (list && found->count > PT_FINDINGS)
        append_new(list, PyUnicode_FromFormat("and %u more", found->count - PT_FINDINGS));
    free(found);
    return list;
}

/* close(): marks the segments as closed by a daemon that stops for good. */
static PyObject *owner_close(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    atomic_store_explicit(&self->shared.view.header->closed, 1, memory_order_release);
    Py_RETURN_NONE;
}

static PyObject *owner_header(Owner *self, PyObject *unused)
{
    (void)unused;
    pt_view v = pt_view_of(self->index.address, self->locks.address, self->arena.address);
    return describe_header(&v);
}

static PyObject *owner_spaces(Owner *self, PyObject *unused)
{
    (void)unused;
    return owner_ready(self) ? describe_spaces(&self->shared.view) : NULL;
}

static PyObject *owner_free_frames(Owner *self, void *unused)
{
    (void)unused;
    return owner_ready(self) ? PyLong_FromUnsignedLong(self->shared.view.header->free_frames) : NULL;
}

static PyObject *owner_open_entries(Owner *self, void *unused)
{
    (void)unused;
    return owner_ready(self) ? PyLong_FromUnsignedLong(self->shared.view.header->open_entries) : NULL;
}
