/* owner_quotas.h - the type Owner: quotas by tenant. */
#pragma once

#include "owner_reservations.h"

_Static_assert(sizeof(pt_quota) == 32, "set_quotas() takes four doubles of 8 bytes for each tenant");

/* Returns whether the quotas can be in force. Sets an exception otherwise. */
static bool quotas_sound(const pt_quota *quotas, uint32_t count)
{
    bool sound = count >= 1 && count <= PT_TENANTS;
    for (uint32_t i = 0; sound && i < 2 * count; i++) {
        const pt_bounds *share = i % 2 ? &quotas[i / 2].disk : &quotas[i / 2].memory;
        sound = share->least >= 0 && share->least <= share->most && share->most <= 1;
    }
    if (!sound)
        PyErr_Format(PyExc_ValueError, "the quotas of %u tenants are invalid", count);
    return sound;
}

/* Reads a pattern for each tenant but the first. Returns false with an exception set. */
static bool patterns_of(PyObject *list, uint32_t count, char patterns[PT_TENANTS][PATTERN_BYTES])
{
    bool sound = PyList_Check(list) && PyList_Size(list) + 1 == (Py_ssize_t)count;
    for (uint32_t tenant = 1; sound && tenant < count; tenant++) {
        const char *pattern = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, (Py_ssize_t)tenant - 1), NULL);
        sound = pattern && strlen(pattern) < PATTERN_BYTES;
        if (sound)
            strcpy(patterns[tenant], pattern);
    }
    if (!sound && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a list of %u patterns of less than %u bytes is needed", count - 1,
                     PATTERN_BYTES);
    return sound;
}

/* Puts quotas in force. Returns false if memory is short; then the earlier ones stay. */
static bool quotas_begin(Owner *self, const pt_quota *quotas, uint32_t count, char patterns[PT_TENANTS][PATTERN_BYTES])
{
    pt_owner *o = &self->shared;
    uint8_t *tenants = calloc(o->view.header->spaces + 1, 1);
    bool begun = tenants && pt_more_tenants(o, count);
    if (begun) {
        memcpy(self->patterns, patterns, sizeof self->patterns);
        o->tenants.count = count;
        for (uint32_t s = 0; s < o->view.header->spaces; s++) {
            char name[PT_NAME_BYTES + 1] = {0};
            memcpy(name, o->view.spaces[s].name, PT_NAME_BYTES);
            tenants[s] = o->view.spaces[s].used ? tenant_named(self, name) : 0;
        }
        begun = pt_set_quotas(o, quotas, count, tenants, pt_now_ns());
    }
    free(tenants);
    return begun;
}

/* set_quotas(quotas, patterns): the shares of each tenant, of which the first has no limits and no pattern:
 * least and most of the arena, least and most of each device (f64); and the pattern of the names of each
 * other one's namespaces, as of fnmatch(3). */
static PyObject *owner_set_quotas(Owner *self, PyObject *args)
{
    PyObject *given, *list, *done = NULL;
    char patterns[PT_TENANTS][PATTERN_BYTES] = {{0}};
    array quotas;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OO", &given, &list) ||
        !array_open(given, sizeof(pt_quota), "quotas", &quotas))
        return NULL;
    uint32_t count = (uint32_t)quotas.count;
    if (quotas_sound(quotas.view.buf, count) && patterns_of(list, count, patterns))
        done = quotas_begin(self, quotas.view.buf, count, patterns) ? Py_NewRef(Py_None) : PyErr_NoMemory();
    PyBuffer_Release(&quotas.view);
    return done;
}

/* trim(limit) -> pages evicted, at most `limit`, of tenants that have more than their maximum. */
static PyObject *owner_trim(Owner *self, PyObject *args)
{
    unsigned int limit;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &limit))
        return NULL;
    return PyLong_FromUnsignedLong(pt_trim(&self->shared, limit, pt_now_ns()));
}

/* tenants() -> (frames of the arena, frames of all devices) that each tenant has. */
static PyObject *owner_tenants(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    const pt_owner *o = &self->shared;
    PyObject *list = PyList_New(0);
    for (uint32_t tenant = 0; list && tenant < o->tenants.count; tenant++) {
        uint64_t on_disk = 0;
        for (const pt_device *d = o->disk.devices; d < o->disk.devices + PT_DEVICES; d++)
            on_disk += pt_frames_of_slots(o->view.header, d, d->used_of[tenant]);
        if (!append_new(list, Py_BuildValue("(KK)", (unsigned long long)o->tenants.frames[tenant],
                                            (unsigned long long)on_disk)))
            Py_CLEAR(list);
    }
    return list;
}

/* quota_refusal() -> (the tenant, which has its maximum, bits of the tenants that lose none to it): why pages of the
 * last reserve() were refused; 0: not because of it. */
static PyObject *owner_quota_refusal(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    const pt_refusal *refusal = &self->shared.tenants.refusal;
    return Py_BuildValue("(II)", (unsigned int)refusal->at_maximum, (unsigned int)refusal->protected);
}

/* mark_hurries(ahead) -> marks tenants with a maximum that are about to evict unwritten
 * pages; such pages are written first. Returns whether there is one. */
static PyObject *owner_mark_hurries(Owner *self, PyObject *args)
{
    unsigned long long ahead;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "K", &ahead))
        return NULL;
    return PyBool_FromLong(pt_mark_hurries(&self->shared, ahead));
}

/* tenant_of(name) -> the tenant of the namespaces with this name. */
static PyObject *owner_tenant_of(Owner *self, PyObject *args)
{
    const char *name;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "s", &name))
        return NULL;
    return PyLong_FromUnsignedLong(tenant_named(self, name));
}
