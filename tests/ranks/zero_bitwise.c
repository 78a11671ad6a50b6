/* test: label=ranks ranks=8 timeout=300 */
/*
 * ZeRO 1 changes no bit of losses, norms, weights or optimizer states: on against off and against other bucket sizes,
 * with reductions beside the computation and at once; nor does ZeRO 2 with one micro-batch, and with several its own
 * bits depend on none of these. In fp32 and bf16, 2 to 4 data ranks (3: unequal cuts everywhere), with tensor and
 * pipeline parallelism, tied embeddings and not, context ranks beside data ranks; clipping active at every step. Pieces
 * begin and end within matrices. Bytes sent over the data ranks are those of parallel/README.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 4, KINDS = 3 };

static int64_t elements(const struct dtx_param_row *row)
{
    return row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
}

/* Rows of which a data rank has a part, over all ranks: edges of pieces within rows. */
static double count_parts(struct dtx_comm *world, struct dtx_engine *e)
{
    struct dtx_params *p = dtx_engine_params(e);
    double parts = 0;
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        CHECK(world, item->held || item->part_count == 0);
        CHECK(world, item->cut || item->part_count == item->count || !item->held);
        parts += item->cut && item->part_count > 0 && item->part_count < item->count;
    }
    struct dtx_tensor t = dtx_tensor_1d(&parts, DTX_F64, 1);
    CHECK_OK(world, dtx_comm_all_reduce_sum(dtx_engine_mesh(e)->world, NULL, &t));
    return parts;
}

/* What layers read is the same on every data rank: nobody keeps old values of other ranks' pieces. */
static void check_weights(struct dtx_comm *world, struct dtx_engine *e)
{
    struct dtx_params *p = dtx_engine_params(e);
    struct dtx_comm *data = dtx_engine_mesh(e)->data;
    uint64_t all[8];
    for (int i = 0; i < p->n; i++) {
        const struct dtx_tensor *weight = &p->item[i].weight;
        if (!p->item[i].held)
            continue;
        uint64_t hash = dtx_hash(weight->data, dtx_tensor_bytes(weight), 0);
        CHECK_OK(world, dtx_comm_gather_bytes(data, &hash, sizeof hash, all));
        for (int r = 0; r < data->size; r++)
            CHECK_THAT(world, all[r] == hash, "%s differs between data ranks", p->item[i].row.name);
    }
}

/* Bytes of one optimizer step over the data ranks, by the formulas. */
static int64_t formula(struct dtx_params *p, enum dtx_dtype act, int64_t ranks, int64_t micro_batches, int64_t small)
{
    int64_t master = (int64_t)dtx_dtype_bytes(dtx_dtype_master(act)), weight = (int64_t)dtx_dtype_bytes(act);
    int64_t sent = 2 * 16 * (ranks - 1); /* targets; losses */
    for (int i = 0; i < p->n_buckets; i++) {
        const struct dtx_bucket *b = &p->bucket[i];
        int64_t bytes = b->count * master, part = dtx_div_up(b->count, ranks);
        int64_t mine = dtx_min64(part, b->count - dtx_mesh_data_rank(p->mesh) * part);
        int64_t sums = b->streamed ? micro_batches : 1;
        if (b->cut)
            sent += (ranks - 1) * (b->own_count * (sums * master + weight) + b->own_count / DTX_PARAM_ALIGN * 8);
        else
            sent += bytes * ranks <= small ? bytes * (ranks - 1) : bytes - mine * master + mine * master * (ranks - 1);
    }
    return sent;
}

/* Losses, norms, then masters and both states one after another. */
static double *run(struct dtx_comm *world, struct dtx_comm *ranks, const struct dtx_test_model *m, int64_t *count,
                   double *parts)
{
    struct dtx_engine_config config;
    struct dtx_engine *e;
    struct dtx_backend *backend;
    dtx_test_config(m, &config);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, ranks, backend, &e));
    struct dtx_params *p = dtx_engine_params(e);
    const struct dtx_mesh *mesh = dtx_engine_mesh(e);
    *count = 2 * STEPS + KINDS * dtx_params_total(p);
    double *all = malloc((size_t)*count * sizeof *all), *next = all + 2 * STEPS;
    int64_t before = mesh->data->sent_bytes + mesh->grads->sent_bytes;
    CHECK_OK(world, dtx_test_train(e, m, STEPS, 2e-2, all, all + STEPS));
    CHECK(world, mesh->data->sent_bytes + mesh->grads->sent_bytes - before ==
                     STEPS * formula(p, m->dtype, m->dp * m->cp, config.batch.micro_batches,
                                     dtx_comm_options_default().small_bytes));
    *parts += count_parts(world, e);
    check_weights(world, e);
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < p->n; i++) {
            CHECK_OK(world, dtx_test_gather(e, i, "w01"[k], next));
            next += elements(&p->item[i].row);
        }
    for (int s = 0; s < STEPS; s++)
        CHECK_THAT(world, all[STEPS + s] > config.optim.clip, "step %d was not clipped", s + 1);
    dtx_engine_free(e);
    dtx_backend_close(backend);
    return all;
}

static int compare(const struct dtx_test_model *m, const double *one, const double *other, int64_t count)
{
    int64_t different = 0, first = -1;
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&one[i], &other[i], sizeof *one) != 0) {
            first = different ? first : i;
            different++;
        }
    printf("%s tp%d pp%d dp%d cp%d %s, micro-batches of %lld, zero %d%s, buckets of %lld bytes: %lld of %lld numbers "
           "differ "
           "(first %lld)\n",
           dtx_dtype_name(m->dtype), m->tp, m->pp, m->dp, m->cp, m->tied ? "tied" : "untied", (long long)m->micro_batch,
           m->zero, m->waits ? " at once" : "", (long long)m->bucket_bytes, (long long)different, (long long)count,
           (long long)first);
    return different != 0;
}

/* Against the first of all, or for ZeRO 2 with several micro-batches against its own first. */
static const struct {
    int zero;
    int64_t bucket_bytes;
    bool waits;
} variants[] = {{0, 0, true}, {1, 0, false}, {1, 12000, true}, {0, 12000, false}, {2, 12000, false}, {2, 0, true}};

static int check(struct dtx_comm *world, struct dtx_test_model m, double *parts)
{
    int size = dtx_test_ranks(&m), failures = 0;
    int64_t count;
    struct dtx_comm *part;
    CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &part));
    if (!part)
        return 0;
    double *first = NULL, *sharded = NULL;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        m.zero = variants[i].zero;
        m.bucket_bytes = variants[i].bucket_bytes;
        m.waits = variants[i].waits;
        double *now = run(world, part, &m, &count, parts);
        bool own = m.zero == 2 && m.micro_batch * m.dp < m.global_batch;
        double **reference = own ? &sharded : &first;
        if (!*reference) {
            *reference = now;
            continue;
        }
        if (world->rank == 0)
            failures += compare(&m, *reference, now, count);
        free(now);
    }
    free(first);
    free(sharded);
    dtx_comm_free(part);
    return failures;
}

static int test(struct dtx_comm *world)
{
    static const int meshes[][4] = {/* tp, pp, dp, cp */ {1, 1, 2, 1},
                                    {1, 1, 3, 1},
                                    {1, 1, 4, 1},
                                    {2, 1, 3, 1},
                                    {1, 2, 4, 1},
                                    {2, 2, 2, 1},
                                    {1, 1, 2, 2}};
    int failures = 0;
    double parts = 0; /* on this rank's meshes */
    CHECK(world, world->size == 8);
    for (int d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            struct dtx_test_model m = dtx_test_model_default();
            m.dtype = d ? DTX_BF16 : DTX_F32;
            m.tp = meshes[i][0];
            m.pp = meshes[i][1];
            m.dp = meshes[i][2];
            m.cp = meshes[i][3];
            m.global_batch = m.dp == 3 ? 6 : 8;
            m.layers = 2;
            m.vocab = 203; /* several blocks of 1,024 in a row, also over two tensor ranks */
            m.tied = i % 2 == (size_t)d;
            m.micro_batch = i % 3 == (size_t)d ? m.global_batch / m.dp : 1;
            failures += check(world, m, &parts);
        }
    CHECK_THAT(world, parts > 20, "%g parts of rows: the test does not test what it says", parts);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, &failures, sizeof failures, 0));
    return failures;
}

int main(void)
{
    return rank_main(test);
}
