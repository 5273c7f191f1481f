/* owner_type.h - the type Owner: its table of methods. */
#pragma once

#include "owner_disk.h"

static PyMethodDef owner_methods[] = {
    {"format", (PyCFunction)owner_format, METH_VARARGS, NULL},
    {"unusable_reason", (PyCFunction)owner_unusable_reason, METH_NOARGS, NULL},
    {"attachments", (PyCFunction)owner_attachments, METH_NOARGS, NULL},
    {"adopt", (PyCFunction)owner_adopt, METH_VARARGS, NULL},
    {"populate", (PyCFunction)owner_populate, METH_VARARGS, NULL},
    {"populate_index", (PyCFunction)owner_populate_index, METH_NOARGS, NULL},
    {"allocate_lazily", (PyCFunction)owner_allocate_lazily, METH_VARARGS, NULL},
    {"arena_address", (PyCFunction)owner_arena_address, METH_NOARGS, NULL},
    {"reserve", (PyCFunction)owner_reserve, METH_VARARGS, NULL},
    {"attach", (PyCFunction)owner_attach, METH_VARARGS, NULL},
    {"keep_only", (PyCFunction)owner_keep_only, METH_VARARGS, NULL},
    {"reap", (PyCFunction)owner_reap, METH_VARARGS, NULL},
    {"detach", (PyCFunction)owner_detach, METH_VARARGS, NULL},
    {"process_of", (PyCFunction)owner_process_of, METH_VARARGS, NULL},
    {"frames_writing", (PyCFunction)owner_frames_writing, METH_VARARGS, NULL},
    {"set_pin_quota", (PyCFunction)owner_set_pin_quota, METH_VARARGS, NULL},
    {"matches_at_quota", (PyCFunction)owner_matches_at_quota, METH_NOARGS, NULL},
    {"attachments_with_pins", (PyCFunction)owner_attachments_with_pins, METH_NOARGS, NULL},
    {"settle", (PyCFunction)owner_settle, METH_VARARGS, NULL},
    {"evict", (PyCFunction)owner_evict, METH_VARARGS, NULL},
    {"flush", (PyCFunction)owner_flush, METH_VARARGS, NULL},
    {"space", (PyCFunction)owner_space, METH_VARARGS, NULL},
    {"spare_spaces", (PyCFunction)owner_spare_spaces, METH_NOARGS, NULL},
    {"drop_idle", (PyCFunction)owner_drop_idle, METH_VARARGS, NULL},
    {"check_integrity", (PyCFunction)owner_check, METH_NOARGS, NULL},
    {"disk_open", (PyCFunction)owner_disk_open, METH_VARARGS, NULL},
    {"disk_shrink", (PyCFunction)owner_disk_shrink, METH_VARARGS, NULL},
    {"disk_rule", (PyCFunction)owner_disk_rule, METH_VARARGS, NULL},
    {"unwritten", (PyCFunction)owner_unwritten, METH_NOARGS, NULL},
    {"disk_close", (PyCFunction)owner_disk_close, METH_NOARGS, NULL},
    {"disk_report", (PyCFunction)owner_disk_report, METH_VARARGS, NULL},
    {"disk_drops", (PyCFunction)owner_disk_drops, METH_NOARGS, NULL},
    {"disk_drop", (PyCFunction)owner_disk_drop, METH_VARARGS, NULL},
    {"disk_damaged", (PyCFunction)owner_disk_damaged, METH_VARARGS, NULL},
    {"frames_before_unwritten", (PyCFunction)owner_frames_before_unwritten, METH_VARARGS, NULL},
    {"start_writes", (PyCFunction)owner_start_writes, METH_VARARGS, NULL},
    {"end_writes", (PyCFunction)owner_end_writes, METH_VARARGS, NULL},
    {"fetch", (PyCFunction)owner_fetch, METH_VARARGS, NULL},
    {"sizes", (PyCFunction)owner_sizes, METH_VARARGS, NULL},
    {"chains", (PyCFunction)owner_chains, METH_VARARGS, NULL},
    {"count_fetched", (PyCFunction)owner_count_fetched, METH_VARARGS, NULL},
    {"publish_status", (PyCFunction)owner_publish_status, METH_VARARGS, NULL},
    {"close", (PyCFunction)owner_close, METH_NOARGS, NULL},
    {"header", (PyCFunction)owner_header, METH_NOARGS, NULL},
    {"spaces", (PyCFunction)owner_spaces, METH_NOARGS, NULL},
    {0},
};
static PyGetSetDef owner_getset[] = {
    {"free_frames", (getter)owner_free_frames, NULL, NULL, NULL},
    {"lacks_memory", (getter)owner_lacks_memory, NULL, NULL, NULL},
    {"open_entries", (getter)owner_open_entries, NULL, NULL, NULL},
    {0},
};
static PyType_Slot owner_slots[] = {
    {Py_tp_new, owner_new},         {Py_tp_dealloc, owner_dealloc}, {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_getset}, {0},
};
static PyType_Spec owner_spec = {
    .name = "pagetier.shm._core.Owner",
    .basicsize = sizeof(Owner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = owner_slots,
};
