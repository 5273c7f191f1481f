/* tiers.h - where pages are, for Session.locate and Observer.locate. */
#pragma once

#include "buffers.h"

#include "../core/client/locate.h"

/* Returns the TierFlag of the page of each key (u8), and releases the keys. Without a view no page is anywhere. */
static PyObject *tiers_of_keys(const pt_view *v, array *keys)
{
    PyObject *tiers = PyBytes_FromStringAndSize(NULL, keys->count);
    char *to = tiers ? PyBytes_AsString(tiers) : NULL;
    for (Py_ssize_t i = 0; to && i < keys->count; i++)
        to[i] = v ? (char)pt_locate(v, (const uint8_t *)keys->view.buf + i * PT_KEY_BYTES) : 0;
    PyBuffer_Release(&keys->view);
    return tiers;
}
