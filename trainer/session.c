#include "trainer/session.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/hash.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl.h"
#include "parallel/watch.h"
#include "trainer/memory_check.h"
#include "trainer/stages.h"
#include "trainer/state.h"
#include "trainer/stop.h"

extern char **environ;

static const struct dtx_opt_row common_options[] = {
    {"preset", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "a shipped configuration by name (laptop, bench-124m, …) or a path"},
    {"resume", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "checkpoint to continue: latest, a checkpoint's folder, or a folder of them; auto: latest, or a new start"},
    {"init", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "checkpoint whose weights begin a new run: step 0, own schedule and data"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static enum dtx_status create_options(struct dtx_ctx *ctx, const struct dtx_session_command *command,
                                      struct dtx_opt **out)
{
    const struct dtx_opt_row *const tables[] = {common_options, command->options, dtx_train_options};
    return dtx_opt_create(ctx, tables, 3, out);
}

/* "bench-124m, diff-13b, …" */
static void list_presets(char *text, size_t bytes)
{
    struct dirent **entries = NULL;
    int n = scandir(DTX_PRESETS, &entries, NULL, alphasort);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        const char *end = strstr(entries[i]->d_name, ".yaml");
        if (end && used + 64 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%.*s", used ? ", " : "",
                                     (int)(end - entries[i]->d_name), entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

enum dtx_status dtx_session_load_preset(struct dtx_ctx *ctx, struct dtx_opt *opt)
{
    const char *name = dtx_opt_text(opt, "preset");
    char path[DTX_PATH];
    if (!*name)
        return DTX_OK;
    if (strchr(name, '/')) {
        snprintf(path, sizeof path, "%s", name);
    } else {
        snprintf(path, sizeof path, "%s/%s.yaml", DTX_PRESETS, name);
        if (access(path, R_OK) != 0) {
            char list[512];
            list_presets(list, sizeof list);
            dtx_opt_fault(opt, "preset: there is no '%s'; there are: %s", name, list);
            return DTX_OK;
        }
    }
    return dtx_opt_load_file(ctx, opt, path, DTX_OPT_PRESET);
}

/* Rank 0: flags, variables, file and preset; a checkpoint's stored options come later, below all but the defaults. */
static enum dtx_status read_sources(struct dtx_session *s, const struct dtx_session_command *command, int argc,
                                    char **argv)
{
    const char *word = NULL;
    int n_words = 0;
    DTX_TRY(s->ctx, create_options(s->ctx, command, &s->opt));
    DTX_TRY(s->ctx, dtx_opt_load_args(s->ctx, s->opt, argc, argv, &word, 1, &n_words));
    if (dtx_opt_bool(s->opt, "help"))
        return DTX_OK;
    DTX_TRY(s->ctx, dtx_opt_load_env(s->ctx, s->opt, environ));
    if (n_words)
        DTX_TRY(s->ctx, dtx_opt_load_file(s->ctx, s->opt, word, DTX_OPT_FILE));
    DTX_TRY(s->ctx, dtx_session_load_preset(s->ctx, s->opt));
    if (command->needs_checkpoint && !*dtx_opt_text(s->opt, "resume"))
        dtx_opt_fault(s->opt, "dtx %s needs --resume CHECKPOINT", command->name);
    const char *resume = dtx_opt_text(s->opt, "resume");
    if (*dtx_opt_text(s->opt, "init") && (command->needs_checkpoint || (*resume && strcmp(resume, "auto") != 0)))
        return dtx_fail(s->ctx, DTX_E_CONFIG, "--init begins a new run%s",
                        command->needs_checkpoint ? ": it is for dtx train; give --resume CHECKPOINT"
                                                  : ", --resume continues one: choose one of them, or --resume auto");
    return DTX_OK;
}

static void set_folders(struct dtx_session *s)
{
    snprintf(s->run_dir, sizeof s->run_dir, "%s", dtx_opt_text(s->opt, "run.dir"));
    const char *dir = dtx_opt_text(s->opt, "checkpoint.dir");
    if (*dir)
        snprintf(s->checkpoint_dir, sizeof s->checkpoint_dir, "%s", dir);
    else
        snprintf(s->checkpoint_dir, sizeof s->checkpoint_dir, "%s/checkpoints", s->run_dir);
}

struct dtx_ckpt_local_options dtx_session_local(const struct dtx_session *s)
{
    const char *node = getenv("DTX_NODE"); /* several "nodes" on one machine */
    return (struct dtx_ckpt_local_options){s->local_dir, s->checkpoint_dir, node && *node ? node : s->ctx->host};
}

const char *dtx_session_resumed_from(const struct dtx_session *s)
{
    return !s->resumed || !s->source[0] ? NULL : s->local ? s->checkpoint_dir : s->source;
}

/* The local tier's newest, if it is newer than what was found (with `status`) of the durable one. */
static enum dtx_status find_local(struct dtx_session *s, enum dtx_status status)
{
    struct dtx_ckpt_local_options options = dtx_session_local(s);
    struct dtx_error report = s->ctx->error;
    char folder[DTX_PATH];
    dtx_error_clear(s->ctx);
    DTX_TRY(s->ctx, dtx_ckpt_local_find(s->ctx, s->world, &options, status == DTX_OK ? s->search.sequence : -1,
                                        &s->local, &s->local_index, folder, sizeof folder));
    if (!s->local) {
        s->ctx->error = report;
        return status;
    }
    snprintf(s->source, sizeof s->source, "%s", folder);
    s->meta = s->local_index.meta;
    s->local_index.meta.config = s->local_index.meta.ledger = s->local_index.meta.health = NULL;
    return DTX_OK;
}

/* All ranks find the same checkpoint and read its scalars and options. */
static enum dtx_status find_checkpoint(struct dtx_session *s, const struct dtx_session_command *command,
                                       const char *resume, const char *init)
{
    if (!*resume && !*init)
        return DTX_OK;
    bool automatic = strcmp(resume, "auto") == 0, latest = automatic || strcmp(resume, "latest") == 0;
    s->resumed = *resume;
    s->initialized = !*resume;
    enum dtx_status status = dtx_ckpt_find(s->ctx, s->world, *resume ? s->checkpoint_dir : NULL,
                                           latest    ? "latest"
                                           : *resume ? resume
                                                     : init,
                                           &s->search, s->source, sizeof s->source);
    if (latest && s->local_dir[0] && !command->needs_checkpoint && !s->local_refused && status != DTX_E_UNSUPPORTED)
        status = find_local(s, status);
    bool none = (status == DTX_E_CONFIG && s->search.n == 0) || DTX_MUTANT(auto_begins_over_damage);
    if (automatic && !command->needs_checkpoint && status != DTX_OK && none) {
        dtx_error_clear(s->ctx);
        s->resumed = false;
        s->begins_again = true;
        return find_checkpoint(s, command, "", init);
    }
    DTX_TRY(s->ctx, status);
    if (s->local)
        return DTX_OK;
    DTX_TRY(s->ctx, dtx_ckpt_load_meta(s->ctx, s->world, s->source, &s->meta));
    if (s->resumed && s->meta.origin[0] && !command->needs_checkpoint && !DTX_MUTANT(resume_takes_weights_alone))
        return dtx_fail(s->ctx, DTX_E_CONFIG,
                        "checkpoint %s holds weights alone (%s): there is no run to continue. Begin a new one from "
                        "them with --init %s",
                        s->source, s->meta.origin, s->source);
    return DTX_OK;
}

static const char *shown(double value, char text[40])
{
    snprintf(text, 40, "%.17g", value);
    return text;
}

/* A command that only looks at weights runs on any mesh. */
static void forget_mesh(struct dtx_session *s, const struct dtx_session_command *command)
{
    char batch[32]; /* any number of ranks may evaluate: each gets as many sequences as the others */
    int64_t ranks = s->world->size, stored_batch = dtx_opt_int(s->opt, "train.batch");
    snprintf(batch, sizeof batch, "%lld", (long long)dtx_round_up(stored_batch, ranks));
    dtx_opt_set(s->opt, "parallel.tp", "1", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "parallel.pp", "1", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "parallel.dp", "0", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "parallel.cp", "1", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "parallel.chunks", "1", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "parallel.layout", "", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "train.recompute", "none", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "train.micro_batch", "0", DTX_OPT_STORED, "eval");
    dtx_opt_set(s->opt, "train.batch", command->one_rank ? "1" : batch, DTX_OPT_STORED, "eval");
}

/* Rank 0: what the user did not ask for follows the number of ranks and what they asked for. dp is what the other axes
 * leave; another pipeline than the checkpoint's begins with one chunk a stage and the even layout. */
static void adapt_mesh(struct dtx_session *s)
{
    if (!DTX_MUTANT(mesh_of_checkpoint_kept) && !dtx_opt_is_given(s->opt, "parallel.dp"))
        dtx_opt_set(s->opt, "parallel.dp", "0", DTX_OPT_STORED, s->source);
    if (dtx_opt_int(s->opt, "parallel.pp") == s->meta.mesh[2])
        return;
    if (!dtx_opt_is_given(s->opt, "parallel.chunks"))
        dtx_opt_set(s->opt, "parallel.chunks", "1", DTX_OPT_STORED, s->source);
    if (!dtx_opt_is_given(s->opt, "parallel.layout"))
        dtx_opt_set(s->opt, "parallel.layout", "", DTX_OPT_STORED, s->source);
}

/* The checkpoint's own options, `stored`, below the user's; what may not change must not differ. Of weights that begin
 * a run only what describes the model counts. */
static enum dtx_status adopt_stored(struct dtx_session *s, const struct dtx_session_command *command,
                                    struct dtx_opt *stored)
{
    char text[40];
    const char *must_match = s->initialized || s->meta.origin[0] ? "model." : "";
    DTX_TRY(s->ctx, dtx_opt_load_text(s->ctx, stored, s->meta.config, s->source, DTX_OPT_STORED));
    DTX_TRY(s->ctx, dtx_opt_check(s->ctx, stored));
    dtx_opt_adopt(s->opt, stored, s->initialized ? "model." : "", s->source);
    if (s->resumed && !command->needs_checkpoint)
        adapt_mesh(s);
    if (command->needs_checkpoint) {
        forget_mesh(s, command);
        /* nothing is trained: any part of any text may be held out */
        dtx_opt_set(stored, "data.heldout", shown(dtx_opt_real(s->opt, "data.heldout"), text), DTX_OPT_FLAG, "eval");
    }
    dtx_opt_compare_fixed(s->opt, stored, must_match, s->source);
    s->length_before = dtx_opt_int(stored, "train.length");
    return DTX_OK;
}

static enum dtx_status merge_stored(struct dtx_session *s, const struct dtx_session_command *command)
{
    struct dtx_opt *stored;
    if (!s->resumed && !s->initialized)
        return DTX_OK;
    DTX_TRY(s->ctx, create_options(s->ctx, command, &stored));
    enum dtx_status status = adopt_stored(s, command, stored);
    dtx_opt_free(stored);
    return status;
}

/* Rank 0: what the stages that have begun set; the later ones are read through, so that a mistake in them is found
 * now. */
static enum dtx_status apply_stages(struct dtx_session *s, const struct dtx_session_command *command)
{
    int64_t tokens = s->resumed ? s->meta.tokens : 0;
    char *all;
    dtx_stages_apply(s->opt, tokens);
    DTX_TRY(s->ctx, dtx_opt_dump(s->ctx, s->opt, &all));
    enum dtx_status status = DTX_OK;
    while ((tokens = dtx_stages_next(s->opt, tokens)) != INT64_MAX && status == DTX_OK) {
        struct dtx_opt *later;
        struct dtx_engine_config config;
        struct dtx_ctx probe;
        dtx_ctx_init_child(&probe, s->ctx);
        status = create_options(s->ctx, command, &later);
        if (status != DTX_OK)
            break;
        status = dtx_opt_load_text(s->ctx, later, all, "these options", DTX_OPT_PRESET);
        dtx_stages_apply(later, tokens);
        dtx_engine_config_read(later, s->world->size, &config);
        if (status == DTX_OK && dtx_opt_check(&probe, later) != DTX_OK)
            dtx_opt_fault(s->opt, "train.stages, from %lld tokens on: %s", (long long)tokens, probe.error.text);
        dtx_opt_free(later);
    }
    dtx_mem_free(all);
    return status;
}

/* Every rank: the options of rank 0. */
static enum dtx_status share_options(struct dtx_session *s, const struct dtx_session_command *command)
{
    enum dtx_status status = DTX_OK;
    char *all = NULL;
    if (s->world->rank == 0)
        status = dtx_opt_dump(s->ctx, s->opt, &all);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, dtx_comm_broadcast_text(s->world, &all, 0));
    if (s->world->rank != 0) {
        status = create_options(s->ctx, command, &s->opt);
        if (status == DTX_OK)
            status = dtx_opt_load_text(s->ctx, s->opt, all, "rank 0", DTX_OPT_FLAG);
    }
    dtx_mem_free(all);
    if (status == DTX_OK)
        status = dtx_opt_dump_stored(s->ctx, s->opt, &s->text);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    if (s->world->rank != 0) {
        dtx_engine_config_read(s->opt, s->world->size, &s->config);
        set_folders(s);
    }
    return dtx_comm_agree(s->world, dtx_opt_check(s->ctx, s->opt));
}

static enum dtx_status resolve_options(struct dtx_session *s, const struct dtx_session_command *command, int argc,
                                       char **argv, bool *done)
{
    bool root = s->world->rank == 0;
    enum dtx_status status = root ? read_sources(s, command, argc, argv) : DTX_OK;
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    int help = root && dtx_opt_bool(s->opt, "help");
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, &help, sizeof help, 0));
    if (help) {
        if (root) {
            printf("%s\n", command->usage);
            dtx_opt_help(s->opt, stdout);
        }
        *done = true;
        return DTX_OK;
    }
    char from[2][DTX_PATH] = {"", ""};
    if (root) {
        set_folders(s);
        snprintf(s->local_dir, sizeof s->local_dir, "%s", dtx_opt_text(s->opt, "checkpoint.local_dir"));
        snprintf(from[0], sizeof from[0], "%s", dtx_opt_text(s->opt, "resume"));
        snprintf(from[1], sizeof from[1], "%s", dtx_opt_text(s->opt, "init"));
    }
    if (root && s->next_stage) {
        snprintf(from[0], sizeof from[0], "latest");
        from[1][0] = '\0';
    }
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, from, sizeof from, 0));
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, s->checkpoint_dir, sizeof s->checkpoint_dir, 0));
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, s->local_dir, sizeof s->local_dir, 0));
    DTX_TRY(s->ctx, find_checkpoint(s, command, from[0], from[1]));
    if (root) {
        status = merge_stored(s, command);
        if (status == DTX_OK && !command->needs_checkpoint)
            status = apply_stages(s, command);
        if (status == DTX_OK) {
            set_folders(s);
            dtx_engine_config_read(s->opt, s->world->size, &s->config);
            if (command->needs_data && !*dtx_opt_text(s->opt, "data.train"))
                dtx_opt_fault(s->opt,
                              "data.train is not set: give the prefixes of the token files (dtx tokenize makes them)");
            if (command->one_rank && s->world->size != 1)
                dtx_opt_fault(s->opt, "dtx %s runs on one rank, %d were started", command->name, s->world->size);
            status = dtx_opt_check(s->ctx, s->opt);
        }
    }
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    return share_options(s, command);
}

struct rank_place {
    uint64_t host; /* hash of its name: 10^4 ranks send 16 bytes each */
    int64_t isa;
};

static int by_host(const void *a, const void *b)
{
    uint64_t x = ((const struct rank_place *)a)->host, y = ((const struct rank_place *)b)->host;
    return (x > y) - (x < y);
}

/* Rank 0: every node has as many ranks, or an axis crosses nodes where nobody thinks so and nodes wait for the fullest.
 * Sorts `all`. */
static enum dtx_status check_even(struct dtx_session *s, struct rank_place *all)
{
    int size = s->world->size, first = 0, least = size, most = 0;
    qsort(all, (size_t)size, sizeof *all, by_host);
    for (int r = 1; r <= size; r++)
        if (r == size || all[r].host != all[r - 1].host) {
            least = r - first < least ? r - first : least;
            most = r - first > most ? r - first : most;
            first = r;
        }
    if (least == most || dtx_opt_bool(s->opt, "parallel.uneven") || DTX_MUTANT(uneven_accepted))
        return DTX_OK;
    return dtx_fail(s->ctx, DTX_E_CONFIG,
                    "%d ranks are spread unevenly: one node has %d of them, another %d. Start as many on each (srun "
                    "--ntasks-per-node, mpirun --map-by ppr:N:node), or say --parallel.uneven",
                    size, most, least);
}

/* Threads: cpu.threads, or what this rank may use beside the others of its node. The instruction set: the lowest among
 * the ranks, so that all compute alike. */
static enum dtx_status choose_processor(struct dtx_session *s, int *threads, int *isa)
{
    struct rank_place mine = {dtx_hash_text(s->ctx->host, 0), dtx_isa_detect()}, *all;
    struct dtx_host host;
    int64_t wanted = dtx_opt_int(s->opt, "cpu.threads");
    int limit, here = 0;
    void *memory;
    if (dtx_isa_parse(dtx_opt_text(s->opt, "cpu.isa"), &limit) && limit < mine.isa)
        mine.isa = limit;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &memory));
    all = memory;
    enum dtx_status status = dtx_comm_gather_bytes(s->world, &mine, sizeof mine, all);
    *isa = (int)mine.isa;
    for (int r = 0; r < s->world->size && status == DTX_OK; r++) {
        here += all[r].host == mine.host;
        *isa = (int)dtx_min64(*isa, all[r].isa);
    }
    if (status == DTX_OK)
        status = dtx_comm_agree(s->world, s->world->rank == 0 ? check_even(s, all) : DTX_OK);
    dtx_mem_free(memory);
    DTX_TRY(s->ctx, status);
    dtx_host_read("", &host);
    *threads = wanted > 0 ? (int)wanted : dtx_host_threads(&host, here);
    return DTX_OK;
}

struct device_report {
    int32_t here;
    char text[252];
};

/* The backend that the user asks for. With several ranks auto is the GPU only when every rank has one. */
static enum dtx_status choose_device(struct dtx_session *s, const char **out)
{
    struct device_report mine;
    void *memory;
    *out = dtx_opt_text(s->opt, "device");
    if (s->world->size == 1 || strcmp(*out, "auto") != 0)
        return DTX_OK;
    mine.here = dtx_backend_device(mine.text, sizeof mine.text);
    enum dtx_status status = dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &memory);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    status = dtx_comm_gather_bytes(s->world, &mine, sizeof mine, memory);
    int without = 0, last = 0;
    for (int r = 0; r < s->world->size && status == DTX_OK; r++)
        if (!((const struct device_report *)memory)[r].here) {
            without++;
            last = r;
        }
    *out = without ? "cpu" : "cuda";
    if (without && without < s->world->size && s->world->rank == 0)
        dtx_log(s->ctx, DTX_LOG_WARN, "device: all compute on the CPU, since %d of %d ranks have no GPU; rank %d: %s",
                without, s->world->size, last, ((const struct device_report *)memory)[last].text);
    dtx_mem_free(memory);
    return status;
}

/* cuda.graphs where there are none, or where it leaves nothing to record. */
static void check_graphs(struct dtx_session *s)
{
    struct dtx_engine_config *c = &s->config;
    const struct dtx_batch_config *b = &c->batch;
    int64_t data_ranks = (int64_t)c->mesh[DTX_AXIS_DP] * c->mesh[DTX_AXIS_CP];
    bool records = s->backend->queues->records;
    if (c->graphs && !records && s->world->rank == 0 && dtx_opt_is_given(s->opt, "cuda.graphs"))
        dtx_log(s->ctx, DTX_LOG_INFO, "cuda.graphs: left out, this run computes on the CPU");
    else if (c->graphs && b->micro_batches == 1 && data_ranks > 1 && c->overlap && s->world->rank == 0)
        dtx_log(s->ctx, DTX_LOG_WARN,
                "cuda.graphs: passes beside an exchange with data ranks run without graphs, and with one micro-batch a "
                "step that is nearly all of them; comm.overlap false, or more micro-batches, change it");
    c->graphs = c->graphs && records;
}

static enum dtx_status open_backend(struct dtx_session *s)
{
    int threads, isa;
    const char *device = NULL;
    DTX_TRY(s->ctx, choose_processor(s, &threads, &isa));
    dtx_isa_limit_libraries(s->ctx, isa);
    enum dtx_status status = choose_device(s, &device);
    if (status == DTX_OK)
        status = dtx_backend_open(s->ctx, device, threads, isa, &s->backend);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    check_graphs(s);
    return DTX_OK;
}

static enum dtx_status open_engine(struct dtx_session *s, bool saves)
{
    int isa = s->backend->isa;
    size_t bytes;
    DTX_TRY(s->ctx, dtx_memory_check(s->world, &s->config, s->backend, saves, &bytes));
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, s->backend->memory->reserve(s->backend, bytes)));
    DTX_TRY(s->ctx, dtx_comm_nccl_create(s->world, s->backend, &s->between));
    DTX_TRY(s->ctx, dtx_engine_create(s->ctx, &s->config, s->between, s->backend, &s->engine));
    if (s->backend->outside_bytes > 0)
        dtx_log(s->ctx, DTX_LOG_WARN, "rank %d takes %zu bytes of its device that were not in the plan", s->ctx->rank,
                s->backend->outside_bytes);
    if (s->resumed && !s->meta.origin[0] && strcmp(s->meta.isa, dtx_isa_name(isa)) != 0 && s->world->rank == 0)
        dtx_log(s->ctx, DTX_LOG_WARN,
                "the checkpoint was computed with %s, this run uses %s: the last bits will differ", s->meta.isa,
                dtx_isa_name(isa));
    return DTX_OK;
}

/* Options, engine and weights, from what the user said and the checkpoint that the search gives. *loaded: what failed,
 * if anything, was the loading of its arrays. */
static enum dtx_status open_parts(struct dtx_session *s, const struct dtx_session_command *command, int argc,
                                  char **argv, bool *done, bool *loaded)
{
    struct dtx_ctx *ctx = s->ctx;
    *loaded = false;
    DTX_TRY(ctx, resolve_options(s, command, argc, argv, done));
    dtx_start_mark(&s->start, "options");
    if (*done)
        return DTX_OK;
    double timeout = dtx_opt_real(s->opt, "comm.timeout");
    bool shorter = command->timeout > 0 && (timeout == 0 || timeout > command->timeout);
    struct dtx_watch_options watch = {.timeout = shorter ? command->timeout : timeout,
                                      .dir = dtx_opt_text(s->opt, "comm.watch_dir"),
                                      .check = dtx_opt_bool(s->opt, "comm.check"),
                                      .stop_asked = dtx_stop_requested};
    if (!s->world->watch)
        DTX_TRY(ctx, dtx_watch_start(s->world, &watch));
    dtx_start_mark(&s->start, "watch");
    DTX_TRY(ctx, open_backend(s));
    if (command->no_model)
        return DTX_OK;
    DTX_TRY(ctx, open_engine(s, !command->needs_checkpoint));
    dtx_start_mark(&s->start, "model");
    if (s->resumed || s->initialized) {
        bool weights_alone = command->needs_checkpoint || s->initialized;
        *loaded = true;
        DTX_TRY(ctx, dtx_comm_agree(s->world, dtx_state_load(s->engine, s->source, s->local ? &s->local_index : NULL,
                                                             weights_alone)));
        dtx_start_mark(&s->start, "checkpoint");
    }
    return DTX_OK;
}

/* All ranks: back to where nothing of the checkpoint was known. */
static void close_parts(struct dtx_session *s)
{
    dtx_engine_free(s->engine);
    if (s->between != s->world)
        dtx_comm_free(s->between);
    dtx_backend_close(s->backend);
    dtx_opt_free(s->opt);
    dtx_mem_free(s->text);
    dtx_ckpt_meta_free(&s->meta);
    s->engine = NULL;
    s->between = NULL;
    s->backend = NULL;
    s->opt = NULL;
    s->text = NULL;
    dtx_ckpt_index_free(&s->local_index);
}

/* What was found is damaged: is there something else? */
static bool pass_over(struct dtx_session *s, enum dtx_status status)
{
    if (!s->local)
        return dtx_ckpt_pass_over(s->ctx, s->world, &s->search, s->source, status);
    if (status != DTX_E_FORMAT && status != DTX_E_IO)
        return false;
    if (s->world->rank == 0)
        dtx_log(s->ctx, DTX_LOG_WARN, "the local checkpoint of step %lld is passed over: %s", (long long)s->meta.step,
                s->ctx->error.text);
    dtx_error_clear(s->ctx);
    s->local = false;
    s->local_refused = true;
    return true;
}

/* Damage shows when the arrays are read. An earlier checkpoint may come with other options: all begins again. */
static enum dtx_status open_all(struct dtx_session *s, const struct dtx_session_command *command, int argc, char **argv,
                                bool *done)
{
    enum dtx_status status;
    bool loaded;
    while ((status = open_parts(s, command, argc, argv, done, &loaded)) != DTX_OK && loaded && pass_over(s, status))
        close_parts(s);
    return status;
}

enum dtx_status dtx_session_open(struct dtx_ctx *ctx, const struct dtx_session_command *command, int argc, char **argv,
                                 struct dtx_session *s, bool *done)
{
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    *done = false;
    dtx_start_begin(&s->start);
    DTX_TRY(ctx, dtx_comm_open_world(ctx, &s->world));
    dtx_start_mark(&s->start, "MPI");
    if (command->says_started && ctx->rank == 0)
        dtx_log(ctx, DTX_LOG_INFO, "%d rank%s started", s->world->size, s->world->size == 1 ? " has" : "s have");
    return open_all(s, command, argc, argv, done);
}

enum dtx_status dtx_session_next_stage(struct dtx_session *s, const struct dtx_session_command *command, int argc,
                                       char **argv)
{
    bool done = false;
    close_parts(s);
    s->next_stage = true;
    s->resumed = s->initialized = s->local = s->local_refused = s->begins_again = false;
    memset(&s->search, 0, sizeof s->search);
    dtx_start_begin(&s->start);
    return open_all(s, command, argc, argv, &done);
}

struct dtx_stream_config dtx_session_stream(const struct dtx_session *s, bool heldout)
{
    const struct dtx_opt *opt = s->opt;
    struct dtx_stream_config config = {.paths = dtx_opt_text(opt, "data.train"),
                                       .length = s->config.batch.length,
                                       .seed = (uint64_t)s->config.seed,
                                       .heldout = dtx_opt_real(opt, "data.heldout"),
                                       .use_heldout = heldout,
                                       .vocab = s->config.model.vocab,
                                       .separator = (int32_t)dtx_opt_int(opt, "data.separator"),
                                       .doc_reset = dtx_opt_bool(opt, "data.doc_reset"),
                                       .trusted = s->world->rank != 0,
                                       .mmap = dtx_opt_bool(opt, "data.mmap"),
                                       .type = dtx_opt_text(opt, "data.type"),
                                       .cache_dir = dtx_opt_text(opt, "data.cache_dir")};
    if (s->resumed && !heldout && s->meta.ledger && s->meta.ledger[0])
        config.ledger = s->meta.ledger;
    if (s->resumed && !heldout) {
        config.samples_before = s->meta.samples;
        config.length_before = s->length_before;
    }
    return config;
}

enum dtx_status dtx_session_close(struct dtx_session *s, enum dtx_status status)
{
    bool alone = s->world && s->world->size == 1;
    if (status == DTX_OK || status == DTX_E_REQUEUE || alone) { /* all ranks come here: communicators may be freed */
        close_parts(s);
    } else {
        dtx_engine_halt(s->engine); /* no thread of this rank is in MPI when it ends */
        dtx_opt_free(s->opt);       /* but not `text`: a thread that writes a checkpoint may still read it */
        dtx_ckpt_meta_free(&s->meta);
    }
    return dtx_comm_finish(s->world, status, DTX_COMM_GRACE);
}
