/* test: label=ranks ranks=8 timeout=600 */
/*
 * Pipeline splits, schedules, chunks, ZeRO, recomputation and when reductions run change no bit of losses, norms or
 * weights: 2 and 4 stages, every schedule, even, uneven and by FLOPs, against one stage (ZeRO 2 against ZeRO 2), in
 * fp32 and bf16, with data parallelism 1 and 2 and tensor parallelism 1 and 2 (sequence parallelism on; for softmax
 * off); 7 blocks, tied embeddings, clipping active at every step, 4 to 8 micro-batches with unequal target counts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/mesh_run.h"

enum { STEPS = 4 };

/* How the pipeline runs: schedule, chunks, layout ("" even); with more than one data rank ZeRO; recomputation. All must
 * give the bits of one stage without any. */
static const struct {
    int pp;
    const char *schedule;
    struct dtx_split split;
    int zero;
    const char *recompute;
    bool waits;
} pipelines[] = {{2, "gpipe", {1, "", false}, 1, NULL, false},
                 {2, "1f1b", {1, "5,2", false}, 0, "block:2", true},
                 {2, "1f1b", {1, "5,2", false}, 2, NULL, false},
                 {2, "interleaved", {2, "0,3,4,0", false}, 2, "attention", true},
                 {4, "gpipe", {1, "", false}, 2, NULL, false},
                 {2, "interleaved", {1, "", false}, 0, NULL, false},
                 {2, "interleaved", {2, "", false}, 0, NULL, false},
                 {2, "interleaved", {2, "0,3,4,0", false}, 1, "attention", false},
                 {2, "zb_h1", {1, "", true}, 1, NULL, false},
                 {2, "zb_h1", {1, "", true}, 1, NULL, true},
                 {4, "gpipe", {1, "", false}, 0, NULL, false},
                 {4, "1f1b", {1, "", false}, 1, NULL, false},
                 {4, "1f1b", {1, "0,3,4,0", false}, 0, NULL, false},
                 {4, "interleaved", {2, "", false}, 1, "block:3", false},
                 {4, "zb_h1", {1, "", false}, 0, NULL, false},
                 {4, "zb_h1", {1, "1,3,3,0", false}, 1, "block", false}};

static int check(struct dtx_comm *world, struct dtx_test_model m)
{
    int failures = 0;
    int64_t count = 0;
    m.pp = 1;
    m.schedule = "gpipe";
    double *one = dtx_test_numbers(world, &m, STEPS, &count);
    m.zero = 2;
    double *sharded = dtx_test_numbers(world, &m, STEPS, &count);
    for (size_t i = 0; i < sizeof pipelines / sizeof *pipelines; i++) {
        m.pp = pipelines[i].pp;
        m.schedule = pipelines[i].schedule;
        m.split = pipelines[i].split;
        m.zero = pipelines[i].zero;
        m.recompute = pipelines[i].recompute;
        m.waits = pipelines[i].waits;
        if (m.tp * m.pp * m.dp > 8)
            continue;
        double *split = dtx_test_numbers(world, &m, STEPS, &count);
        if (world->rank == 0) {
            int64_t different = dtx_test_different(m.zero == 2 ? sharded : one, split, count);
            printf("%s %s tp%d dp%d: pp%d %s %d chunks '%s'%s zero %d recompute %s%s: %lld of %lld numbers differ\n",
                   dtx_dtype_name(m.dtype), m.attention, m.tp, m.dp, m.pp, m.schedule, m.split.chunks, m.split.layout,
                   m.split.by_flops ? " by FLOPs" : "", m.zero, m.recompute ? m.recompute : "none",
                   m.waits ? ", at once" : "", (long long)different, (long long)count);
            failures += different != 0;
        }
        free(split);
    }
    free(one);
    free(sharded);
    return failures;
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    int failures = 0;
    dtx_ctx_init(&ctx);
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK)
        return 1;
    for (int d = 0; d < 2; d++)
        for (int variant = 0; variant < 2; variant++)
            for (int i = 2 * variant; i < 3; i++) {
                struct dtx_test_model m = dtx_test_model_default();
                m.dtype = d ? DTX_BF16 : DTX_F32;
                m.attention = variant ? "softmax" : "diff";
                m.sequence = !variant;
                m.dp = i == 1 ? 2 : 1;
                m.tp = i == 2 ? 2 : 1;
                m.layers = 7;
                failures = failures ? failures : check(world, m);
                dtx_comm_broadcast_bytes(world, &failures, sizeof failures, 0);
            }
    dtx_comm_close_world(world);
    return failures ? 1 : 0;
}
