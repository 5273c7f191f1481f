/* reserve_frames.h - packs and reads the frames of core/daemon/reserve_message.h for Python. */
#pragma once

#include "owner_reservations.h"

#include "../core/daemon/reserve_message.h"

/* Writes prompts as rows. Returns false with an exception set. */
static bool put_prompts(PyObject *given, uint32_t count, uint8_t *at)
{
    for (uint32_t i = 0; i < count; i++, at += sizeof(pt_prompt_row)) {
        pt_prompt prompt;
        if (!prompt_of(PyTuple_GetItem(given, i), &prompt))
            return false;
        pt_prompt_row row = {.begin = prompt.begin, .depth = prompt.depth};
        if (prompt.parent)
            memcpy(row.parent, prompt.parent, PT_KEY_BYTES);
        memcpy(at, &row, sizeof row);
    }
    return true;
}

/* Puts the parts of a request behind each other. `name` and `pages` have as many bytes as the head says. */
static PyObject *request_frame(const pt_reserve_head *head, const char *name, PyObject *prompts, const array *pages)
{
    size_t rows = pt_prompts_of(head) * sizeof(pt_prompt_row);
    size_t bytes = sizeof *head + head->name_bytes + rows + (size_t)pages->view.len;
    if (bytes > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "a request of %zu bytes is longer than a message can be", bytes);
    uint32_t length = (uint32_t)bytes;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length + PT_LENGTH_BYTES);
    uint8_t *at = frame ? (uint8_t *)PyBytes_AsString(frame) : NULL;
    if (!frame)
        return NULL;
    memcpy(at, &length, PT_LENGTH_BYTES);
    memcpy(at += PT_LENGTH_BYTES, head, sizeof *head);
    memcpy(at += sizeof *head, name, head->name_bytes);
    if (!put_prompts(prompts, pt_prompts_of(head), at += head->name_bytes))
        Py_CLEAR(frame);
    else
        memcpy(at + rows, pages->view.buf, (size_t)pages->view.len);
    return frame;
}

/* pack_reserve(number, digest, name, page_tokens, group, window, part, parts, pages, division, prompts, hint,
 * hint_ttl_ns) -> the message with its length */
static PyObject *pack_reserve(PyObject *module, PyObject *args)
{
    pt_reserve_head head = {.frame = PT_FRAME};
    unsigned long long number, ttl;
    unsigned int tokens, window, division, hint;
    const char *digest, *name;
    Py_ssize_t digest_bytes, name_bytes;
    PyObject *rows, *prompts;
    array pages;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ky#s#IbIbbOIOIK", &number, &digest, &digest_bytes, &name, &name_bytes, &tokens,
                          &head.group, &window, &head.part, &head.parts, &rows, &division, &prompts, &hint, &ttl))
        return NULL;
    if (digest_bytes != PT_KEY_BYTES)
        return PyErr_Format(PyExc_ValueError, "a namespace's digest has %u bytes, not %zd", PT_KEY_BYTES, digest_bytes);
    if (prompts != Py_None && !PyTuple_Check(prompts))
        return PyErr_SetString(PyExc_TypeError, "prompts must be a tuple or None"), NULL;
    if (!array_open(rows, sizeof(pt_page_request), "pages", &pages))
        return NULL;
    memcpy(head.digest, digest, PT_KEY_BYTES);
    head.number = number;
    head.page_tokens = tokens;
    head.window = window;
    head.division = division;
    head.hint = hint;
    head.hint_ttl_ns = ttl;
    head.name_bytes = (uint32_t)name_bytes;
    head.prompts = prompts == Py_None ? PT_PROMPTS_UNKNOWN : (uint32_t)PyTuple_Size(prompts);
    head.pages = (uint32_t)pages.count;
    PyObject *frame = request_frame(&head, name, prompts, &pages);
    PyBuffer_Release(&pages.view);
    return frame;
}

/* Describes the prompts of a message as prompt_of() reads them; None if they are not known. */
static PyObject *describe_prompts(const pt_reserve_message *m)
{
    if (m->head.prompts == PT_PROMPTS_UNKNOWN)
        return Py_NewRef(Py_None);
    PyObject *prompts = PyTuple_New(m->head.prompts);
    for (uint32_t i = 0; prompts && i < m->head.prompts; i++) {
        pt_prompt prompt = pt_read_prompt(m, i);
        PyObject *item = Py_BuildValue("(Iy#L)", prompt.begin, prompt.parent ? (const char *)prompt.parent : "",
                                       (Py_ssize_t)(prompt.parent ? PT_KEY_BYTES : 0), (long long)prompt.depth - 1);
        if (item)
            PyTuple_SetItem(prompts, i, item);
        else
            Py_CLEAR(prompts);
    }
    return prompts;
}

/* read_reserve(body) -> what pack_reserve() was given, None if it is no request for a reservation */
static PyObject *read_reserve(PyObject *module, PyObject *body)
{
    Py_buffer b;
    pt_reserve_message m;
    PyObject *fields = NULL;
    (void)module;
    if (PyObject_GetBuffer(body, &b, PyBUF_SIMPLE) < 0)
        return NULL;
    const pt_reserve_head *h = &m.head;
    if (!pt_read_reserve(b.buf, (size_t)b.len, &m))
        fields = Py_NewRef(Py_None);
    else
        fields = Py_BuildValue("(Ky#s#IIIIIy#INIK)", (unsigned long long)h->number, h->digest, (Py_ssize_t)PT_KEY_BYTES,
                               m.name, (Py_ssize_t)h->name_bytes, h->page_tokens, (unsigned)h->group, h->window,
                               (unsigned)h->part, (unsigned)h->parts, m.pages,
                               (Py_ssize_t)(h->pages * sizeof(pt_page_request)), h->division, describe_prompts(&m),
                               h->hint, (unsigned long long)h->hint_ttl_ns);
    PyBuffer_Release(&b);
    return fields;
}

/* pack_reserved(number, pages, reason) -> the message with its length */
static PyObject *pack_reserved(PyObject *module, PyObject *args)
{
    unsigned long long number;
    PyObject *rows;
    const char *reason;
    Py_ssize_t reason_bytes;
    array pages;
    (void)module;
    if (!PyArg_ParseTuple(args, "KOs#", &number, &rows, &reason, &reason_bytes) ||
        !array_open(rows, sizeof(pt_answer), "pages", &pages))
        return NULL;
    reason_bytes = reason_bytes > UINT16_MAX ? UINT16_MAX : reason_bytes;
    Py_ssize_t bytes = (Py_ssize_t)pt_reserved_bytes((uint32_t)pages.count);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, bytes + reason_bytes);
    if (frame) {
        uint8_t *at = (uint8_t *)PyBytes_AsString(frame);
        pt_answer *answers = pt_begin_reserved(at, number, (uint32_t)pages.count, (uint16_t)reason_bytes);
        memcpy(answers, pages.view.buf, (size_t)pages.view.len);
        memcpy(at + bytes, reason, (size_t)reason_bytes);
    }
    PyBuffer_Release(&pages.view);
    return frame;
}

/* read_reserved(body) -> (number, pages, reason), None if it is no response to a reservation */
static PyObject *read_reserved(PyObject *module, PyObject *body)
{
    Py_buffer b;
    pt_reserved_head head;
    PyObject *fields = NULL;
    (void)module;
    if (PyObject_GetBuffer(body, &b, PyBUF_SIMPLE) < 0)
        return NULL;
    const char *at = (const char *)b.buf + sizeof head;
    Py_ssize_t rest = b.len - (Py_ssize_t)sizeof head;
    if (rest >= 0)
        memcpy(&head, b.buf, sizeof head);
    if (rest < 0 || head.frame != PT_FRAME || rest < head.reason_bytes ||
        (rest - head.reason_bytes) % (Py_ssize_t)sizeof(pt_answer))
        fields = Py_NewRef(Py_None);
    else
        fields = Py_BuildValue("(Ky#s#)", (unsigned long long)head.number, at, rest - head.reason_bytes,
                               at + rest - head.reason_bytes, (Py_ssize_t)head.reason_bytes);
    PyBuffer_Release(&b);
    return fields;
}
