/* test: label=train ranks=2 timeout=120 */
/*
 * The training loop and the replica check, on two tensor ranks whose copies of one λ differ: `stop` ends the run with
 * DTX_E_NUMERIC on both ranks and one report at the configured step, before a checkpoint of it is written, and right
 * after a checkpoint was loaded; `warn` goes on to the end; 0 looks at nothing. Without a difference nothing happens.
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokenwriter.h"
#include "kernels/base/mem.h"
#include "tests/harness/rank_check.h"
#include "trainer/loop.h"
#include "trainer/state.h"

enum { TOKENS = 4000, STEPS = 5, LINE = 256 };

struct scenario {
    const char *run, *resume; /* folders; the run whose last checkpoint is loaded, or NULL */
    const char *every, *save_every, *action;
    bool differ;
    enum dtx_status expected;
    const char *text; /* in the report; NULL: none */
    bool saved;       /* has a checkpoint afterwards */
    int warnings;     /* of rank 0 */
};

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void write_tokens(struct dtx_comm *world, const char *prefix)
{
    int32_t ids[TOKENS];
    struct dtx_tokenwriter *writer;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * 5 % 67;
    CHECK_OK(world, dtx_tokenwriter_create(world->ctx, prefix, 67, 0, &writer));
    CHECK_OK(world, dtx_tokenwriter_add(world->ctx, writer, ids, TOKENS));
    CHECK_OK(world, dtx_tokenwriter_end(world->ctx, writer));
    CHECK_OK(world, dtx_tokenwriter_publish(world->ctx, writer));
}

/* What dtx_session_open makes, with a world that several runs share. */
static void open_session(struct dtx_comm *world, const char *folder, const struct scenario *c, struct dtx_session *s)
{
    static const struct dtx_opt_row *const tables[] = {dtx_train_options};
    char data[LINE];
    const char *const fixed[][2] = {{"model.layers", "2"},
                                    {"model.width", "32"},
                                    {"model.heads", "4"},
                                    {"model.ffn", "48"},
                                    {"model.vocab", "67"},
                                    {"train.length", "16"},
                                    {"train.batch", "4"},
                                    {"data.heldout", "0"},
                                    {"train.steps", "5"},
                                    {"parallel.tp", "2"},
                                    {"log.peak_seconds", "0"},
                                    {"cpu.threads", "1"},
                                    {"eval.samples", "0"},
                                    {"log.progress", "plain"},
                                    {"data.train", data},
                                    {"checkpoint.keep", "0"},
                                    {"check.replicas_every", c->every},
                                    {"check.replicas_action", c->action},
                                    {"checkpoint.every", c->save_every}};
    memset(s, 0, sizeof *s);
    snprintf(data, sizeof data, "%s/data", folder);
    s->ctx = world->ctx;
    s->world = world;
    CHECK_OK(world, dtx_opt_create(s->ctx, tables, 1, &s->opt));
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        dtx_opt_set(s->opt, fixed[i][0], fixed[i][1], DTX_OPT_FLAG, "test");
    dtx_engine_config_read(s->opt, world->size, &s->config);
    CHECK_OK(world, dtx_opt_check(s->ctx, s->opt));
    CHECK_OK(world, dtx_opt_dump_stored(s->ctx, s->opt, &s->text));
    snprintf(s->run_dir, sizeof s->run_dir, "%s/%s", folder, c->run);
    snprintf(s->checkpoint_dir, sizeof s->checkpoint_dir, "%s/%s/checkpoints", folder, c->run);
    CHECK_OK(world, dtx_backend_open(s->ctx, "cpu", 1, dtx_isa_detect(), &s->backend));
    CHECK_OK(world, dtx_engine_create(s->ctx, &s->config, world, s->backend, &s->engine));
    if (c->resume) {
        char from[LINE];
        snprintf(from, sizeof from, "%s/%s/checkpoints", folder, c->resume);
        CHECK_OK(world, dtx_ckpt_find(s->ctx, world, from, "step-00000003", &s->search, s->source, sizeof s->source));
        CHECK_OK(world, dtx_ckpt_load_meta(s->ctx, world, s->source, &s->meta));
        CHECK_OK(world, dtx_state_load(s->engine, s->source, NULL, false));
        s->resumed = true;
    }
}

static void close_session(struct dtx_session *s)
{
    dtx_engine_free(s->engine);
    dtx_backend_close(s->backend);
    dtx_opt_free(s->opt);
    dtx_mem_free(s->text);
    dtx_ckpt_meta_free(&s->meta);
}

/* On rank 1 alone, by more than steps of these runs round away. */
static void damage(struct dtx_session *s)
{
    struct dtx_param *item = dtx_params_find(dtx_engine_params(s->engine), "layers.01.attn.lambda_q1");
    CHECK(s->world, item != NULL);
    if (s->world->rank == 1)
        *(float *)item->weight.data += 0.25f; /* host memory on the CPU */
}

/* RUN/status begins with this state. */
static void check_status(struct dtx_session *s, const char *state)
{
    char path[2 * DTX_PATH], line[LINE] = "", expected[LINE];
    snprintf(path, sizeof path, "%s/status", s->run_dir);
    snprintf(expected, sizeof expected, "state: %s\n", state);
    FILE *file = fopen(path, "r");
    CHECK_THAT(s->world, file && fgets(line, sizeof line, file), "%s", path);
    CHECK_THAT(s->world, strcmp(line, expected) == 0, "%s: %s", path, line);
    fclose(file);
}

/* The loop with its standard error in a file; how many lines of it speak of copies. */
static enum dtx_status run_loop(struct dtx_session *s, int *warnings)
{
    char line[4096], path[2 * DTX_PATH];
    snprintf(path, sizeof path, "%s-%d.log", s->run_dir, s->world->rank);
    FILE *log = fopen(path, "w+");
    CHECK(s->world, log != NULL);
    int before = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    bool next_stage;
    enum dtx_status status = dtx_loop_run(s, &next_stage);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(log);
    *warnings = 0;
    while (fgets(line, sizeof line, log))
        *warnings += strstr(line, "copies of") != NULL;
    fclose(log);
    return status;
}

static void play(struct dtx_comm *world, const char *folder, const struct scenario *c)
{
    struct dtx_session s;
    char saved[2 * DTX_PATH];
    open_session(world, folder, c, &s);
    if (c->differ)
        damage(&s);
    int warnings;
    enum dtx_status status = run_loop(&s, &warnings);
    const char *text = world->ctx->error.text;
    CHECK_THAT(world, status == c->expected, "%s: %s: %s", c->run, dtx_status_name(status), text);
    if (c->text) {
        CHECK_THAT(world, strstr(text, c->text), "%s: %s", c->run, text);
        CHECK_THAT(world, strstr(text, "layers.01.attn.lambda_q1 (weight)"), "%s: %s", c->run, text);
        CHECK(world, dtx_status_exit_code(status) == 1);
        CHECK(world, world->ctx->error.status == (world->rank == 0 ? DTX_E_NUMERIC : DTX_E_PEER)); /* one report */
    }
    CHECK_THAT(world, warnings == (world->rank == 0 ? c->warnings : 0), "%s: %d warnings", c->run, warnings);
    snprintf(saved, sizeof saved, "%s/latest", s.checkpoint_dir);
    if (world->rank == 0) {
        check_status(&s, status == DTX_OK ? "done" : "failed");
        CHECK_THAT(world, (access(saved, F_OK) == 0) == c->saved, "%s: %s", c->run, saved);
    }
    dtx_error_clear(world->ctx);
    close_session(&s);
}

static int test(struct dtx_comm *world)
{
    static const struct scenario scenarios[] = {
        {"clean", NULL, "2", "3", "stop", false, DTX_OK, NULL, true, 0},
        {"step", NULL, "2", "0", "stop", true, DTX_E_NUMERIC, "step 2: copies of", false, 0},
        {"save", NULL, "100", "3", "stop", true, DTX_E_NUMERIC, "step 3: copies of", false, 0},
        {"end", NULL, "100", "0", "stop", true, DTX_E_NUMERIC, "step 5: copies of", false, 0},
        {"warned", NULL, "2", "3", "warn", true, DTX_OK, NULL, true, 4},
        {"off", NULL, "0", "3", "stop", true, DTX_OK, NULL, true, 0},
        {"loaded", "clean", "100", "0", "stop", true, DTX_E_NUMERIC, "step 3: copies of 1 tensor differ", false, 0},
        {"continued", "clean", "100", "0", "stop", false, DTX_OK, NULL, true, 0}};
    char folder[LINE] = "";
    const char *base = getenv("TMPDIR");
    world->ctx->log_level = DTX_LOG_WARN;
    CHECK(world, world->size == 2);
    if (world->rank == 0) {
        char prefix[LINE + 8];
        snprintf(folder, sizeof folder, "%s/dtx-replicas-XXXXXX", base ? base : "/tmp");
        CHECK(world, mkdtemp(folder) != NULL);
        snprintf(prefix, sizeof prefix, "%s/data", folder);
        write_tokens(world, prefix);
    }
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, folder, sizeof folder, 0));
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        play(world, folder, &scenarios[i]);
    if (world->rank == 0)
        CHECK(world, nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
