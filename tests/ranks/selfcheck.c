/* test: label=ranks ranks=4 timeout=300 */
/*
 * The small models of trainer/selfcheck.h: right on meshes of every kind; and with a fault planted in an operation or a
 * sum the verdict names what differs, the fewest axes, the setting, and the ranks that are to blame.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tests/harness/rank_check.h"
#include "trainer/selfcheck.h"

static const struct mesh {
    int tp, pp, dp, cp, zero, chunks;
    const char *schedule, *recompute;
    bool sequence, overlap, ring;
} meshes[] = {{4, 1, 1, 1, 0, 1, "1f1b", "none", true, true, false},
              {2, 2, 1, 1, 0, 1, "1f1b", "block", true, true, false},
              {1, 2, 2, 1, 2, 2, "interleaved", "none", true, true, false},
              {1, 4, 1, 1, 0, 1, "zb_h1", "none", true, false, false},
              {1, 1, 4, 1, 2, 1, "1f1b", "attention", true, true, false},
              {2, 1, 1, 2, 1, 1, "1f1b", "none", false, true, true},
              {1, 2, 1, 2, 1, 1, "gpipe", "none", true, false, false},
              {3, 1, 1, 1, 0, 1, "1f1b", "none", true, true, false},
              {1, 1, 3, 1, 1, 1, "1f1b", "none", true, true, false}};

/* What is wrong, on which rank (−1: all). */
static struct fault {
    const char *what;
    int rank;
} fault;
static int world_rank;
static struct dtx_op_table ops;
static const struct dtx_op_table *real_ops;
static struct dtx_comm_table comms;
static const struct dtx_comm_table *real_comms;

static bool planted(const char *what)
{
    return fault.what && strcmp(fault.what, what) == 0 && (fault.rank < 0 || fault.rank == world_rank);
}

static enum dtx_status bad_swiglu(struct dtx_queue *queue, const struct dtx_swiglu_fwd_args *args)
{
    struct dtx_swiglu_fwd_args mine = *args;
    bool cut = mine.h.dim[1] < DTX_SELFCHECK_FFN;
    enum dtx_status status = real_ops->swiglu_fwd(queue, &mine);
    if (planted("swiglu") || (planted("swiglu when cut") && cut))
        ((float *)mine.h.data)[5] *= 1.5f;
    return status;
}

static enum dtx_status bad_adamw(struct dtx_queue *queue, const struct dtx_adamw_args *args)
{
    enum dtx_status status = real_ops->adamw(queue, args);
    if (planted("adamw"))
        ((float *)args->master.data)[0] += 1e-5f;
    return status;
}

static enum dtx_status bad_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out)
{
    enum dtx_status status = real_comms->split(comm, color, key, name, out);
    if (status == DTX_OK && *out)
        (*out)->table = &comms;
    return status;
}

static enum dtx_status bad_all_reduce(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *t)
{
    if (strcmp(comm->name, "tp") == 0 && dtx_tensor_count(t) == 4 && t->dtype == DTX_F32) {
        float own[4];
        memcpy(own, t->data, sizeof own);
        enum dtx_status status = real_comms->all_reduce_sum(comm, queue, t);
        if (planted("lambda"))
            memcpy(t->data, own, sizeof own);
        return status;
    }
    if (planted("dp sum") && strcmp(comm->name, "grads") == 0)
        return DTX_OK;
    return real_comms->all_reduce_sum(comm, queue, t);
}

static enum dtx_status bad_scatter(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                   const struct dtx_tensor *out)
{
    enum dtx_status status = real_comms->reduce_scatter_sum(comm, queue, in, out);
    if (planted("zero") && strcmp(comm->name, "grads") == 0 && comm->size > 1 && status == DTX_OK)
        ((float *)out->data)[7] += 1;
    return status;
}

static struct dtx_engine_config config_of(const struct mesh *m)
{
    struct dtx_engine_config c = {.schedule = m->schedule,
                                  .zero = m->zero,
                                  .sequence = m->sequence,
                                  .overlap = m->overlap,
                                  .ring = m->ring,
                                  .bucket_bytes = 64 << 20};
    c.mesh[DTX_AXIS_TP] = m->tp;
    c.mesh[DTX_AXIS_PP] = m->pp;
    c.mesh[DTX_AXIS_DP] = m->dp;
    c.mesh[DTX_AXIS_CP] = m->cp;
    c.split.chunks = m->chunks;
    dtx_recompute_parse(m->recompute, &c.recompute);
    return c;
}

/* suspects: "0-3" as text, or "". The whole verdict on the first ranks of world; others have none. */
static void run(struct dtx_comm *world, struct dtx_backend *backend, const struct mesh *m,
                struct dtx_selfcheck_verdict *verdict, char suspects[64])
{
    struct dtx_engine_config config = config_of(m);
    config.graphs = backend->queues->records;
    int size = m->tp * m->pp * m->dp * m->cp;
    struct dtx_comm *ranks;
    char why[128];
    bool suspect[8] = {false};
    const struct dtx_selfcheck_model *model = dtx_selfcheck_choose(&config, why, sizeof why);
    CHECK_THAT(world, model, "%s", why);
    memset(verdict, 0, sizeof *verdict);
    CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "mesh", &ranks));
    if (ranks)
        CHECK_OK(world, dtx_selfcheck_world(ranks, backend, model, &config, verdict, suspect));
    dtx_comm_free(ranks);
    suspects[0] = '\0';
    for (int r = 0; r < size; r++)
        if (suspect[r])
            snprintf(suspects + strlen(suspects), 64 - strlen(suspects), "%s%d", suspects[0] ? "," : "", r);
    if (world->rank == 0)
        printf("tp %d pp %d dp %d cp %d %s%s: %s%s %s (losses %.1e norms %.1e gradients %.1e lambda %.1e)\n", m->tp,
               m->pp, m->dp, m->cp, fault.what ? "with " : "", fault.what ? fault.what : "",
               verdict->wrong ? "" : "right", verdict->text, suspects, verdict->worst[0], verdict->worst[1],
               verdict->worst[2], verdict->worst[3]);
}

/* A fault must be found with these words in its verdict, and these suspects. */
static int expect(struct dtx_comm *world, struct dtx_backend *backend, const char *what, int rank, struct mesh m,
                  const char *const *words, const char *suspects)
{
    struct dtx_selfcheck_verdict verdict;
    char found[64];
    int failures = 0;
    fault = (struct fault){what, rank};
    run(world, backend, &m, &verdict, found);
    fault.what = NULL;
    for (; *words && verdict.wrong; words++)
        if (!strstr(verdict.text, *words)) {
            fprintf(stderr, "FAILED: rank %d: %s: the verdict does not say '%s'\n", world->rank, what, *words);
            failures++;
        }
    if (!verdict.wrong || strcmp(found, suspects) != 0) {
        fprintf(stderr, "FAILED: rank %d: %s: %s, suspects '%s', not '%s'\n", world->rank, what,
                verdict.wrong ? "found" : "not found", found, suspects);
        failures++;
    }
    return failures;
}
#define WORDS(...)                                                                                                     \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

static int check_faults(struct dtx_comm *world, struct dtx_backend *backend)
{
    struct mesh tp2dp2 = {2, 1, 2, 1, 1, 1, "1f1b", "none", true, true, false};
    struct mesh pp2dp2 = {1, 2, 2, 1, 1, 1, "1f1b", "none", true, true, false};
    struct mesh dp4 = {1, 1, 4, 1, 0, 1, "1f1b", "none", true, true, false};
    int failures = 0;
    failures += expect(world, backend, "swiglu", 1, tp2dp2,
                       WORDS("rank 1 computes wrongly by itself", "layers.01.ffn.down"), "1");
    failures += expect(world, backend, "swiglu", -1, tp2dp2, WORDS("every rank computes wrongly", "no node's"), "");
    failures += expect(world, backend, "swiglu when cut", 3, tp2dp2,
                       WORDS("wrong on tp 2 with the other axes at 1", "ranks 2,3 alone", "groups are right"), "2,3");
    failures += expect(world, backend, "lambda", -1, tp2dp2,
                       WORDS("wrong on tp 2 with", "attn.lambda_q1: gradient norm", "more of the kind"), "");
    failures += expect(world, backend, "lambda", 1, tp2dp2,
                       WORDS("wrong on tp 2 with", "attn.lambda_q1", "only rank 1, tp rank 1, is wrong"), "1");
    failures += expect(world, backend, "adamw", 3, dp4, WORDS("wrong on dp 4", "rank 3 ", "from the 3 other"), "3");
    failures += expect(world, backend, "dp sum", -1, dp4, WORDS("wrong on dp 4: ", "attn.k: gradient norm"), "");
    failures += expect(world, backend, "zero", 2, pp2dp2,
                       WORDS("wrong on dp 2 with", "ranks 2,3 alone", "right with parallel.zero 0"), "2,3");
    return failures;
}

static int check_choice(struct dtx_comm *world)
{
    static const struct {
        int tp, pp, chunks, heads, layers;
    } cases[] = {{1, 1, 1, 16, 4},  {8, 4, 1, 16, 4}, {2, 4, 2, 16, 16}, {1, 32, 2, 16, 64}, {3, 1, 1, 24, 4},
                 {16, 2, 1, 64, 4}, {5, 1, 1, 0, 0},  {1, 65, 1, 0, 0},  {64, 16, 1, 64, 16}};
    int failures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mesh m = {cases[i].tp, cases[i].pp, 1, 1, 0, cases[i].chunks, "1f1b", "none", true, true, false};
        struct dtx_engine_config c = config_of(&m);
        char why[128] = "";
        const struct dtx_selfcheck_model *model = dtx_selfcheck_choose(&c, why, sizeof why);
        if ((model ? model->heads : 0) != cases[i].heads || (model ? model->layers : 0) != cases[i].layers ||
            (!model && !strstr(why, "no figures for"))) {
            fprintf(stderr, "FAILED: rank %d: the model for tp %d pp %d\n", world->rank, m.tp, m.pp);
            failures++;
        }
    }
    return failures;
}

/* On devices the ranks exchange as the run will, over NCCL: over MPI a pass waits, and a graph holds no waiting. */
static int check_device(struct dtx_comm *world)
{
    const struct mesh m = {1, 2, 2, 1, 1, 1, "1f1b", "none", true, true, false};
    struct dtx_backend *backend;
    struct dtx_selfcheck_verdict verdict;
    char suspects[64];
    CHECK_OK(world, dtx_backend_open(world->ctx, "emu", 1, 0, &backend));
    run(world, backend, &m, &verdict, suspects);
    dtx_backend_close(backend);
    return verdict.wrong;
}

static int test(struct dtx_comm *world)
{
    struct dtx_backend *backend;
    struct dtx_selfcheck_verdict verdict;
    char suspects[64];
    int failures = check_choice(world) + check_device(world);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    world_rank = world->rank;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        run(world, backend, &meshes[i], &verdict, suspects);
        failures += verdict.wrong;
    }
    real_ops = backend->ops;
    ops = *backend->ops;
    ops.swiglu_fwd = bad_swiglu;
    ops.adamw = bad_adamw;
    backend->ops = &ops;
    real_comms = world->table;
    comms = *world->table;
    comms.split = bad_split;
    comms.all_reduce_sum = bad_all_reduce;
    comms.reduce_scatter_sum = bad_scatter;
    world->table = &comms;
    failures += check_faults(world, backend);
    world->table = real_comms;
    backend->ops = real_ops;
    dtx_backend_close(backend);
    return failures;
}

int main(void)
{
    return rank_main(test);
}
