/* owner_messages.h - the type Owner: the usual reservation, from the bytes of its request to those of its response. */
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

/* Returns what a message and a call ask for. Its space is PT_NONE if there is no namespace for it. */
static pt_request request_of(Owner *self, const uint64_t *numbers, const pt_reserve_head *head, pt_space *space)
{
    uint64_t now = space->used_ns = pt_now_ns();
    space->tenant = tenant_named(self, space->name);
    return (pt_request){
        .slot = (uint32_t)numbers[CALL_SLOT],
        .space = pt_intern_space(&self->shared.view, space),
        .part = head->part,
        .parts = head->parts,
        .division = head->division,
        .now = now,
        .expires_ns = now + numbers[CALL_TTL_NS],
        .reservation = self->shared.last_reservation + 1,
        .prompt_kind = head->prompts == PT_PROMPTS_UNKNOWN ? PT_PROMPT_UNKNOWN
                       : head->prompts                     ? PT_PROMPT_KNOWN
                                                           : PT_PROMPT_NONE,
        .prompt_count = pt_prompts_of(head),
    };
}

static PyObject *served(PyObject *response, const batch_counts *c, uint64_t frames)
{
    return Py_BuildValue("(NKIKIn)", response, (unsigned long long)frames, c->granted, c->granted_bytes, c->full,
                         c->oversized);
}

/* Reserves the pages of a message, unless they need more than `most_frames` frames or there is
 * no namespace for them. */
static PyObject *serve_pages(Owner *self, const uint64_t *numbers, const pt_reserve_message *m,
                             const requested_pages *pages, pt_prompt *prompts)
{
    pt_space space;
    uint64_t frames = frames_of(pages, self->shared.view.frame_bytes);
    if (!pt_read_space(m, &space) || !pt_read_prompts(m, prompts) || frames > numbers[CALL_MOST_FRAMES])
        Py_RETURN_NONE;
    pt_request r = request_of(self, numbers, &m->head, &space);
    r.prompts = r.prompt_count ? prompts : NULL;
    if (r.space == PT_NONE)
        Py_RETURN_NONE;
    PyObject *response = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)pt_reserved_bytes(pages->count));
    if (!response || !request_sound(self, &r)) {
        Py_XDECREF(response);
        return NULL;
    }
    pt_answer *answers =
        pt_begin_reserved((uint8_t *)PyBytes_AsString(response), m->head.number, pages->count, 0);
    batch_counts counts = reserve_pages(self, &r, pages, answers);
    return served(response, &counts, frames);
}

static PyObject *serve_message(Owner *self, const uint64_t *numbers, const pt_reserve_message *m)
{
    requested_pages pages;
    if (!pages_read(m->pages, m->head.pages, &pages))
        return NULL;
    pt_prompt *prompts = malloc((pt_prompts_of(&m->head) + 1) * sizeof *prompts);
    PyObject *result = prompts ? serve_pages(self, numbers, m, &pages, prompts) : PyErr_NoMemory();
    free(prompts);
    free(pages.sizes);
    return result;
}

/* Reads a message with its length. Returns false for one that the daemon's Python code answers: it is none, is invalid,
 * or has a hint. */
static bool is_usual(const uint8_t *message, size_t bytes, pt_reserve_message *m)
{
    uint32_t length;
    if (bytes < sizeof length)
        return false;
    memcpy(&length, message, sizeof length);
    return length == bytes - sizeof length && pt_read_reserve(message + sizeof length, length, m) && !m->head.hint &&
           m->head.pages && m->head.part < m->head.parts && m->head.parts <= PT_PARTS;
}

/* serve_reserve(slot, ttl_ns, most_frames, bytes, message) -> (response, frames, granted, granted_bytes, full,
 * oversized), None for a message that is no usual reservation. */
static PyObject *owner_serve_reserve(Owner *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t numbers[CALL_NUMBERS];
    pt_reserve_message m;
    Py_buffer buffer;
    if (!owner_ready(self) || !call_numbers(args, count, numbers) ||
        PyObject_GetBuffer(args[CALL_NUMBERS], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    bool usual = numbers[CALL_BYTES] <= (uint64_t)buffer.len && is_usual(buffer.buf, (size_t)numbers[CALL_BYTES], &m);
    PyObject *result = usual ? serve_message(self, numbers, &m) : Py_NewRef(Py_None);
    PyBuffer_Release(&buffer);
    return result;
}
