#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/plan/plan.h"
#include "parallel/schedule.h"

/* Context ranks are tried where a chunk of a sequence keeps so many positions. */
enum { MOST_CHUNKS = 4, LEAST_POSITIONS = 1024 };
static const char *const recomputes[] = {"none", "attention", "block"};
static const int zeros[] = {1, 0, 2};

static void set_int(struct dtx_opt *opt, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    dtx_opt_set(opt, key, text, DTX_OPT_FLAG, "plan");
}

/* The first fault alone. */
static void first_fault(const char *text, char *out, size_t bytes)
{
    const char *line = strstr(text, ":\n  ");
    line = line && strstr(text, "faults in the configuration") ? line + 4 : text;
    snprintf(out, bytes, "%.*s", (int)strcspn(line, "\n"), line);
}

enum dtx_status dtx_plan_configure(struct dtx_plan *plan, struct dtx_plan_row *row, struct dtx_opt **opt,
                                   struct dtx_engine_config *out, bool *refused)
{
    const struct dtx_opt_row *const tables[] = {dtx_plan_options, dtx_train_options};
    struct dtx_opt *o;
    DTX_TRY(plan->ctx, dtx_opt_create(plan->ctx, tables, 2, &o));
    enum dtx_status status = dtx_opt_load_known(plan->ctx, o, plan->options, "options", DTX_OPT_FILE);
    set_int(o, "parallel.tp", row->mesh[DTX_AXIS_TP]);
    set_int(o, "parallel.pp", row->mesh[DTX_AXIS_PP]);
    set_int(o, "parallel.dp", row->mesh[DTX_AXIS_DP]);
    set_int(o, "parallel.cp", row->mesh[DTX_AXIS_CP]);
    set_int(o, "parallel.chunks", row->chunks);
    set_int(o, "parallel.zero", row->zero);
    dtx_opt_set(o, "parallel.cp_exchange", row->ring ? "ring" : "gather", DTX_OPT_FLAG, "plan");
    dtx_opt_set(o, "parallel.sequence", row->sequence ? "true" : "false", DTX_OPT_FLAG, "plan");
    dtx_opt_set(o, "parallel.schedule", row->schedule, DTX_OPT_FLAG, "plan");
    dtx_opt_set(o, "train.recompute", row->recompute, DTX_OPT_FLAG, "plan");
    if (status == DTX_OK) {
        dtx_engine_config_read(o, plan->ranks, out);
        status = dtx_opt_check(plan->ctx, o);
    }
    *refused = status == DTX_E_CONFIG;
    if (*refused) {
        first_fault(plan->ctx->error.text, row->reason, sizeof row->reason);
        dtx_error_clear(plan->ctx);
        status = DTX_OK;
    }
    if (status != DTX_OK)
        dtx_opt_free(o);
    else
        *opt = o;
    return status;
}

static enum dtx_status add_row(struct dtx_plan *plan, const struct dtx_plan_row *row)
{
    void *grown;
    DTX_TRY(plan->ctx, dtx_mem_grow(plan->ctx, plan->row, plan->n, sizeof *plan->row, &plan->capacity, &grown));
    plan->row = grown;
    plan->row[plan->n++] = *row;
    return DTX_OK;
}

static int compare(const void *a, const void *b)
{
    const struct dtx_plan_row *x = a, *y = b;
    if (x->verdict != y->verdict)
        return x->verdict < y->verdict ? -1 : 1;
    double p = x->verdict == DTX_PLAN_FITS ? x->step : x->bytes, q = y->verdict == DTX_PLAN_FITS ? y->step : y->bytes;
    if (DTX_MUTANT(plan_slowest_first) && x->verdict == DTX_PLAN_FITS)
        return (q > p) - (q < p);
    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* One setting of a mesh: kept with `all`, else only when it is the best one of rows [first, n). A mesh that is refused
 * whatever the setting has one row. */
static enum dtx_status add_setting(struct dtx_plan *plan, struct dtx_plan_row row, int first, bool all)
{
    struct dtx_engine_config config;
    struct dtx_opt *opt;
    bool refused;
    DTX_TRY(plan->ctx, dtx_plan_configure(plan, &row, &opt, &config, &refused));
    enum dtx_status status = DTX_OK;
    if (refused)
        row.verdict = DTX_PLAN_REFUSED;
    else
        status = dtx_plan_judge(plan, &row, &config);
    dtx_opt_free(opt);
    DTX_TRY(plan->ctx, status);
    if (plan->n == first || (all && row.verdict != DTX_PLAN_REFUSED && plan->row[first].verdict != DTX_PLAN_REFUSED))
        return add_row(plan, &row);
    if (compare(&row, &plan->row[first]) < 0)
        plan->row[first] = row;
    return DTX_OK;
}

/* Recomputation, sequence parallelism, ZeRO and the context ranks' exchange of one schedule. */
static enum dtx_status add_settings(struct dtx_plan *plan, struct dtx_plan_row row, int first, bool all, bool *made)
{
    const struct dtx_opt *held = plan->held;
    bool recompute_held = dtx_opt_is_set(held, "train.recompute"), zero_held = dtx_opt_is_set(held, "parallel.zero");
    bool sequence_held = dtx_opt_is_set(held, "parallel.sequence"), one_tensor = row.mesh[DTX_AXIS_TP] == 1;
    bool ring_held = dtx_opt_is_set(held, "parallel.cp_exchange"), one_context = row.mesh[DTX_AXIS_CP] == 1;
    bool one_data = row.mesh[DTX_AXIS_DP] * row.mesh[DTX_AXIS_CP] == 1;
    for (int v = 0; v < 36; v++) {
        int zero = v % 3, sequence = v / 3 % 2, recompute = v / 6 % 3, ring = v / 18;
        row.recompute = recompute_held ? dtx_opt_text(held, "train.recompute") : recomputes[recompute];
        row.sequence = sequence_held ? dtx_opt_bool(held, "parallel.sequence") : sequence == 0;
        row.zero = zero_held ? (int)dtx_opt_int(held, "parallel.zero") : zeros[zero];
        row.ring = ring_held ? strcmp(dtx_opt_text(held, "parallel.cp_exchange"), "ring") == 0 : ring;
        bool again = (recompute_held && recompute) || ((sequence_held || one_tensor) && sequence) ||
                     ((zero_held || one_data) && zero) || ((ring_held || one_context) && ring);
        if (again)
            continue;
        DTX_TRY(plan->ctx, add_setting(plan, row, first, all));
        *made = true;
    }
    return DTX_OK;
}

/* The settings of one mesh: what the user has fixed stays. */
static enum dtx_status add_mesh(struct dtx_plan *plan, const int mesh[DTX_AXES], bool all)
{
    const struct dtx_opt *held = plan->held;
    bool chunks_held = dtx_opt_is_set(held, "parallel.chunks"), made = false;
    bool schedule_held = dtx_opt_is_set(held, "parallel.schedule");
    int n_schedules, first = plan->n, lowest = chunks_held ? (int)dtx_opt_int(held, "parallel.chunks") : 1;
    int pp = mesh[DTX_AXIS_PP];
    const struct dtx_schedule *const *list = dtx_schedule_list(&n_schedules);
    struct dtx_plan_row row = {.zero = 1, .recompute = "none", .sequence = true};
    memcpy(row.mesh, mesh, sizeof row.mesh);
    for (int s = 0; s < n_schedules; s++) {
        row.schedule = list[s]->name;
        if (strcmp(row.schedule, dtx_opt_text(held, "parallel.schedule")) != 0 && (schedule_held || pp == 1))
            continue; /* without a pipeline all are one */
        for (row.chunks = lowest; row.chunks <= (chunks_held ? lowest : pp > 1 ? MOST_CHUNKS : 1); row.chunks++) {
            if ((row.chunks > 1) != (list[s]->max_chunks > 1) && pp > 1 && !(chunks_held && schedule_held))
                continue;
            DTX_TRY(plan->ctx, add_settings(plan, row, first, all, &made));
        }
    }
    row.chunks = lowest;
    row.schedule = dtx_opt_text(held, "parallel.schedule");
    return made ? DTX_OK : add_setting(plan, row, first, all);
}

static bool holds(const struct dtx_opt *held, const char *key, int value)
{
    return !dtx_opt_is_set(held, key) || dtx_opt_int(held, key) == value || dtx_opt_int(held, key) == 0;
}

/* Is it worth a row? Other numbers of context ranks only when they are asked for. */
static bool suits_context(const struct dtx_plan *plan, int cp)
{
    if (dtx_opt_is_set(plan->held, "parallel.cp"))
        return dtx_opt_int(plan->held, "parallel.cp") == cp;
    return cp == 1 || (plan->length % (2 * cp) == 0 && plan->length / (2 * cp) >= LEAST_POSITIONS);
}

enum dtx_status dtx_plan_search(struct dtx_plan *plan, bool all)
{
    for (int tp = 1; tp <= plan->ranks; tp++) {
        if (plan->ranks % tp || !holds(plan->held, "parallel.tp", tp))
            continue;
        for (int pp = 1; pp <= plan->ranks / tp; pp++) {
            if (plan->ranks / tp % pp || !holds(plan->held, "parallel.pp", pp))
                continue;
            for (int cp = 1; cp <= plan->ranks / tp / pp; cp++) {
                int dp = plan->ranks / tp / pp / cp;
                if (plan->ranks / tp / pp % cp || !suits_context(plan, cp) || !holds(plan->held, "parallel.dp", dp))
                    continue;
                const int mesh[DTX_AXES] = {
                    [DTX_AXIS_TP] = tp, [DTX_AXIS_DP] = dp, [DTX_AXIS_PP] = pp, [DTX_AXIS_CP] = cp};
                DTX_TRY(plan->ctx, add_mesh(plan, mesh, all));
            }
        }
    }
    if (plan->n == 0)
        return dtx_fail(plan->ctx, DTX_E_CONFIG,
                        "plan: no mesh of %d ranks has the parallel.tp, .pp, .dp and .cp that were given", plan->ranks);
    qsort(plan->row, (size_t)plan->n, sizeof *plan->row, compare);
    return DTX_OK;
}

enum dtx_status dtx_plan_open(struct dtx_plan *plan, const struct dtx_opt *opt, int ranks, int per_node)
{
    struct dtx_ctx *ctx = plan->ctx;
    struct dtx_host host;
    enum dtx_dtype dtype = DTX_F32;
    int sharing = per_node ? per_node : ranks ? ranks : INT32_MAX;
    dtx_dtype_parse(dtx_opt_text(opt, "train.dtype"), &dtype);
    dtx_host_read("", &host);
    DTX_TRY(ctx, dtx_backend_open(ctx, "cpu", host.cores_allowed, dtx_isa_detect(), &plan->backend));
    DTX_TRY(ctx, dtx_opt_dump(ctx, opt, &plan->options));
    DTX_TRY(ctx, dtx_machine_find(ctx, dtx_opt_text(opt, "machine"), sharing, dtype, plan->backend, &plan->found));
    plan->machine = &plan->found;
    plan->length = dtx_opt_int(opt, "train.length");
    plan->ranks = ranks ? ranks : (int)plan->found.devices_per_node;
    plan->efficiency = dtx_opt_real(opt, "efficiency") > 0 ? dtx_opt_real(opt, "efficiency") : plan->found.efficiency;
    return plan->backend->queues->create(plan->backend, &plan->queue);
}

enum dtx_status dtx_plan_check(const struct dtx_plan *plan)
{
    const struct dtx_plan_row *best = &plan->row[0];
    if (best->verdict == DTX_PLAN_FITS)
        return DTX_OK;
    return dtx_fail(plan->ctx, DTX_E_CONFIG,
                    "no mesh of %d ranks fits on %s; the closest: tp %d × pp %d × dp %d × cp %d: %s", plan->ranks,
                    plan->machine->name, best->mesh[DTX_AXIS_TP], best->mesh[DTX_AXIS_PP], best->mesh[DTX_AXIS_DP],
                    best->mesh[DTX_AXIS_CP], best->reason);
}

void dtx_plan_free(struct dtx_plan *plan)
{
    dtx_mem_free(plan->row);
    dtx_mem_free(plan->options);
    dtx_opt_free(plan->held);
    if (plan->queue)
        plan->backend->queues->free(plan->queue);
    dtx_backend_close(plan->backend);
}
