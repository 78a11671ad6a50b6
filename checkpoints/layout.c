#include "checkpoints/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

void dtx_ckpt_shard_name(int shard, char out[32])
{
    snprintf(out, 32, "shard-%05d.h5", shard);
}

int64_t dtx_ckpt_box_count(const struct dtx_box *box, int ndim)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= box->extent[d];
    return n;
}

/* The dimension that is cut into ranges, and how many of its indices one piece takes. */
static int cut_dimension(const struct dtx_box *box, int ndim, size_t element_bytes, int64_t limit, int64_t *rows)
{
    int64_t inner = dtx_ckpt_box_count(box, ndim) * (int64_t)element_bytes;
    for (int d = 0; d < ndim; d++) {
        inner /= box->extent[d]; /* bytes of one index of dimension d */
        if (inner <= limit || d == ndim - 1) {
            *rows = dtx_max64(1, dtx_min64(box->extent[d], limit / inner));
            return d;
        }
    }
    *rows = 1;
    return 0;
}

int64_t dtx_ckpt_pieces(const struct dtx_box *box, int ndim, size_t element_bytes, int64_t limit)
{
    int64_t rows, n = 1;
    if (dtx_ckpt_box_count(box, ndim) == 0)
        return 0;
    int cut = cut_dimension(box, ndim, element_bytes, limit, &rows);
    for (int d = 0; d < cut; d++)
        n *= box->extent[d];
    return n * dtx_div_up(box->extent[cut], rows);
}

void dtx_ckpt_piece(const struct dtx_box *box, int ndim, size_t element_bytes, int64_t limit, int64_t i,
                    struct dtx_box *out)
{
    int64_t rows, at[DTX_MAX_DIMS] = {0};
    int cut = cut_dimension(box, ndim, element_bytes, limit, &rows);
    int64_t ranges = dtx_div_up(box->extent[cut], rows);
    *out = *box;
    at[cut] = i % ranges * rows;
    out->extent[cut] = dtx_min64(rows, box->extent[cut] - at[cut]);
    i /= ranges;
    for (int d = cut - 1; d >= 0; d--) {
        at[d] = i % box->extent[d];
        out->extent[d] = 1;
        i /= box->extent[d];
    }
    for (int d = 0; d <= cut; d++) {
        out->global[d] += at[d];
        out->local[d] += at[d];
    }
}

static int compare_entries(const void *a, const void *b)
{
    const struct dtx_ckpt_entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    for (int d = 0; order == 0 && d < DTX_MAX_DIMS; d++)
        order = (x->global[d] > y->global[d]) - (x->global[d] < y->global[d]);
    return order ? order : (x->writer > y->writer) - (x->writer < y->writer);
}

void dtx_ckpt_sort(struct dtx_ckpt_entry *entries, int64_t n)
{
    qsort(entries, (size_t)n, sizeof *entries, compare_entries);
}

int64_t dtx_ckpt_run(const struct dtx_ckpt_entry *entries, int64_t n, int64_t first)
{
    int64_t end = first;
    while (end < n && strcmp(entries[end].name, entries[first].name) == 0)
        end++;
    return end - first;
}

int64_t dtx_ckpt_lookup(const struct dtx_ckpt_entry *entries, int64_t n, const char *name, int64_t *first)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == n || strcmp(entries[low].name, name) != 0)
        return 0;
    *first = low;
    return dtx_ckpt_run(entries, n, low);
}

static bool name_is_sane(const char name[DTX_CKPT_NAME])
{
    size_t n = strnlen(name, DTX_CKPT_NAME);
    if (n < 2 || n == DTX_CKPT_NAME || name[0] != '/' || name[n - 1] == '/' || strstr(name, "//") ||
        strstr(name, "/.") || strcmp(name, "/boxes") == 0 || strcmp(name, "/config") == 0 ||
        strcmp(name, "/ledger") == 0 || strcmp(name, "/health") == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 127)
            return false;
    return true;
}

static enum dtx_status check_entry(struct dtx_ctx *ctx, const char *where, const struct dtx_ckpt_entry *e, int n_shards)
{
    enum dtx_dtype dtype;
    if (!name_is_sane(e->name))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: '%.120s' is no name of an array", where, e->name);
    if (memchr(e->dtype, 0, sizeof e->dtype) == NULL || !dtx_dtype_parse(e->dtype, &dtype))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s has an unknown dtype", where, e->name);
    if (e->ndim < 1 || e->ndim > DTX_MAX_DIMS || e->shard < 0 || e->shard >= n_shards || e->offset < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: a box of %s makes no sense (%d dimensions, shard %d of %d)", where,
                        e->name, e->ndim, e->shard, n_shards);
    int64_t bytes = (int64_t)dtx_dtype_bytes(dtype), whole = bytes;
    for (int d = 0; d < e->ndim; d++) {
        if (e->whole[d] < 1 || e->global[d] < 0 || e->extent[d] < 1 || e->extent[d] > e->whole[d] ||
            e->global[d] > e->whole[d] - e->extent[d] || __builtin_mul_overflow(whole, e->whole[d], &whole))
            return dtx_fail(ctx, DTX_E_FORMAT,
                            "%s: %s: dimension %d has size %lld; a box takes %lld elements of it from %lld", where,
                            e->name, d, (long long)e->whole[d], (long long)e->extent[d], (long long)e->global[d]);
        bytes *= e->extent[d];
    }
    if (bytes != e->bytes || e->offset > INT64_MAX - bytes)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: a box of %s should have %lld bytes, not %lld", where, e->name,
                        (long long)bytes, (long long)e->bytes);
    return DTX_OK;
}

static bool boxes_overlap(const struct dtx_ckpt_entry *a, const struct dtx_ckpt_entry *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->global[d] + a->extent[d] <= b->global[d] || b->global[d] + b->extent[d] <= a->global[d])
            return false;
    return true;
}

/* n boxes of one array, ordered by offset: none may overlap another and together they must be the whole. */
static enum dtx_status check_array(struct dtx_ctx *ctx, const char *where, const struct dtx_ckpt_entry *e, int64_t n)
{
    int64_t covered = 0, whole = 1;
    for (int d = 0; d < e->ndim; d++)
        whole *= e->whole[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t count = 1;
        if (e[i].ndim != e->ndim || strcmp(e[i].dtype, e->dtype) != 0 ||
            memcmp(e[i].whole, e->whole, sizeof e->whole) != 0)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the boxes of %s disagree on its shape or dtype", where, e->name);
        for (int d = 0; d < e->ndim; d++)
            count *= e[i].extent[d];
        covered += count;
        for (int64_t j = i + 1; j < n && e[j].global[0] < e[i].global[0] + e[i].extent[0]; j++)
            if (boxes_overlap(&e[i], &e[j]))
                return dtx_fail(ctx, DTX_E_FORMAT, "%s: elements of %s have two writers (ranks %d and %d)", where,
                                e->name, e[i].writer, e[j].writer);
    }
    if (covered != whole)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: only %lld of the %lld elements of %s are there", where,
                        (long long)covered, (long long)whole, e->name);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_check_table(struct dtx_ctx *ctx, const char *where, const struct dtx_ckpt_entry *entries,
                                     int64_t n, int n_shards)
{
    for (int64_t i = 0; i < n; i++)
        DTX_TRY(ctx, check_entry(ctx, where, &entries[i], n_shards));
    if (DTX_MUTANT(ckpt_cover_unchecked))
        return DTX_OK;
    for (int64_t i = 0, run; i < n; i += run) {
        run = dtx_ckpt_run(entries, n, i);
        DTX_TRY(ctx, check_array(ctx, where, &entries[i], run));
    }
    return DTX_OK;
}

int64_t dtx_ckpt_longest(const struct dtx_ckpt_entry *entries, int64_t n)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < n; i++)
        longest = dtx_max64(longest, entries[i].bytes);
    return longest;
}

int64_t dtx_ckpt_cut(int64_t total, int n_shards, int64_t limit)
{
    return DTX_MUTANT(ckpt_boxes_not_cut) ? limit : dtx_min64(limit, dtx_max64(1 << 20, total / n_shards / 20));
}

static int by_writer(const void *a, const void *b)
{
    const struct dtx_ckpt_entry *x = *(struct dtx_ckpt_entry *const *)a, *y = *(struct dtx_ckpt_entry *const *)b;
    return x->writer != y->writer ? x->writer - y->writer : x->part - y->part;
}

/* The ranks that have boxes, ascending; ordered: the boxes by rank. */
static int list_writers(struct dtx_ckpt_entry *const *ordered, int64_t n, int *writers)
{
    int count = 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || ordered[i]->writer != ordered[i - 1]->writer)
            writers[count++] = ordered[i]->writer;
    return count;
}

enum dtx_status dtx_ckpt_assign_shards(struct dtx_ctx *ctx, struct dtx_ckpt_entry *entries, int64_t n, int world_size,
                                       int max_shards, int leaders[DTX_CKPT_SHARDS], int *n_shards)
{
    void *memory, *list;
    int64_t total = 0, before = 0, wanted, last = -1;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(struct dtx_ckpt_entry *), &list));
    enum dtx_status status = dtx_mem_alloc(ctx, world_size, sizeof(int), &memory);
    if (status != DTX_OK) {
        dtx_mem_free(list);
        return status;
    }
    struct dtx_ckpt_entry **ordered = list;
    int *writers = memory, n_writers;
    for (int64_t i = 0; i < n; i++) {
        ordered[i] = &entries[i];
        total += entries[i].bytes;
    }
    qsort(ordered, (size_t)n, sizeof *ordered, by_writer);
    n_writers = list_writers(ordered, n, writers);
    wanted = dtx_min64(max_shards, n_writers);
    *n_shards = 0;
    for (int64_t i = 0; i < n; i++) { /* by the place of the box's middle among all bytes */
        int64_t slot = (int64_t)((double)wanted * ((double)before + (double)ordered[i]->bytes / 2) / (double)total);
        slot = dtx_min64(slot, wanted - 1);
        if (slot != last) /* a slot without any box is no shard */
            leaders[(*n_shards)++] = writers[(2 * slot + 1) * n_writers / (2 * wanted)];
        last = slot;
        ordered[i]->shard = *n_shards - 1;
        before += ordered[i]->bytes;
    }
    dtx_mem_free(writers);
    dtx_mem_free(ordered);
    return DTX_OK;
}
