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

/* Completes a request by what the daemon knows. Returns false if there is no namespace for it. */
static bool complete_request(Owner *self, const uint64_t *numbers, pt_reserve_message *m)
{
    pt_request *r = &m->request;
    r->now = m->space.used_ns = pt_now_ns();
    r->expires_ns = r->now + numbers[CALL_TTL_NS];
    r->reservation = self->shared.last_reservation + 1;
    r->prompts = &m->prompt;
    r->prompt_count = 1;
    m->space.tenant = tenant_named(self, m->space.name);
    r->slot = (uint32_t)numbers[CALL_SLOT];
    r->space = pt_intern_space(&self->shared.view, &m->space);
    return r->space != PT_NONE;
}

static PyObject *served(PyObject *response, const pt_answer *answers, const uint64_t *sizes, uint32_t pages,
                        uint64_t bytes)
{
    unsigned int granted = 0, refused = 0;
    unsigned long long granted_bytes = 0;
    for (uint32_t i = 0; i < pages; i++) {
        granted += answers[i].outcome == PT_GRANTED;
        granted_bytes += answers[i].outcome == PT_GRANTED ? sizes[i] : 0;
        refused += answers[i].outcome == PT_REFUSED_FULL || answers[i].outcome == PT_REFUSED_SIZE;
    }
    return Py_BuildValue("(NIIIKK)", response, (unsigned int)pages, granted, refused, (unsigned long long)bytes,
                         granted_bytes);
}

/* Reserves the pages of a message, unless they may have more than `most_frames` frames or there is no namespace for
 * them. `answers` and `sizes` have room for all pages. */
static PyObject *serve_message(Owner *self, const uint64_t *numbers, pt_reserve_message *m, pt_answer *answers,
                               uint64_t *sizes)
{
    uint64_t bytes = pt_read_sizes(m, sizes), frames = bytes / self->shared.view.frame_bytes + m->pages;
    if (bytes == UINT64_MAX || frames > numbers[CALL_MOST_FRAMES] || !complete_request(self, numbers, m))
        Py_RETURN_NONE;
    PyObject *response = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)pt_reserved_bytes(m->pages));
    if (!response || !request_sound(self, &m->request)) {
        Py_XDECREF(response);
        return NULL;
    }
    self->shared.last_reservation = m->request.reservation;
    pt_reserve(&self->shared, &m->request, m->keys, sizes, m->pages, answers);
    pt_write_reserved((uint8_t *)PyBytes_AsString(response), m->number, answers, m->pages);
    return served(response, answers, sizes, m->pages, bytes);
}

/* serve_reserve(slot, ttl_ns, most_frames, bytes, message) -> (response, pages, granted, refused, bytes,
 * granted_bytes), None for a message that is no usual reservation. */
static PyObject *owner_serve_reserve(Owner *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t numbers[CALL_NUMBERS];
    pt_reserve_message m;
    Py_buffer buffer;
    if (!owner_ready(self) || !call_numbers(args, count, numbers) ||
        PyObject_GetBuffer(args[CALL_NUMBERS], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    if (numbers[CALL_BYTES] > (uint64_t)buffer.len || !pt_read_reserve(buffer.buf, (size_t)numbers[CALL_BYTES], &m)) {
        result = Py_NewRef(Py_None);
    } else {
        pt_answer *answers = malloc(m.pages * (sizeof *answers + sizeof(uint64_t)));
        result = answers ? serve_message(self, numbers, &m, answers, (uint64_t *)(answers + m.pages))
                         : PyErr_NoMemory();
        free(answers);
    }
    PyBuffer_Release(&buffer);
    return result;
}
