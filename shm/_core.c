/* _core.c - the only binding of the C core, on CPython's stable ABI. The contracts are in core/ and in _core.pyi. */
#include "binding/compression.h"
#include "binding/disk_records.h"
#include "binding/key_hashes.h"
#include "binding/layouts.h"
#include "binding/owner_type.h"
#include "binding/page_rows.h"
#include "binding/reserve_frames.h"
#include "binding/session_publish.h"
#include "binding/slot_checks.h"

/* plan(frame_bytes, frames, entries, spaces) -> SegmentSizes: the sizes of the segments in bytes. */
static PyObject *plan(PyObject *module, PyObject *args)
{
    unsigned long long frame_bytes;
    unsigned int frames, entries, spaces;
    pt_header h = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "KIII", &frame_bytes, &frames, &entries, &spaces))
        return NULL;
    pt_geometry geometry = pt_geometry_of(frame_bytes, frames, entries, spaces);
    pt_plan(&h, &geometry);
    uint64_t sizes[] = {h.index_bytes, h.locks_bytes, h.arena_bytes, h.at_events, h.reserves.events};
    return record_of_numbers(SegmentSizes, sizes, 5);
}

static PyMethodDef functions[] = {
    {"plan", plan, METH_VARARGS, NULL},
    {"keys_of_hashes", keys_of_hashes, METH_VARARGS, NULL},
    {"page_requests", page_requests, METH_VARARGS, NULL},
    {"pages_to_find", pages_to_find, METH_VARARGS, NULL},
    {"located_pages", located_pages, METH_VARARGS, NULL},
    {"located_columns", located_columns, METH_O, NULL},
    {"page_names", page_names, METH_VARARGS, NULL},
    {"spaces_below", spaces_below, METH_VARARGS, NULL},
    {"answer_columns", answer_columns, METH_O, NULL},
    {"pack_reserve", pack_reserve, METH_VARARGS, NULL},
    {"read_reserve", read_reserve, METH_O, NULL},
    {"pack_reserved", pack_reserved, METH_VARARGS, NULL},
    {"read_reserved", read_reserved, METH_O, NULL},
    {"miss", pins_miss, METH_VARARGS, NULL},
    {"gather", strided_gather, METH_VARARGS, NULL},
    {"scatter", strided_scatter, METH_VARARGS, NULL},
    {"check_slots", check_slots, METH_VARARGS, NULL},
    {"check_blocks", check_blocks, METH_VARARGS, NULL},
    {"check_blocks_apart", check_blocks_apart, METH_VARARGS, NULL},
    {"compress", compress_page, METH_VARARGS, NULL},
    {"expand", expand_page, METH_VARARGS, NULL},
    {"keys_ascend", keys_ascend, METH_VARARGS, NULL},
    {"frames_named", frames_named, METH_VARARGS, NULL},
    {"stored_pages", stored_pages, METH_VARARGS, NULL},
    {"claim_slots", claim_slots, METH_VARARGS, NULL},
    {"compresses_fast", compresses_fast, METH_NOARGS, NULL},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "pagetier.shm._core", .m_size = -1, .m_methods = functions,
};

static PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(module, name, type) < 0)
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    pthread_atfork(NULL, NULL, count_fork);
    ShmError = PyErr_NewException("pagetier.shm._core.ShmError", NULL, NULL);
    PinsType = add_type(module, "Pins", &pins_spec);
    if (ShmError && PinsType && PyModule_AddObjectRef(module, "ShmError", ShmError) == 0 &&
        add_type(module, "Session", &session_spec) && add_type(module, "Owner", &owner_spec) &&
        add_type(module, "Observer", &observer_spec) && add_limits(module) && add_enumerations(module) &&
        add_records(module) && add_layouts(module))
        return module;
    Py_DECREF(module);
    return NULL;
}
