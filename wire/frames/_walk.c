/* The walk over record batches of wire/frames/batch.py, for what is ordinary: see patch_batches there, which says what it does.

   It stops in front of everything else (a batch that is cut short, malformed, or whose offsets do not fit into 64 bits)
   and hands back how far it came. Python goes on from there, so errors and odd cases exist only once.
   Optional: without a compiler nothing is built, and Python walks alone. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define BATCH_OVERHEAD 61
#define LENGTH_OVERHEAD 12
#define MIN_LENGTH (BATCH_OVERHEAD - LENGTH_OVERHEAD)

static int32_t get32(const unsigned char *at)
{
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3]);
}

static int64_t get64(const unsigned char *at)
{
    return (int64_t)((uint64_t)(uint32_t)get32(at) << 32 | (uint32_t)get32(at + 4));
}

static void put32(unsigned char *at, int32_t value)
{
    uint32_t bits = (uint32_t)value;

    at[0] = (unsigned char)(bits >> 24);
    at[1] = (unsigned char)(bits >> 16);
    at[2] = (unsigned char)(bits >> 8);
    at[3] = (unsigned char)bits;
}

static int append(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;

    Py_XDECREF(item);
    return failed;
}

static PyObject *stamp(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    Py_ssize_t start, end, chunk_bytes, pos, chunk_start, last = -1, batches = 0;
    long long chunk_base = -1, floor = 0;
    int leader_epoch, last_epoch;
    int32_t largest = 0;
    PyObject *chunks = NULL, *epochs = NULL, *result = NULL;

    if (!PyArg_ParseTuple(args, "w*nnini:stamp", &view, &start, &end, &leader_epoch, &chunk_bytes, &last_epoch))
        return NULL;
    if (start < 0 || end > view.len) {
        PyErr_SetString(PyExc_ValueError, "outside the buffer");
        goto done;
    }
    if ((chunks = PyList_New(0)) == NULL || (epochs = PyList_New(0)) == NULL)
        goto done;
    pos = chunk_start = start;
    while (end - pos >= BATCH_OVERHEAD) {
        unsigned char *at = (unsigned char *)view.buf + pos;
        int64_t base = get64(at);
        int32_t length = get32(at + 8), epoch = get32(at + 12), delta = get32(at + 23);

        if (at[16] != 2 || length < MIN_LENGTH || base < floor || delta < 0)
            break;
        if (length > end - pos - LENGTH_OVERHEAD || base > INT64_MAX - 1 - delta)
            break;
        if (epoch != last_epoch) {
            if (append(epochs, Py_BuildValue("(iL)", (int)epoch, (long long)base)))
                goto done;
            last_epoch = epoch;
        }
        if (chunk_base < 0) {
            chunk_base = base;
        } else if (pos + LENGTH_OVERHEAD + length - chunk_start > chunk_bytes) {
            if (append(chunks, Py_BuildValue("(nnLL)", chunk_start, pos, chunk_base, floor)))
                goto done;
            chunk_start = pos;
            chunk_base = base;
        }
        put32(at + 12, leader_epoch);
        floor = base + delta + 1;
        if (length > largest)
            largest = length;
        batches++;
        last = pos;
        pos += LENGTH_OVERHEAD + length;
    }
    result = Py_BuildValue("(OOnnLLinin)", chunks, epochs, pos, chunk_start, chunk_base, floor, last_epoch, batches,
                           (int)largest, last);
done:
    Py_XDECREF(chunks);
    Py_XDECREF(epochs);
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef methods[] = {
    {"stamp", stamp, METH_VARARGS, "Stamp and cut whole, ordinary batches from start on; how far it came, and what it saw."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "wire.frames._walk",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&module);
}
