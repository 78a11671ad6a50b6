#include "trainer/config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/schedule.h"
#include "trainer/attn.h"
#include "trainer/health.h"
#include "trainer/lr.h"
#include "trainer/optim.h"
#include "trainer/split.h"

/* "|a|b|c": the variants of this build, from the folders' lists. The range of an option begins behind the first bar. */
#define DTX_VARIANT(name) "|" #name
static const char attentions[] =
#include "trainer/attn.inc"
    ;
static const char optimizers[] =
#include "trainer/optim.inc"
    ;
static const char schedules[] =
#include "parallel/schedules.inc"
    ;
#undef DTX_VARIANT

#define FREE  DTX_OPT_FREE
#define FIXED DTX_OPT_FIXED
const struct dtx_opt_row dtx_train_options[] = {
    {"model.layers", DTX_OPT_INT, "4", "1..10000", FIXED, "Transformer blocks"},
    {"model.width", DTX_OPT_INT, "256", "2..1000000", FIXED, "width of the residual stream"},
    {"model.heads", DTX_OPT_INT, "4", "1..100000", FIXED, "attention heads; for diff half of the softmax baseline's"},
    {"model.kv_heads", DTX_OPT_INT, "0", "0..100000", FIXED, "key/value heads (grouped queries); 0: as many as heads"},
    {"model.head_dim", DTX_OPT_INT, "0", "0..1024", FIXED, "width of one map's head; 0: what fills model.width"},
    {"model.ffn", DTX_OPT_INT, "0", "0..10000000", FIXED, "hidden width of SwiGLU; 0: 8/3 of the width, rounded to 64"},
    {"model.vocab", DTX_OPT_INT, "8192", "1..16777216", FIXED, "vocabulary"},
    {"model.attention", DTX_OPT_CHOICE, "diff", attentions + 1, FIXED, "attention variant"},
    {"model.tied", DTX_OPT_BOOL, "true", NULL, FIXED, "one matrix for embedding and head"},
    {"model.rope_theta", DTX_OPT_REAL, "10000", "1..1e12", FREE, "base of the rotary angles"},
    {"model.norm_eps", DTX_OPT_REAL, "1e-5", "0..1", FIXED, "epsilon of RMSNorm"},
    {"model.subnorm", DTX_OPT_CHOICE, "affine", "affine|plain|none", FIXED, "norm over each differential head"},
    {"model.lambda_init", DTX_OPT_TEXT, "depth", NULL, FIXED,
     "λ_init: 'depth' (0.8 - 0.6 exp(-0.3 layer)) or a number"},
    {"model.transfer", DTX_OPT_CHOICE, "none", DTX_TRANSFER_CHOICES, FIXED,
     "scale lr, decay, eps, initial values, branches, logits by the shape: mup by width, completep by depth too"},
    {"model.base_width", DTX_OPT_INT, "0", "0..1000000", FIXED, "transfer: width of the model that lr.peak is for"},
    {"model.base_layers", DTX_OPT_INT, "0", "0..10000", FIXED, "transfer completep: layers of that model"},
    {"model.base_head_dim", DTX_OPT_INT, "0", "0..1024", FIXED,
     "transfer: its head_dim, when wider models get wider heads (scores × 1/d); 0: they get more heads"},
    {"model.embed_mult", DTX_OPT_REAL, "1", "1e-6..1e6", FIXED, "factor of the embedding's output"},
    {"model.output_mult", DTX_OPT_REAL, "1", "1e-6..1e6", FIXED, "factor of the logits, beside transfer's"},
    {"train.length", DTX_OPT_INT, "256", "1..16777216", FREE, "tokens in a sequence"},
    {"train.batch", DTX_OPT_INT, "16", "1..1000000000", FREE, "sequences in a step, over all data ranks"},
    {"train.micro_batch", DTX_OPT_INT, "0", "0..1000000", FREE,
     "sequences in one forward pass; 0: chosen (1, or more without pipeline)"},
    {"train.steps", DTX_OPT_INT, "100", "0..", FREE, "optimizer steps of the whole run"},
    {"train.until", DTX_OPT_INT, "0", "0..", DTX_OPT_CALL,
     "stop after this step, with everything saved; 0: go on to train.steps"},
    {"train.stages", DTX_OPT_TEXT, "", NULL, FREE,
     "other options from so many target tokens on: '3e11 train.length=65536 model.rope_theta=640000; …'"},
    {"train.end_time", DTX_OPT_INT, "0", "0..", DTX_OPT_CALL,
     "seconds since 1970 when this call will be killed: saves early enough; 0: SLURM_JOB_END_TIME, if set"},
    {"train.dtype", DTX_OPT_CHOICE, "f32", "f32|bf16|f64", FIXED,
     "activations; masters and sums are fp32 (f64: for tests)"},
    {"train.fp8", DTX_OPT_BOOL, "false", NULL, FREE,
     "products of attention's and FFN's matrices in 8-bit floats (E4M3, gradients E5M2), a scale per tensor; fast on "
     "Hopper, elsewhere emulated"},
    {"train.recompute", DTX_OPT_TEXT, "none", NULL, FREE,
     "none, attention or block: run forward again in backward to save memory; block:2 every second block"},
    {"train.seed", DTX_OPT_INT, "1", "0..", FIXED, "seed of initial weights and of the data order"},
    {"optim.name", DTX_OPT_CHOICE, "adamw", optimizers + 1, FIXED, "optimizer"},
    {"optim.beta1", DTX_OPT_REAL, "0.9", "0..1", FREE, "decay of the first moment"},
    {"optim.beta2", DTX_OPT_REAL, "0.95", "0..1", FREE, "decay of the second moment"},
    {"optim.eps", DTX_OPT_REAL, "1e-8", "0..1", FREE, "added to the root of the second moment"},
    {"optim.decay", DTX_OPT_REAL, "0.1", "0..", FREE, "decoupled weight decay of matrices"},
    {"optim.decay_embeddings", DTX_OPT_BOOL, "true", NULL, FREE, "decay the embedding matrix too"},
    {"optim.rounding", DTX_OPT_CHOICE, "nearest", "nearest|stochastic", FREE,
     "of fp32 masters to bf16 weights; stochastic: up or down so that the mean stays, alike on every mesh"},
    {"optim.clip", DTX_OPT_REAL, "1.0", "0..", FREE, "largest global gradient norm; 0: no clipping"},
    {"lr.schedule", DTX_OPT_CHOICE, "linear", DTX_LR_CHOICES, FREE, "learning rate after the warm-up"},
    {"lr.peak", DTX_OPT_REAL, "1e-3", "0..", FREE, "highest learning rate"},
    {"lr.min", DTX_OPT_REAL, "1e-5", "0..", FREE, "learning rate of the last step"},
    {"lr.warmup", DTX_OPT_INT, "0", "0..", FREE, "steps from 0 to the peak"},
    {"lr.decay_steps", DTX_OPT_INT, "0", "0..", FREE, "wsd: steps of the final decay; 0: a tenth of the run"},
    {"parallel.tp", DTX_OPT_INT, "1", "1..100000", FREE, "tensor ranks: heads, ffn columns and vocabulary are split"},
    {"parallel.pp", DTX_OPT_INT, "1", "1..100000", FREE, "pipeline stages"},
    {"parallel.dp", DTX_OPT_INT, "0", "0..1000000", FREE, "data ranks; 0: what is left of the ranks started"},
    {"parallel.cp", DTX_OPT_INT, "1", "1..100000", FREE,
     "context ranks: each sequence is cut in 2·cp chunks, a context rank has one from each end"},
    {"parallel.cp_exchange", DTX_OPT_CHOICE, "gather", "gather|ring", FREE,
     "context ranks gather all keys and values at once, or pass them round while they compute (less memory)"},
    {"parallel.sequence", DTX_OPT_BOOL, "true", NULL, FREE,
     "with several tensor ranks, cut norms and the residual stream over them by positions"},
    {"parallel.schedule", DTX_OPT_CHOICE, "1f1b", schedules + 1, FREE, "order of forward and backward in the pipeline"},
    {"parallel.uneven", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "nodes may have different numbers of ranks"},
    {"parallel.zero", DTX_OPT_INT, "1", "0..2", FREE,
     "1: each data rank keeps its share of masters and optimizer states, same bits; 2: of gradients too"},
    {"parallel.bucket_bytes", DTX_OPT_INT, "67108864", "4096..", FREE, "gradients summed over the data ranks at once"},
    {"parallel.chunks", DTX_OPT_INT, "1", "1..1000", FREE, "parts of the model on each pipeline stage (interleaved)"},
    {"parallel.layout", DTX_OPT_TEXT, "", NULL, FREE,
     "blocks of each part, pp × chunks numbers: '3,5,4,4'; default: balanced"},
    {"parallel.balance", DTX_OPT_CHOICE, "even", "even|flops", FREE,
     "parts have as many blocks, or as many FLOPs with the head counted"},
    {"comm.overlap", DTX_OPT_BOOL, "true", NULL, FREE,
     "a thread sums gradients and gathers weights over the data ranks beside the computation; same bits"},
    {"data.train", DTX_OPT_TEXT, "", NULL, FREE,
     "token files, separated by commas: one source, or, behind weights, several: '0.7 web-0, web-1, 0.3 code'"},
    {"data.heldout", DTX_OPT_REAL, "0.02", "0..0.9", FIXED,
     "share of each source's documents, the last ones, kept for evaluation"},
    {"data.separator", DTX_OPT_INT, "-1", "-1..", FREE,
     "id of the token that ends a document (for doc_reset); -1: none"},
    {"data.doc_reset", DTX_OPT_BOOL, "false", NULL, FREE, "attention does not look across documents"},
    {"data.type", DTX_OPT_CHOICE, "auto", "auto|u8|i8|i16|u16|i32|u32|i64|u64", FREE,
     "type of tokens in files that do not say it"},
    {"data.mmap", DTX_OPT_BOOL, "false", NULL, FREE, "map token files into memory instead of reading them"},
    {"data.cache_dir", DTX_OPT_TEXT, "", NULL, FREE,
     "folder on each node: a token file is copied there when the first sample of it is read"},
    {"data.advise", DTX_OPT_BOOL, "true", NULL, FREE, "tell the system of a batch's samples before the first is read"},
    {"data.prefetch", DTX_OPT_INT, "2", "0..1000", FREE, "batches read ahead by a thread; 0: read when needed"},
    {"eval.every", DTX_OPT_INT, "50", "0..", FREE, "steps between evaluations; 0: only at the end"},
    {"eval.samples", DTX_OPT_INT, "64", "0..", FREE, "held-out sequences of an evaluation; 0: none"},
    {"checkpoint.every", DTX_OPT_INT, "100", "0..", FREE, "steps between checkpoints; 0: only at the end"},
    {"checkpoint.keep", DTX_OPT_INT, "3", "0..", FREE, "newest checkpoints kept; 0: all"},
    {"checkpoint.keep_every", DTX_OPT_INT, "0", "0..", FREE,
     "beyond these, keep those of every so many steps; 0: none"},
    {"checkpoint.keep_best", DTX_OPT_INT, "0", "0..1000", FREE,
     "and so many with the lowest held-out loss, measured in their step"},
    {"checkpoint.async", DTX_OPT_BOOL, "true", NULL, FREE,
     "a thread writes a copy of the state beside training; false: training stops while it is written"},
    {"checkpoint.direct", DTX_OPT_BOOL, "true", NULL, FREE,
     "saves beside training bypass the page cache, where the file system can; false: where that is slow"},
    {"checkpoint.busy", DTX_OPT_CHOICE, "wait", "wait|skip", FREE,
     "when a save is due and the one before is still being written: wait for it, or skip this one"},
    {"checkpoint.timeout", DTX_OPT_REAL, "3600", "0..", FREE,
     "seconds that ranks may wait for each other in a save, in place of comm.timeout; 0: for ever"},
    {"checkpoint.local_dir", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "folder on each node's own disk for checkpoints in between, of which the next node has a copy"},
    {"checkpoint.local_every", DTX_OPT_INT, "0", "0..", FREE, "steps between these; 0: none"},
    {"checkpoint.max_shards", DTX_OPT_INT, "256", "1..256", FREE, "most shard files of a checkpoint"},
    {"checkpoint.dir", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "folder of the checkpoints; default: RUN/checkpoints"},
    {"check.replicas_every", DTX_OPT_INT, "100", "0..", FREE,
     "steps between comparisons of what several ranks hold alike (and before every save); 0: never"},
    {"check.replicas_action", DTX_OPT_CHOICE, "stop", "stop|warn", FREE, "when copies differ: end the run, or go on"},
    {"health.nonfinite", DTX_OPT_CHOICE, "skip", "skip|rollback|stop", FREE,
     "when loss or gradient norm is NaN or infinite: leave the step out, go back to the snapshot, end the run"},
    {"health.spike", DTX_OPT_CHOICE, "warn", "none|warn|skip|rollback|stop", FREE,
     "when the loss is far above that of the steps before"},
    {"health.norm", DTX_OPT_CHOICE, "none", "none|warn|skip|rollback|stop", FREE,
     "when the gradient norm is, or is above health.max_grad_norm"},
    {"health.window", DTX_OPT_INT, "128", "8..4096", FREE, "steps before, with which a step is compared"},
    {"health.z", DTX_OPT_REAL, "6", "1..1000", FREE, "far: so many of their standard deviations above their mean"},
    {"health.max_grad_norm", DTX_OPT_REAL, "0", "0..", FREE,
     "a fixed limit for health.norm, before clipping; 0: health.z of the steps before"},
    {"health.max_skips", DTX_OPT_INT, "20", "1..1000000", FREE, "steps in a row left out before the run ends"},
    {"health.snapshot_every", DTX_OPT_INT, "100", "1..", FREE,
     "rollback: steps between snapshots; one is taken with every checkpoint too"},
    {"health.max_rollbacks", DTX_OPT_INT, "3", "1..1000000", FREE, "to one snapshot before the run ends"},
    {"health.slow", DTX_OPT_REAL, "1.2", "0..1000", FREE,
     "name ranks whose own work takes so many times the median of their stage; 0: none"},
    {"health.slow_intervals", DTX_OPT_INT, "10", "1..1000000", FREE, "for so many times log.every steps in a row"},
    {"comm.timeout", DTX_OPT_REAL, "600", "0..", FREE,
     "seconds a collective may take before all ranks leave with a table of who waits where; 0: for ever"},
    {"comm.check", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL,
     "for debugging: compare operation and size over the ranks before every collective"},
    {"comm.watch_dir", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "folder on each node for the ledgers of collectives; default: /dev/shm, else TMPDIR; none: memory"},
    {"run.dir", DTX_OPT_TEXT, "run", NULL, DTX_OPT_CALL,
     "folder of the run: configuration, metrics, status, checkpoints"},
    {"run.attempt", DTX_OPT_INT, "0", "0..", DTX_OPT_CALL, "number of this attempt in RUN/status; 0: the next"},
    {"device", DTX_OPT_CHOICE, "auto", "auto|cpu|cuda|emu", FREE,
     "where to compute; auto: a GPU where one works, else the CPU; emu: test builds only"},
    {"cpu.threads", DTX_OPT_INT, "0", "0..4096", FREE,
     "threads of each rank; 0: the allowed cores shared by the node's ranks"},
    {"cpu.isa", DTX_OPT_CHOICE, "auto", "auto|plain|avx2|avx512|avx512_bf16", FREE,
     "highest instruction set used; all ranks take the lowest among them"},
    {"cuda.graphs", DTX_OPT_BOOL, "false", NULL, FREE,
     "launch each forward and backward pass as one CUDA graph; same bits; parallel.tp and cp 1; the CPU has none"},
    {"log.peak_seconds", DTX_OPT_REAL, "0.5", "0..60", FREE, "measure the GEMM peak so long at start; 0: not at all"},
    {"log.progress", DTX_OPT_CHOICE, "auto", "auto|live|plain", FREE,
     "one live line, or plain lines; auto: live on a terminal"},
    {"log.every", DTX_OPT_INT, "10", "1..", FREE, "steps between lines when the output is no terminal"},
    {"trace.path", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "write a trace of all ranks for Perfetto (ui.perfetto.dev) or chrome://tracing to this file"},
    {"trace.skip", DTX_OPT_INT, "1", "0..", DTX_OPT_CALL, "steps of this call before the trace begins"},
    {"trace.steps", DTX_OPT_INT, "3", "1..", DTX_OPT_CALL, "steps in the trace"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static void read_model(struct dtx_opt *opt, struct dtx_model_config *m)
{
    m->layers = dtx_opt_int(opt, "model.layers");
    m->width = dtx_opt_int(opt, "model.width");
    m->heads = dtx_opt_int(opt, "model.heads");
    m->kv_heads = dtx_opt_int(opt, "model.kv_heads");
    m->head_dim = dtx_opt_int(opt, "model.head_dim");
    m->ffn = dtx_opt_int(opt, "model.ffn");
    m->vocab = dtx_opt_int(opt, "model.vocab");
    m->attention = dtx_attn_find(dtx_opt_text(opt, "model.attention"));
    m->tied = dtx_opt_bool(opt, "model.tied");
    m->rope_theta = dtx_opt_real(opt, "model.rope_theta");
    m->norm_eps = dtx_opt_real(opt, "model.norm_eps");
    const char *subnorm = dtx_opt_text(opt, "model.subnorm");
    m->subnorm = strcmp(subnorm, "affine") == 0  ? DTX_SUBNORM_AFFINE
                 : strcmp(subnorm, "plain") == 0 ? DTX_SUBNORM_PLAIN
                                                 : DTX_SUBNORM_NONE;
    const char *lambda_init = dtx_opt_text(opt, "model.lambda_init");
    m->lambda_init = NAN;
    if (strcmp(lambda_init, "depth") != 0) {
        char *end;
        m->lambda_init = strtod(lambda_init, &end);
        if (*end || end == lambda_init || !(m->lambda_init >= 0 && m->lambda_init < 1))
            dtx_opt_fault(opt, "model.lambda_init: '%s' is neither 'depth' nor a number from 0 to 1", lambda_init);
    }
    if (m->kv_heads == 0)
        m->kv_heads = m->heads;
    if (m->ffn == 0)
        m->ffn = (m->width * 8 / 3 + 63) / 64 * 64;
}

/* Head counts and widths that contradict each other. */
static void check_model(struct dtx_opt *opt, struct dtx_model_config *m)
{
    if (!m->attention) {
        dtx_opt_fault(opt, "model.attention: '%s' is not in this build", dtx_opt_text(opt, "model.attention"));
        return;
    }
    int64_t maps = m->attention->softmax_heads;
    if (m->head_dim == 0 && m->width % (2 * maps * m->heads)) {
        int64_t unit = 2 * maps * m->heads;
        dtx_opt_fault(opt,
                      "model.width %lld cannot be cut into %lld heads of %s even width; widths that fit: %lld, %lld",
                      (long long)m->width, (long long)m->heads, maps == 2 ? "two maps of" : "an",
                      (long long)dtx_max64(unit, m->width / unit * unit), (long long)((m->width / unit + 1) * unit));
        return;
    }
    if (m->head_dim == 0)
        m->head_dim = m->width / (maps * m->heads);
    if (m->head_dim * maps * m->heads != m->width)
        dtx_opt_fault(opt, "model.width %lld is not %s%lld heads × head_dim %lld; a width that fits: %lld",
                      (long long)m->width, maps == 2 ? "2 × " : "", (long long)m->heads, (long long)m->head_dim,
                      (long long)(m->heads * maps * (m->head_dim ? m->head_dim : 1)));
    if (m->head_dim % 2)
        dtx_opt_fault(opt, "model.head_dim %lld must be even: rotary positions turn pairs", (long long)m->head_dim);
    if (m->heads % m->kv_heads)
        dtx_opt_fault(opt, "model.heads %lld is not a multiple of model.kv_heads %lld", (long long)m->heads,
                      (long long)m->kv_heads);
}

/* What was derived becomes the option's value, so that a checkpoint names the shape and not the rule. */
static void store_resolved(struct dtx_opt *opt, const struct dtx_model_config *m)
{
    const struct {
        const char *key;
        int64_t value;
    } derived[] = {{"model.kv_heads", m->kv_heads}, {"model.head_dim", m->head_dim}, {"model.ffn", m->ffn}};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)derived[i].value);
        dtx_opt_set(opt, derived[i].key, text, DTX_OPT_FLAG, "derived");
    }
}

/* "1, 2, 4": the divisors of both numbers. */
static void common_divisors(int64_t a, int64_t b, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 1; i <= a && used + 24 < bytes; i++)
        if (a % i == 0 && b % i == 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%lld", used ? ", " : "", (long long)i);
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : greatest_divisor(b, a % b);
}

/* "tp 1 × pp 1 × dp 4, …": meshes of the ranks started with cp context ranks that the model and the batch allow. */
static void fitting_meshes(const struct dtx_model_config *m, int64_t batch, int64_t world, int64_t cp, char *text,
                           size_t bytes)
{
    size_t used = 0;
    int64_t left = world / cp;
    char context[32] = "";
    snprintf(text, bytes, "none with this model and train.batch%s", cp > 1 ? " and parallel.cp" : "");
    if (cp > 1)
        snprintf(context, sizeof context, " × cp %lld", (long long)cp);
    for (int64_t tp = 1; tp <= m->kv_heads && tp <= left && world % cp == 0; tp++)
        for (int64_t pp = 1; pp <= m->layers && tp * pp <= left; pp++) {
            if (m->heads % tp || m->kv_heads % tp || left % (tp * pp) || batch % (left / (tp * pp)))
                continue;
            if (used + 64 + strlen(context) > bytes) {
                snprintf(text + used, bytes - used, ", …");
                return;
            }
            used += (size_t)snprintf(text + used, bytes - used, "%stp %lld × pp %lld × dp %lld%s", used ? ", " : "",
                                     (long long)tp, (long long)pp, (long long)(left / (tp * pp)), context);
        }
}

static void read_mesh(struct dtx_opt *opt, int world, struct dtx_engine_config *c)
{
    const struct dtx_model_config *m = &c->model;
    int64_t tp = dtx_opt_int(opt, "parallel.tp"), pp = dtx_opt_int(opt, "parallel.pp");
    int64_t dp = dtx_opt_int(opt, "parallel.dp"), cp = dtx_opt_int(opt, "parallel.cp"), others = tp * pp * cp;
    char fits[320], context[32] = "";
    if (dp == 0)
        dp = world > 0 && world % others == 0 ? world / others : 1;
    if (cp > 1)
        snprintf(context, sizeof context, " × cp %lld", (long long)cp);
    if (world > 0 && others * dp != world) {
        fitting_meshes(m, dtx_opt_int(opt, "train.batch"), world, cp, fits, sizeof fits);
        dtx_opt_fault(opt,
                      "parallel: tp %lld × pp %lld × dp %lld%s = %lld ranks, but %d were started; start %lld, or what "
                      "fits %d: %s",
                      (long long)tp, (long long)pp, (long long)dp, context, (long long)(others * dp), world,
                      (long long)(others * dp), world, fits);
    }
    if (m->heads % tp || m->kv_heads % tp) {
        common_divisors(m->heads, m->kv_heads, fits, sizeof fits);
        dtx_opt_fault(opt, "parallel.tp %lld does not divide %lld heads and %lld key/value heads; what fits: %s",
                      (long long)tp, (long long)m->heads, (long long)m->kv_heads, fits);
    }
    c->mesh[DTX_AXIS_TP] = (int)tp;
    c->mesh[DTX_AXIS_PP] = (int)pp;
    c->mesh[DTX_AXIS_DP] = (int)dp;
    c->mesh[DTX_AXIS_CP] = (int)cp;
    c->ring = strcmp(dtx_opt_text(opt, "parallel.cp_exchange"), "ring") == 0;
    c->schedule = dtx_opt_text(opt, "parallel.schedule");
    c->zero = (int)dtx_opt_int(opt, "parallel.zero");
    c->overlap = dtx_opt_bool(opt, "comm.overlap");
    c->bucket_bytes = dtx_opt_int(opt, "parallel.bucket_bytes");
}

/* Names of the schedules that take so many chunks ("interleaved"), with `whole` those that never split backward. */
static void fitting_schedules(int chunks, bool whole, char *text, size_t bytes)
{
    int n;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    text[0] = '\0';
    for (int i = 0; i < n; i++)
        if (list[i]->max_chunks >= chunks && !(whole && list[i]->kept)) {
            size_t used = strlen(text);
            snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", list[i]->name);
        }
}

/* "2,2,1": the even layout. */
static void even_layout(const struct dtx_model_config *m, int64_t parts, char *text, size_t bytes)
{
    int64_t each = m->layers / parts, more = m->layers % parts;
    size_t used = 0;
    for (int64_t p = 0; p < parts && used + 24 < bytes; p++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", p ? "," : "", (long long)(each + (p < more)));
    if (used + 24 >= bytes)
        snprintf(text + used, bytes - used, ",…");
}

/* Chunks and the parts of the model. */
static void read_split(struct dtx_opt *opt, struct dtx_engine_config *c)
{
    const struct dtx_model_config *m = &c->model;
    const struct dtx_schedule *schedule = dtx_schedule_find(c->schedule);
    int chunks = (int)dtx_opt_int(opt, "parallel.chunks"), pp = c->mesh[DTX_AXIS_PP];
    int64_t parts = (int64_t)pp * chunks;
    char fits[160];
    c->split = (struct dtx_split){.chunks = chunks,
                                  .layout = dtx_opt_text(opt, "parallel.layout"),
                                  .by_flops = strcmp(dtx_opt_text(opt, "parallel.balance"), "flops") == 0};
    if (chunks > 1 && pp == 1)
        dtx_opt_fault(opt, "parallel.chunks %d needs a pipeline: parallel.pp of at least 2, or parallel.chunks 1",
                      chunks);
    else if (schedule && chunks > schedule->max_chunks) {
        fitting_schedules(chunks, false, fits, sizeof fits);
        dtx_opt_fault(opt,
                      "parallel.schedule %s takes 1 chunk a stage, parallel.chunks is %d; what fits: schedule %s, or "
                      "1 chunk",
                      schedule->name, chunks, fits);
    }
    if (schedule && schedule->kept && c->mesh[DTX_AXIS_DP] * c->mesh[DTX_AXIS_CP] > 1 && c->zero == 2) {
        fitting_schedules(chunks, true, fits, sizeof fits);
        dtx_opt_fault(opt,
                      "parallel.zero 2 sums gradients right after a layer's backward pass, which schedule %s makes in "
                      "two parts; what fits: schedule %s, or parallel.zero 1",
                      schedule->name, fits);
    }
    if (c->split.layout[0]) {
        even_layout(m, parts, fits, sizeof fits);
        if (parts > INT_MAX || !dtx_split_parse(c->split.layout, (int)parts, m->layers, NULL))
            dtx_opt_fault(opt,
                          "parallel.layout '%s' is not %lld numbers (parallel.pp × parallel.chunks) that add up to "
                          "model.layers %lld, with 0 only at the first or the last; what fits: %s",
                          c->split.layout, (long long)parts, (long long)m->layers, fits);
    } else if (pp > m->layers)
        dtx_opt_fault(opt, "parallel.pp %d is more than the model's %lld layers; what fits: 1 to %lld", pp,
                      (long long)m->layers, (long long)m->layers);
    else if (parts > m->layers)
        dtx_opt_fault(opt,
                      "parallel.pp %d × parallel.chunks %d is more than the model's %lld layers; what fits: 1 to %lld "
                      "chunks",
                      pp, chunks, (long long)m->layers, (long long)(m->layers / pp));
}

/* Micro-batches that the schedule does not take. */
static void check_micro_batches(struct dtx_opt *opt, const struct dtx_engine_config *c)
{
    const struct dtx_schedule *schedule = dtx_schedule_find(c->schedule);
    const struct dtx_batch_config *b = &c->batch;
    int pp = c->mesh[DTX_AXIS_PP];
    if (!schedule || pp == 1 || c->split.chunks > schedule->max_chunks)
        return;
    int multiple = dtx_schedule_multiple(schedule, pp, c->split.chunks), below = b->micro_batches / multiple;
    long long each = (long long)multiple * b->micro_batch * c->mesh[DTX_AXIS_DP];
    if (b->micro_batches % multiple)
        dtx_opt_fault(
            opt,
            "parallel.schedule %s with %d chunks takes micro-batches in multiples of the %d stages, not %d; what "
            "fits: train.batch %lld or %lld",
            schedule->name, c->split.chunks, multiple, b->micro_batches, (below ? below : 1) * each,
            ((below ? below : 1) + 1) * each);
}

/* Context ranks cut a sequence in chunks, tensor ranks the rows that a context rank has. */
static void check_length(struct dtx_opt *opt, struct dtx_engine_config *c)
{
    const struct dtx_batch_config *b = &c->batch;
    int64_t tp = c->mesh[DTX_AXIS_TP], cp = c->mesh[DTX_AXIS_CP], chunks = cp > 1 ? 2 * cp : 1;
    char fits[128];
    c->sequence = dtx_opt_bool(opt, "parallel.sequence");
    if (b->length % chunks) {
        int64_t below = b->length / chunks * chunks;
        snprintf(fits, sizeof fits, "train.length %lld", (long long)(below ? below : chunks));
        if (below)
            snprintf(fits + strlen(fits), sizeof fits - strlen(fits), " or %lld", (long long)(below + chunks));
        dtx_opt_fault(opt,
                      "parallel.cp %lld cuts a sequence in %lld equal chunks, but train.length is %lld; what fits: %s",
                      (long long)cp, (long long)chunks, (long long)b->length, fits);
        return;
    }
    /* The shortest step of train.length that keeps both: rows of a rank are length / cp × micro-batch. */
    int64_t step = cp * (tp / greatest_divisor(tp, b->micro_batch)), both = step / greatest_divisor(step, chunks);
    if (c->sequence && c->model.heads % tp == 0 && c->model.kv_heads % tp == 0 && b->length % step)
        dtx_opt_fault(opt,
                      "parallel.sequence: train.length %lld × micro-batch %lld%s = %lld rows are not a multiple of the "
                      "%lld tensor ranks; what fits: train.length %lld, or parallel.sequence false",
                      (long long)b->length, (long long)b->micro_batch, cp > 1 ? " / parallel.cp" : "",
                      (long long)(b->length * b->micro_batch / cp), (long long)tp,
                      (long long)dtx_round_up(b->length, both * chunks));
}

static void read_batch(struct dtx_opt *opt, struct dtx_engine_config *c)
{
    struct dtx_batch_config *b = &c->batch;
    int64_t dp = c->mesh[DTX_AXIS_DP], pp = c->mesh[DTX_AXIS_PP];
    b->length = dtx_opt_int(opt, "train.length");
    b->global_batch = dtx_opt_int(opt, "train.batch");
    b->micro_batch = dtx_opt_int(opt, "train.micro_batch");
    int64_t each = b->global_batch / dp;
    if (b->global_batch % dp) {
        char less[32] = "";
        if (each)
            snprintf(less, sizeof less, "%lld or ", (long long)(each * dp));
        dtx_opt_fault(opt, "train.batch %lld is not a multiple of the %lld data ranks; what fits: %s%lld",
                      (long long)b->global_batch, (long long)dp, less, (long long)((each + 1) * dp));
        each = each ? each : 1;
    }
    if (b->micro_batch ==
        0) { /* without a pipeline about 8,192 tokens at once; with one, enough micro-batches to fill it */
        int64_t most = pp > 1 ? 1 : 8192 * c->mesh[DTX_AXIS_CP] / b->length;
        b->micro_batch = most < 1 ? 1 : most > each ? each : most;
        while (each % b->micro_batch)
            b->micro_batch--;
    }
    if (each % b->micro_batch)
        dtx_opt_fault(opt,
                      "train.micro_batch %lld does not divide the %lld sequences of a data rank (train.batch / dp)",
                      (long long)b->micro_batch, (long long)each);
    b->micro_batches = (int)(each / b->micro_batch);
    if (b->micro_batches < 1)
        b->micro_batches = 1;
    check_length(opt, c);
}

/* What is recorded must lie between exchanges with other ranks. */
static void read_graphs(struct dtx_opt *opt, struct dtx_engine_config *c)
{
    static const struct {
        enum dtx_axis axis;
        const char *key, *ranks;
    } inside[] = {{DTX_AXIS_TP, "parallel.tp", "tensor"}, {DTX_AXIS_CP, "parallel.cp", "context"}};
    c->graphs = dtx_opt_bool(opt, "cuda.graphs");
    for (int i = 0; i < 2 && c->graphs; i++)
        if (c->mesh[inside[i].axis] > 1 && !DTX_MUTANT(graphs_with_tensor_ranks))
            dtx_opt_fault(opt,
                          "cuda.graphs: %s %d: %s ranks exchange data within a pass, which a graph cannot hold; what "
                          "fits: cuda.graphs false, or %s 1",
                          inside[i].key, c->mesh[inside[i].axis], inside[i].ranks, inside[i].key);
}

bool dtx_recompute_parse(const char *text, struct dtx_recompute_config *out)
{
    static const char *const names[] = {"none", "attention", "block"};
    size_t length = strcspn(text, ":");
    for (int i = 0; i < 3; i++) {
        if (length != strlen(names[i]) || strncmp(text, names[i], length) != 0)
            continue;
        char *end = (char *)text + length;
        long long every = *end ? strtoll(text + length + 1, &end, 10) : 1;
        if (*end || every < 1 || end[-1] == ':' || (i == 0 && text[length]))
            return false;
        *out = (struct dtx_recompute_config){(enum dtx_recompute)i, every};
        return true;
    }
    return false;
}

/* Contradictions between options of the run itself. */
static void check_run(struct dtx_opt *opt)
{
    if (dtx_opt_real(opt, "optim.beta1") >= 1 || dtx_opt_real(opt, "optim.beta2") >= 1)
        dtx_opt_fault(opt, "optim.beta1 and optim.beta2 must be below 1");
    if (dtx_opt_real(opt, "optim.eps") <= 0)
        dtx_opt_fault(opt, "optim.eps must be above 0: weights without gradient would become 0/0");
    int64_t warmup = dtx_opt_int(opt, "lr.warmup"), steps = dtx_opt_int(opt, "train.steps");
    if (warmup > 0 && warmup >= steps)
        dtx_opt_fault(opt, "lr.warmup %lld is not below train.steps %lld: the peak would never be left",
                      (long long)warmup, (long long)steps);
    if (dtx_opt_real(opt, "lr.min") > dtx_opt_real(opt, "lr.peak"))
        dtx_opt_fault(opt, "lr.min %g is above lr.peak %g", dtx_opt_real(opt, "lr.min"), dtx_opt_real(opt, "lr.peak"));
    int64_t every = dtx_opt_int(opt, "checkpoint.every"), eval = dtx_opt_int(opt, "eval.every");
    if (dtx_opt_int(opt, "checkpoint.keep_best") > 0 && every > 0 &&
        (eval == 0 || every % eval != 0 || dtx_opt_int(opt, "eval.samples") == 0))
        dtx_opt_fault(opt,
                      "checkpoint.keep_best needs a held-out loss of each checkpoint: checkpoint.every %lld must be a "
                      "multiple of eval.every %lld, and eval.samples above 0",
                      (long long)every, (long long)eval);
    if (dtx_opt_bool(opt, "data.doc_reset") && dtx_opt_int(opt, "data.separator") < 0)
        dtx_opt_fault(opt, "data.doc_reset needs data.separator, the id of the token that ends a document");
}

void dtx_engine_config_read(struct dtx_opt *opt, int world_size, struct dtx_engine_config *out)
{
    memset(out, 0, sizeof *out);
    read_model(opt, &out->model);
    check_model(opt, &out->model);
    store_resolved(opt, &out->model);
    out->model.transfer = dtx_transfer_read(opt, out->model.width, out->model.layers, out->model.head_dim);
    read_mesh(opt, world_size, out);
    read_split(opt, out);
    read_batch(opt, out);
    check_micro_batches(opt, out);
    read_graphs(opt, out);
    check_run(opt);
    const char *recompute = dtx_opt_text(opt, "train.recompute");
    if (!dtx_recompute_parse(recompute, &out->recompute))
        dtx_opt_fault(opt, "train.recompute: '%s' is none of none, attention, block, attention:n, block:n (n from 1)",
                      recompute);
    dtx_dtype_parse(dtx_opt_text(opt, "train.dtype"), &out->dtype);
    out->fp8 = dtx_opt_bool(opt, "train.fp8");
    if (out->fp8 && out->dtype == DTX_F64)
        dtx_opt_fault(opt, "train.fp8 rounds what train.dtype f64 keeps; take bf16 or f32");
    out->seed = dtx_opt_int(opt, "train.seed");
    out->snapshot = dtx_health_rolls_back(opt);
    out->optim =
        (struct dtx_optim_config){.variant = dtx_optim_find(dtx_opt_text(opt, "optim.name")),
                                  .beta1 = dtx_opt_real(opt, "optim.beta1"),
                                  .beta2 = dtx_opt_real(opt, "optim.beta2"),
                                  .eps = dtx_opt_real(opt, "optim.eps"),
                                  .decay = dtx_opt_real(opt, "optim.decay"),
                                  .clip = dtx_opt_real(opt, "optim.clip"),
                                  .decay_embeddings = dtx_opt_bool(opt, "optim.decay_embeddings"),
                                  .stochastic = strcmp(dtx_opt_text(opt, "optim.rounding"), "stochastic") == 0};
}
