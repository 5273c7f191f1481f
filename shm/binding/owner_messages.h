/* owner_messages.h - the type Owner: a reservation, from the bytes of its request to those of its response. */
#pragma once

#include "owner_reservations.h"

#include "../core/daemon/reserve_message.h"

enum { CALL_SLOT, CALL_TTL_NS, CALL_MOST_FRAMES, CALL_BYTES, CALL_NUMBERS };

/* Reads the numbers of a call. Returns false with an exception set. */
static bool call_numbers(PyObject *const *args, Py_ssize_t count, uint64_t *numbers)
{
    if (count != CALL_NUMBERS + 1)
        PyErr_SetString(PyExc_TypeError, "a slot, three numbers and a buffer are needed");
    for (int i = 0; i < CALL_NUMBERS && !PyErr_Occurred(); i++)
        numbers[i] = PyLong_AsUnsignedLongLong(args[i]);
    return !PyErr_Occurred();
}

/* A message as the core takes it. */
typedef struct {
    pt_reserve_message m;
    requested_pages pages;
    pt_prompt *prompts;
} asked_store;

/* Takes the pages of a message, and makes room for its prompts. Returns false with an exception set; otherwise the
 * caller frees `prompts` and the pages' sizes. */
static bool asked_open(asked_store *a)
{
    a->prompts = malloc((pt_prompts_of(&a->m.head) + 1) * sizeof *a->prompts);
    if (!a->prompts)
        return PyErr_NoMemory(), false;
    if (pages_read(a->m.pages, a->m.head.pages, &a->pages))
        return true;
    free(a->prompts);
    return false;
}

static void asked_close(asked_store *a)
{
    free(a->prompts);
    free(a->pages.sizes);
}

/* Fills in what a message says of a request, whose prompts lie before the pages that it refuses. */
static void read_request(const asked_store *a, pt_request *r)
{
    const pt_reserve_head *head = &a->m.head;
    r->part = head->part;
    r->parts = head->parts;
    r->division = head->division;
    r->prompt_kind = head->prompts == PT_PROMPTS_UNKNOWN ? PT_PROMPT_UNKNOWN
                     : head->prompts                     ? PT_PROMPT_KNOWN
                                                         : PT_PROMPT_NONE;
    r->prompt_count = pt_prompts_of(head);
    r->prompts = r->prompt_count ? a->prompts : NULL;
    while (r->prompt_count > 1 && r->prompts[r->prompt_count - 1].begin >= head->pages - r->refused)
        r->prompt_count--;
    r->hint = (uint8_t)(head->hint < PT_HINTS ? head->hint : PT_HINT_NONE);
    r->lasts = head->hint ? pt_lasts(head->hint_ttl_ns) : 0;
    r->keep = head->hint == PT_HINT_KEEP;
}

/* Reserves the pages. Returns (response, frames, granted, granted_bytes, full, oversized). */
static PyObject *serve_asked(Owner *self, const asked_store *a, pt_request *r, uint64_t frames)
{
    r->reservation = self->shared.last_reservation + 1;
    read_request(a, r);
    if (!request_sound(self, r))
        return NULL;
    PyObject *response = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)pt_reserved_bytes(a->pages.count));
    if (!response)
        return NULL;
    pt_answer *answers =
        pt_begin_reserved((uint8_t *)PyBytes_AsString(response), a->m.head.number, a->pages.count, 0);
    batch_counts c = reserve_pages(self, r, &a->pages, answers);
    PyObject *oversized = c.oversized ? PyLong_FromUnsignedLongLong(*c.oversized) : PyLong_FromLong(-1);
    return Py_BuildValue("(NKIKIN)", response, (unsigned long long)frames, c.granted, c.granted_bytes, c.full,
                         oversized);
}

/* Serves an unchecked message. None if its name or prompts are not usual, its pages need more than `most_frames`
 * frames, or there is no namespace for them. */
static PyObject *serve_usual(Owner *self, const uint64_t *numbers, const asked_store *a)
{
    pt_space space;
    uint64_t frames = frames_of(&a->pages, self->shared.view.frame_bytes);
    if (!pt_read_space(&a->m, &space) || !pt_read_prompts(&a->m, a->prompts) || frames > numbers[CALL_MOST_FRAMES])
        Py_RETURN_NONE;
    pt_request r = {.slot = (uint32_t)numbers[CALL_SLOT], .now = space.used_ns = pt_now_ns()};
    r.expires_ns = r.now + numbers[CALL_TTL_NS];
    space.tenant = tenant_named(self, space.name);
    r.space = pt_intern_space(&self->shared.view, &space);
    if (r.space == PT_NONE)
        Py_RETURN_NONE;
    return serve_asked(self, a, &r, frames);
}

/* Reads a message with its length. Returns false if it is no reservation. */
static bool read_message(const uint8_t *message, size_t bytes, pt_reserve_message *m)
{
    uint32_t length;
    if (bytes < sizeof length)
        return false;
    memcpy(&length, message, sizeof length);
    return length == bytes - sizeof length && pt_read_reserve(message + sizeof length, length, m);
}

/* Returns whether the daemon's Python code need not check a request first. */
static bool is_usual(const pt_reserve_head *head)
{
    return !head->hint && head->pages && head->part < head->parts && head->parts <= PT_PARTS;
}

/* serve_reserve(slot, ttl_ns, most_frames, bytes, message) -> (response, frames, granted, granted_bytes, full,
 * oversized), None for a message that is no usual reservation. */
static PyObject *owner_serve_reserve(Owner *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t numbers[CALL_NUMBERS];
    asked_store a;
    Py_buffer buffer;
    PyObject *result = NULL;
    if (!owner_ready(self) || !call_numbers(args, count, numbers) ||
        PyObject_GetBuffer(args[CALL_NUMBERS], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    size_t bytes = (size_t)numbers[CALL_BYTES];
    if (bytes > (size_t)buffer.len || !read_message(buffer.buf, bytes, &a.m) || !is_usual(&a.m.head)) {
        result = Py_NewRef(Py_None);
    } else if (asked_open(&a)) {
        result = serve_usual(self, numbers, &a);
        asked_close(&a);
    }
    PyBuffer_Release(&buffer);
    return result;
}

/* reserve(slot, space, ttl_ns, refused, message) -> as serve_reserve(). */
static PyObject *owner_reserve(Owner *self, PyObject *args)
{
    pt_request r = {.now = pt_now_ns()};
    unsigned long long ttl;
    asked_store a;
    Py_buffer buffer;
    PyObject *result = NULL;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "IIKIy*", &r.slot, &r.space, &ttl, &r.refused, &buffer))
        return NULL;
    r.expires_ns = r.now + ttl;
    if (!read_message(buffer.buf, (size_t)buffer.len, &a.m) || r.refused > a.m.head.pages) {
        PyErr_SetString(PyExc_ValueError, "the message is no reservation of so many pages");
    } else if (asked_open(&a)) {
        if (pt_read_prompts(&a.m, a.prompts))
            result = serve_asked(self, &a, &r, 0);
        else
            PyErr_SetString(PyExc_ValueError, "the prompts do not divide the pages");
        asked_close(&a);
    }
    PyBuffer_Release(&buffer);
    return result;
}
