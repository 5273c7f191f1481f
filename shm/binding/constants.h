/* constants.h - the numbers that the core defines, as Python sees them: limits as integers, enumerations as IntEnum.
 *
 * Each Python enumeration has one table here, whose values are the core's own enumerators, so that no number is written
 * twice. tests/shm/test_core_interface.py verifies that the tables are complete and that _core.pyi declares them. */
#pragma once

#include "buffers.h"

#include "../core/client/event_reader.h"
#include "../core/client/match_groups.h"
#include "../core/daemon/idle_namespaces.h"
#include "../core/daemon/reserve.h"
#include "../core/daemon/reserve_message.h"
#include "../core/daemon/write_behind.h"

typedef struct {
    const char *name; /* NULL ends a table */
    long value;
} named_number;

static const named_number limits[] = {
    {"MAGIC", PT_MAGIC}, {"FORMAT", PT_FORMAT}, {"KEY_BYTES", PT_KEY_BYTES}, {"SLOTS", PT_SLOTS}, {"PARTS", PT_PARTS},
    {"GROUPS", PT_GROUPS}, {"STATUS_BYTES", PT_STATUS_BYTES}, {"LEAST_FRAME_BYTES", PT_PAGE}, {"NO_ENTRY", PT_NONE},
    {"LOCKS_OFFSET", PT_AT_LOCKS}, {"DISK_DEVICES", PT_DEVICES}, {"HISTORY_BYTES", sizeof(pt_disk_history)},
    {"TENANTS", PT_TENANTS}, {"FRAME", PT_FRAME}, {NULL, 0},
};

static const named_number reserve_outcomes[] = {
    {"GRANTED", PT_GRANTED}, {"PRESENT", PT_PRESENT}, {"PENDING", PT_PENDING}, {"REFUSED_FULL", PT_REFUSED_FULL},
    {"REFUSED_SIZE", PT_REFUSED_SIZE}, {"ABSENT", PT_ABSENT}, {"LEFT_OUT", PT_LEFT_OUT},
    {"GRANTED_TO_FLEET", PT_GRANTED_TO_FLEET}, {NULL, 0},
};

static const named_number hint_kinds[] = {
    {"NONE", PT_HINT_NONE}, {"OVER", PT_HINT_OVER}, {"WITHIN_20", PT_HINT_WITHIN_20}, {"WITHIN_60", PT_HINT_WITHIN_60},
    {"WITHIN_300", PT_HINT_WITHIN_300}, {"LATER", PT_HINT_LATER}, {"KEEP", PT_HINT_KEEP}, {"UNKEEP", PT_HINT_UNKEEP},
    {NULL, 0},
};

static const named_number absences[] = {
    {"NEVER_STORED", PT_NEVER_STORED},
    {"EVICTED_FROM_MEMORY", PT_EVICTED_FROM_MEMORY},
    {"EVICTED_FROM_DISK", PT_EVICTED_FROM_DISK},
    {"DROPPED", PT_DROPPED},
    {"IN_OTHER_NAMESPACE", PT_IN_OTHER_NAMESPACE},
    {NULL, 0},
};

static const named_number write_rules[] = {
    {"EVICTED", PT_WRITE_EVICTED}, {"THROUGH", PT_WRITE_THROUGH}, {"SECOND", PT_WRITE_SECOND}, {NULL, 0},
};

static const named_number write_results[] = {
    {"FAILED", PT_WRITE_FAILED},
    {"DONE", PT_WRITE_DONE},
    {"SKIPPED", PT_WRITE_SKIPPED},
    {"AGAIN", PT_WRITE_AGAIN},
    {NULL, 0},
};

static const named_number tier_flags[] = {
    {"MEMORY", PT_TIER_MEMORY}, {"DISK", PT_TIER_DISK}, {"BOTH", PT_TIER_MEMORY | PT_TIER_DISK}, {NULL, 0},
};

static const named_number events_results[] = {
    {"OFF", PT_EVENTS_OFF}, {"MISSED", PT_EVENTS_MISSED}, {"READ", PT_EVENTS_READ}, {NULL, 0},
};

static const named_number event_reasons[] = {
    {"EVICTED", PT_EVENT_EVICTED}, {"FLUSHED", PT_EVENT_FLUSHED}, {"LOST", PT_EVENT_LOST}, {"STORED", PT_EVENT_STORED},
    {"WRITTEN", PT_EVENT_WRITTEN}, {NULL, 0},
};

static const named_number idle_results[] = {
    {"NOTHING", PT_IDLE_NOTHING}, {"MORE", PT_IDLE_MORE}, {"DROPPED", PT_IDLE_DROPPED}, {NULL, 0},
};

static PyObject *IdleResult;

static const struct {
    const char *base, *name; /* the class in the module `enum`, and the name of the new class */
    const named_number *members;
} enumerations[] = {
    {"IntEnum", "ReserveOutcome", reserve_outcomes}, {"IntEnum", "WriteRule", write_rules},
    {"IntEnum", "WriteResult", write_results},       {"IntFlag", "TierFlag", tier_flags},
    {"IntEnum", "IdleResult", idle_results},
    {"IntEnum", "HintKind", hint_kinds},              {"IntEnum", "Absence", absences},
    {"IntEnum", "EventsResult", events_results},      {"IntEnum", "EventReason", event_reasons},
};

/* Returns the members of an enumeration as a list of pairs, NULL with an exception set. */
static PyObject *members_of(const named_number *members)
{
    PyObject *list = PyList_New(0);
    for (; list && members->name; members++)
        if (!append_new(list, Py_BuildValue("(sl)", members->name, members->value)))
            Py_CLEAR(list);
    return list;
}

/* Calls `factory(name, members, module=...)`, as IntEnum and namedtuple are called.
 * Returns NULL with an exception set. */
static PyObject *new_class(PyObject *factory, const char *name, PyObject *members)
{
    PyObject *args = Py_BuildValue("(sO)", name, members);
    PyObject *module = Py_BuildValue("{ss}", "module", "pagetier.shm._core");
    PyObject *made = args && module ? PyObject_Call(factory, args, module) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(module);
    return made;
}

/* Adds an object to the module and releases it. Returns false with an exception set, also if the object is NULL. */
static bool add_new(PyObject *module, const char *name, PyObject *made)
{
    bool done = made && PyModule_AddObjectRef(module, name, made) == 0;
    Py_XDECREF(made);
    return done;
}

static bool add_limits(PyObject *module)
{
    for (const named_number *limit = limits; limit->name; limit++)
        if (PyModule_AddIntConstant(module, limit->name, limit->value) < 0)
            return false;
    return true;
}

static bool add_enumerations(PyObject *module)
{
    PyObject *library = PyImport_ImportModule("enum");
    bool done = library != NULL;
    for (size_t i = 0; done && i < sizeof enumerations / sizeof *enumerations; i++) {
        PyObject *base = PyObject_GetAttrString(library, enumerations[i].base);
        PyObject *members = members_of(enumerations[i].members);
        done = base && members && add_new(module, enumerations[i].name, new_class(base, enumerations[i].name, members));
        Py_XDECREF(base);
        Py_XDECREF(members);
    }
    Py_XDECREF(library);
    IdleResult = done ? PyObject_GetAttrString(module, "IdleResult") : NULL;
    return IdleResult != NULL;
}
