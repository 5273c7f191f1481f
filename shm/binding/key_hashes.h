/* key_hashes.h - keys of pages that an engine has already named by SHA-256: each hash XOR the
 * digest of the namespace, end to end. */
#pragma once

#include "buffers.h"

enum { AHEAD = 8 }; /* hashes are scattered: they lie wherever the engine's allocator put them */

typedef PyObject *(*item_of)(PyObject *, Py_ssize_t);

static void mix(char *key, const char *hash, const uint64_t *digest)
{
    uint64_t words[PT_KEY_BYTES / 8];
    memcpy(words, hash, sizeof words);
    for (size_t i = 0; i < PT_KEY_BYTES / 8; i++)
        words[i] ^= digest[i];
    memcpy(key, words, sizeof words);
}

/* Returns the bytes of an item, or NULL with an exception set. */
static const char *hash_of(PyObject *item, Py_ssize_t at)
{
    char *bytes;
    Py_ssize_t length;
    if (!PyBytes_Check(item)) {
        PyObject *name = PyType_GetName(Py_TYPE(item));
        if (name)
            PyErr_Format(PyExc_TypeError, "hash %zd must be bytes, not %U", at, name);
        Py_XDECREF(name);
        return NULL;
    }
    if (PyBytes_AsStringAndSize(item, &bytes, &length) < 0)
        return NULL;
    if (length == PT_KEY_BYTES)
        return bytes;
    PyErr_Format(PyExc_ValueError, "hash %zd has %zd bytes, not %u: use keys_of() for such digests", at, length,
                 PT_KEY_BYTES);
    return NULL;
}

static bool mix_items(char *keys, PyObject *hashes, Py_ssize_t count, item_of item, const uint64_t *digest)
{
    for (Py_ssize_t i = 0; i < count; i++, keys += PT_KEY_BYTES) {
        if (i + AHEAD < count)
            __builtin_prefetch((const char *)item(hashes, i + AHEAD) + sizeof(PyObject) + sizeof(Py_ssize_t));
        const char *hash = hash_of(item(hashes, i), i);
        if (!hash)
            return false;
        mix(keys, hash, digest);
    }
    return true;
}

/* keys_of_hashes(hashes, digest) -> the keys of a list or a tuple of bytes, in one pass and with
 * no other memory than that of the keys. */
static PyObject *keys_of_hashes(PyObject *module, PyObject *args)
{
    PyObject *hashes;
    const char *given;
    Py_ssize_t length;
    uint64_t digest[PT_KEY_BYTES / 8];
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy#", &hashes, &given, &length))
        return NULL;
    if (length != PT_KEY_BYTES)
        return PyErr_Format(PyExc_ValueError, "a namespace's digest has %u bytes, not %zd", PT_KEY_BYTES, length);
    memcpy(digest, given, sizeof digest);
    bool listed = PyList_Check(hashes);
    if (!listed && !PyTuple_Check(hashes))
        return PyErr_Format(PyExc_TypeError, "hashes must be a list or a tuple of bytes");
    Py_ssize_t count = listed ? PyList_Size(hashes) : PyTuple_Size(hashes);
    PyObject *keys = PyBytes_FromStringAndSize(NULL, count * PT_KEY_BYTES);
    if (keys && !mix_items(PyBytes_AsString(keys), hashes, count, listed ? PyList_GetItem : PyTuple_GetItem, digest))
        Py_CLEAR(keys);
    return keys;
}
