/* layouts.h - the layout of structs of which Python builds or reads tables: names and offsets of their 64-bit fields. */
#pragma once

#include "records.h"

#include "../core/client/copy_tables.h"

#define FIELD_AT(type, field) {#field, offsetof(type, field)}

static const named_number plane_fields[] = {
    FIELD_AT(pt_plane, base), FIELD_AT(pt_plane, block),     FIELD_AT(pt_plane, token), FIELD_AT(pt_plane, head),
    FIELD_AT(pt_plane, at),   FIELD_AT(pt_plane, page_head), FIELD_AT(pt_plane, heads), FIELD_AT(pt_plane, width),
    {NULL, 0},
};
static const named_number tokens_fields[] = {
    FIELD_AT(pt_tokens, position), FIELD_AT(pt_tokens, first), FIELD_AT(pt_tokens, end), {NULL, 0},
};
static const named_number lock_fields[] = {
    FIELD_AT(pt_lock, word), FIELD_AT(pt_lock, parts), FIELD_AT(pt_lock, tick), FIELD_AT(pt_lock, checksum), {NULL, 0},
};

static const struct {
    const char *name;
    const named_number *fields;
    Py_ssize_t size;
} layouts[] = {
    {"PLANE_LAYOUT", plane_fields, sizeof(pt_plane)},
    {"TOKENS_LAYOUT", tokens_fields, sizeof(pt_tokens)},
    {"LOCK_LAYOUT", lock_fields, sizeof(pt_lock)},
};

static bool add_layouts(PyObject *module)
{
    bool done = true;
    for (size_t i = 0; done && i < sizeof layouts / sizeof *layouts; i++) {
        PyObject *fields = members_of(layouts[i].fields);
        PyObject *values = fields ? Py_BuildValue("(nN)", layouts[i].size, fields) : NULL;
        done = add_new(module, layouts[i].name, record_of(StructLayout, values));
    }
    return done;
}
