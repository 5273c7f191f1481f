/* layouts.h - the layout of structs that Python reads or builds itself: the name, the
 * offset and the bytes of each field. */
#pragma once

#include "disk_records.h"
#include "page_rows.h"
#include "records.h"

#include "../core/client/copy_tables.h"
#include "../core/client/locate.h"
#include "../core/daemon/cadence/disk_history.h"

typedef struct {
    const char *name; /* NULL ends a table */
    Py_ssize_t offset, size;
} struct_field;

#define FIELD_OF(type, field) {#field, offsetof(type, field), sizeof(((type *)NULL)->field)}

static const struct_field plane_fields[] = {
    FIELD_OF(pt_plane, base), FIELD_OF(pt_plane, block),     FIELD_OF(pt_plane, token), FIELD_OF(pt_plane, head),
    FIELD_OF(pt_plane, at),   FIELD_OF(pt_plane, page_head), FIELD_OF(pt_plane, heads), FIELD_OF(pt_plane, width),
    {NULL, 0, 0},
};
static const struct_field tokens_fields[] = {
    FIELD_OF(pt_tokens, position), FIELD_OF(pt_tokens, first), FIELD_OF(pt_tokens, end), {NULL, 0, 0},
};
static const struct_field lock_fields[] = {
    FIELD_OF(pt_lock, word),
    FIELD_OF(pt_lock, parts),
    FIELD_OF(pt_lock, tick),
    FIELD_OF(pt_lock, checksum),
    {NULL, 0, 0},
};
static const struct_field history_fields[] = {
    FIELD_OF(pt_history, parent), FIELD_OF(pt_history, parent_life), FIELD_OF(pt_history, life),
    FIELD_OF(pt_history, seen), FIELD_OF(pt_history, children), FIELD_OF(pt_history, place),
    FIELD_OF(pt_history, class), FIELD_OF(pt_history, cadence), FIELD_OF(pt_history, uses), {NULL, 0, 0},
};
static const struct_field disk_history_fields[] = {
    FIELD_OF(pt_disk_history, parent), FIELD_OF(pt_disk_history, depth), FIELD_OF(pt_disk_history, cadence),
    FIELD_OF(pt_disk_history, uses), FIELD_OF(pt_disk_history, growth), FIELD_OF(pt_disk_history, hint), {NULL, 0, 0},
};
static const struct_field listed_fields[] = {
    FIELD_OF(pt_listed, key),    FIELD_OF(pt_listed, size),  FIELD_OF(pt_listed, used_ns), FIELD_OF(pt_listed, entry),
    FIELD_OF(pt_listed, parent), FIELD_OF(pt_listed, reservation), FIELD_OF(pt_listed, tiers),   {NULL, 0, 0},
};
static const struct_field page_request_fields[] = {
    FIELD_OF(pt_page_request, key), FIELD_OF(pt_page_request, size), {NULL, 0, 0},
};
static const struct_field page_answer_fields[] = {
    FIELD_OF(pt_answer, outcome), FIELD_OF(pt_answer, entry), FIELD_OF(pt_answer, serial), {NULL, 0, 0},
};
static const struct_field page_to_find_fields[] = {
    FIELD_OF(pt_page_to_find, key), FIELD_OF(pt_page_to_find, space), {NULL, 0, 0},
};
static const struct_field located_page_fields[] = {
    FIELD_OF(pt_located_page, key), FIELD_OF(pt_located_page, size), FIELD_OF(pt_located_page, space), {NULL, 0, 0},
};
static const struct_field page_to_write_fields[] = {
    FIELD_OF(pt_page_to_write, key),   FIELD_OF(pt_page_to_write, history),     FIELD_OF(pt_page_to_write, size),
    FIELD_OF(pt_page_to_write, serial), FIELD_OF(pt_page_to_write, stamp),      FIELD_OF(pt_page_to_write, entry),
    FIELD_OF(pt_page_to_write, space), FIELD_OF(pt_page_to_write, reservation), {NULL, 0, 0},
};
static const struct_field page_to_read_fields[] = {
    FIELD_OF(pt_page_to_read, key),   FIELD_OF(pt_page_to_read, size),    FIELD_OF(pt_page_to_read, serial),
    FIELD_OF(pt_page_to_read, entry), FIELD_OF(pt_page_to_read, space),   FIELD_OF(pt_page_to_read, outcome),
    FIELD_OF(pt_page_to_read, device), {NULL, 0, 0},
};
static const struct_field stored_page_fields[] = {
    FIELD_OF(pt_stored_page, key),   FIELD_OF(pt_stored_page, history), FIELD_OF(pt_stored_page, size),
    FIELD_OF(pt_stored_page, stamp), FIELD_OF(pt_stored_page, space),   FIELD_OF(pt_stored_page, slots),
    {NULL, 0, 0},
};
/* The fields that are in the same place in every format. */
static const struct_field head_fields[] = {
    FIELD_OF(pt_header, magic), FIELD_OF(pt_header, format), FIELD_OF(pt_header, build), {NULL, 0, 0},
};

static const struct {
    const char *name;
    const struct_field *fields;
    Py_ssize_t size;
} layouts[] = {
    {"PLANE_LAYOUT", plane_fields, sizeof(pt_plane)},
    {"TOKENS_LAYOUT", tokens_fields, sizeof(pt_tokens)},
    {"LOCK_LAYOUT", lock_fields, sizeof(pt_lock)},
    {"HISTORY_LAYOUT", history_fields, sizeof(pt_history)},
    {"DISK_HISTORY_LAYOUT", disk_history_fields, sizeof(pt_disk_history)},
    {"LISTED_LAYOUT", listed_fields, sizeof(pt_listed)},
    {"PAGE_REQUEST_LAYOUT", page_request_fields, sizeof(pt_page_request)},
    {"PAGE_ANSWER_LAYOUT", page_answer_fields, sizeof(pt_answer)},
    {"PAGE_TO_FIND_LAYOUT", page_to_find_fields, sizeof(pt_page_to_find)},
    {"LOCATED_PAGE_LAYOUT", located_page_fields, sizeof(pt_located_page)},
    {"PAGE_TO_WRITE_LAYOUT", page_to_write_fields, sizeof(pt_page_to_write)},
    {"PAGE_TO_READ_LAYOUT", page_to_read_fields, sizeof(pt_page_to_read)},
    {"STORED_PAGE_LAYOUT", stored_page_fields, sizeof(pt_stored_page)},
    {"HEAD_LAYOUT", head_fields, offsetof(pt_header, index_bytes)},
};

/* Returns the fields as a list of tuples, NULL with an exception set. */
static PyObject *fields_of(const struct_field *field)
{
    PyObject *list = PyList_New(0);
    for (; list && field->name; field++)
        if (!append_new(list, Py_BuildValue("(snn)", field->name, field->offset, field->size)))
            Py_CLEAR(list);
    return list;
}

static bool add_layouts(PyObject *module)
{
    bool done = true;
    for (size_t i = 0; done && i < sizeof layouts / sizeof *layouts; i++) {
        PyObject *list = fields_of(layouts[i].fields), *fields = list ? PyList_AsTuple(list) : NULL;
        PyObject *values = fields ? Py_BuildValue("(nN)", layouts[i].size, fields) : NULL;
        done = add_new(module, layouts[i].name, record_of(StructLayout, values));
        Py_XDECREF(list);
    }
    return done;
}
