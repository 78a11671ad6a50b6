/* test: label=unit ranks=1 timeout=60 */
/*
 * The flat buffers of the table of weights, for every data rank of a made-up mesh: with ZeRO every element of a matrix
 * has exactly one rank, rows used in the master dtype are whole on all; buckets are no longer than asked, pieces equal
 * multiples of 1,024; masters and optimizer states take about 1/dp of the bytes. With ZeRO 2 gradients of whole layers
 * share two slots in turn, and only pieces of their sums are kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "parallel/param.h"

enum { LAYERS = 6, MATRICES = 4, MOST = 64 };

/* A small model: matrices of sizes that are no multiples of anything, gains between them. */
static void add_rows(struct dtx_params *p)
{
    static const int64_t shapes[MATRICES][2] = {{301, 67}, {67, 97}, {131, 67}, {67, 131}};
    struct dtx_param_row row = {.ndim = 2, .tied_stage = -1, .decay = true};
    int index;
    for (int l = 0; l < LAYERS; l++) {
        for (int m = 0; m < MATRICES; m++) {
            snprintf(row.name, sizeof row.name, "layers.%d.matrix.%d", l, m);
            row.ndim = 2;
            row.master_only = false;
            memcpy(row.shape, shapes[m], sizeof row.shape);
            row.layer = l;
            assert_int_equal(dtx_params_add(p, &row, &index), DTX_OK);
        }
        snprintf(row.name, sizeof row.name, "layers.%d.gain", l);
        row.ndim = 1;
        row.shape[0] = 67;
        row.master_only = true;
        assert_int_equal(dtx_params_add(p, &row, &index), DTX_OK);
    }
}

static void open_table(struct dtx_ctx *ctx, struct dtx_backend *backend, struct dtx_mesh *mesh, int zero,
                       int64_t bucket_bytes, enum dtx_dtype act, struct dtx_params *p)
{
    assert_int_equal(dtx_params_create(ctx, p), DTX_OK);
    add_rows(p);
    p->zero = zero;
    p->bucket_bytes = bucket_bytes;
    assert_int_equal(dtx_params_allocate(p, backend, mesh, act), DTX_OK);
}

static void check_buckets(const struct dtx_params *p, int dp)
{
    int64_t flat = 0, shard = 0;
    for (int i = 0; i < p->n_buckets; i++) {
        const struct dtx_bucket *b = &p->bucket[i];
        assert_int_equal(b->offset, flat);
        assert_int_equal(b->shard, shard);
        assert_int_equal(b->own_count % DTX_PARAM_ALIGN, 0);
        assert_int_equal(b->count, b->cut ? b->own_count * dp : b->own_count);
        assert_true(b->own >= b->offset && b->own + b->own_count <= b->offset + b->count);
        flat += b->count;
        shard += b->own_count;
    }
    assert_int_equal(p->flat, flat);
    assert_int_equal(p->shard, shard);
    if (p->zero < 2)
        assert_int_equal(p->flat_grad.dim[0], flat);
    assert_int_equal(p->flat_state[0].dim[0], shard);
}

/* Counts how many ranks update each element of each row; rows do not overlap. */
static void check_rows(const struct dtx_params *p, char *seen[MOST], char *flat_seen)
{
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        const struct dtx_bucket *b = &p->bucket[item->bucket];
        assert_int_equal(item->offset % DTX_PARAM_ALIGN, 0);
        assert_true(item->offset >= b->offset && item->offset + item->count <= b->offset + b->count);
        assert_int_equal(item->cut, b->cut);
        assert_true(i >= b->first_row && i < b->end_row);
        for (int64_t k = 0; k < item->part_count; k++)
            seen[i][item->part_first + k]++;
        for (int64_t k = 0; k < item->count; k++)
            assert_int_equal(flat_seen[item->offset + k]++, 0);
        assert_int_equal(item->master.dim[0], item->part_count);
        char *grad = item->grad.data, *base = p->flat_grad.data;
        int64_t at = item->offset + b->grad - b->offset;
        assert_int_equal(grad - base, at * (int64_t)dtx_dtype_bytes(p->flat_grad.dtype));
        assert_true(at + item->count <= p->flat_grad.dim[0] && (b->streamed || p->zero == 2 || b->grad == b->offset));
        assert_int_equal(item->reduced.dim[0], item->part_count);
    }
}

static void each_element_once(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    static const int64_t bucket_bytes[] = {0, 4096, 100000, 300000};
    static const enum dtx_dtype dtypes[] = {DTX_F32, DTX_BF16, DTX_F64};
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_backend_open(&ctx, "cpu", 1, DTX_ISA_PLAIN, &backend), DTX_OK);
    for (int dp = 1; dp <= 5; dp++)
        for (int k = 0; k < 24; k++) {
            char *seen[MOST];
            int n = 0;
            int64_t counts[MOST];
            for (int rank = 0; rank < dp; rank++) {
                struct dtx_mesh mesh = {.size = {1, dp, 1, 1}, .rank = {0, rank, 0, 0}};
                struct dtx_params p;
                open_table(&ctx, backend, &mesh, k / 12 + 1, bucket_bytes[k % 4], dtypes[k / 4 % 3], &p);
                assert_true(p.n <= MOST);
                for (int i = 0; i < p.n && rank == 0; i++) {
                    seen[i] = calloc((size_t)p.item[i].count, 1);
                    counts[i] = p.item[i].count;
                }
                n = p.n;
                char *flat_seen = calloc((size_t)p.flat, 1);
                check_buckets(&p, dp);
                check_rows(&p, seen, flat_seen);
                free(flat_seen);
                if (rank == dp - 1)
                    for (int i = 0; i < n; i++)
                        for (int64_t e = 0; e < counts[i]; e++)
                            assert_int_equal(seen[i][e], p.item[i].row.master_only ? dp : 1);
                dtx_params_free(&p);
            }
            for (int i = 0; i < n; i++)
                free(seen[i]);
        }
    dtx_backend_close(backend);
}

/* Buckets hold no more than asked unless one row does alone; none would take the next row too. */
static void bucket_lengths(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    struct dtx_params p;
    struct dtx_mesh mesh = {.size = {1, 2, 1, 1}};
    const int64_t most = 100000;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_backend_open(&ctx, "cpu", 1, DTX_ISA_PLAIN, &backend), DTX_OK);
    open_table(&ctx, backend, &mesh, 1, most, DTX_BF16, &p);
    assert_true(p.n_buckets > 4);
    for (int i = 0; i < p.n_buckets; i++) {
        int64_t bytes = 0, rows = 0;
        for (int r = 0; r < p.n; r++)
            if (p.item[r].bucket == i) {
                bytes += (p.item[r].count + 1023) / 1024 * 4096;
                rows++;
            }
        assert_true(rows == 1 || bytes <= most);
        assert_true(p.bucket[i].count * 4 < bytes + 2 * 4096);
    }
    dtx_params_free(&p);
    dtx_backend_close(backend);
}

static void bytes_of_a_rank(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_backend_open(&ctx, "cpu", 1, DTX_ISA_PLAIN, &backend), DTX_OK);
    for (int d = 0; d < 2; d++)
        for (int dp = 2; dp <= 8; dp++) {
            enum dtx_dtype act = d ? DTX_BF16 : DTX_F32;
            struct dtx_mesh mesh = {.size = {1, dp, 1, 1}, .rank = {0, dp - 1, 0, 0}};
            struct dtx_params cut, whole;
            open_table(&ctx, backend, &mesh, 1, 0, act, &cut);
            open_table(&ctx, backend, &mesh, 0, 0, act, &whole);
            struct dtx_params_bytes a = dtx_params_memory(&cut), b = dtx_params_memory(&whole);
            /* Gains are whole: a kilo-element for each of the layers; rounding up to pieces adds one more. */
            double small = 4096.0 * (LAYERS + 1);
            assert_true((double)a.states <= (double)b.states / dp + 2 * small);
            assert_true((double)a.states >= (double)b.states / dp);
            assert_true((double)a.masters <= (double)b.masters / dp + small);
            assert_true(act == DTX_F32 ? a.masters == 0 : (double)a.masters >= (double)b.masters / dp);
            assert_true(a.weights >= b.weights && (double)a.weights <= (double)b.weights + 4096.0 * dp);
            assert_true(a.gradients >= b.gradients && (double)a.gradients <= (double)b.gradients + 4096.0 * dp);
            assert_int_equal(a.states, dtx_tensor_bytes(&cut.flat_state[0]) + dtx_tensor_bytes(&cut.flat_state[1]));
            dtx_params_free(&cut);
            dtx_params_free(&whole);
        }
    dtx_backend_close(backend);
}

/* The tests' layers without the second: its neighbours are of two chunks, which no streamed bucket joins. */
static void streamed_buckets(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_backend_open(&ctx, "cpu", 1, DTX_ISA_PLAIN, &backend), DTX_OK);
    for (int gap = 0; gap < 2; gap++)
        for (int layers = 1; layers <= 3; layers++) { /* as many as a bucket holds */
            struct dtx_mesh mesh = {.size = {1, 2, 1}, .rank = {0, 1, 0}};
            struct dtx_params p;
            const int64_t layer_room = (20 + 7 + 9 + 9) * 1024; /* of the four matrices */
            assert_int_equal(dtx_params_create(&ctx, &p), DTX_OK);
            add_rows(&p);
            for (int i = 0; i < p.n && gap; i++)
                p.item[i].row.stage = p.item[i].row.layer == 1;
            p.zero = 2;
            p.bucket_bytes = layers * layer_room * 4;
            assert_int_equal(dtx_params_allocate(&p, backend, &mesh, DTX_BF16), DTX_OK);
            int streamed = 0, last = -1;
            int64_t sum = 0;
            for (int i = 0; i < p.n_buckets; i++) {
                const struct dtx_bucket *b = &p.bucket[i];
                if (!b->streamed)
                    continue;
                int from = p.item[b->first_row].row.layer, to = p.item[b->end_row - 1].row.layer;
                assert_true(to - from < layers && (!gap || from > 0 || to == 0));
                assert_int_equal(b->first_row % (MATRICES + 1), 0); /* whole layers */
                assert_int_equal(b->end_row % (MATRICES + 1), MATRICES);
                assert_int_not_equal(b->slot, last);
                last = b->slot;
                sum += b->own_count;
                streamed++;
            }
            int held = gap ? LAYERS - 1 : LAYERS, alone = gap ? 1 : 0;
            assert_int_equal(streamed, alone + (held - alone + layers - 1) / layers);
            assert_int_equal(p.flat_sum.dim[0], sum);
            int64_t slots = streamed > 1 ? 2 : 1, gains = held * 1024;
            assert_true(p.flat_grad.dim[0] <= slots * (layers * layer_room + 2048) + gains);
            dtx_params_free(&p);
        }
    dtx_backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_element_once), cmocka_unit_test(bucket_lengths),
                                       cmocka_unit_test(bytes_of_a_rank), cmocka_unit_test(streamed_buckets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
