/* test: label=train ranks=2 timeout=120 */
/*
 * The training loop and the replica check, on two tensor ranks whose copies of one λ differ: `stop` ends the run with
 * DTX_E_NUMERIC on both ranks and one report at the configured step, before a checkpoint of it is written, and right
 * after a checkpoint was loaded; `warn` goes on to the end; 0 looks at nothing. Without a difference nothing happens.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/loop_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/state.h"

enum { LINE = 256 };

struct scenario {
    const char *run, *resume; /* folders; the run whose last checkpoint is loaded, or NULL */
    const char *every, *save_every, *action;
    bool differ;
    enum dtx_status expected;
    const char *text; /* in the report; NULL: none */
    bool saved;       /* has a checkpoint afterwards */
    int warnings;     /* of rank 0 */
};

static void open_session(struct dtx_comm *world, const char *folder, const struct scenario *c, struct dtx_session *s)
{
    const char *const options[][2] = {{"train.batch", "4"},
                                      {"train.steps", "5"},
                                      {"parallel.tp", "2"},
                                      {"checkpoint.keep", "0"},
                                      {"check.replicas_every", c->every},
                                      {"check.replicas_action", c->action},
                                      {"checkpoint.every", c->save_every}};
    loop_configure(world, folder, c->run, options, sizeof options / sizeof *options, s);
    loop_open(s);
    if (c->resume) {
        char from[LINE];
        snprintf(from, sizeof from, "%s/%s/checkpoints", folder, c->resume);
        CHECK_OK(world, dtx_ckpt_find(s->ctx, world, from, "step-00000003", &s->search, s->source, sizeof s->source));
        CHECK_OK(world, dtx_ckpt_load_meta(s->ctx, world, s->source, &s->meta));
        CHECK_OK(world, dtx_state_load(s->engine, s->source, NULL, false));
        s->resumed = true;
    }
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

static void play(struct dtx_comm *world, const char *folder, const struct scenario *c)
{
    struct dtx_session s;
    char saved[2 * DTX_PATH], log[1 << 16];
    open_session(world, folder, c, &s);
    if (c->differ)
        damage(&s);
    enum dtx_status status = loop_run(&s, log, sizeof log);
    int warnings = loop_count(log, "copies of");
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
    loop_close(&s);
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
    char folder[LINE];
    world->ctx->log_level = DTX_LOG_WARN;
    CHECK(world, world->size == 2);
    loop_folder_make(world, folder, sizeof folder);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        play(world, folder, &scenarios[i]);
    loop_folder_remove(world, folder);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
