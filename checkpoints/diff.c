#include "checkpoints/diff.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoints/index.h"
#include "kernels/base/mem.h"

struct comparison {
    const char *a_path, *b_path;
    struct dtx_ckpt_index a, b;
    double limit;
    struct dtx_meter meter;
    void *x, *y; /* the longest box of a, and the same elements of b */
    int64_t arrays, different;
};

/* What is found between two arrays. */
struct gap {
    int64_t n, different;
    double greatest, scale; /* of |a − b| and |a| */
};

static double number_at(const void *data, enum dtx_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DTX_F64:
        return ((const double *)data)[i];
    case DTX_F32:
        return (double)((const float *)data)[i];
    case DTX_BF16:
        return (double)dtx_bf16_to_f32(((const uint16_t *)data)[i]);
    case DTX_I32:
        return (double)((const int32_t *)data)[i];
    case DTX_I64:
        return (double)((const int64_t *)data)[i];
    case DTX_U8:
        return (double)((const uint8_t *)data)[i];
    }
    return 0;
}

/* The elements of one box, out of either side, dense. */
static enum dtx_status load_box(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                const struct dtx_ckpt_entry *e, void *data)
{
    struct dtx_ckpt_item item = {.ndim = e->ndim, .n_boxes = 1, .data = data};
    memcpy(item.name, e->name, sizeof item.name);
    dtx_dtype_parse(e->dtype, &item.dtype);
    for (int d = 0; d < e->ndim; d++) {
        item.whole[d] = e->whole[d];
        item.local[d] = item.boxes[0].extent[d] = e->extent[d];
        item.boxes[0].global[d] = e->global[d];
    }
    return dtx_ckpt_index_load(ctx, NULL, folder, index, &item, 1);
}

/* NaN equals NaN of the same bits only. */
static void compare_values(const struct comparison *c, enum dtx_dtype dtype, int64_t n, struct gap *gap)
{
    size_t size = dtx_dtype_bytes(dtype);
    gap->n += n;
    for (int64_t i = 0; i < n; i++) {
        double x = number_at(c->x, dtype, i), y = number_at(c->y, dtype, i), between = fabs(x - y);
        gap->scale = fabs(x) > gap->scale ? fabs(x) : gap->scale;
        if (memcmp((char *)c->x + (size_t)i * size, (char *)c->y + (size_t)i * size, size) == 0 || between <= c->limit)
            continue;
        gap->different++;
        gap->greatest = isnan(between) || between > gap->greatest ? between : gap->greatest;
    }
}

/* The array of n boxes at x in a, and the one at y in b. */
static enum dtx_status compare_arrays(struct dtx_ctx *ctx, struct comparison *c, const struct dtx_ckpt_entry *x,
                                      int64_t n, const struct dtx_ckpt_entry *y, bool *equal)
{
    struct gap gap = {0};
    enum dtx_dtype dtype;
    *equal = false;
    if (x->ndim != y->ndim || memcmp(x->whole, y->whole, sizeof x->whole) != 0 || strcmp(x->dtype, y->dtype) != 0) {
        dtx_meter_clear(&c->meter);
        printf("%-52s has another shape or dtype\n", x->name);
        return DTX_OK;
    }
    dtx_dtype_parse(x->dtype, &dtype);
    for (int64_t i = 0; i < n; i++) {
        DTX_TRY(ctx, load_box(ctx, c->a_path, &c->a, &x[i], c->x));
        DTX_TRY(ctx, load_box(ctx, c->b_path, &c->b, &x[i], c->y));
        compare_values(c, dtype, x[i].bytes / (int64_t)dtx_dtype_bytes(dtype), &gap);
        dtx_meter_add(&c->meter, 2 * x[i].bytes);
    }
    if (gap.different) {
        dtx_meter_clear(&c->meter);
        printf("%-52s %lld of %lld elements differ, by at most %.6g (%.3g of the greatest)\n", x->name,
               (long long)gap.different, (long long)gap.n, gap.greatest,
               gap.scale > 0 ? gap.greatest / gap.scale : INFINITY);
    }
    *equal = gap.different == 0;
    return DTX_OK;
}

/* Walks both sorted tables side by side. */
static enum dtx_status compare(struct dtx_ctx *ctx, struct comparison *c)
{
    const struct dtx_ckpt_index *a = &c->a, *b = &c->b;
    int64_t i = 0, j = 0, longest = dtx_ckpt_longest(a->entries, a->n);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, longest, 1, &c->x));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, longest, 1, &c->y));
    dtx_meter_start(&c->meter, stderr, "diff", dtx_ckpt_index_bytes(a) + dtx_ckpt_index_bytes(b));
    while (i < a->n || j < b->n) {
        const struct dtx_ckpt_entry *x = &a->entries[i], *y = &b->entries[j];
        int order = i == a->n ? 1 : j == b->n ? -1 : strcmp(x->name, y->name);
        int64_t n = order <= 0 ? dtx_ckpt_run(a->entries, a->n, i) : 0;
        bool equal = false;
        if (order < 0)
            printf("%-52s is in the first only\n", x->name);
        else if (order > 0)
            printf("%-52s is in the second only\n", y->name);
        else
            DTX_TRY(ctx, compare_arrays(ctx, c, x, n, y, &equal));
        c->arrays++;
        c->different += !equal;
        i += n;
        j += order >= 0 ? dtx_ckpt_run(b->entries, b->n, j) : 0;
    }
    dtx_meter_clear(&c->meter);
    printf("%lld arrays, %lld different\n", (long long)c->arrays, (long long)c->different);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_diff(struct dtx_ctx *ctx, const char *a, const char *b, double limit, bool *equal)
{
    struct comparison c = {.a_path = a, .b_path = b, .limit = limit};
    DTX_TRY(ctx, dtx_ckpt_index_read(ctx, a, &c.a));
    enum dtx_status status = dtx_ckpt_index_read(ctx, b, &c.b);
    if (status == DTX_OK)
        status = compare(ctx, &c);
    dtx_ckpt_index_free(&c.a);
    dtx_ckpt_index_free(&c.b);
    dtx_mem_free(c.x);
    dtx_mem_free(c.y);
    *equal = c.different == 0;
    return status;
}
