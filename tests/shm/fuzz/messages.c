/* messages.c - the bytes that a peer sends to a daemon's connection, decoded and handled by the daemon's own Python
 * code (messages.py), over a core that is built for fuzzing. Lines of Python count as coverage, too. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[1 << 13];
static PyObject *take;

static void expect(int truth)
{
    if (truth)
        return;
    fflush(stdout);
    PyErr_Print();
    fprintf(stderr, "FINDING: the daemon raised an exception\n");
    abort();
}

static void python_begin(void)
{
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    expect(!PyStatus_Exception(PyConfig_SetBytesString(&config, &config.executable, FUZZ_PYTHON)));
    expect(!PyStatus_Exception(Py_InitializeFromConfig(&config)));
    PyConfig_Clear(&config);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count, (void)arguments;
    python_begin();
    PyObject *module = PyImport_ImportModule("messages");
    expect(module != NULL);
    PyObject *begun = PyObject_CallMethod(module, "begin", "Kn", (unsigned long long)(uintptr_t)lines,
                                          (Py_ssize_t)sizeof lines);
    expect(begun != NULL);
    take = PyObject_GetAttrString(begun, "take");
    expect(take != NULL);
    Py_DECREF(begun);
    Py_DECREF(module);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    PyObject *done = PyObject_CallFunction(take, "y#", (const char *)data, (Py_ssize_t)bytes);
    expect(done != NULL);
    Py_DECREF(done);
    return 0;
}
