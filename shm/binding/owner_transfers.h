/* owner_transfers.h - the type Owner: pages that are written to disk, or read from disk and the fleet. */
#pragma once

#include "owner_disk.h"
#include "page_rows.h"

#include "../core/daemon/fetch.h"

/* frames_before_unwritten(enough, tenant = 0): frames that can become free for a tenant before the first unwritten page
 * has to be evicted, counted up to about `enough`. */
static PyObject *owner_frames_before_unwritten(Owner *self, PyObject *args)
{
    unsigned long long enough;
    unsigned int tenant = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "K|I", &enough, &tenant) || !tenant_exists(self, tenant))
        return NULL;
    return PyLong_FromUnsignedLongLong(pt_frames_before_unwritten(&self->shared, tenant, enough));
}

/* Clients may write ticks at any time, so each tick is validated when it is read. */
static pt_page_to_write page_to_write(pt_owner *o, uint32_t entry, int64_t offset, uint64_t now)
{
    const pt_entry *e = &o->view.entries[entry];
    int64_t stamp = (int64_t)pt_correct_tick(o, entry, now) + offset;
    pt_page_to_write page = {
        .history = pt_describe_history(&o->view, entry), .size = e->size, .serial = e->serial,
        .stamp = stamp > 0 ? (uint64_t)stamp : 0, .entry = entry, .space = e->space, .reservation = e->reservation,
    };
    memcpy(page.key, e->key, PT_KEY_BYTES);
    return page;
}

/* start_writes(frames, limit, device = 0, offset = 0) -> rows of pt_page_to_write, for a device. */
static PyObject *owner_start_writes(Owner *self, PyObject *args)
{
    unsigned long long frames;
    long long offset = 0;
    unsigned int limit, device = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "KI|IL", &frames, &limit, &device, &offset) ||
        !device_exists(device))
        return NULL;
    uint32_t *entries = malloc((size_t)limit * sizeof *entries + 1);
    if (!entries)
        return PyErr_NoMemory();
    uint64_t now = pt_now_ns();
    uint32_t count = pt_start_writes(&self->shared, device, frames, limit, now, entries);
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(pt_page_to_write)));
    pt_page_to_write *row = rows ? (pt_page_to_write *)(void *)PyBytes_AsString(rows) : NULL;
    for (uint32_t i = 0; row && i < count; i++)
        row[i] = page_to_write(&self->shared, entries[i], offset, now);
    free(entries);
    return rows;
}

/* end_writes(pages, results, slots = none): ends writes that were commanded; `pages` are rows of pt_page_to_write, and
 * results has an enum pt_write_result for each. `slots` says how many slots of the device each takes, u32; 0: as many
 * as its bytes fill. */
static PyObject *owner_end_writes(Owner *self, PyObject *args)
{
    PyObject *pages, *results, *slots = NULL;
    array of[3];
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OO|O", &pages, &results, &slots))
        return NULL;
    int arrays = slots ? 3 : 2;
    if (!arrays_open((array_wanted[]){{pages, sizeof(pt_page_to_write), "pages"}, {results, 1, "results"},
                                      {slots, 4, "slots"}},
                     arrays, of))
        return NULL;
    uint64_t now = pt_now_ns();
    for (Py_ssize_t i = 0; i < of[0].count; i++) {
        pt_page_to_write page;
        memcpy(&page, (const pt_page_to_write *)of[0].view.buf + i, sizeof page); /* of any alignment */
        if (slots)
            pt_note_written(&self->shared, page.entry, ((uint32_t *)of[2].view.buf)[i]);
        pt_end_write(&self->shared, page.entry, (enum pt_write_result)((uint8_t *)of[1].view.buf)[i], now, (uint32_t)i);
    }
    arrays_close(of, arrays);
    Py_RETURN_NONE;
}

/* Replaces the namespaces of located pages, positions in a message's table, by their `numbers` in the index. A page of
 * no such namespace counts as not located. Returns false with an exception set. */
static bool located_of(Owner *self, const array *numbers, asked_pages *pages, pt_located *located)
{
    const uint32_t *number = numbers->view.buf;
    bool valid = located->reader.slot < PT_SLOTS;
    for (Py_ssize_t i = 0; valid && i < numbers->count; i++)
        valid = space_exists(self, number[i]);
    for (uint32_t i = 0; valid && i < pages->count; i++) {
        bool named = pages->spaces[i] < numbers->count;
        pages->sizes[i] = named ? pages->sizes[i] : 0;
        pages->spaces[i] = named ? number[pages->spaces[i]] : 0;
    }
    located->sizes = pages->sizes;
    located->spaces = pages->spaces;
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "there is no such slot or namespace");
    return valid;
}

static pt_page_to_read page_to_read(pt_owner *o, const pt_answer *answer, const uint8_t *key)
{
    pt_page_to_read page = {.serial = answer->serial, .entry = answer->entry, .outcome = answer->outcome};
    memcpy(page.key, key, PT_KEY_BYTES);
    if (answer->entry >= o->view.entry_count)
        return page;
    page.size = o->view.entries[answer->entry].size;
    page.space = o->view.entries[answer->entry].space;
    page.device = answer->outcome == PT_GRANTED_TO_FLEET
                      ? PT_DEVICES
                      : (uint8_t)(pt_device_of(o, answer->entry) - o->disk.devices);
    return page;
}

static PyObject *fetch_pages(Owner *self, const pt_request *r, pt_reader *readers, pt_located *located,
                             const uint8_t *keys, uint32_t count)
{
    pt_answer *answers = malloc(count * sizeof *answers + 1);
    if (!answers)
        return PyErr_NoMemory();
    pt_fetch(&self->shared, r, readers, located, keys, count, answers);
    PyObject *rows = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(pt_page_to_read));
    pt_page_to_read *row = rows ? (pt_page_to_read *)(void *)PyBytes_AsString(rows) : NULL;
    for (uint32_t i = 0; row && i < count; i++)
        row[i] = page_to_read(&self->shared, &answers[i], pt_nth_key(keys, i));
    free(answers);
    return rows;
}

/* Reads the worker of each device, and how many frames it may get. Returns false with an exception set. */
static bool readers_of(PyObject *slots, PyObject *most, pt_reader *readers)
{
    array of[2];
    if (!arrays_open((array_wanted[]){{slots, 4, "slots"}, {most, 8, "most_frames"}}, 2, of))
        return false;
    bool valid = of[0].count <= PT_DEVICES;
    for (Py_ssize_t i = 0; valid && i < of[0].count; i++) {
        readers[i] = (pt_reader){((uint32_t *)of[0].view.buf)[i], ((uint64_t *)of[1].view.buf)[i], 0};
        valid = readers[i].slot < PT_SLOTS;
    }
    arrays_close(of, 2);
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "there is no such slot or device");
    return valid;
}

/* fetch(slots, ttl_ns, keys, most_frames) -> rows of pt_page_to_read: grants frames for pages on disk to the slot of
 * their device's worker (u32 for each device), at most most_frames for each device (u64). */
static PyObject *owner_fetch(Owner *self, PyObject *args)
{
    pt_request r = {.now = pt_now_ns(), .parts = 1};
    pt_reader readers[PT_DEVICES] = {{0}};
    unsigned long long ttl;
    PyObject *slots, *given, *most;
    array keys;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OKOO", &slots, &ttl, &given, &most) ||
        !readers_of(slots, most, readers) || !array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    r.expires_ns = r.now + ttl;
    PyObject *rows = fetch_pages(self, &r, readers, NULL, keys.view.buf, (uint32_t)keys.count);
    PyBuffer_Release(&keys.view);
    return rows;
}

/* fetch_located(slots, ttl_ns, pages, most_frames, fleet_slot, fleet_frames, spaces) -> as fetch(), for rows of
 * pt_located_page. Pages that no tier of this host has, but that have a size, are granted to the fleet's worker, at
 * most fleet_frames; `spaces` has the number in the index (u32) of each namespace of the rows. */
static PyObject *owner_fetch_located(Owner *self, PyObject *args)
{
    pt_request r = {.now = pt_now_ns(), .parts = 1};
    pt_reader readers[PT_DEVICES] = {{0}};
    unsigned long long ttl, fleet_frames;
    PyObject *slots, *given, *most, *spaces, *rows = NULL;
    pt_located located = {{0}, NULL, NULL};
    asked_pages pages;
    array numbers;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OKOOIKO", &slots, &ttl, &given, &most, &located.reader.slot,
                                                &fleet_frames, &spaces) ||
        !readers_of(slots, most, readers) || !asked_pages_of(given, &pages))
        return NULL;
    r.expires_ns = r.now + ttl;
    located.reader.most_frames = fleet_frames;
    if (array_open(spaces, 4, "spaces", &numbers)) {
        if (located_of(self, &numbers, &pages, &located))
            rows = fetch_pages(self, &r, readers, &located, pages.keys, pages.count);
        PyBuffer_Release(&numbers.view);
    }
    free(pages.sizes);
    return rows;
}

/* reservations(entries) -> u32 each: the reservation that granted a page; 0 if unknown. */
static PyObject *owner_reservations(Owner *self, PyObject *args)
{
    PyObject *given;
    array entries;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "O", &given) || !array_open(given, 4, "entries", &entries))
        return NULL;
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, 4 * entries.count);
    for (Py_ssize_t i = 0; numbers && i < entries.count; i++) {
        uint32_t entry = ((uint32_t *)entries.view.buf)[i];
        uint32_t number = entry < self->shared.view.entry_count ? self->shared.view.entries[entry].reservation : 0;
        memcpy(PyBytes_AsString(numbers) + 4 * i, &number, 4);
    }
    PyBuffer_Release(&entries.view);
    return numbers;
}

/* tiers(entries) -> u8 each: the tiers that have a page, as flags; 0 for an entry that does not exist. */
static PyObject *owner_tiers(Owner *self, PyObject *args)
{
    PyObject *given;
    array entries;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "O", &given) || !array_open(given, 4, "entries", &entries))
        return NULL;
    PyObject *tiers = PyBytes_FromStringAndSize(NULL, entries.count);
    for (Py_ssize_t i = 0; tiers && i < entries.count; i++) {
        uint32_t entry = ((uint32_t *)entries.view.buf)[i];
        bool exists = entry < self->shared.view.entry_count;
        PyBytes_AsString(tiers)[i] = (char)(exists ? pt_tiers(&self->shared.view.entries[entry]) : 0);
    }
    PyBuffer_Release(&entries.view);
    return tiers;
}

/* count_fetched(pages, bytes, missed): counts the results of requests for pages on disk. */
static PyObject *owner_count_fetched(Owner *self, PyObject *args)
{
    unsigned long long pages, bytes, missed;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "KKK", &pages, &bytes, &missed))
        return NULL;
    pt_daemon_counts *counters = &self->shared.view.header->counters;
    counters->disk_read += pages;
    counters->disk_read_bytes += bytes;
    counters->disk_missed += missed;
    Py_RETURN_NONE;
}
