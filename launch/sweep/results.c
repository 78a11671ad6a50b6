/* SWEEP/results.csv, what laws are fitted to. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "launch/sweep/state.h"

static void write_row(FILE *file, const struct dtx_sweep_trial *t, const struct dtx_sweep_record *r)
{
    fprintf(file, "%s,%s,%lld,%lld,%lld,%lld,%.17g,%.17g,%.17g,%.17g,%lld,%.17g,", t->id, t->variant,
            (long long)t->n[DTX_SWEEP_TOTAL], (long long)t->n[DTX_SWEEP_NONEMBEDDING],
            (long long)t->n[DTX_SWEEP_MATMUL], (long long)t->tokens, t->flops[DTX_SWEEP_EXACT],
            t->flops[DTX_SWEEP_PALM], t->flops[DTX_SWEEP_6ND], r->loss, (long long)t->seed, t->budget);
    fprintf(file, "%.17g,%.17g,%.17g,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%s\n", r->train_loss, t->lr, t->lr_scale,
            (long long)(t->batch * t->length), (long long)t->steps, (long long)t->width, (long long)t->layers,
            (long long)t->heads, (long long)t->ffn, (long long)t->length, t->label);
}

/* *n: rows. */
static enum dtx_status write_rows(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const char *path, int *n)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return dtx_fail(ctx, dtx_status_of_path(errno), "cannot write %s: %s", path, strerror(errno));
    fprintf(file,
            "trial,variant,n_total,n_nonembedding,n_matmul,d,flops,flops_palm,flops_6nd,loss,seed,budget,train_loss,"
            "lr,lr_scale,batch_tokens,steps,width,layers,heads,ffn,length,label\n");
    *n = 0;
    for (int i = 0; i < sweep->trials.n; i++) {
        struct dtx_sweep_record record;
        if (sweep->trials.item[i].stem || !dtx_sweep_record_read(sweep, i, &record))
            continue;
        write_row(file, &sweep->trials.item[i], &record);
        ++*n;
    }
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return dtx_fail(ctx, DTX_E_IO, "cannot write %s: %s", path, strerror(errno));
    return DTX_OK;
}

static int count_records(const struct dtx_sweep *sweep)
{
    int n = 0;
    for (int i = 0; i < sweep->trials.n; i++) {
        struct dtx_sweep_record record;
        n += !sweep->trials.item[i].stem && dtx_sweep_record_read(sweep, i, &record);
    }
    return n;
}

enum dtx_status dtx_sweep_results_write(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const char *path)
{
    char temporary[DTX_SWEEP_PATH];
    int n;
    snprintf(temporary, sizeof temporary, "%s.%.40s.%ld", path, ctx->host, (long)getpid());
    do { /* records that came meanwhile may be in nobody's file */
        DTX_TRY(ctx, write_rows(ctx, sweep, temporary, &n));
        DTX_TRY(ctx, dtx_disk_rename(ctx, temporary, path));
    } while (count_records(sweep) != n);
    return DTX_OK;
}
