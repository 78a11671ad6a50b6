/* dump_logits --resume CHECKPOINT --ids FILE --logits FILE: for each line of token ids the logits after each of them,
 * as doubles, one token's vocabulary after another. What the scripts beside it compare with other programs. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "trainer/session.h"

static const struct dtx_opt_row options[] = {
    {"ids", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "lines of token ids"},
    {"logits", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "file to write"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const struct dtx_session_command command = {
    .name = "dump_logits", .usage = "", .options = options, .needs_checkpoint = true, .one_rank = true};

static enum dtx_status dump_line(struct dtx_session *s, char *line, int32_t *ids, double *logits, FILE *out)
{
    int64_t n = 0;
    for (char *end, *p = line; n < s->config.batch.length; p = end) {
        ids[n] = (int32_t)strtol(p, &end, 10);
        if (end == p)
            break;
        n++;
    }
    for (int64_t i = 0; i < n; i++) {
        DTX_TRY(s->ctx, dtx_engine_logits(s->engine, ids + i, i, 1, logits));
        if (fwrite(logits, sizeof *logits, (size_t)s->config.model.vocab, out) != (size_t)s->config.model.vocab)
            return dtx_fail(s->ctx, DTX_E_IO, "cannot write the logits");
    }
    return DTX_OK;
}

static enum dtx_status dump(struct dtx_session *s)
{
    FILE *in = fopen(dtx_opt_text(s->opt, "ids"), "r"), *out = fopen(dtx_opt_text(s->opt, "logits"), "wb");
    char *line = NULL;
    size_t room = 0;
    void *ids = NULL, *logits = NULL;
    enum dtx_status status = in && out ? DTX_OK : dtx_fail(s->ctx, DTX_E_IO, "cannot open --ids or --logits");
    if (status == DTX_OK)
        status = dtx_mem_alloc(s->ctx, s->config.batch.length, sizeof(int32_t), &ids);
    if (status == DTX_OK)
        status = dtx_mem_alloc(s->ctx, s->config.model.vocab, sizeof(double), &logits);
    while (status == DTX_OK && getline(&line, &room, in) > 0)
        status = dump_line(s, line, ids, logits, out);
    dtx_mem_free(ids);
    dtx_mem_free(logits);
    free(line);
    if (in)
        fclose(in);
    if (out && fclose(out) != 0 && status == DTX_OK)
        status = dtx_fail(s->ctx, DTX_E_IO, "cannot write the logits");
    return status;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_session session;
    bool done;
    dtx_ctx_init(&ctx);
    enum dtx_status status = dtx_session_open(&ctx, &command, argc - 1, argv + 1, &session, &done);
    if (status == DTX_OK && !done)
        status = dump(&session);
    if (status != DTX_OK)
        dtx_error_print(&ctx);
    return dtx_status_exit_code(dtx_session_close(&session, status));
}
