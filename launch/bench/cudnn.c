/* The library, descriptors and plans. */
#include <stdio.h>
#include <string.h>

#include "kernels/base/library.h"
#include "launch/bench/cudnn_api.h"

/* Heads of different widths and heads that share v need 9.11. */
enum { LEAST_VERSION = 91100, MAJOR_OF = 10000, MINOR_OF = 100, MEMORY_STEP = 256, ALIGNMENT = 16 };

enum { TYPE_HANDLE = 0, TYPE_DATA = 1, TYPE_BOOLEAN = 2, TYPE_INT64 = 3, TYPE_POINTER = 6, TYPE_HEURISTIC = 8 };
enum { TYPE_POINTWISE = 14, TYPE_DESCRIPTOR = 15, TYPE_REDUCTION = 18, TYPE_CHAR = 24 };

enum { POINTWISE = 0, ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, OP_POINTWISE = 13, GRAPH = 15, PACK = 16 };
enum { TENSOR = 17, MATMUL = 18, OP_MATMUL = 19, REDUCTION = 21, OP_REDUCTION = 22, OP_RESHAPE = 31, DEVICE = 38 };

enum { POINTWISE_MODE = 0, POINTWISE_COMPUTE = 1, POINTWISE_AXIS = 9 };
enum { HEURISTIC_MODE = 200, HEURISTIC_GRAPH = 201, HEURISTIC_RESULTS = 202, HEURISTIC_DEVICE = 204, MODE_A = 3 };
enum { CONFIG_ENGINE = 300, ENGINE_INDEX = 1301 };
enum { PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PLAN_DEVICE = 407 };
enum {
    OP_POINTWISE_DESC = 750,
    OP_POINTWISE_X = 751,
    OP_POINTWISE_B = 752,
    OP_POINTWISE_Y = 753,
    OP_POINTWISE_T = 758
};
enum { GRAPH_HANDLE = 800, GRAPH_OPERATIONS = 801 };
enum { TENSOR_ALIGNMENT = 900, TENSOR_TYPE = 901, TENSOR_DIMS = 902, TENSOR_STEPS = 903, TENSOR_NAME = 906 };
enum { TENSOR_VIRTUAL = 907, TENSOR_BY_VALUE = 908 };
enum { PACK_NAMES = 1000, PACK_DATA = 1001, PACK_WORKSPACE = 1003 };
enum { MATMUL_COMPUTE = 1500, OP_MATMUL_A = 1520, OP_MATMUL_B = 1521, OP_MATMUL_C = 1522, OP_MATMUL_DESC = 1523 };
enum { REDUCTION_OPERATOR = 1600, REDUCTION_COMPUTE = 1601 };
enum { OP_REDUCTION_X = 1610, OP_REDUCTION_Y = 1611, OP_REDUCTION_DESC = 1612 };
enum { OP_RESHAPE_X = 2200, OP_RESHAPE_Y = 2201, DEVICE_JSON = 2702 };

/* What a failed call means, for people. cuDNN's own message may have several lines. */
static void explain(const struct dtx_cudnn *c, int code, const char *what, char *why, size_t size)
{
    char detail[256] = "";
    c->last_error(detail, sizeof detail);
    detail[strcspn(detail, "\n")] = 0;
    snprintf(why, size, "cuDNN: %s: %s (%d)%s%s", what, c->error_text(code), code, *detail ? ": " : "", detail);
}

static bool check(struct dtx_cudnn_plan *p, int code, const char *what)
{
    if (code && !p->code) {
        explain(p->cudnn, code, what, p->why, sizeof p->why);
        p->code = code;
    }
    return !p->code;
}

static bool describe_device(struct dtx_cudnn *c, const char *json, char *why, size_t size)
{
    int code = c->descriptor_create(DEVICE, &c->device);
    if (!code)
        code = c->set(c->device, DEVICE_JSON, TYPE_CHAR, (int64_t)strlen(json), json);
    if (!code)
        code = c->finalize(c->device);
    if (code)
        explain(c, code, "describing a device", why, size);
    return !code;
}

static bool begin(struct dtx_cudnn *c, void *stream, const char *device, char *why, size_t size)
{
    size_t version = c->version_number();
    snprintf(c->version, sizeof c->version, "%zu.%zu.%zu", version / MAJOR_OF, version % MAJOR_OF / MINOR_OF,
             version % MINOR_OF);
    if (version < LEAST_VERSION) {
        snprintf(why, size, "libcudnn.so.9 is version %s; the comparison needs 9.11", c->version);
        return false;
    }
    if (device)
        return describe_device(c, device, why, size);
    int code = c->create(&c->handle);
    if (!code)
        code = c->set_stream(c->handle, stream);
    if (code)
        explain(c, code, "opening the device", why, size);
    return !code;
}

bool dtx_cudnn_open(struct dtx_cudnn *out, void *stream, const char *device, char *why, size_t size)
{
    *out = (struct dtx_cudnn){0};
    const struct dtx_symbol symbols[] = {{"cudnnGetVersion", &out->version_number},
                                         {"cudnnCreate", &out->create},
                                         {"cudnnDestroy", &out->destroy},
                                         {"cudnnSetStream", &out->set_stream},
                                         {"cudnnGetErrorString", &out->error_text},
                                         {"cudnnGetLastErrorString", &out->last_error},
                                         {"cudnnBackendCreateDescriptor", &out->descriptor_create},
                                         {"cudnnBackendDestroyDescriptor", &out->descriptor_destroy},
                                         {"cudnnBackendFinalize", &out->finalize},
                                         {"cudnnBackendSetAttribute", &out->set},
                                         {"cudnnBackendGetAttribute", &out->get},
                                         {"cudnnBackendExecute", &out->execute}};
    out->library = dtx_library_open("libcudnn.so.9", symbols, sizeof symbols / sizeof *symbols, why, size);
    if (!out->library)
        return false;
    if (begin(out, stream, device, why, size))
        return true;
    dtx_cudnn_close(out);
    return false;
}

void dtx_cudnn_close(struct dtx_cudnn *c)
{
    if (c->handle)
        c->destroy(c->handle);
    if (c->device)
        c->descriptor_destroy(c->device);
    dtx_library_close(c->library);
    *c = (struct dtx_cudnn){0};
}

static void *make(struct dtx_cudnn_plan *p, int type, const char *what)
{
    void *out = NULL;
    if (p->code)
        return NULL;
    if (p->n_descriptors == DTX_CUDNN_DESCRIPTORS) {
        snprintf(p->why, sizeof p->why, "cuDNN: a graph of more than %d descriptors", DTX_CUDNN_DESCRIPTORS);
        p->code = -1;
        return NULL;
    }
    if (check(p, p->cudnn->descriptor_create(type, &out), what))
        p->descriptors[p->n_descriptors++] = out;
    return out;
}

static void set(struct dtx_cudnn_plan *p, void *descriptor, int attribute, int type, int64_t count, const void *values,
                const char *what)
{
    if (!p->code)
        check(p, p->cudnn->set(descriptor, attribute, type, count, values), what);
}

static void finish(struct dtx_cudnn_plan *p, void *descriptor, const char *what)
{
    if (!p->code)
        check(p, p->cudnn->finalize(descriptor), what);
}

static struct cudnn_value tensor(struct dtx_cudnn_plan *p, int type, const int64_t dims[4], const int64_t steps[4],
                                 int64_t name, bool virtual, bool by_value)
{
    static const char what[] = "a tensor";
    const int64_t alignment = ALIGNMENT;
    struct cudnn_value out = {.descriptor = make(p, TENSOR, what)};
    memcpy(out.dims, dims, sizeof out.dims);
    memcpy(out.steps, steps, sizeof out.steps);
    set(p, out.descriptor, TENSOR_TYPE, TYPE_DATA, 1, &type, what);
    set(p, out.descriptor, TENSOR_DIMS, TYPE_INT64, 4, dims, what);
    set(p, out.descriptor, TENSOR_STEPS, TYPE_INT64, 4, steps, what);
    set(p, out.descriptor, TENSOR_NAME, TYPE_INT64, 1, &name, what);
    set(p, out.descriptor, TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment, what);
    set(p, out.descriptor, TENSOR_VIRTUAL, TYPE_BOOLEAN, 1, &virtual, what);
    set(p, out.descriptor, TENSOR_BY_VALUE, TYPE_BOOLEAN, 1, &by_value, what);
    finish(p, out.descriptor, what);
    return out;
}

/* A name for what is in memory; virtual tensors are named by their descriptors' number. */
static int64_t bound_name(struct dtx_cudnn_plan *p, void *data)
{
    if (p->n_names == DTX_CUDNN_BOUND && !p->code) {
        snprintf(p->why, sizeof p->why, "cuDNN: a graph of more than %d tensors in memory", DTX_CUDNN_BOUND);
        p->code = -1;
    }
    if (p->code)
        return 0;
    p->data[p->n_names] = data;
    return p->names[p->n_names++] = 1 + p->n_descriptors;
}

struct cudnn_value dtx_cudnn_memory(struct dtx_cudnn_plan *p, int type, const int64_t dims[4], const int64_t steps[4],
                                    void *data)
{
    return tensor(p, type, dims, steps, bound_name(p, data), false, false);
}

struct cudnn_value dtx_cudnn_scalar(struct dtx_cudnn_plan *p, float *value)
{
    static const int64_t ones[4] = {1, 1, 1, 1};
    return tensor(p, CUDNN_FLOAT, ones, ones, bound_name(p, value), false, true);
}

struct cudnn_value dtx_cudnn_virtual(struct dtx_cudnn_plan *p, int type, int64_t batch, int64_t heads, int64_t rows,
                                     int64_t columns)
{
    const int64_t dims[4] = {batch, heads, rows, columns};
    const int64_t steps[4] = {heads * rows * columns, rows * columns, columns, 1};
    return tensor(p, type, dims, steps, 1 + p->n_descriptors, true, false);
}

static void add_operation(struct dtx_cudnn_plan *p, void *operation, const char *what)
{
    finish(p, operation, what);
    if (p->n_operations == DTX_CUDNN_OPERATIONS && !p->code) {
        snprintf(p->why, sizeof p->why, "cuDNN: a graph of more than %d operations", DTX_CUDNN_OPERATIONS);
        p->code = -1;
    }
    if (!p->code)
        p->operations[p->n_operations++] = operation;
}

void dtx_cudnn_matmul(struct dtx_cudnn_plan *p, struct cudnn_value a, struct cudnn_value b, struct cudnn_value c)
{
    static const char what[] = "a product";
    const int compute = CUDNN_FLOAT;
    void *kind = make(p, MATMUL, what), *operation = make(p, OP_MATMUL, what);
    set(p, kind, MATMUL_COMPUTE, TYPE_DATA, 1, &compute, what);
    finish(p, kind, what);
    set(p, operation, OP_MATMUL_A, TYPE_DESCRIPTOR, 1, &a.descriptor, what);
    set(p, operation, OP_MATMUL_B, TYPE_DESCRIPTOR, 1, &b.descriptor, what);
    set(p, operation, OP_MATMUL_C, TYPE_DESCRIPTOR, 1, &c.descriptor, what);
    set(p, operation, OP_MATMUL_DESC, TYPE_DESCRIPTOR, 1, &kind, what);
    add_operation(p, operation, what);
}

void dtx_cudnn_pointwise(struct dtx_cudnn_plan *p, int mode, struct cudnn_value x, const struct cudnn_value *b,
                         const struct cudnn_value *t, struct cudnn_value y, int compute, int64_t axis)
{
    static const char what[] = "a pointwise operation";
    void *kind = make(p, POINTWISE, what), *operation = make(p, OP_POINTWISE, what);
    set(p, kind, POINTWISE_MODE, TYPE_POINTWISE, 1, &mode, what);
    set(p, kind, POINTWISE_COMPUTE, TYPE_DATA, 1, &compute, what);
    if (mode == CUDNN_INDEX)
        set(p, kind, POINTWISE_AXIS, TYPE_INT64, 1, &axis, what);
    finish(p, kind, what);
    set(p, operation, OP_POINTWISE_DESC, TYPE_DESCRIPTOR, 1, &kind, what);
    set(p, operation, OP_POINTWISE_X, TYPE_DESCRIPTOR, 1, &x.descriptor, what);
    set(p, operation, OP_POINTWISE_Y, TYPE_DESCRIPTOR, 1, &y.descriptor, what);
    if (b)
        set(p, operation, OP_POINTWISE_B, TYPE_DESCRIPTOR, 1, &b->descriptor, what);
    if (t)
        set(p, operation, OP_POINTWISE_T, TYPE_DESCRIPTOR, 1, &t->descriptor, what);
    add_operation(p, operation, what);
}

void dtx_cudnn_reduce(struct dtx_cudnn_plan *p, int operation_kind, struct cudnn_value x, struct cudnn_value y)
{
    static const char what[] = "a reduction";
    const int compute = CUDNN_FLOAT;
    void *kind = make(p, REDUCTION, what), *operation = make(p, OP_REDUCTION, what);
    set(p, kind, REDUCTION_OPERATOR, TYPE_REDUCTION, 1, &operation_kind, what);
    set(p, kind, REDUCTION_COMPUTE, TYPE_DATA, 1, &compute, what);
    finish(p, kind, what);
    set(p, operation, OP_REDUCTION_X, TYPE_DESCRIPTOR, 1, &x.descriptor, what);
    set(p, operation, OP_REDUCTION_Y, TYPE_DESCRIPTOR, 1, &y.descriptor, what);
    set(p, operation, OP_REDUCTION_DESC, TYPE_DESCRIPTOR, 1, &kind, what);
    add_operation(p, operation, what);
}

struct cudnn_value dtx_cudnn_transpose(struct dtx_cudnn_plan *p, int type, struct cudnn_value x)
{
    static const char what[] = "a transposition";
    const int64_t dims[4] = {x.dims[0], x.dims[1], x.dims[3], x.dims[2]};
    const int64_t steps[4] = {x.steps[0], x.steps[1], x.steps[3], x.steps[2]};
    struct cudnn_value y = tensor(p, type, dims, steps, 1 + p->n_descriptors, true, false);
    void *operation = make(p, OP_RESHAPE, what);
    set(p, operation, OP_RESHAPE_X, TYPE_DESCRIPTOR, 1, &x.descriptor, what);
    set(p, operation, OP_RESHAPE_Y, TYPE_DESCRIPTOR, 1, &y.descriptor, what);
    add_operation(p, operation, what);
    return y;
}

/* The graph's engines as cuDNN ranks them, at most `most`. */
static int rank_engines(struct dtx_cudnn_plan *p, void **configs, int most)
{
    static const char what[] = "no engine for this graph";
    const struct dtx_cudnn *c = p->cudnn;
    const int mode = MODE_A;
    int64_t n = 0;
    void *graph = make(p, GRAPH, what), *heuristic = make(p, HEURISTIC, what);
    if (c->handle)
        set(p, graph, GRAPH_HANDLE, TYPE_HANDLE, 1, &c->handle, what);
    set(p, graph, GRAPH_OPERATIONS, TYPE_DESCRIPTOR, p->n_operations, p->operations, what);
    finish(p, graph, what);
    set(p, heuristic, HEURISTIC_GRAPH, TYPE_DESCRIPTOR, 1, &graph, what);
    set(p, heuristic, HEURISTIC_MODE, TYPE_HEURISTIC, 1, &mode, what);
    if (c->device)
        set(p, heuristic, HEURISTIC_DEVICE, TYPE_DESCRIPTOR, 1, &c->device, what);
    finish(p, heuristic, what);
    for (int i = 0; i < most; i++)
        configs[i] = make(p, CONFIG, what);
    if (!p->code)
        check(p, c->get(heuristic, HEURISTIC_RESULTS, TYPE_DESCRIPTOR, most, &n, configs), what);
    if (!p->code && n == 0) {
        snprintf(p->why, sizeof p->why, "cuDNN has %s", what);
        p->code = -1;
    }
    return (int)n;
}

/* The first of the engines that can be made into a plan. */
static void choose(struct dtx_cudnn_plan *p, void **configs, int n)
{
    static const char what[] = "an execution plan";
    const struct dtx_cudnn *c = p->cudnn;
    int64_t count = 0, bytes = 0;
    void *engine = make(p, ENGINE, what), *chosen = NULL;
    for (int i = 0; i < n && !p->plan && (!p->code || i > 0); i++) {
        p->code = 0; /* of the engine before */
        void *plan = make(p, PLAN, what);
        if (c->handle)
            set(p, plan, PLAN_HANDLE, TYPE_HANDLE, 1, &c->handle, what);
        else
            set(p, plan, PLAN_DEVICE, TYPE_DESCRIPTOR, 1, &c->device, what);
        set(p, plan, PLAN_CONFIG, TYPE_DESCRIPTOR, 1, &configs[i], what);
        finish(p, plan, what);
        if (!p->code) {
            p->plan = plan;
            chosen = configs[i];
        }
    }
    if (!p->code)
        check(p, c->get(p->plan, PLAN_WORKSPACE, TYPE_INT64, 1, &count, &bytes), what);
    if (!p->code)
        check(p, c->get(chosen, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine), what);
    if (!p->code)
        check(p, c->get(engine, ENGINE_INDEX, TYPE_INT64, 1, &count, &p->engine), what);
    p->library_bytes = (size_t)bytes;
}

bool dtx_cudnn_plan_make(const struct dtx_cudnn *cudnn, const struct dtx_cudnn_attention *attention, bool backward,
                         struct dtx_cudnn_plan *out)
{
    enum { ENGINES = 8 };
    void *configs[ENGINES];
    *out = (struct dtx_cudnn_plan){.cudnn = cudnn, .scale = attention->scale, .one = 1, .masked = -1.0F / 0.0F};
    if (backward)
        dtx_cudnn_backward_graph(out, attention);
    else
        dtx_cudnn_forward_graph(out, attention);
    choose(out, configs, rank_engines(out, configs, ENGINES));
    return !out->code;
}

static size_t rounded(size_t bytes)
{
    return (bytes + MEMORY_STEP - 1) / MEMORY_STEP * MEMORY_STEP;
}

size_t dtx_cudnn_work_bytes(const struct dtx_cudnn_plan *p)
{
    return rounded(p->library_bytes) + rounded(p->dq_sum_bytes) + rounded(p->dsum_bytes);
}

bool dtx_cudnn_plan_bind(struct dtx_cudnn_plan *p, void *work)
{
    static const char what[] = "naming a plan's tensors";
    char *own = (char *)work + rounded(p->library_bytes);
    if (p->dq_sum_bytes)
        p->data[p->dq_sum] = own;
    if (p->dsum_bytes)
        p->data[p->dsum] = own + rounded(p->dq_sum_bytes);
    p->pack = make(p, PACK, what);
    set(p, p->pack, PACK_NAMES, TYPE_INT64, p->n_names, p->names, what);
    set(p, p->pack, PACK_DATA, TYPE_POINTER, p->n_names, p->data, what);
    set(p, p->pack, PACK_WORKSPACE, TYPE_POINTER, 1, &work, what);
    finish(p, p->pack, what);
    return !p->code;
}

bool dtx_cudnn_plan_run(struct dtx_cudnn_plan *p)
{
    return !p->code && check(p, p->cudnn->execute(p->cudnn->handle, p->plan, p->pack), "attention");
}

void dtx_cudnn_plan_free(struct dtx_cudnn_plan *p)
{
    while (p->n_descriptors > 0)
        p->cudnn->descriptor_destroy(p->descriptors[--p->n_descriptors]);
}
