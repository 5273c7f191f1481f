/* slot_checks.h - checks the tables of a slot map for Python: an engine's blocks, before anything is copied. */
#pragma once

#include "session_copy.h"

#include "../core/client/slot_tables.h"

/* Opens the tables of (NUMBER, block_tokens, pages, blocks, skip) in `args`. Returns false with an exception set;
 * after true the caller calls slots_close. */
static bool slots_open(PyObject *args, long long *number, tables *t)
{
    PyObject **o = t->objects;
    if (!PyArg_ParseTuple(args, "LLOOO", number, &t->block_tokens, &o[PAGES], &o[BLOCKS], &o[SKIP]) ||
        !tables_open_from(PAGES, t))
        return false;
    if (t->block_tokens >= 1)
        return true;
    tables_close_from(PAGES, t);
    return refused("block_tokens", "at least 1");
}

/* check_slots(page_tokens, block_tokens, pages, blocks, skip) */
static PyObject *check_slots(PyObject *module, PyObject *args)
{
    long long page_tokens;
    tables t;
    (void)module;
    if (!slots_open(args, &page_tokens, &t))
        return NULL;
    enum pt_slots_flaw flaw = pt_slots_flaw(&t.transfer, page_tokens);
    if (flaw == PT_SLOTS_OUTSIDE_PAGE)
        PyErr_Format(PyExc_ValueError, "tokens outside of pages of %lld tokens", page_tokens);
    else if (flaw == PT_SLOTS_OUTSIDE_TABLE)
        PyErr_Format(PyExc_ValueError, "tokens outside of %lld blocks of %lld tokens",
                     (long long)t.transfer.block_count, t.block_tokens);
    tables_close_from(PAGES, &t);
    return flaw == PT_SLOTS_SOUND ? Py_NewRef(Py_None) : NULL;
}

static bool blocks_apart(const pt_transfer *t, const pt_slot_range *ranges, int64_t count, int64_t highest)
{
    if (pt_ranges_overlap(ranges, count)) {
        PyErr_SetString(PyExc_ValueError, "two pages would be loaded to the same tokens");
        return false;
    }
    uint8_t *seen = PyMem_Calloc((size_t)(highest + 1) / 8 + 1, 1);
    if (!seen) {
        PyErr_NoMemory();
        return false;
    }
    long long block = pt_repeated_block(t, ranges, count, seen);
    PyMem_Free(seen);
    if (block >= 0)
        PyErr_Format(PyExc_ValueError, "block %lld would be loaded twice", block);
    return block < 0;
}

/* Checks blocks that exist, of which `highest` is the highest. */
typedef bool blocks_check(const pt_transfer *t, const pt_slot_range *ranges, int64_t count, int64_t highest);

static bool blocks_pass(const pt_transfer *t, long long blocks, blocks_check *check)
{
    pt_slot_range *ranges = PyMem_Calloc((size_t)t->page_count + 1, sizeof *ranges);
    if (!ranges) {
        PyErr_NoMemory();
        return false;
    }
    int64_t count = pt_slot_ranges(t, ranges), block;
    bool passed = pt_blocks_exist(t, ranges, count, blocks, &block);
    if (!passed)
        PyErr_Format(PyExc_ValueError, "block %lld does not exist: the cache has %lld blocks", (long long)block,
                     blocks);
    passed = passed && (!check || check(t, ranges, count, block));
    PyMem_Free(ranges);
    return passed;
}

static PyObject *blocks_checked(PyObject *args, blocks_check *check)
{
    long long blocks;
    tables t;
    if (!slots_open(args, &blocks, &t))
        return NULL;
    bool passed = pt_slots_flaw(&t.transfer, INT64_MAX) == PT_SLOTS_SOUND
                      ? blocks_pass(&t.transfer, blocks, check)
                      : refused("pages", "tokens outside of the table of blocks");
    tables_close_from(PAGES, &t);
    return passed ? Py_NewRef(Py_None) : NULL;
}

/* check_blocks(cache_blocks, block_tokens, pages, blocks, skip) */
static PyObject *check_blocks(PyObject *module, PyObject *args)
{
    (void)module;
    return blocks_checked(args, NULL);
}

/* check_blocks_apart(cache_blocks, block_tokens, pages, blocks, skip) */
static PyObject *check_blocks_apart(PyObject *module, PyObject *args)
{
    (void)module;
    return blocks_checked(args, blocks_apart);
}
