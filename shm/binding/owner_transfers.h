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

/* Reads what was located in the fleet: the sizes and namespaces of `pages` pages, which may be without any.
 * Returns false with an exception set. */
static bool located_open(Owner *self, PyObject *sizes, PyObject *spaces, Py_ssize_t pages, array *in,
                         pt_located *located)
{
    if (!arrays_open((array_wanted[]){{sizes, 8, "sizes"}, {spaces, 4, "spaces"}}, 2, in))
        return false;
    bool valid = in[0].count == pages && located->reader.slot < PT_SLOTS;
    for (Py_ssize_t i = 0; valid && i < pages; i++)
        valid = space_exists(self, ((uint32_t *)in[1].view.buf)[i]);
    located->sizes = in[0].view.buf;
    located->spaces = in[1].view.buf;
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "there is no such slot or namespace, or there are not as many sizes as keys");
        arrays_close(in, 2);
    }
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
                             const array *keys)
{
    pt_answer *answers = malloc((size_t)keys->count * sizeof *answers + 1);
    if (!answers)
        return PyErr_NoMemory();
    pt_fetch(&self->shared, r, readers, located, keys->view.buf, (uint32_t)keys->count, answers);
    PyObject *rows = PyBytes_FromStringAndSize(NULL, keys->count * (Py_ssize_t)sizeof(pt_page_to_read));
    pt_page_to_read *row = rows ? (pt_page_to_read *)(void *)PyBytes_AsString(rows) : NULL;
    for (Py_ssize_t i = 0; row && i < keys->count; i++)
        row[i] = page_to_read(&self->shared, &answers[i], (const uint8_t *)keys->view.buf + PT_KEY_BYTES * i);
    free(answers);
    return rows;
}

/* fetch(slots, ttl_ns, keys, most_frames, fleet_slot, fleet_frames, sizes, spaces) -> rows of
 * pt_page_to_read: grants frames for pages on disk to the slot of their device's worker (u32 for each device), at most
 * most_frames for each device (u64). Pages that no tier of this host has, but that have a size, are granted to the
 * fleet's worker, at most fleet_frames. */
static PyObject *owner_fetch(Owner *self, PyObject *args)
{
    pt_request r = {.now = pt_now_ns(), .parts = 1};
    pt_reader readers[PT_DEVICES] = {{0}};
    unsigned long long ttl;
    unsigned long long fleet_frames = 0;
    PyObject *slots, *given, *most, *sizes = NULL, *spaces = NULL, *packed = NULL;
    pt_located located = {{0}, NULL, NULL};
    array of[3], in[2];
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OKOO|IKOO", &slots, &ttl, &given, &most, &located.reader.slot,
                                                &fleet_frames, &sizes, &spaces))
        return NULL;
    located.reader.most_frames = fleet_frames;
    if (!arrays_open((array_wanted[]){{slots, 4, "slots"}, {most, 8, "most_frames"}}, 2, of))
        return NULL;
    bool valid = of[0].count <= PT_DEVICES;
    for (Py_ssize_t i = 0; valid && i < of[0].count; i++) {
        readers[i] = (pt_reader){((uint32_t *)of[0].view.buf)[i], ((uint64_t *)of[1].view.buf)[i], 0};
        valid = readers[i].slot < PT_SLOTS;
    }
    arrays_close(of, 2);
    if (!valid)
        return PyErr_Format(PyExc_ValueError, "there is no such slot or device");
    r.expires_ns = r.now + ttl;
    if (!array_open(given, PT_KEY_BYTES, "keys", &of[2]))
        return NULL;
    if (!spaces) {
        packed = fetch_pages(self, &r, readers, NULL, &of[2]);
    } else if (located_open(self, sizes, spaces, of[2].count, in, &located)) {
        packed = fetch_pages(self, &r, readers, &located, &of[2]);
        arrays_close(in, 2);
    }
    PyBuffer_Release(&of[2].view);
    return packed;
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
