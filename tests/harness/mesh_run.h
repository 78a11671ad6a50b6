/* Helpers of tests that train small models: configurations, batches, comparison of weights and gradients. */
#ifndef DTX_TESTS_HARNESS_MESH_RUN_H
#define DTX_TESTS_HARNESS_MESH_RUN_H

#include "trainer/engine.h"

/* The constants of DESIGN.md 8. Never edited to pass. */
#define DTX_MESH_F64_LOSS   1e-10 /* relative, every step of 50 */
#define DTX_MESH_F64_VALUE  1e-8  /* gradient norms and every weight, relative */
#define DTX_MESH_F32_GRAD   5e-6  /* relative L2 of each gradient of step 1 */
#define DTX_MESH_F32_LAMBDA 2e-4  /* the same for λ vectors */
#define DTX_MESH_F32_LOSS   1e-3  /* losses of 50 steps */

struct dtx_test_model {
    const char *attention;
    const char *device; /* NULL: cpu */
    enum dtx_dtype dtype;
    bool tied, gqa, documents;
    bool sequence; /* sequence parallelism where tp > 1; on by default */
    int tp, pp, dp, cp, zero;
    bool graphs; /* cuda.graphs */
    bool waits;  /* reductions are made at once instead of beside the computation */
    bool ring;   /* how context ranks exchange keys and values */
    int64_t bucket_bytes;
    const char *schedule;
    const char *recompute; /* NULL: none */
    struct dtx_split split;
    struct dtx_transfer transfer;
    int64_t layers, global_batch, micro_batch, length, vocab, ffn;
};

/* 4 layers, width 32, 4 heads of 4 (diff), ffn 44, vocab 67, length 12, 8 sequences in micro-batches of 1. */
struct dtx_test_model dtx_test_model_default(void);
int dtx_test_ranks(const struct dtx_test_model *model); /* tp·pp·dp·cp */
void dtx_test_config(const struct dtx_test_model *model, struct dtx_engine_config *out);
/* The part of data rank dp_rank of the global batch of `step`: same tokens for every mesh, unequal target counts (one
 * sequence has none). Arrays of sequences·length; doc_start only with documents. */
void dtx_test_batch(const struct dtx_test_model *model, int64_t step, int dp_rank, int32_t *tokens, int32_t *targets,
                    int32_t *doc_start);
/* Whole arrays (double) of a row's master (what = 'w'), gradient ('g') or optimizer state ('0', '1'), gathered over tp,
 * dp and cp on every rank of the stage that holds it and sent to all ranks. Collective over the mesh. values:
 * shape[0]·shape[1].
 */
enum dtx_status dtx_test_gather(struct dtx_engine *engine, int row, char what, double *values);
/* Trains `steps` steps at lr; losses[steps], norms[steps] may be NULL. Collective. */
enum dtx_status dtx_test_train(struct dtx_engine *engine, const struct dtx_test_model *model, int steps, double lr,
                               double *losses, double *norms);
/* All losses, norms (before clipping, which is active at every step, else an error) and weights of a run of `steps`
 * steps on the first tp·pp·dp·cp ranks of world: *count numbers, malloc'ed; NULL on the other ranks. Faults end all
 * ranks. Collective over world. */
double *dtx_test_numbers(struct dtx_comm *world, const struct dtx_test_model *model, int steps, int64_t *count);
/* Gradients of step 1 on the first tp·pp·dp·cp ranks of world, all rows one after another, malloc'ed; NULL on the other
 * ranks. isa: of the backend. loss may be NULL. Collective over world. */
double *dtx_test_gradients(struct dtx_comm *world, const struct dtx_test_model *model, int isa, double *loss);
/* Numbers that are not the same bits. */
int64_t dtx_test_different(const double *a, const double *b, int64_t count);
/* ‖a − b‖/‖b‖ (0 when both are 0). */
double dtx_test_relative(const double *a, const double *b, int64_t n);

#endif
