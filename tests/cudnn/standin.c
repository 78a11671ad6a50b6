/*
 * What stands for libcudnn.so.9 in tests without a GPU: it holds callers of the graph API to its rules (which attribute
 * of which descriptor with which type, nothing unfinished used, nothing finished changed) and computes a plan's
 * operations one by one on the host, where the emulator has its device memory. Wrong use is explained on standard error
 * and refused. Numbers are written out here once more, from cudnn_graph.h 9.
 *   DTX_CUDNN_VERSION   what cudnnGetVersion says (91900)
 *   DTX_CUDNN_BROKEN    set: plans do not run
 *   DTX_CUDNN_WIDEST    there is no engine for graphs with a matrix in memory that has more columns
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
enum { FLOAT = 0, INT32 = 4, BF16 = 9, BOOLEAN = 11 };
enum { POINTWISE, ENGINE = 2, CONFIG, HEURISTIC, PLAN, OP_POINTWISE = 13, GRAPH = 15, PACK, TENSOR, MATMUL, OP_MATMUL };
enum { REDUCTION = 21, OP_REDUCTION = 22, OP_RESHAPE = 31 };

/* Attributes by descriptor; `must`: finalize asks for it. */
struct rule {
    int kind, attribute, type;
    bool must;
};
static const struct rule rules[] = {
    {POINTWISE, 0, 14, true},       {POINTWISE, 1, 1, true},        {POINTWISE, 9, 3, false},
    {HEURISTIC, 200, 8, true},      {HEURISTIC, 201, 15, true},     {PLAN, 400, 0, true},
    {PLAN, 401, 15, true},          {OP_POINTWISE, 750, 15, true},  {OP_POINTWISE, 751, 15, true},
    {OP_POINTWISE, 752, 15, false}, {OP_POINTWISE, 753, 15, true},  {OP_POINTWISE, 758, 15, false},
    {GRAPH, 800, 0, true},          {GRAPH, 801, 15, true},         {TENSOR, 900, 3, true},
    {TENSOR, 901, 1, true},         {TENSOR, 902, 3, true},         {TENSOR, 903, 3, true},
    {TENSOR, 906, 3, true},         {TENSOR, 907, 2, false},        {TENSOR, 908, 2, false},
    {PACK, 1000, 3, true},          {PACK, 1001, 6, true},          {PACK, 1003, 6, true},
    {MATMUL, 1500, 1, true},        {OP_MATMUL, 1520, 15, true},    {OP_MATMUL, 1521, 15, true},
    {OP_MATMUL, 1522, 15, true},    {OP_MATMUL, 1523, 15, true},    {REDUCTION, 1600, 18, true},
    {REDUCTION, 1601, 1, true},     {OP_REDUCTION, 1610, 15, true}, {OP_REDUCTION, 1611, 15, true},
    {OP_REDUCTION, 1612, 15, true}, {OP_RESHAPE, 2200, 15, true},   {OP_RESHAPE, 2201, 15, true}};

enum { MOST = 16, VALUES = 64 };
struct descriptor {
    int kind;
    bool finished;
    int n; /* attributes */
    struct {
        int attribute;
        int64_t count;
        int64_t value[VALUES]; /* by 8 bytes each */
    } set[MOST];
    char *data; /* of tensors, while a plan runs */
};

struct handle {
    int opened;
};

static int wrong(const char *what, int kind, int attribute)
{
    fprintf(stderr, "cuDNN's stand-in: %s (descriptor %d, attribute %d)\n", what, kind, attribute);
    return BAD_PARAM;
}

static const int64_t *values(const struct descriptor *d, int attribute, int64_t *count)
{
    for (int i = 0; i < d->n; i++)
        if (d->set[i].attribute == attribute) {
            if (count)
                *count = d->set[i].count;
            return d->set[i].value;
        }
    return NULL;
}

static int64_t number(const struct descriptor *d, int attribute)
{
    const int64_t *value = values(d, attribute, NULL);
    return value ? value[0] : 0;
}

static struct descriptor *other(const struct descriptor *d, int attribute)
{
    return (struct descriptor *)(intptr_t)number(d, attribute);
}

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    const char *text = getenv("DTX_CUDNN_VERSION");
    return text ? (size_t)atol(text) : 91900;
}

int cudnnCreate(void **handle);
int cudnnCreate(void **handle)
{
    *handle = calloc(1, sizeof(struct handle));
    return *handle ? 0 : BAD_PARAM;
}

int cudnnDestroy(void *handle);
int cudnnDestroy(void *handle)
{
    free(handle);
    return 0;
}

int cudnnSetStream(void *handle, void *stream);
int cudnnSetStream(void *handle, void *stream)
{
    return handle && stream ? 0 : wrong("no handle or no stream", -1, -1);
}

const char *cudnnGetErrorString(int code);
const char *cudnnGetErrorString(int code)
{
    return code == NOT_SUPPORTED ? "not supported" : "bad parameter";
}

void cudnnGetLastErrorString(char *message, size_t size);
void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "said by the stand-in");
}

int cudnnBackendCreateDescriptor(int kind, void **out);
int cudnnBackendCreateDescriptor(int kind, void **out)
{
    struct descriptor *d = calloc(1, sizeof *d);
    if (!d)
        return BAD_PARAM;
    d->kind = kind;
    *out = d;
    return 0;
}

int cudnnBackendDestroyDescriptor(void *descriptor);
int cudnnBackendDestroyDescriptor(void *descriptor)
{
    free(descriptor);
    return 0;
}

static const struct rule *find_rule(int kind, int attribute)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].kind == kind && rules[i].attribute == attribute)
            return &rules[i];
    return NULL;
}

int cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t count, const void *from);
int cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t count, const void *from)
{
    enum { TYPE_DESCRIPTOR = 15 };
    struct descriptor *d = descriptor;
    const struct rule *rule = find_rule(d->kind, attribute);
    size_t width = type == 1 || type == 8 || type == 14 || type == 18 ? sizeof(int) : type == 2 ? 1 : 8;
    if (!rule)
        return wrong("the descriptor has no such attribute", d->kind, attribute);
    if (rule->type != type)
        return wrong("a wrong type", d->kind, attribute);
    if (d->finished)
        return wrong("a finished descriptor is changed", d->kind, attribute);
    if (values(d, attribute, NULL) || d->n == MOST || count < 1 || count > VALUES)
        return wrong("set twice, or too many", d->kind, attribute);
    d->set[d->n].attribute = attribute;
    d->set[d->n].count = count;
    for (int64_t i = 0; i < count; i++)
        memcpy(&d->set[d->n].value[i], (const char *)from + (size_t)i * width, width);
    for (int64_t i = 0; i < count && type == TYPE_DESCRIPTOR; i++) {
        const struct descriptor *used = (struct descriptor *)(intptr_t)d->set[d->n].value[i];
        if (!used || !used->finished)
            return wrong("an unfinished descriptor is used", d->kind, attribute);
    }
    d->n++;
    return 0;
}

/* A graph has an engine unless DTX_CUDNN_WIDEST forbids it. */
static bool has_engine(const struct descriptor *graph)
{
    const char *widest = getenv("DTX_CUDNN_WIDEST");
    int64_t n;
    const int64_t *operations = values(graph, 801, &n);
    for (int64_t i = 0; i < n && widest; i++) {
        const struct descriptor *op = (struct descriptor *)(intptr_t)operations[i];
        const struct descriptor *b = op->kind == OP_MATMUL ? other(op, 1521) : NULL;
        if (b && !number(b, 907) && values(b, 902, NULL)[3] > atol(widest) && values(b, 903, NULL)[3] == 1)
            return false;
    }
    return true;
}

int cudnnBackendFinalize(void *descriptor);
int cudnnBackendFinalize(void *descriptor)
{
    struct descriptor *d = descriptor;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].kind == d->kind && rules[i].must && !values(d, rules[i].attribute, NULL))
            return wrong("not set", d->kind, rules[i].attribute);
    if (d->finished)
        return wrong("finished twice", d->kind, -1);
    d->finished = true;
    return 0;
}

int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *to);
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *to)
{
    struct descriptor *d = descriptor;
    if (!d->finished)
        return wrong("an unfinished descriptor is read", d->kind, attribute);
    *count = 1;
    if (d->kind == HEURISTIC && attribute == 202 && type == 15 && wanted >= 1) {
        struct descriptor *config = *(struct descriptor **)to;
        *count = has_engine(other(d, 201));
        config->set[0].attribute = -1; /* its graph */
        config->set[0].value[0] = number(d, 201);
        config->n = 1;
        config->finished = true;
    } else if (d->kind == CONFIG && attribute == 300 && type == 15) {
        (*(struct descriptor **)to)->finished = true;
    } else if (d->kind == PLAN && attribute == 402 && type == 3) {
        *(int64_t *)to = 100;
    } else if (d->kind == ENGINE && attribute == 1301 && type == 3) {
        *(int64_t *)to = 0;
    } else {
        return wrong("cannot be read", d->kind, attribute);
    }
    return 0;
}

/* Elements at [i0, i1, i2, i3] of a tensor; where it has one, or fewer heads, they are shared. */
static char *place(const struct descriptor *t, const int64_t dims[4], const int64_t index[4])
{
    const int64_t *has = values(t, 902, NULL), *steps = values(t, 903, NULL);
    int64_t at = 0;
    for (int i = 0; i < 4; i++)
        at += (has[i] == dims[i] ? index[i] : index[i] / (dims[i] / has[i])) * steps[i];
    return t->data + at * (number(t, 901) == BF16 ? 2 : 4);
}

static double load(const struct descriptor *t, const char *at)
{
    uint32_t bits = 0;
    float value;
    int32_t integer;
    int type = (int)number(t, 901);
    if (type == INT32 || type == BOOLEAN) {
        memcpy(&integer, at, sizeof integer);
        return integer;
    }
    memcpy((char *)&bits + (type == BF16 ? 2 : 0), at, type == BF16 ? 2 : 4);
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static void store(const struct descriptor *t, char *at, double x)
{
    uint32_t bits;
    float value = (float)x;
    int32_t integer = (int32_t)x;
    int type = (int)number(t, 901);
    memcpy(&bits, &value, sizeof bits);
    if (type == BF16) {
        bits += 0x7fff + (bits >> 16 & 1);
        memcpy(at, (char *)&bits + 2, 2);
    } else {
        memcpy(at, type == FLOAT ? (void *)&bits : (void *)&integer, 4);
    }
}

static double pointwise(int mode, double x, double b, double t, int64_t index)
{
    switch (mode) {
    case 0:
        return x + b;
    case 1:
        return x * b;
    case 6:
        return x / b;
    case 9:
        return x - b;
    case 13:
        return exp(x);
    case 15:
        return log(x);
    case 21:
        return x;
    case 303:
        return x >= b;
    case 501:
        return (double)index;
    case 601:
        return t != 0 ? x : b;
    default:
        wrong("a pointwise mode that it does not know", OP_POINTWISE, mode);
        return NAN;
    }
}

static void run_pointwise(const struct descriptor *op, const int64_t dims[4], const int64_t index[4])
{
    const struct descriptor *x = other(op, 751), *b = other(op, 752), *t = other(op, 758), *y = other(op, 753);
    const struct descriptor *kind = other(op, 750);
    double vb = b ? load(b, place(b, dims, index)) : 0, vt = t ? load(t, place(t, dims, index)) : 0;
    int64_t axis = number(kind, 9);
    store(y, place(y, dims, index),
          pointwise((int)number(kind, 0), load(x, place(x, dims, index)), vb, vt, index[axis]));
}

/* One element of c = a·b. */
static void run_product(const struct descriptor *op, const int64_t dims[4], const int64_t index[4])
{
    const struct descriptor *a = other(op, 1520), *b = other(op, 1521), *c = other(op, 1522);
    int64_t inner = values(a, 902, NULL)[3];
    const int64_t da[4] = {dims[0], dims[1], dims[2], inner}, db[4] = {dims[0], dims[1], inner, dims[3]};
    double sum = 0;
    for (int64_t k = 0; k < inner; k++) {
        const int64_t ia[4] = {index[0], index[1], index[2], k}, ib[4] = {index[0], index[1], k, index[3]};
        sum += load(a, place(a, da, ia)) * load(b, place(b, db, ib));
    }
    store(c, place(c, dims, index), sum);
}

/* One element of x into y, which has fewer. Sums of bf16 results grow in bf16 only over a few heads. */
static void run_reduction(const struct descriptor *op, const int64_t dims[4], const int64_t index[4])
{
    const struct descriptor *x = other(op, 1610), *y = other(op, 1611);
    const int64_t *has = values(y, 902, NULL);
    char *at = place(y, dims, index);
    double value = load(x, place(x, dims, index)), before = load(y, at);
    bool first = true;
    for (int i = 0; i < 4; i++)
        first = first && index[i] % (dims[i] / has[i]) == 0;
    if (!first)
        value = number(other(op, 1612), 1600) == 3 ? fmax(before, value) : before + value;
    store(y, at, value);
}

/* y shows the memory of x under its own steps. */
static void run_reshape(const struct descriptor *op, const int64_t dims[4], const int64_t index[4])
{
    const struct descriptor *x = other(op, 2200), *y = other(op, 2201);
    const int64_t *steps = values(y, 903, NULL);
    int64_t at = 0;
    for (int i = 0; i < 4; i++)
        at += index[i] * steps[i];
    store(y, place(y, dims, index), load(x, x->data + at * (number(x, 901) == BF16 ? 2 : 4)));
}

static const struct operation {
    int kind, over; /* the tensor whose elements are gone through */
    void (*run)(const struct descriptor *op, const int64_t dims[4], const int64_t index[4]);
    int tensors[4];
} operations[] = {{OP_POINTWISE, 753, run_pointwise, {751, 752, 753, 758}},
                  {OP_MATMUL, 1522, run_product, {1520, 1521, 1522}},
                  {OP_REDUCTION, 1610, run_reduction, {1610, 1611}},
                  {OP_RESHAPE, 2201, run_reshape, {2200, 2201}}};

static void run_operation(const struct descriptor *op, const struct operation *how)
{
    const int64_t *dims = values(other(op, how->over), 902, NULL);
    int64_t i[4];
    for (i[0] = 0; i[0] < dims[0]; i[0]++)
        for (i[1] = 0; i[1] < dims[1]; i[1]++)
            for (i[2] = 0; i[2] < dims[2]; i[2]++)
                for (i[3] = 0; i[3] < dims[3]; i[3]++)
                    how->run(op, dims, i);
}

/* The address of a tensor: from the pack, or fresh memory for one between operations. */
static int find_data(struct descriptor *t, const struct descriptor *pack)
{
    int64_t n, bytes = 4, pointers;
    const int64_t *names = values(pack, 1000, &n), *data = values(pack, 1001, &pointers);
    if (n != pointers)
        return wrong("as many names as addresses are needed", PACK, 1001);
    for (int i = 0; i < 4 && number(t, 907); i++)
        bytes *= values(t, 902, NULL)[i];
    if (number(t, 907) && !t->data)
        t->data = malloc((size_t)bytes);
    for (int64_t i = 0; i < n && !number(t, 907); i++)
        if (names[i] == number(t, 906))
            t->data = (char *)(intptr_t)data[i];
    return t->data ? 0 : wrong("a tensor without an address", TENSOR, (int)number(t, 906));
}

int cudnnBackendExecute(void *handle, void *plan, void *pack);
int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    struct descriptor *p = plan;
    int64_t n = 0;
    if (getenv("DTX_CUDNN_BROKEN"))
        return NOT_SUPPORTED;
    int code = handle && p->finished && ((struct descriptor *)pack)->finished ? 0 : wrong("unfinished", PLAN, -1);
    const int64_t *list = code ? NULL : values(other(other(p, 401), -1), 801, &n);
    for (int pass = 0; pass < 3; pass++) /* addresses, operations, freeing */
        for (int64_t i = 0; i < n && (!code || pass == 2); i++) {
            struct descriptor *op = (struct descriptor *)(intptr_t)list[i];
            size_t kind = 0;
            while (operations[kind].kind != op->kind)
                kind++;
            if (pass == 1)
                run_operation(op, &operations[kind]);
            for (int t = 0; t < 4 && pass != 1; t++) {
                struct descriptor *tensor = operations[kind].tensors[t] ? other(op, operations[kind].tensors[t]) : NULL;
                if (tensor && pass == 0)
                    code = code ? code : find_data(tensor, pack);
                if (tensor && pass == 2) {
                    if (number(tensor, 907))
                        free(tensor->data);
                    tensor->data = NULL;
                }
            }
        }
    return code;
}
