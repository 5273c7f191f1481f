/* session_events.h - Session.read_events and Session.locate: what comes and leaves, and where pages are. */
#pragma once

#include "session_handle.h"
#include "tiers.h"

#include "../core/client/event_reader.h"

#define EVENTS_AT_ONCE 4096u

/* Returns the record of events, NULL with an exception set. */
static PyObject *events_record(enum pt_events result, const pt_seen_event *events, uint32_t count)
{
    PyObject *keys = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * PT_KEY_BYTES), *bytes[3];
    bool done = keys != NULL;
    for (int which = 0; which < 3; which++) {
        bytes[which] = PyBytes_FromStringAndSize(NULL, count);
        done = done && bytes[which];
        for (uint32_t i = 0; done && i < count; i++)
            PyBytes_AsString(bytes[which])[i] = (char)(events[i].what >> 8 * which);
    }
    for (uint32_t i = 0; done && i < count; i++)
        memcpy(PyBytes_AsString(keys) + (size_t)i * PT_KEY_BYTES, events[i].key, PT_KEY_BYTES);
    PyObject *values = done ? Py_BuildValue("(iOOOO)", (int)result, keys, bytes[0], bytes[1], bytes[2]) : NULL;
    Py_XDECREF(keys);
    for (int which = 0; which < 3; which++)
        Py_XDECREF(bytes[which]);
    return record_of(SeenEvents, values);
}

/* read_events() -> SeenEvents: what came and left since the last call; from the first call on the daemon records it. */
static PyObject *session_read_events(Session *self, PyObject *unused)
{
    (void)unused;
    uint32_t count = EVENTS_AT_ONCE;
    if (!handle_usable(self))
        return events_record(PT_EVENTS_OFF, NULL, 0);
    pt_seen_event *events = malloc(count * sizeof *events);
    if (!events)
        return PyErr_NoMemory();
    pt_want_events(&self->shared.view, self->shared.slot);
    enum pt_events result = pt_read_events(&self->shared.view, &self->events, events, &count);
    PyObject *record = events_record(result, events, count);
    free(events);
    return record;
}

/* locate(keys) -> bytes: the TierFlag of each page. */
static PyObject *session_locate(Session *self, PyObject *given)
{
    array keys;
    if (!array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    return tiers_of_keys(handle_usable(self) ? &self->shared.view : NULL, &keys);
}

/* asks_fleet: whether pages that are neither in memory nor on disk should be located in the fleet. */
static PyObject *session_asks_fleet(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(handle_usable(self) &&
                           !atomic_load_explicit(&self->shared.view.header->fleet_breaker, memory_order_relaxed));
}

/* disk_complete: whether the disk tier is open, and all its pages are in the index. */
static PyObject *session_disk_complete(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(handle_usable(self) &&
                           atomic_load_explicit(&self->shared.view.header->disk_complete, memory_order_relaxed));
}
