/* owner_disk.h - the type Owner and the disk tier: its devices, what they contain, and which pages they drop. */
#pragma once

#include "owner_reservations.h"

static bool device_exists(unsigned int device)
{
    if (device >= PT_DEVICES)
        PyErr_Format(PyExc_ValueError, "there is no device %u", device);
    return device < PT_DEVICES;
}

/* disk_open(slots, rule, device = 0, slot_bytes = 0): opens a device with room for `slots` slots, of a frame or of so
 * many bytes. It is empty until its contents are reported. */
static PyObject *owner_disk_open(Owner *self, PyObject *args)
{
    unsigned long long slots;
    unsigned int rule, device = 0, slot_bytes = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "KI|II", &slots, &rule, &device, &slot_bytes) ||
        !device_exists(device))
        return NULL;
    if (rule > PT_WRITE_SECOND)
        return PyErr_Format(PyExc_ValueError, "there is no rule %u", rule);
    if (slot_bytes > self->shared.view.frame_bytes)
        return PyErr_Format(PyExc_ValueError, "a slot of %u bytes is larger than a frame", slot_bytes);
    if (self->shared.disk.devices[device].open)
        pt_disk_close(&self->shared, device, pt_now_ns());
    if (!pt_disk_divide(&self->shared, device, slot_bytes) ||
        !pt_disk_open(&self->shared, device, slots, (enum pt_write_rule)rule, pt_now_ns()))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* disk_shrink(slots, device = 0): reduces the capacity of a device, because it has less room than it reported. */
static PyObject *owner_disk_shrink(Owner *self, PyObject *args)
{
    unsigned long long slots;
    unsigned int device = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "K|I", &slots, &device) || !device_exists(device))
        return NULL;
    pt_disk_shrink(&self->shared, device, slots, pt_now_ns());
    Py_RETURN_NONE;
}

/* disk_rule(rule): changes the write rule. Pages that were excluded from writing before are considered again. */
static PyObject *owner_disk_rule(Owner *self, PyObject *args)
{
    unsigned int rule;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "I", &rule))
        return NULL;
    if (rule > PT_WRITE_SECOND)
        return PyErr_Format(PyExc_ValueError, "there is no rule %u", rule);
    pt_disk_set_rule(&self->shared, (enum pt_write_rule)rule, pt_now_ns());
    Py_RETURN_NONE;
}

/* unwritten() -> UnwrittenPages: what still has to be written by the present rule, and the pages that stay in
 * memory only. */
static PyObject *owner_unwritten(Owner *self, PyObject *unused)
{
    (void)unused;
    if (!owner_ready(self))
        return NULL;
    pt_sum sum = pt_unwritten(&self->shared);
    return record_of_numbers(UnwrittenPages, (uint64_t[]){sum.pages, sum.bytes, sum.skipped}, 3);
}

/* disk_complete(device = 0): all pages on a device were reported. */
static PyObject *owner_disk_complete(Owner *self, PyObject *args)
{
    unsigned int device = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "|I", &device) || !device_exists(device))
        return NULL;
    pt_disk_complete(&self->shared, device);
    Py_RETURN_NONE;
}

/* disk_close(device = 0): closes a device with everything that it contained. */
static PyObject *owner_disk_close(Owner *self, PyObject *args)
{
    unsigned int device = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "|I", &device) || !device_exists(device))
        return NULL;
    pt_disk_close(&self->shared, device, pt_now_ns());
    Py_RETURN_NONE;
}

/* disk_device(device = 0) -> DeviceUsage: its pages and slots, and the tick of its coldest page. */
static PyObject *owner_disk_device(Owner *self, PyObject *args)
{
    unsigned int device = 0;
    uint64_t tick = UINT64_MAX;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "|I", &device) || !device_exists(device))
        return NULL;
    const pt_device *d = &self->shared.disk.devices[device];
    for (uint32_t tenant = 0; d->listed[0] && tenant < self->shared.tenants.count; tenant++) {
        pt_candidate c = pt_coldest_of(&self->shared, d->listed[tenant]);
        tick = c.tick < tick ? c.tick : tick;
    }
    tick = tick == UINT64_MAX ? 0 : tick;
    uint64_t slot_bytes = pt_slot_bytes(self->shared.view.header, d);
    return record_of_numbers(DeviceUsage,
                             (uint64_t[]){d->open, d->slots, d->used_slots, d->ordered_slots, slot_bytes, d->pages,
                                          d->bytes, tick},
                             8);
}

static bool space_exists(Owner *self, uint32_t space)
{
    const pt_view *v = &self->shared.view;
    return space < v->header->spaces && v->spaces[space].used;
}

/* Fetches the bucket of a key that is looked up soon: of a large index each lookup would wait for memory. */
static void prefetch_home(const pt_owner *o, const array *keys, Py_ssize_t number)
{
    if (number < keys->count)
        pt_prefetch_write(&pt_dict_in_force(&o->view).buckets[pt_home(
            &o->view, (uint8_t *)keys->view.buf + number * PT_KEY_BYTES)]);
}

static void disk_report(Owner *self, const array *of, bool slots, uint8_t device)
{
    pt_owner *o = &self->shared;
    uint64_t now = pt_now_ns();
    for (Py_ssize_t i = 0; i < of[0].count; i++) {
        prefetch_home(o, of, i + PT_AHEAD);
        pt_stored page = {(uint8_t *)of[0].view.buf + i * PT_KEY_BYTES, ((uint64_t *)of[1].view.buf)[i],
                          ((uint32_t *)of[2].view.buf)[i], ((uint64_t *)of[3].view.buf)[i], device,
                          slots ? ((uint32_t *)of[4].view.buf)[i] : 0};
        bool sound = page.size && page.size <= o->view.header->arena_bytes && space_exists(self, page.space);
        if (!sound || !pt_disk_report(o, &page, now))
            pt_drop_later(&o->disk.devices[device], page.key);
    }
    pt_disk_make_room(o, &o->disk.devices[device], 0, 0, now);
}

/* disk_report(keys, sizes, spaces, ticks, device = 0, slots = none): adds pages that a device contains, and the slots
 * that they take there; 0: as many as their bytes fill. Pages that the index cannot have become drops. */
static PyObject *owner_disk_report(Owner *self, PyObject *args)
{
    PyObject *keys, *sizes, *spaces, *ticks, *slots = NULL;
    unsigned int device = 0;
    array of[5];
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OOOO|IO", &keys, &sizes, &spaces, &ticks, &device, &slots) ||
        !device_exists(device))
        return NULL;
    int arrays = slots ? 5 : 4;
    if (!arrays_open((array_wanted[]){{keys, PT_KEY_BYTES, "keys"},
                                      {sizes, 8, "sizes"},
                                      {spaces, 4, "spaces"},
                                      {ticks, 8, "ticks"},
                                      {slots, 4, "slots"}},
                     arrays, of))
        return NULL;
    disk_report(self, of, slots, (uint8_t)device);
    arrays_close(of, arrays);
    Py_RETURN_NONE;
}

static void restore_history(pt_owner *o, const uint8_t *key, const pt_disk_history *kept, uint64_t age, uint64_t now)
{
    uint32_t entry = pt_entry_of(o, key);
    if (entry != PT_NONE)
        pt_restore_history(o, entry, kept, age, now);
    pt_restore_link(o, key, kept);
}

static void prefetch_bucket(const pt_owner *o, const uint8_t *key)
{
    pt_prefetch(&pt_dict_in_force(&o->view).buckets[pt_home(&o->view, key)]);
}

static void prefetch_entry(const pt_owner *o, const uint8_t *key)
{
    uint32_t entry = pt_dict_guess(&o->view, pt_dict_in_force(&o->view), key);
    if (entry == PT_NONE)
        return;
    pt_prefetch(&o->view.entries[entry]);
    pt_prefetch_write(&o->view.histories[entry]);
}

/* Fetches something of a page and of the one before it, whose histories are restored soon. */
static void prefetch_both(const pt_owner *o, const array *of, Py_ssize_t number,
                          void (*prefetch)(const pt_owner *, const uint8_t *key))
{
    if (number >= of[0].count)
        return;
    prefetch(o, (uint8_t *)of[0].view.buf + number * PT_KEY_BYTES);
    prefetch(o, (uint8_t *)of[1].view.buf + number * (Py_ssize_t)sizeof(pt_disk_history));
}

/* disk_histories(keys, histories, ages): what the tier knows of the uses of pages that it reported,
 * with the nanoseconds since their last use. Pages that come before others in their prompt should
 * come first: then no link takes a search. */
static PyObject *owner_disk_histories(Owner *self, PyObject *args)
{
    PyObject *keys, *histories, *ages;
    array of[3];
    const Py_ssize_t bytes = sizeof(pt_disk_history);
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "OOO", &keys, &histories, &ages))
        return NULL;
    if (!arrays_open((array_wanted[]){{keys, PT_KEY_BYTES, "keys"}, {histories, bytes, "histories"}, {ages, 8, "ages"}},
                     3, of))
        return NULL;
    uint64_t now = pt_now_ns();
    if (self->shared.cadence)
        self->shared.cadence->climb = PT_CLIMB + (uint32_t)of[0].count;
    for (Py_ssize_t i = 0; i < of[0].count; i++) {
        /* of a large index, each of these would wait for memory, the entries for the buckets first */
        prefetch_both(&self->shared, of, i + 2 * PT_AHEAD, prefetch_bucket);
        prefetch_both(&self->shared, of, i + PT_AHEAD, prefetch_entry);
        pt_disk_history kept;
        memcpy(&kept, (char *)of[1].view.buf + i * bytes, sizeof kept);
        restore_history(&self->shared, (uint8_t *)of[0].view.buf + i * PT_KEY_BYTES, &kept,
                        ((uint64_t *)of[2].view.buf)[i], now);
    }
    arrays_close(of, 3);
    Py_RETURN_NONE;
}

/* disk_drops(device = 0) -> keys that must leave the device before anything is written
 * that is commanded after this call. */
static PyObject *owner_disk_drops(Owner *self, PyObject *args)
{
    unsigned int device = 0;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "|I", &device) || !device_exists(device))
        return NULL;
    pt_device *d = &self->shared.disk.devices[device];
    PyObject *keys = PyBytes_FromStringAndSize((char *)d->drops, (Py_ssize_t)d->drop_count * PT_KEY_BYTES);
    if (keys)
        d->drop_count = 0;
    return keys;
}

static PyObject *for_each_key(Owner *self, PyObject *args, void (*act)(pt_owner *, uint32_t, const uint8_t *, uint64_t))
{
    PyObject *given;
    unsigned int device = 0;
    array keys;
    if (!owner_ready(self) || !PyArg_ParseTuple(args, "O|I", &given, &device) || !device_exists(device) ||
        !array_open(given, PT_KEY_BYTES, "keys", &keys))
        return NULL;
    for (Py_ssize_t i = 0; i < keys.count; i++)
        act(&self->shared, device, (uint8_t *)keys.view.buf + i * PT_KEY_BYTES, pt_now_ns());
    PyBuffer_Release(&keys.view);
    Py_RETURN_NONE;
}

static void drop_key(pt_owner *o, uint32_t device, const uint8_t *key, uint64_t now)
{
    pt_disk_drop(o, device, key, now);
}

/* disk_drop(keys, device = 0): drops pages from a device. Keys that are not on it are ignored. */
static PyObject *owner_disk_drop(Owner *self, PyObject *args) { return for_each_key(self, args, drop_key); }

/* disk_damaged(keys, device = 0): drops pages that a device could not read back. */
static PyObject *owner_disk_damaged(Owner *self, PyObject *args) { return for_each_key(self, args, pt_disk_damaged); }
