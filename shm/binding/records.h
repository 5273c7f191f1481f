/* records.h - the records that the core returns to Python: named tuples. Each has one list of fields, from
 * which its names and its values follow. */
#pragma once

#include "constants.h"

/* The fields of the records that are made of numbers only, by their names in C. */
#define HEADER_FIELDS(X) \
    X(magic) X(segments_id) X(incarnation) X(spaces) X(closed) X(index_bytes) X(locks_bytes) X(arena_bytes) \
    X(frame_bytes) X(frames) X(entries) X(free_frames) X(free_entries) X(open_entries) X(pages) X(bytes) \
    X(used_frames) X(disk_frames) X(disk_used_frames) X(disk_pages) X(disk_bytes) X(at_histories)
#define DAEMON_COUNT_FIELDS(X)                                                                                         \
    X(granted) X(present) X(pending) X(refused) X(evicted) X(evicted_bytes) X(flushed) X(doomed) X(expired) X(deaths)  \
    X(adopted) X(dropped) X(disk_written) X(disk_written_bytes) X(disk_read) X(disk_read_bytes) X(disk_missed)         \
    X(disk_evicted) X(disk_evicted_bytes) X(disk_flushed) X(disk_lost) X(disk_skipped) X(disk_damaged)  \
    X(disk_failed)
#define COUNT_FIELDS(X)                                                                                                \
    X(lookups) X(hit_pages) X(miss_pages) X(loaded_pages) X(loaded_bytes) X(stored_pages) X(stored_bytes) X(lost_pages)
#define USE_FIELDS(X) \
    X(memory_tokens) X(disk_tokens) X(missed_tokens) X(load_ns) X(store_ns) X(bounded) X(remote_tokens) \
    X(memory_slower_tokens) X(disk_slower_tokens) X(remote_slower_tokens)

#define NAME(field) #field,

/* The fields of the other records, in the order in which their values are given to record_of(). */
static const char *const header_fields[] = {HEADER_FIELDS(NAME) DAEMON_COUNT_FIELDS(NAME) NULL};
static const char *const counts_fields[] = {COUNT_FIELDS(NAME) USE_FIELDS(NAME) NULL};
static const char *const attachment_fields[] = {"slot", "pid",  "uid",          "started", "token", "attached_ns",
                                                "pins", "pinned_bytes", "name", "counts",  "kernel_id", "lock", NULL};
static const char *const namespace_fields[] = {"number",     "digest", "name",    "pages",       "bytes",  "disk_pages",
                                               "disk_bytes", "disk_stored", "listed", "used_ns",
                                               "page_tokens", "window", "group", "tenant", NULL};
static const char *const reserved_fields[] = {"outcomes", "entries", "serials", NULL};
static const char *const seen_events_fields[] = {"result", "keys", "tiers", "came", "reasons", NULL};
static const char *const flushed_fields[] = {"dropped", "kept", NULL};
static const char *const device_fields[] = {
    "open", "slots", "used_slots", "ordered_slots", "slot_bytes", "pages", "bytes", "coldest", NULL,
};
static const char *const unwritten_fields[] = {"pages", "bytes", "skipped", NULL};
static const char *const eviction_fields[] = {"learns", "learned", "follows_lru", "left_out", "switches", NULL};
static const char *const lookups_fields[] = {"share", "seconds", "records", "lost",
                                            "hit_pages", "miss_pages", "stored_pages", "absent_ever", NULL};
static const char *const curve_fields[] = {"digest", "found", "missed", "ratios", "endless", "absent", NULL};
static const char *const claimed_fields[] = {"wrong", "losers", "beyond", "newest", NULL};
static const char *const kept_fields[] = {"frames", "ended_early", NULL};
static const char *const idle_fields[] = {"result", "pages", "namespace", NULL};
static const char *const sizes_fields[] = {
    "index_bytes", "locks_bytes", "arena_bytes", "at_events", "events_bytes", NULL,
};
static const char *const layout_fields[] = {"size", "fields", NULL};

static PyObject *IndexHeader, *AttachmentCounts, *AttachmentRecord, *NamespaceRecord, *ReservedPages,
    *FlushedPages, *DeviceUsage, *UnwrittenPages, *Eviction, *SampledLookups, *LookupCurve,
    *ClaimedSlots, *KeptPages, *IdleStep, *SegmentSizes, *StructLayout, *SeenEvents;

static const struct {
    const char *name;
    const char *const *fields;
    PyObject **type;
} records[] = {
    {"IndexHeader", header_fields, &IndexHeader},
    {"AttachmentCounts", counts_fields, &AttachmentCounts},
    {"AttachmentRecord", attachment_fields, &AttachmentRecord},
    {"NamespaceRecord", namespace_fields, &NamespaceRecord},
    {"ReservedPages", reserved_fields, &ReservedPages},
    {"FlushedPages", flushed_fields, &FlushedPages},
    {"DeviceUsage", device_fields, &DeviceUsage},
    {"UnwrittenPages", unwritten_fields, &UnwrittenPages},
    {"Eviction", eviction_fields, &Eviction},
    {"SampledLookups", lookups_fields, &SampledLookups},
    {"LookupCurve", curve_fields, &LookupCurve},
    {"ClaimedSlots", claimed_fields, &ClaimedSlots},
    {"KeptPages", kept_fields, &KeptPages},
    {"IdleStep", idle_fields, &IdleStep},
    {"SegmentSizes", sizes_fields, &SegmentSizes},
    {"StructLayout", layout_fields, &StructLayout},
    {"SeenEvents", seen_events_fields, &SeenEvents},
};

/* Returns the names of the fields as a list, NULL with an exception set. */
static PyObject *names_of(const char *const *fields)
{
    PyObject *list = PyList_New(0);
    for (; list && *fields; fields++)
        if (!append_new(list, PyUnicode_FromString(*fields)))
            Py_CLEAR(list);
    return list;
}

static bool add_records(PyObject *module)
{
    PyObject *library = PyImport_ImportModule("collections");
    PyObject *factory = library ? PyObject_GetAttrString(library, "namedtuple") : NULL;
    bool done = factory != NULL;
    for (size_t i = 0; done && i < sizeof records / sizeof *records; i++) {
        PyObject *names = names_of(records[i].fields);
        *records[i].type = names ? new_class(factory, records[i].name, names) : NULL;
        done = *records[i].type && PyModule_AddObjectRef(module, records[i].name, *records[i].type) == 0;
        Py_XDECREF(names);
    }
    Py_XDECREF(factory);
    Py_XDECREF(library);
    return done;
}

/* Returns a record with the values of a tuple, which it releases. NULL with an
 * exception set, also if `values` is NULL. */
static PyObject *record_of(PyObject *type, PyObject *values)
{
    PyObject *record = values ? PyObject_CallObject(type, values) : NULL;
    Py_XDECREF(values);
    return record;
}

static PyObject *record_of_numbers(PyObject *type, const uint64_t *numbers, size_t count)
{
    PyObject *values = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; values && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number)
            PyTuple_SetItem(values, (Py_ssize_t)i, number);
        else
            Py_CLEAR(values);
    }
    return record_of(type, values);
}
