#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "launch/plan/plan.h"

#define GIB 1073741824.0

/* "1.23 GB": bytes on links are counted in powers of ten. */
static const char *sent_text(double bytes, char text[16])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 5; unit++)
        bytes /= 1000;
    snprintf(text, 16, unit ? "%.3g %s" : "%.0f %s", bytes, units[unit]);
    return bytes > 0 ? text : "-";
}

static const char *time_text(double seconds, char text[16])
{
    snprintf(text, 16, seconds >= 1 ? "%.3g s" : "%.3g ms", seconds >= 1 ? seconds : 1e3 * seconds);
    return text;
}

static void print_row(const struct dtx_plan_row *r, double unit)
{
    char setting[64], tp[16], pp[16], dp[16], cp[16], step[16];
    const struct dtx_memory *m = &r->stage.memory;
    snprintf(setting, sizeof setting, "%s%s", r->mesh[DTX_AXIS_PP] > 1 ? r->schedule : "-",
             r->sequence || r->mesh[DTX_AXIS_TP] == 1 ? "" : ", no sequence");
    if (r->chunks > 1)
        snprintf(setting, sizeof setting, "%s ×%d%s", r->schedule, r->chunks,
                 r->sequence || r->mesh[DTX_AXIS_TP] == 1 ? "" : ", no sequence");
    if (r->mesh[DTX_AXIS_CP] > 1)
        snprintf(setting + strlen(setting), sizeof setting - strlen(setting), ", %s", r->ring ? "ring" : "gather");
    printf("%4d %4d %5d %4d  %-*s %-9s %4s  %4lld ×%-4d", r->mesh[DTX_AXIS_TP], r->mesh[DTX_AXIS_PP],
           r->mesh[DTX_AXIS_DP], r->mesh[DTX_AXIS_CP], r->chunks > 1 ? 26 : 25, setting, r->recompute,
           r->mesh[DTX_AXIS_DP] * r->mesh[DTX_AXIS_CP] == 1 ? "-"
           : r->zero == 2                                   ? "2"
           : r->zero                                        ? "1"
                                                            : "0",
           (long long)r->micro_batch, r->micro_batches);
    printf(" %6.1f %3d  %6.1f %6.1f %6.1f %6.1f %6.1f  %5.1f%% %8s %8s %8s %8s %9s %5.1f%%\n", r->bytes / unit,
           r->worst, (double)m->weights / unit, (double)m->gradients / unit, (double)(m->masters + m->states) / unit,
           (double)(m->activations + m->kept) / unit, (double)(m->work + m->shared + m->pipe + m->batch) / unit,
           100 * r->bubble, sent_text(r->sent[DTX_AXIS_TP], tp), sent_text(r->sent[DTX_AXIS_PP], pp),
           sent_text(r->sent[DTX_AXIS_DP], dp), sent_text(r->sent[DTX_AXIS_CP], cp), time_text(r->step, step),
           100 * r->mfu);
}

/* Hands every stage of a row to `each`. */
static enum dtx_status for_stages(struct dtx_plan *plan, const struct dtx_plan_row *shown,
                                  void (*each)(void *self, int stage, const struct dtx_estimate *), void *self)
{
    struct dtx_plan_row row = *shown;
    struct dtx_engine_config config;
    struct dtx_opt *opt;
    bool refused;
    DTX_TRY(plan->ctx, dtx_plan_configure(plan, &row, &opt, &config, &refused));
    enum dtx_status status = DTX_OK;
    for (int stage = 0; stage < row.mesh[DTX_AXIS_PP] && status == DTX_OK && !refused; stage++) {
        struct dtx_estimate e;
        int rank[DTX_AXES] = {[DTX_AXIS_PP] = stage};
        status = dtx_estimate_rank(plan->ctx, &config, plan->queue, rank, &e);
        if (status == DTX_OK)
            each(self, stage, &e);
    }
    dtx_opt_free(opt);
    return status;
}

/* Of the table that is printed: MiB for small models. */
struct table {
    const struct dtx_plan *plan;
    double unit;
    const char *unit_name;
};

static void print_stage(void *self, int stage, const struct dtx_estimate *e)
{
    const struct table *table = self;
    const struct dtx_memory *m = &e->memory;
    double overhead = table->plan->machine->overhead_bytes, unit = table->unit;
    printf("      stage %-3d %8.1f %s: weights %.1f, gradients %.1f, masters %.1f, states %.1f, %d activation slot%s "
           "%.1f, ",
           stage, dtx_plan_bytes(table->plan, e) / unit, table->unit_name, (double)m->weights / unit,
           (double)m->gradients / unit, (double)m->masters / unit, (double)m->states / unit, e->slots,
           e->slots == 1 ? "" : "s", (double)m->activations / unit);
    if (e->kept)
        printf("%d gradient slot%s %.1f, ", e->kept, e->kept == 1 ? "" : "s", (double)m->kept / unit);
    printf("workspace %.1f, shared %.1f, pipe %.1f, batch and norm %.1f, host %.1f, copy for checkpoints %.1f, to "
           "roll back to %.1f%s, overhead %.1f\n",
           (double)m->work / unit, (double)(m->shared + (e->kept ? 0 : m->kept)) / unit, (double)m->pipe / unit,
           (double)m->batch / unit, (table->plan->machine->host_memory ? (double)e->host : 0) / unit,
           (double)e->staging / unit, (double)e->snapshot / unit, table->plan->machine->host_memory ? "" : " (host's)",
           overhead / unit);
}

static int count_rows(const struct dtx_plan *plan, enum dtx_verdict verdict)
{
    int n = 0;
    for (int i = 0; i < plan->n; i++)
        n += plan->row[i].verdict == verdict;
    return n;
}

static enum dtx_status print_fitting(struct dtx_plan *plan, int fitting, int top, bool stages)
{
    double most = 0;
    for (int i = 0; i < fitting && i < top; i++)
        most = fmax(most, plan->row[i].bytes);
    bool small = most < 8 * GIB;
    struct table table = {plan, small ? 1048576.0 : GIB, small ? "MiB" : "GiB"};
    printf("\n%-79smemory of the fullest stage, %s\n", "", table.unit_name);
    printf("  tp   pp    dp   cp  %-25s %-9s %4s  %-10s %6s %3s  %6s %6s %6s %6s %6s  %6s %8s %8s %8s %8s %9s %6s\n",
           "schedule", "recompute", "zero", "micro", "total", "at", "weight", "grad", "optim", "activ", "other", "idle",
           "tp sent", "pp sent", "dp sent", "cp sent", "step", "MFU");
    for (int i = 0; i < fitting && i < top; i++) {
        print_row(&plan->row[i], table.unit);
        if (stages)
            DTX_TRY(plan->ctx, for_stages(plan, &plan->row[i], print_stage, &table));
    }
    if (fitting > top)
        printf("  … and %d more that fit (--top N)\n", fitting - top);
    return DTX_OK;
}

enum dtx_status dtx_plan_print(struct dtx_plan *plan, int top, bool stages)
{
    const struct dtx_machine *m = plan->machine;
    int fitting = count_rows(plan, DTX_PLAN_FITS);
    printf(
        "%d ranks on %s: %lld a node, %.1f GiB each (%.1f for driver and libraries), links %.3g GB/s in a node, %.3g "
        "between nodes; layers at %.0f %% of peak\n",
        plan->ranks, m->name, (long long)m->devices_per_node, m->memory_bytes / GIB, m->overhead_bytes / GIB,
        m->node_link / 1e9, m->network_link / 1e9, 100 * plan->efficiency);
    if (fitting)
        DTX_TRY(plan->ctx, print_fitting(plan, fitting, top, stages));
    if (fitting == plan->n)
        return DTX_OK;
    printf("\ndo not fit:\n");
    for (int i = fitting; i < plan->n && i < fitting + top; i++) {
        const struct dtx_plan_row *r = &plan->row[i];
        printf("%4d %4d %5d %4d  ", r->mesh[DTX_AXIS_TP], r->mesh[DTX_AXIS_PP], r->mesh[DTX_AXIS_DP],
               r->mesh[DTX_AXIS_CP]);
        if (r->verdict == DTX_PLAN_TOO_BIG)
            printf("%s, recompute %s, zero %d: ", r->schedule, r->recompute, r->zero);
        printf("%s\n", r->reason);
    }
    if (plan->n - fitting > top)
        printf("  … and %d more that do not (--top N)\n", plan->n - fitting - top);
    return DTX_OK;
}

void dtx_plan_flags(const struct dtx_plan_row *row, void (*word)(void *self, const char *text), void *self)
{
    static const char *const keys[DTX_AXES] = {
        [DTX_AXIS_TP] = "tp", [DTX_AXIS_DP] = "dp", [DTX_AXIS_PP] = "pp", [DTX_AXIS_CP] = "cp"};
    char text[64];
    for (int axis = 0; axis < DTX_AXES; axis++) {
        snprintf(text, sizeof text, "--parallel.%s=%d", keys[axis], row->mesh[axis]);
        word(self, text);
    }
    if (row->mesh[DTX_AXIS_PP] > 1) {
        snprintf(text, sizeof text, "--parallel.schedule=%s", row->schedule);
        word(self, text);
        snprintf(text, sizeof text, "--parallel.chunks=%d", row->chunks);
        word(self, text);
    }
    if (row->mesh[DTX_AXIS_TP] > 1)
        word(self, row->sequence ? "--parallel.sequence=true" : "--parallel.sequence=false");
    if (row->mesh[DTX_AXIS_CP] > 1)
        word(self, row->ring ? "--parallel.cp_exchange=ring" : "--parallel.cp_exchange=gather");
    snprintf(text, sizeof text, "--parallel.zero=%d", row->zero);
    word(self, text);
    snprintf(text, sizeof text, "--train.recompute=%s", row->recompute);
    word(self, text);
}

static json_t *memory_json(const struct dtx_plan *plan, int stage, const struct dtx_estimate *e)
{
    const struct dtx_memory *m = &e->memory;
    double overhead = plan->machine->overhead_bytes;
    return json_pack("{si sI sI sI sI sI sI sI sI sI sI sI sI sI sI si si sI}", "stage", stage, "weights",
                     (json_int_t)m->weights, "gradients", (json_int_t)m->gradients, "masters", (json_int_t)m->masters,
                     "states", (json_int_t)m->states, "activations", (json_int_t)m->activations, "gradient_slots",
                     (json_int_t)m->kept, "workspace", (json_int_t)m->work, "shared", (json_int_t)m->shared, "pipe",
                     (json_int_t)m->pipe, "batch", (json_int_t)m->batch, "overhead", (json_int_t)overhead, "host",
                     (json_int_t)(plan->machine->host_memory ? e->host : 0), "staging", (json_int_t)e->staging,
                     "snapshot", (json_int_t)e->snapshot, "slots", e->slots, "kept", e->kept, "total",
                     (json_int_t)dtx_plan_bytes(plan, e));
}

struct stage_list {
    const struct dtx_plan *plan;
    json_t *array;
};

static void append_stage(void *self, int stage, const struct dtx_estimate *e)
{
    struct stage_list *list = self;
    json_array_append_new(list->array, memory_json(list->plan, stage, e));
}

static json_t *row_json(const struct dtx_plan *plan, const struct dtx_plan_row *r)
{
    json_t *o =
        json_pack("{si si si si ss ss si ss si sb sb ss}", "tp", r->mesh[DTX_AXIS_TP], "pp", r->mesh[DTX_AXIS_PP], "dp",
                  r->mesh[DTX_AXIS_DP], "cp", r->mesh[DTX_AXIS_CP], "cp_exchange", r->ring ? "ring" : "gather",
                  "schedule", r->schedule, "chunks", r->chunks, "recompute", r->recompute, "zero", r->zero, "sequence",
                  r->sequence, "fits", r->verdict == DTX_PLAN_FITS, "reason", r->reason);
    if (r->verdict == DTX_PLAN_REFUSED)
        return o;
    json_object_set_new(o, "memory", memory_json(plan, r->worst, &r->stage));
    json_t *more =
        json_pack("{sI si sf s{sf sf sf sf} s{sf sf sf sf sf sf sf} sf sf}", "micro_batch", (json_int_t)r->micro_batch,
                  "micro_batches", r->micro_batches, "bubble", r->bubble, "sent_bytes", "tp", r->sent[DTX_AXIS_TP],
                  "pp", r->sent[DTX_AXIS_PP], "dp", r->sent[DTX_AXIS_DP], "cp", r->sent[DTX_AXIS_CP], "seconds",
                  "compute", r->compute, "tensor", r->tensor, "context", r->context, "idle", r->idle, "pipe", r->pipe,
                  "data", r->data, "update", r->update, "step_seconds", r->step, "mfu", r->mfu);
    json_object_update_new(o, more);
    return o;
}

enum dtx_status dtx_plan_print_json(struct dtx_plan *plan, int top, bool stages)
{
    const struct dtx_machine *m = plan->machine;
    json_t *fits = json_array(), *not = json_array();
    enum dtx_status status = DTX_OK;
    for (int i = 0, n[2] = {0, 0}; i < plan->n && status == DTX_OK; i++) {
        const struct dtx_plan_row *r = &plan->row[i];
        bool good = r->verdict == DTX_PLAN_FITS;
        if (n[good]++ >= top)
            continue;
        json_t *o = row_json(plan, r);
        json_array_append_new(good ? fits : not, o);
        struct stage_list list = {plan, json_array()};
        if (stages && r->verdict != DTX_PLAN_REFUSED)
            status = for_stages(plan, r, append_stage, &list);
        if (stages)
            json_object_set(o, "stages", list.array);
        json_decref(list.array);
    }
    json_t *root = json_pack("{si s{ss sI sf sf sf sf sf} si si so so}", "ranks", plan->ranks, "machine", "name",
                             m->name, "devices_per_node", (json_int_t)m->devices_per_node, "memory_bytes",
                             m->memory_bytes, "bf16_flops", m->bf16_flops, "fp32_flops", m->fp32_flops, "node_link",
                             m->node_link, "network_link", m->network_link, "n_fit", count_rows(plan, DTX_PLAN_FITS),
                             "n_not", plan->n - count_rows(plan, DTX_PLAN_FITS), "fit", fits, "do_not_fit", not );
    bool written = root && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    DTX_TRY(plan->ctx, status);
    printf("\n");
    return written ? DTX_OK : dtx_fail(plan->ctx, DTX_E_MEMORY, "plan: the JSON could not be made");
}
