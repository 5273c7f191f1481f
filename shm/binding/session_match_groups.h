/* session_match_groups.h - Session.match_groups: one match over several groups of state, and the pins of each group. */
#pragma once

#include "session_match.h"

#include "../core/client/match_groups.h"

/* The arguments and the working memory of one match. Each group's block has room for the pins of all its pages. */
typedef struct {
    PyTypeObject *type;
    uint32_t count;
    PyObject *contexts[PT_GROUPS]; /* borrowed */
    array keys[PT_GROUPS];
    pt_group groups[PT_GROUPS];
    uint64_t pages;
    pt_agreed agreed;
} asked_groups;

static void groups_close(asked_groups *a)
{
    arrays_close(a->keys, (int)a->count);
    for (uint32_t i = 0; i < a->count; i++)
        free(a->groups[i].serials);
}

/* Adds one of the tuples (context, keys, page_tokens, needs). Returns false with an exception set. */
static bool groups_add(asked_groups *a, PyObject *given)
{
    PyObject *keys;
    unsigned int page_tokens;
    unsigned long long needs;
    array *opened = &a->keys[a->count];
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a group is (context, keys, page_tokens, needs)");
        return false;
    }
    if (!PyArg_ParseTuple(given, "OOIK", &a->contexts[a->count], &keys, &page_tokens, &needs))
        return false;
    if (!page_tokens) {
        PyErr_SetString(PyExc_ValueError, "a page has 1 token or more");
        return false;
    }
    if (!array_open(keys, PT_KEY_BYTES, "keys", opened))
        return false;
    uint32_t count = (uint32_t)opened->count;
    uint64_t *room = pins_room(count);
    a->groups[a->count++] = (pt_group){.keys = opened->view.buf,
                                       .count = count,
                                       .page_tokens = page_tokens,
                                       .needs = needs,
                                       .serials = room,
                                       .seen = (uint32_t *)(room + count)};
    a->pages += count;
    return room != NULL;
}

static bool groups_open(asked_groups *a, PyObject *given)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count < 1 || count > (Py_ssize_t)PT_GROUPS) {
        PyErr_Format(PyExc_ValueError, "%zd groups: there must be 1 to %u", count, PT_GROUPS);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!groups_add(a, PyTuple_GetItem(given, i)))
            return false;
    return true;
}

/* Returns pins that own the block of the group. Used if the hit needs most pages of the group: a second block for a
 * long prompt would cost 5 % of its match. */
static Pins *groups_take_over(Session *self, const asked_groups *a, pt_group *g, PyObject *context)
{
    Pins *pins = pins_in(g->serials, a->type, self, context, g->pins);
    if (!pins)
        return NULL;
    memmove(pins->serials, g->serials + g->first, g->pins * sizeof *pins->serials);
    pins->entries = g->seen + g->first;
    g->serials = NULL;
    return pins;
}

static Pins *groups_copy(Session *self, const asked_groups *a, pt_group *g, PyObject *context)
{
    Pins *pins = pins_new(a->type, self, context, g->pins);
    if (!pins)
        return NULL;
    memcpy(pins->serials, g->serials + g->first, g->pins * sizeof *pins->serials);
    memcpy(pins->entries, g->seen + g->first, g->pins * sizeof *pins->entries);
    return pins;
}

/* Returns the pins of one group, which own its pages from then on; NULL with an exception set. */
static PyObject *groups_pins(Session *self, const asked_groups *a, pt_group *g, PyObject *all)
{
    PyObject *context = PySequence_GetSlice(all, g->first, (Py_ssize_t)g->first + g->pins);
    if (!context)
        return NULL;
    Pins *pins = (g->pins > g->count / 2 ? groups_take_over : groups_copy)(self, a, g, context);
    Py_DECREF(context);
    if (pins) {
        pins->count = pins->reach = g->pins;
        pins->pinned = handle_usable(self);
    }
    return (PyObject *)pins;
}

/* Returns the pins of all groups. If one of them fails, nothing stays pinned. */
static PyObject *groups_all_pins(Session *self, asked_groups *a)
{
    PyObject *all = PyTuple_New(a->count);
    for (uint32_t i = 0; i < a->count; i++) {
        pt_group *g = &a->groups[i];
        PyObject *pins = all ? groups_pins(self, a, g, a->contexts[i]) : NULL;
        if (pins)
            PyTuple_SetItem(all, i, pins);
        else if (handle_usable(self))
            pt_release(&self->shared, g->seen + g->first, g->pins);
        if (!pins)
            Py_CLEAR(all);
    }
    return all;
}

static void groups_search(Session *self, asked_groups *a)
{
    if (!handle_usable(self))
        return;
    if (a->pages <= BRIEF) {
        pt_match_groups(&self->shared, a->groups, a->count, &a->agreed);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    pt_match_groups(&self->shared, a->groups, a->count, &a->agreed);
    Py_END_ALLOW_THREADS
}

/* match_groups(type, groups, limit) -> (tokens, reach, asked, pins of each group). It counts nothing. */
static PyObject *session_match_groups(Session *self, PyObject *args)
{
    asked_groups a; /* most of its 10 KiB are for groups that a match does not have: clearing them took 0.1 us */
    a.count = 0, a.pages = 0, a.agreed = (pt_agreed){0};
    PyObject *given, *pins = NULL;
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "O!O!K", &PyType_Type, &a.type, &PyTuple_Type, &given, &limit))
        return NULL;
    if (!PyType_IsSubtype(a.type, PinsType)) {
        PyErr_SetString(PyExc_TypeError, "match_groups(type, groups, limit)");
        return NULL;
    }
    if (groups_open(&a, given)) {
        a.agreed.limit = limit;
        self->busy++; /* slicing contexts may run Python code: the segments must not be unmapped by it */
        groups_search(self, &a);
        pins = groups_all_pins(self, &a);
        self->busy--;
    }
    groups_close(&a);
    if (!pins)
        return NULL;
    return Py_BuildValue("(KKKN)", (unsigned long long)a.agreed.tokens, (unsigned long long)a.agreed.reach,
                         (unsigned long long)a.agreed.asked, pins);
}
