#include "checkpoints/hf/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { ALIGN = 8 }; /* the data begins at a multiple of it */

static const struct {
    const char *name;
    int bytes;
    enum dtx_st_dtype dtype;
} dtypes[] = {{"F32", 4, DTX_ST_F32},    {"BF16", 2, DTX_ST_BF16},     {"F16", 2, DTX_ST_F16},
              {"F64", 8, DTX_ST_OTHER},  {"I64", 8, DTX_ST_OTHER},     {"I32", 4, DTX_ST_OTHER},
              {"I16", 2, DTX_ST_OTHER},  {"I8", 1, DTX_ST_OTHER},      {"U64", 8, DTX_ST_OTHER},
              {"U32", 4, DTX_ST_OTHER},  {"U16", 2, DTX_ST_OTHER},     {"U8", 1, DTX_ST_OTHER},
              {"BOOL", 1, DTX_ST_OTHER}, {"F8_E4M3", 1, DTX_ST_OTHER}, {"F8_E5M2", 1, DTX_ST_OTHER}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

size_t dtx_st_dtype_bytes(enum dtx_st_dtype dtype)
{
    return dtype == DTX_ST_F32 ? 4 : dtype == DTX_ST_OTHER ? 0 : 2;
}

void dtx_st_shape_text(const int64_t *shape, int ndim, char out[DTX_ST_SHAPE_TEXT])
{
    int at = 0;
    out[0] = '\0';
    for (int d = 0; d < ndim; d++)
        at += snprintf(out + at, (size_t)(DTX_ST_SHAPE_TEXT - at), d ? ", %lld" : "%lld", (long long)shape[d]);
}

/* A whole number of 0 and more; false for anything else. */
static bool whole(const json_t *value, int64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = json_integer_value(value);
    return true;
}

static enum dtx_status parse_shape(struct dtx_ctx *ctx, const char *path, const json_t *shape, int64_t element,
                                   struct dtx_st_tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > DTX_ST_DIMS)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: the shape of %s is no list of at most %d numbers", path, t->name,
                        DTX_ST_DIMS);
    t->ndim = (int)n;
    t->bytes = element;
    for (int d = 0; d < t->ndim; d++) {
        if (!whole(json_array_get(shape, (size_t)d), &t->shape[d]))
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the shape of %s has a wrong number", path, t->name);
        if (__builtin_mul_overflow(t->bytes, t->shape[d], &t->bytes))
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s would have more than 2^63 bytes", path, t->name);
    }
    return DTX_OK;
}

static enum dtx_status parse_tensor(struct dtx_ctx *ctx, const char *path, const char *name, const json_t *value,
                                    int64_t data_bytes, struct dtx_st_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *offsets = json_object_get(value, "data_offsets");
    int64_t end;
    int k = 0;
    if (snprintf(t->name, sizeof t->name, "%s", name) >= DTX_ST_NAME)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: a tensor's name is longer than %d bytes: %.60s…", path, DTX_ST_NAME - 1,
                        name);
    while (k < DTYPES && (!dtype || strcmp(dtypes[k].name, dtype) != 0))
        k++;
    if (k == DTYPES)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s has the unknown dtype '%.20s'", path, name, dtype ? dtype : "");
    t->dtype = dtypes[k].dtype;
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", dtypes[k].name);
    DTX_TRY(ctx, parse_shape(ctx, path, json_object_get(value, "shape"), dtypes[k].bytes, t));
    if (json_array_size(offsets) != 2 || !whole(json_array_get(offsets, 0), &t->offset) ||
        !whole(json_array_get(offsets, 1), &end))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: data_offsets of %s are not two numbers", path, name);
    if (end > data_bytes || t->offset > end || end - t->offset != t->bytes)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: %s takes %lld bytes by its shape, but bytes %lld to %lld of %lld are named", path, name,
                        (long long)t->bytes, (long long)t->offset, (long long)end, (long long)data_bytes);
    return DTX_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct dtx_st_tensor *x = a, *y = b;
    int64_t p = x->offset != y->offset ? x->offset : x->bytes, q = x->offset != y->offset ? y->offset : y->bytes;
    return (p > q) - (p < q); /* of two at one place the empty one comes first */
}

/* Each byte of the data belongs to one tensor. */
static enum dtx_status check_cover(struct dtx_ctx *ctx, const char *path, const struct dtx_st_header *h,
                                   int64_t data_bytes)
{
    int64_t at = 0;
    for (int64_t i = 0; i < h->n; i++) {
        const struct dtx_st_tensor *t = &h->tensors[i];
        if (t->offset != at && !DTX_MUTANT(safetensors_overlap_unseen))
            return dtx_fail(ctx, DTX_E_FORMAT,
                            "%s: %s begins at byte %lld of the data, but the one before ends at %lld", path, t->name,
                            (long long)t->offset, (long long)at);
        at = t->offset + t->bytes;
    }
    if (at != data_bytes)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: the tensors end at byte %lld of the data, which has %lld", path,
                        (long long)at, (long long)data_bytes);
    return DTX_OK;
}

static enum dtx_status parse_root(struct dtx_ctx *ctx, const char *path, json_t *root, int64_t data_bytes,
                                  struct dtx_st_header *out)
{
    const char *name;
    json_t *value;
    void *memory;
    struct dtx_st_header h = {0};
    if (!json_is_object(root))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: the header is no JSON object", path);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)json_object_size(root), sizeof *h.tensors, &memory));
    h.tensors = memory;
    enum dtx_status status = DTX_OK;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") != 0 && status == DTX_OK)
            status = parse_tensor(ctx, path, name, value, data_bytes, &h.tensors[h.n++]);
    }
    if (status == DTX_OK) {
        qsort(h.tensors, (size_t)h.n, sizeof *h.tensors, by_offset);
        status = check_cover(ctx, path, &h, data_bytes);
    }
    if (status == DTX_OK)
        *out = h;
    else
        dtx_mem_free(h.tensors);
    return status;
}

enum dtx_status dtx_st_parse(struct dtx_ctx *ctx, const char *path, const char *text, int64_t bytes, int64_t data_bytes,
                             struct dtx_st_header *out)
{
    json_error_t error;
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: header, line %d, column %d: %s", path, error.line, error.column,
                        error.text);
    enum dtx_status status = parse_root(ctx, path, root, data_bytes, out);
    json_decref(root);
    return status;
}

static int64_t get_le(const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

static enum dtx_status read_header(struct dtx_ctx *ctx, const char *path, int fd, int64_t size, int64_t *data,
                                   struct dtx_st_header *out)
{
    unsigned char length[8];
    void *text;
    if (size < 8)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes: no safetensors file", path, (long long)size);
    DTX_TRY(ctx, dtx_disk_read_at(ctx, fd, path, length, 8, 0));
    int64_t bytes = get_le(length);
    if (bytes > DTX_ST_HEADER_BYTES || bytes > size - 8)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: a header of %lld bytes does not fit into the file's %lld (or is over %d)", path,
                        (long long)bytes, (long long)size, DTX_ST_HEADER_BYTES);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, bytes, 1, &text));
    enum dtx_status status = dtx_disk_read_at(ctx, fd, path, text, bytes, 8);
    if (status == DTX_OK)
        status = dtx_st_parse(ctx, path, text, bytes, size - 8 - bytes, out);
    dtx_mem_free(text);
    *data = 8 + bytes;
    return status;
}

enum dtx_status dtx_st_open(struct dtx_ctx *ctx, const char *path, int *fd, int64_t *data, struct dtx_st_header *out)
{
    int64_t size;
    int opened;
    DTX_TRY(ctx, dtx_disk_size(ctx, path, &size));
    DTX_TRY(ctx, dtx_disk_open_read(ctx, path, &opened));
    enum dtx_status status = read_header(ctx, path, opened, size, data, out);
    if (status == DTX_OK)
        *fd = opened;
    else
        close(opened);
    return status;
}

/* The header as text, its length in front, padded with spaces; free with dtx_mem_free. *end: bytes of the data. */
static enum dtx_status make_header(struct dtx_ctx *ctx, struct dtx_st_header *h, char **out, int64_t *bytes,
                                   int64_t *end)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int failed = !root;
    *end = 0;
    for (int64_t i = 0; i < h->n; i++) {
        struct dtx_st_tensor *t = &h->tensors[i];
        json_t *shape = json_array();
        t->bytes = (int64_t)dtx_st_dtype_bytes(t->dtype);
        for (int d = 0; d < t->ndim; d++) {
            t->bytes *= t->shape[d];
            failed |= json_array_append_new(shape, json_integer(t->shape[d]));
        }
        t->offset = *end;
        *end += t->bytes;
        failed |=
            json_object_set_new(root, t->name,
                                json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype == DTX_ST_F32 ? "F32" : "BF16",
                                          "shape", shape, "data_offsets", (json_int_t)t->offset, (json_int_t)*end));
    }
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    int64_t n = text ? (int64_t)strlen(text) : 0;
    int64_t padded = dtx_round_up(n, ALIGN);
    void *memory = NULL;
    enum dtx_status status = text ? dtx_mem_alloc(ctx, 8 + padded, 1, &memory)
                                  : dtx_fail(ctx, DTX_E_MEMORY, "out of memory making a safetensors header");
    if (status == DTX_OK) {
        char *p = memory;
        for (int i = 0; i < 8; i++)
            p[i] = (char)(padded >> (8 * i));
        memcpy(p + 8, text, (size_t)n);
        memset(p + 8 + n, ' ', (size_t)(padded - n));
        *out = p;
        *bytes = 8 + padded;
    }
    free(text);
    return status;
}

enum dtx_status dtx_st_create(struct dtx_ctx *ctx, const char *path, struct dtx_st_header *header, int *fd,
                              int64_t *data)
{
    char *text;
    int64_t bytes, end;
    int opened;
    DTX_TRY(ctx, make_header(ctx, header, &text, &bytes, &end));
    enum dtx_status status = dtx_disk_open_new(ctx, path, bytes + end, &opened);
    if (status == DTX_OK) {
        status = dtx_disk_write_at(ctx, opened, path, text, bytes, 0);
        if (status != DTX_OK)
            close(opened);
    }
    dtx_mem_free(text);
    if (status == DTX_OK) {
        *fd = opened;
        *data = bytes;
    }
    return status;
}

static float f16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } x;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormal numbers: mantissa · 2^−24 */
        x.f = (float)mantissa * 0x1p-24f;
        x.u |= sign;
    } else {
        x.u = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    }
    return x.f;
}

void dtx_st_to_f32(enum dtx_st_dtype dtype, const void *in, int64_t n, float *out)
{
    const uint16_t *half = in;
    if (dtype == DTX_ST_F32)
        memcpy(out, in, (size_t)n * sizeof *out);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = dtype == DTX_ST_BF16 ? dtx_bf16_to_f32(half[i]) : f16_to_f32(half[i]);
}

void dtx_st_from_f32(enum dtx_st_dtype dtype, const float *in, int64_t n, void *out)
{
    uint16_t *half = out;
    if (dtype == DTX_ST_F32)
        memcpy(out, in, (size_t)n * sizeof *in);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = dtx_f32_to_bf16(in[i]);
}
