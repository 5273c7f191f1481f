/* curves.h - what the daemon knows of lookups, for Python: the curve of hit ratios, and why pages were absent. */
#pragma once

#include "records.h"

#include "../core/daemon/mrc/curve.h"

/* Returns the curve of the segments, or NULL if they have none that this build knows. */
static const pt_curve *curve_of(const pt_view *v)
{
    const pt_curve *c = (const pt_curve *)v->curve;
    return v->curve_bytes >= sizeof *c && c->layout == PT_CURVE_LAYOUT ? c : NULL;
}

/* Returns a tuple of floats. */
static PyObject *floats_of(const double *numbers, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyFloat_FromDouble(numbers[i]);
        if (number)
            PyTuple_SetItem(tuple, i, number);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *describe_lookups(const pt_view *v)
{
    const pt_curve *c = curve_of(v);
    if (!c)
        Py_RETURN_NONE;
    uint64_t now = pt_now_ns();
    double seconds = c->faded_ns && c->faded_ns < now ? (double)(c->known_ns + now - c->faded_ns) / 1e9 : 0;
    return record_of(SampledLookups,
                     Py_BuildValue("(ddKKdddN)", c->threshold / 4294967296.0, seconds, (unsigned long long)c->lookups,
                                   (unsigned long long)c->lost, c->hit_pages, c->miss_pages, c->stored_pages,
                                   floats_of(c->absent_ever, PT_ABSENCES)));
}

static PyObject *describe_curve(const pt_curve_sums *s, const double *sizes, Py_ssize_t count)
{
    double *ratios = malloc((size_t)count * sizeof *ratios + 1);
    if (!ratios)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        ratios[i] = pt_curve_ratio(s, sizes[i]);
    PyObject *curve = record_of(LookupCurve,
                                Py_BuildValue("(y#ddNdN)", (const char *)s->digest, (Py_ssize_t)sizeof s->digest,
                                              s->found, s->missed, floats_of(ratios, count),
                                              pt_curve_ratio(s, HUGE_VAL), floats_of(s->absences, PT_ABSENCES)));
    free(ratios);
    return curve;
}

static PyObject *describe_curves(const pt_view *v, PyObject *given)
{
    const pt_curve *c = curve_of(v);
    array sizes;
    if (!array_open(given, sizeof(double), "sizes", &sizes))
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; c && list && i <= PT_CURVE_SPACES; i++) {
        const pt_curve_sums *s = i ? &c->spaces[i - 1] : &c->all;
        if ((!i || s->found + s->missed > 0) && !append_new(list, describe_curve(s, sizes.view.buf, sizes.count)))
            Py_CLEAR(list);
    }
    PyBuffer_Release(&sizes.view);
    return list;
}
