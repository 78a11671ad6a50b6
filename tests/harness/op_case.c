#include "tests/harness/op_case.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { GUARD_BYTES = 128, GUARD = 0xA5 };

struct op_memory {
    struct op_memory *next;
    void *device, *host_copy; /* with guards; host_copy: what an input must still be at the end */
    size_t bytes;
    void *plain; /* memory of the harness itself */
};

struct op_stored {
    struct op_stored *next;
    char name[32];
    double *ref, *naive;
    int64_t n;
    uint64_t hash;
    int isa;
};

static void *harness_memory(struct op_env *env, size_t bytes)
{
    struct op_memory *m = calloc(1, sizeof *m);
    m->plain = calloc(1, bytes ? bytes : 1);
    m->next = env->memory;
    env->memory = m;
    return m->plain;
}

/* Backend memory with guards; `from` may be NULL (then 0xFF: NaN in every dtype). */
static struct dtx_tensor backend_memory(struct op_env *env, enum dtx_dtype dtype, int ndim, const int64_t *dim,
                                        const void *from, bool constant)
{
    struct dtx_tensor t = {.dtype = dtype, .ndim = ndim};
    memcpy(t.dim, dim, (size_t)ndim * sizeof *dim);
    struct op_memory *m = calloc(1, sizeof *m);
    m->bytes = dtx_tensor_bytes(&t);
    unsigned char *image = malloc(m->bytes + 2 * GUARD_BYTES);
    memset(image, GUARD, m->bytes + 2 * GUARD_BYTES);
    if (from)
        memcpy(image + GUARD_BYTES, from, m->bytes);
    else
        memset(image + GUARD_BYTES, 0xFF, m->bytes);
    op_ok(env, env->backend->memory->alloc(env->backend, m->bytes + 2 * GUARD_BYTES, &m->device));
    op_ok(env, env->backend->memory->copy_in(env->queue, m->device, image, m->bytes + 2 * GUARD_BYTES));
    if (constant)
        m->host_copy = image;
    else
        free(image);
    m->next = env->memory;
    env->memory = m;
    t.data = (char *)m->device + GUARD_BYTES;
    return t;
}

static void check_guards(struct op_env *env, const struct op_memory *m)
{
    size_t bytes = m->bytes + 2 * GUARD_BYTES;
    unsigned char *image = malloc(bytes);
    op_ok(env, env->backend->memory->copy_out(env->queue, image, m->device, bytes));
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (image[i] != GUARD || image[GUARD_BYTES + m->bytes + i] != GUARD)
            fail_msg("memory %s a tensor of %zu bytes was written", image[i] != GUARD ? "before" : "behind", m->bytes);
    if (m->host_copy && memcmp(m->host_copy, image, bytes) != 0)
        fail_msg("an input of %zu bytes was changed", m->bytes);
    free(image);
}

static void to_dtype(enum dtx_dtype dtype, const double *value, int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == DTX_F64)
            ((double *)out)[i] = value[i];
        else if (dtype == DTX_F32)
            ((float *)out)[i] = (float)value[i];
        else
            ((uint16_t *)out)[i] = dtx_f32_to_bf16((float)value[i]);
}

static struct op_array from_values(struct op_env *env, enum dtx_dtype dtype, const double *values, int ndim,
                                   const int64_t *dim, bool constant)
{
    struct op_array a = {.n = 1};
    for (int i = 0; i < ndim; i++)
        a.n *= dim[i];
    a.value = op_doubles(env, a.n);
    for (int64_t i = 0; i < a.n; i++)
        a.value[i] = ref_round(values[i], dtype);
    void *image = malloc((size_t)a.n * 8 + 1);
    to_dtype(dtype, a.value, a.n, image);
    a.t = backend_memory(env, dtype, ndim, dim, image, constant);
    free(image);
    return a;
}

static struct op_array from_stream(struct op_env *env, const char *name, enum dtx_dtype dtype, double scale, int ndim,
                                   const int64_t *dim, bool constant)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= dim[i];
    double *values = op_doubles(env, n);
    uint64_t key = dtx_rng_key(7, name);
    for (int64_t i = 0; i < n; i++)
        values[i] = scale * dtx_rng_normal(key, (uint64_t)i);
    return from_values(env, dtype, values, ndim, dim, constant);
}

struct op_array op_random(struct op_env *env, const char *name, enum dtx_dtype dtype, double scale, int ndim,
                          const int64_t *dim)
{
    return from_stream(env, name, dtype, scale, ndim, dim, true);
}

struct op_array op_inout(struct op_env *env, const char *name, enum dtx_dtype dtype, double scale, int ndim,
                         const int64_t *dim)
{
    return from_stream(env, name, dtype, scale, ndim, dim, false);
}

struct op_array op_values(struct op_env *env, enum dtx_dtype dtype, const double *values, int ndim, const int64_t *dim)
{
    return from_values(env, dtype, values, ndim, dim, true);
}

struct op_array op_indices(struct op_env *env, const int32_t *values, int ndim, const int64_t *dim)
{
    struct op_array a = {.t = backend_memory(env, DTX_I32, ndim, dim, values, true)};
    a.n = dtx_tensor_count(&a.t);
    a.index = harness_memory(env, (size_t)a.n * sizeof *values);
    memcpy(a.index, values, (size_t)a.n * sizeof *values);
    return a;
}

struct op_array op_output(struct op_env *env, enum dtx_dtype dtype, int ndim, const int64_t *dim)
{
    struct op_array a = {.t = backend_memory(env, dtype, ndim, dim, NULL, false)};
    a.n = dtx_tensor_count(&a.t);
    a.value = op_doubles(env, a.n);
    return a;
}

struct dtx_tensor op_work(struct op_env *env, size_t bytes)
{
    if (bytes == 0)
        return (struct dtx_tensor){0};
    return backend_memory(env, DTX_U8, OP_DIMS((int64_t)bytes), NULL, false);
}

double *op_doubles(struct op_env *env, int64_t n)
{
    return harness_memory(env, (size_t)n * sizeof(double));
}

static void *read_bytes(struct op_env *env, const struct op_array *array)
{
    void *image = harness_memory(env, dtx_tensor_bytes(&array->t));
    op_ok(env, dtx_tensor_get(env->queue, &array->t, image));
    return image;
}

void op_read(struct op_env *env, struct op_array *array)
{
    const void *image = read_bytes(env, array);
    for (int64_t i = 0; i < array->n; i++)
        array->value[i] = array->t.dtype == DTX_F64   ? ((const double *)image)[i]
                          : array->t.dtype == DTX_F32 ? (double)((const float *)image)[i]
                                                      : (double)dtx_bf16_to_f32(((const uint16_t *)image)[i]);
}

static struct op_stored *stored_find(struct op_env *env, const char *name)
{
    for (struct op_stored *s = env->stored; s; s = s->next)
        if (strcmp(s->name, name) == 0)
            return s;
    struct op_stored *s = calloc(1, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->isa = -1;
    s->next = env->stored;
    env->stored = s;
    return s;
}

struct op_expect op_expect(struct op_env *env, const char *name, int64_t n)
{
    struct op_stored *s = stored_find(env, name);
    if (!s->ref) {
        s->n = n;
        s->ref = calloc((size_t)n + 1, sizeof(double));
        s->naive = calloc((size_t)n + 1, sizeof(double));
    }
    assert_int_equal(s->n, n);
    return (struct op_expect){s->ref, s->naive};
}

void op_compare_bits(struct op_env *env, const char *name, struct op_array *array)
{
    struct op_stored *s = stored_find(env, name);
    uint64_t hash = dtx_hash(read_bytes(env, array), dtx_tensor_bytes(&array->t), 0);
    if (s->isa == env->backend->isa && s->hash != hash)
        fail_msg("%s: other bits with %d threads than with one (%s)", name, env->backend->threads,
                 dtx_isa_name(env->backend->isa));
    s->isa = env->backend->isa;
    s->hash = hash;
}

static double ulp(double x, enum dtx_dtype dtype)
{
    int bits = dtype == DTX_F64 ? 52 : dtype == DTX_F32 ? 23 : 7, exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 1 - bits);
}

void op_compare(struct op_env *env, const char *name, struct op_array *array, double k)
{
    op_compare_slack(env, name, array, k, NULL);
}

void op_compare_slack(struct op_env *env, const char *name, struct op_array *array, double k, const double *slack)
{
    enum dtx_dtype dtype = array->t.dtype;
    struct op_stored *s = stored_find(env, name);
    assert_non_null(s->ref);
    assert_int_equal(s->n, array->n);
    op_read(env, array);
    double largest = 0, naive_error = 0, error = 0;
    int64_t worst = 0;
    for (int64_t i = 0; i < s->n; i++) {
        double got = array->value[i], ref = s->ref[i], off = fabs(got - ref) - (slack ? slack[i] : 0);
        if (isinf(ref) || isnan(got)) {
            if (got != ref)
                fail_msg("%s[%lld] = %g, must be %g (%s, %s)", name, (long long)i, got, ref,
                         dtx_dtype_name(array->t.dtype), dtx_isa_name(env->backend->isa));
            continue;
        }
        largest = fmax(largest, fabs(ref));
        naive_error = fmax(naive_error, fabs(ref_round(s->naive[i], dtype) - ref));
        if (!(off <= error)) {
            error = off;
            worst = i;
        }
    }
    double bound = k * naive_error + (largest > 0 ? 2 * ulp(largest, dtype) : 0);
    if (!(error <= bound))
        fail_msg("%s[%lld] = %.9g, must be %.9g: error %.3g, bound %.3g, naive error %.3g (%s, %s, %d threads)", name,
                 (long long)worst, array->value[worst], s->ref[worst], error, bound, naive_error,
                 dtx_dtype_name(array->t.dtype), dtx_isa_name(env->backend->isa), env->backend->threads);
    op_compare_bits(env, name, array);
}

void op_ok(struct op_env *env, enum dtx_status status)
{
    if (status != DTX_OK)
        fail_msg("%s: %s", dtx_status_name(status), env->ctx.error.text);
}

void op_refused(struct op_env *env, enum dtx_status status, ...)
{
    if (status != DTX_E_RANGE)
        fail_msg("status is %s (%s), must be range", dtx_status_name(status), env->ctx.error.text);
    va_list list;
    va_start(list, status);
    for (const char *text; (text = va_arg(list, const char *)) != NULL;)
        if (!strstr(env->ctx.error.text, text))
            fail_msg("the message does not contain '%s': %s", text, env->ctx.error.text);
    va_end(list);
    dtx_error_clear(&env->ctx);
}

const char *op_device(void)
{
    const char *name = getenv("DTX_TEST_DEVICE");
    return name ? name : "cpu";
}

static void run_one(struct op_env *env, int threads, int isa, op_function *function, const void *data)
{
    dtx_ctx_init(&env->ctx);
    op_ok(env, dtx_backend_open(&env->ctx, op_device(), threads, isa, &env->backend));
    op_ok(env, env->backend->queues->create(env->backend, &env->queue));
    function(env, data);
    op_ok(env, env->backend->queues->wait(env->queue));
    while (env->memory) {
        struct op_memory *m = env->memory;
        env->memory = m->next;
        if (m->device) {
            check_guards(env, m);
            env->backend->memory->free(env->backend, m->device);
        }
        free(m->host_copy);
        free(m->plain);
        free(m);
    }
    assert_int_equal(env->backend->allocated_bytes, 0);
    env->backend->queues->free(env->queue);
    dtx_backend_close(env->backend);
}

static struct op_env make_env(enum dtx_dtype act)
{
    return (struct op_env){
        .act = act, .master = dtx_dtype_master(act), .exact = ref_exact(act), .naive = ref_naive(act), .fresh = true};
}

static void free_stored(struct op_env *env)
{
    while (env->stored) {
        struct op_stored *s = env->stored;
        env->stored = s->next;
        free(s->ref);
        free(s->naive);
        free(s);
    }
}

/* For what runs slowly: bf16 alone, and not the easiest order. */
static bool is_short(void)
{
    return getenv("DTX_TEST_SHORT") != NULL;
}

/* The CUDA kernels in the emulator: the same case and the same bits in every order of threads and of streams. */
static void run_orders(struct op_env *env, op_function *function, const void *data)
{
    static const char *const orders[][2] = {{"fifo", "now"}, {"lifo", "late"}, {"random", "random"}};
    for (size_t i = is_short(); i < sizeof orders / sizeof *orders; i++) {
        setenv("DTX_EMU_ORDER", orders[i][0], 1);
        setenv("DTX_EMU_STREAMS", orders[i][1], 1);
        run_one(env, 1, DTX_ISA_PLAIN, function, data);
        env->fresh = false;
    }
    unsetenv("DTX_EMU_ORDER");
    unsetenv("DTX_EMU_STREAMS");
}

void op_run(enum dtx_dtype act, op_function *function, const void *data)
{
    if (is_short() && act != DTX_BF16)
        return;
    struct op_env env = make_env(act);
    if (strcmp(op_device(), "emu") == 0) {
        run_orders(&env, function, data);
        free_stored(&env);
        return;
    }
    for (int isa = DTX_ISA_PLAIN; isa <= dtx_isa_detect(); isa++)
        for (int threads = 1; threads <= 3; threads++) {
            run_one(&env, threads, isa, function, data);
            env.fresh = false;
        }
    free_stored(&env);
}

void op_run_once(enum dtx_dtype act, int threads, int isa, op_function *function, const void *data)
{
    struct op_env env = make_env(act);
    run_one(&env, threads, isa, function, data);
    free_stored(&env);
}
