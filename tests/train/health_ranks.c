/* test: label=train ranks=4 timeout=180 */
/*
 * CASES 11 in the training loop, and slow ranks: an optimizer whose update leaves a NaN in the weights of one rank at
 * one step, attention that takes longer on one rank, so that the others wait for it within their steps. NaN: all ranks
 * leave the steps after it out and end alike with one report, the good checkpoint before stays and none is written
 * after; or all go back to the snapshot and the run ends well, with each step once in the metrics. Slow: that rank is
 * named with its host, seldom, and in the metrics; nobody is where nobody asks. On tensor, data, pipeline and context
 * ranks.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "tests/harness/loop_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/attn.h"
#include "trainer/optim.h"

enum { STEPS = 16, LINE = 256, RANKS = 4 };

struct mesh {
    const char *tp, *pp, *cp, *zero, *dtype;
};

struct scenario {
    const char *name;
    int poisoned, slow; /* ranks, −1: none */
    int step;           /* whose update poisons */
    const char *nonfinite, *snapshot_every, *factor;
};

/* The optimizer and the attention, and what they do on this rank: count steps, poison one, sleep once in each. */
struct fault {
    struct dtx_optim_variant variant; /* what the engine sees; first, so that update finds the rest */
    const struct dtx_optim_variant *real;
    struct dtx_attn_variant attention;
    enum dtx_status (*forward)(const struct dtx_layer *, struct dtx_tensor *, const struct dtx_attn_core *);
    const float *first; /* master of the first weight that is updated in a step: a step begins */
    int steps, poisoned, slept;
    bool poisons, sleeps;
};

static struct fault *fault_of(const struct dtx_optim_config *config)
{
    return (struct fault *)(uintptr_t)config->variant;
}

static enum dtx_status update(struct dtx_queue *queue, const struct dtx_optim_config *config, struct dtx_param *item,
                              const struct dtx_tensor *hyper)
{
    struct fault *f = fault_of(config);
    enum dtx_status status = f->real->update(queue, config, item, hyper);
    if (!f->first)
        f->first = item->master.data;
    if (item->master.data == f->first)
        f->steps++;
    if (f->poisons && f->steps == f->poisoned && strstr(item->row.name, "ffn")) { /* which every token needs */
        *(float *)item->master.data = NAN;                                        /* host memory on the CPU */
        f->poisons = false;
    }
    return status;
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core)
{
    struct fault *f = (struct fault *)((uintptr_t)layer->env->model->attention - offsetof(struct fault, attention));
    if (f->sleeps && f->slept == f->steps) {
        dtx_clock_sleep(0.15);
        f->slept++;
    }
    return f->forward(layer, own, core);
}

/* The run of a scenario, with its faults. */
static void open_session(struct dtx_comm *world, const char *folder, const struct mesh *m, const struct scenario *c,
                         struct fault *f, struct dtx_session *s)
{
    const char *const options[][2] = {{"train.batch", "8"},
                                      {"train.steps", c->slow >= 0 ? "10" : "16"},
                                      {"train.dtype", m->dtype},
                                      {"parallel.tp", m->tp},
                                      {"parallel.pp", m->pp},
                                      {"parallel.cp", m->cp},
                                      {"parallel.zero", m->zero},
                                      {"parallel.bucket_bytes", "16384"},
                                      {"log.every", "2"},
                                      {"check.replicas_every", "0"},
                                      {"checkpoint.every", "2"},
                                      {"checkpoint.keep", "1"},
                                      {"health.nonfinite", c->nonfinite},
                                      {"health.max_skips", "4"},
                                      {"health.snapshot_every", c->snapshot_every},
                                      {"health.slow_intervals", "2"},
                                      {"health.slow", c->factor}};
    loop_configure(world, folder, c->name, options, sizeof options / sizeof *options, s);
    *f = (struct fault){.variant = *s->config.optim.variant,
                        .real = s->config.optim.variant,
                        .poisons = world->rank == c->poisoned,
                        .poisoned = c->step,
                        .sleeps = world->rank == c->slow};
    f->variant.update = update;
    f->attention = *s->config.model.attention;
    f->forward = f->attention.forward;
    f->attention.forward = forward;
    s->config.optim.variant = &f->variant;
    s->config.model.attention = &f->attention;
    loop_open(s);
}

/* Rank 0: steps 1 … last of the metrics, each once; slowest: the rank that most lines name, −1: none does. */
static void check_metrics(struct dtx_session *s, int last, int slowest)
{
    char path[2 * DTX_PATH], line[4096];
    int step = 0, named = 0, right = 0, rank;
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->run_dir);
    FILE *file = fopen(path, "r");
    CHECK(s->world, file != NULL);
    while (fgets(line, sizeof line, file)) {
        step++;
        CHECK_THAT(s->world, atoi(line + strlen("{\"step\":")) == step, "%s: line %d: %.40s", path, step, line);
        const char *at = strstr(line, "\"slowest_rank\":");
        if (!at || sscanf(at, "\"slowest_rank\":%d", &rank) != 1)
            continue;
        named++;
        right += rank == slowest;
    }
    fclose(file);
    CHECK_THAT(s->world, step == last, "%s: %d lines, not %d", path, step, last);
    CHECK_THAT(s->world, slowest < 0 || (named >= 4 && right >= named - 1), "%s: rank %d in %d of %d lines", path,
               slowest, right, named);
}

static bool there(const struct dtx_session *s, const char *name)
{
    char path[2 * DTX_PATH];
    snprintf(path, sizeof path, "%s/%s", s->checkpoint_dir, name);
    return access(path, F_OK) == 0;
}

/* The update of step 7 poisons the weights, so step 8 is the first that is not fit; that of step 6 is seen when a
 * snapshot is to be made of it. */
static void check_nonfinite(struct dtx_session *s, const struct scenario *c, enum dtx_status status, const char *log)
{
    struct dtx_comm *world = s->world;
    bool back = strcmp(c->nonfinite, "rollback") == 0;
    const char *text = world->ctx->error.text;
    CHECK_THAT(world, status == (back ? DTX_OK : DTX_E_NUMERIC), "%s: %s: %s", c->name, dtx_status_name(status), text);
    if (back && world->rank == 0) {
        const char *words = c->step == 7
                                ? "step 8: loss nan, gradient norm nan: not finite. Back to step 6; samples 48 to 63 "
                                : "step 6: the update left weights or optimizer states that are not finite. "
                                  "Back to step 4; samples 32 to 47 ";
        CHECK_THAT(world, loop_count(log, words) == 1, "%s: %s", c->name, log);
        CHECK_THAT(world, loop_count(log, "Back to step") == 1, "%s: %s", c->name, log);
        check_metrics(s, STEPS, -1);
        CHECK(world, there(s, "step-00000016"));
    }
    if (back)
        return;
    CHECK_THAT(world, strstr(text, "step 11: loss nan, gradient norm nan: not finite; 4 steps in a row"), "%s: %s",
               c->name, text);
    CHECK(world, world->ctx->error.status == DTX_E_NUMERIC); /* each judges for itself: at the end they agree */
    if (world->rank == 0) {
        CHECK_THAT(world, loop_count(log, "no update: loss nan") == 3, "%s: %s", c->name, log);
        check_metrics(s, 10, -1);
        CHECK_THAT(world, there(s, "step-00000006") && !there(s, "step-00000008") && !there(s, "step-00000010"),
                   "%s: checkpoints", c->name);
    }
}

static void check_slow(struct dtx_session *s, const struct scenario *c, enum dtx_status status, const char *log)
{
    char line[LINE];
    bool asked = strcmp(c->factor, "0") != 0;
    CHECK_THAT(s->world, status == DTX_OK, "%s: %s", c->name, s->world->ctx->error.text);
    if (s->world->rank != 0)
        return;
    snprintf(line, sizeof line, "warning: rank %d (%s) is slow: 0.", c->slow, s->ctx->host);
    CHECK_THAT(s->world, loop_count(log, line) == (asked ? 2 : 0), "%s: not '%s' twice: %s", c->name, line, log);
    CHECK_THAT(s->world, loop_count(log, "is slow") == (asked ? 2 : 0), "%s: %s", c->name,
               log); /* after 2 and 4 intervals */
    check_metrics(s, 10, asked ? c->slow : -1);
}

static void play(struct dtx_comm *world, const char *folder, const struct mesh *m, const struct scenario *c)
{
    struct dtx_session s;
    struct fault fault;
    char log[1 << 16];
    open_session(world, folder, m, c, &fault, &s);
    enum dtx_status status = loop_run(&s, log, sizeof log);
    if (c->poisoned >= 0)
        check_nonfinite(&s, c, status, log);
    else
        check_slow(&s, c, status, log);
    dtx_error_clear(world->ctx);
    loop_close(&s);
    loop_folder_remove(world, s.run_dir);
}

static int test(struct dtx_comm *world)
{
    static const struct mesh meshes[] = {{"2", "2", "1", "1", "f32"},
                                         {"1", "1", "1", "2", "bf16"},
                                         {"4", "1", "1", "1", "bf16"},
                                         {"1", "2", "2", "1", "f32"}};
    static const struct scenario poisons[] = {{"left-out", 1, -1, 7, "skip", "100", "0"},
                                              {"back", 3, -1, 7, "rollback", "4", "0"},
                                              {"saved", 2, -1, 6, "rollback", "100", "0"}};
    static const struct scenario slow[] = {{"slow", -1, 2, 0, "skip", "100", "1.8"},
                                           {"unasked", -1, 2, 0, "skip", "100", "0"}};
    char folder[LINE];
    CHECK(world, world->size == RANKS);
    loop_folder_make(world, folder, sizeof folder);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (size_t k = 0; k < (i < 2 ? 3 : 2); k++)
            play(world, folder, &meshes[i], &poisons[k]);
    play(world, folder, &meshes[0], &slow[0]);
    play(world, folder, &meshes[1], &slow[0]);
    play(world, folder, &meshes[1], &slow[1]);
    loop_folder_remove(world, folder);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
