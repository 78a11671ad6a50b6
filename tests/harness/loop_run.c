#include "tests/harness/loop_run.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokenwriter.h"
#include "kernels/base/mem.h"
#include "tests/harness/rank_check.h"
#include "trainer/loop.h"

enum { TOKENS = 6000, VOCAB = 67 };

static void write_tokens(struct dtx_comm *world, const char *prefix)
{
    int32_t ids[TOKENS];
    struct dtx_tokenwriter *writer;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * 5 % VOCAB;
    CHECK_OK(world, dtx_tokenwriter_create(world->ctx, prefix, VOCAB, 0, &writer));
    CHECK_OK(world, dtx_tokenwriter_add(world->ctx, writer, ids, TOKENS));
    CHECK_OK(world, dtx_tokenwriter_end(world->ctx, writer));
    CHECK_OK(world, dtx_tokenwriter_publish(world->ctx, writer));
}

void loop_folder_make(struct dtx_comm *world, char *folder, size_t bytes)
{
    const char *base = getenv("TMPDIR");
    memset(folder, 0, bytes);
    if (world->rank == 0) {
        char prefix[DTX_PATH];
        snprintf(folder, bytes, "%s/dtx-loop-XXXXXX", base ? base : "/tmp");
        CHECK(world, mkdtemp(folder) != NULL);
        snprintf(prefix, sizeof prefix, "%s/data", folder);
        write_tokens(world, prefix);
    }
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, folder, (int64_t)bytes, 0));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void loop_folder_remove(struct dtx_comm *world, const char *folder)
{
    CHECK_OK(world, dtx_comm_barrier(world));
    if (world->rank == 0)
        CHECK(world, nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
    CHECK_OK(world, dtx_comm_barrier(world));
}

void loop_configure(struct dtx_comm *world, const char *folder, const char *name, const char *const (*options)[2],
                    size_t n, struct dtx_session *s)
{
    static const struct dtx_opt_row *const tables[] = {dtx_train_options};
    char data[DTX_PATH];
    const char *const fixed[][2] = {{"model.layers", "2"},     {"model.width", "32"}, {"model.heads", "4"},
                                    {"model.ffn", "48"},       {"model.vocab", "67"}, {"train.length", "16"},
                                    {"data.heldout", "0"},     {"data.train", data},  {"eval.samples", "0"},
                                    {"log.peak_seconds", "0"}, {"cpu.threads", "1"},  {"log.progress", "plain"}};
    memset(s, 0, sizeof *s);
    snprintf(data, sizeof data, "%s/data", folder);
    s->ctx = world->ctx;
    s->world = world;
    CHECK_OK(world, dtx_opt_create(s->ctx, tables, 1, &s->opt));
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        dtx_opt_set(s->opt, fixed[i][0], fixed[i][1], DTX_OPT_FLAG, "test");
    for (size_t i = 0; i < n; i++)
        dtx_opt_set(s->opt, options[i][0], options[i][1], DTX_OPT_FLAG, "test");
    dtx_engine_config_read(s->opt, world->size, &s->config);
    CHECK_OK(world, dtx_opt_check(s->ctx, s->opt));
    CHECK_OK(world, dtx_opt_dump_stored(s->ctx, s->opt, &s->text));
    snprintf(s->run_dir, sizeof s->run_dir, "%s/%s", folder, name);
    snprintf(s->checkpoint_dir, sizeof s->checkpoint_dir, "%s/%s/checkpoints", folder, name);
}

void loop_open(struct dtx_session *s)
{
    CHECK_OK(s->world, dtx_backend_open(s->ctx, "cpu", 1, dtx_isa_detect(), &s->backend));
    CHECK_OK(s->world, dtx_engine_create(s->ctx, &s->config, s->world, s->backend, &s->engine));
}

void loop_close(struct dtx_session *s)
{
    dtx_engine_free(s->engine);
    dtx_backend_close(s->backend);
    dtx_opt_free(s->opt);
    dtx_mem_free(s->text);
    dtx_ckpt_meta_free(&s->meta);
}

enum dtx_status loop_run(struct dtx_session *s, char *text, size_t bytes)
{
    char path[2 * DTX_PATH];
    bool next_stage;
    snprintf(path, sizeof path, "%s-%d.log", s->run_dir, s->world->rank);
    FILE *log = fopen(path, "w+");
    CHECK(s->world, log != NULL);
    int before = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    enum dtx_status status = dtx_loop_run(s, &next_stage);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(log);
    text[fread(text, 1, bytes - 1, log)] = '\0';
    fclose(log);
    return status;
}

int loop_count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    return n;
}
