/* The results of `dtx doctor --ranks` for people and for programs. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "launch/doctor/preflight.h"
#include "launch/doctor/report.h"

enum { MOST_ROWS = 32 }; /* of nodes that are well */

/* The columns of the table; check: what marks a value. */
static const struct {
    enum dtx_preflight_measure measure;
    const char *name, *key, *unit, *check;
} columns[] = {{DTX_PREFLIGHT_GEMM, "GEMM fp32", "gemm_f32_flops_per_second", "FLOP/s", "gemm"},
               {DTX_PREFLIGHT_MEMORY, "memory", "triad_bytes_per_second", "B/s", "memory"},
               {DTX_PREFLIGHT_REDUCE, "all-reduce", "all_reduce_bytes_per_second", "B/s", "node"},
               {DTX_PREFLIGHT_WRITE, "disk write", "disk_write_bytes_per_second", "B/s", "disk"},
               {DTX_PREFLIGHT_READ, "disk read", "disk_read_bytes_per_second", "B/s", "disk"},
               {DTX_PREFLIGHT_SYNC, "fsync", "disk_sync_seconds", "s", "disk"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void scale(int column, double value, char text[32])
{
    if (isnan(value))
        snprintf(text, 32, "-");
    else if (columns[column].measure == DTX_PREFLIGHT_SYNC)
        dtx_report_seconds(value, text);
    else
        dtx_report_scaled(value, columns[column].unit, text);
}

/* Columns of the terminal, not bytes: of "µ" there are two. */
static void print_cell(FILE *file, const char *text, int width)
{
    fprintf(file, "%*s", width + (strstr(text, "µ") != NULL), text);
}

/* Of the node's ranks the worst; NaN: none measured. */
static double worst_of(const struct dtx_preflight *p, int node, enum dtx_preflight_measure measure)
{
    double worst = NAN;
    for (int i = 0; i < p->nodes[node].n; i++) {
        double value = p->ranks[p->nodes[node].rank[i]].value[measure];
        worst = measure == DTX_PREFLIGHT_SYNC ? fmax(worst, value) : fmin(worst, value);
    }
    return worst;
}

static bool has_problem(const struct dtx_preflight *p, int node, const char *check)
{
    for (int i = 0; i < p->n_problems; i++)
        if (p->problems[i].node == node && (!check || strcmp(p->problems[i].check, check) == 0))
            return true;
    return false;
}

static void print_row(const struct dtx_preflight *p, int node, FILE *file)
{
    char text[32], cell[40];
    const struct dtx_preflight_rank *first = &p->ranks[p->nodes[node].rank[0]];
    fprintf(file, "%-16s %5d", p->nodes[node].name, p->nodes[node].n);
    for (int c = 0; c < COLUMNS; c++) {
        scale(c, worst_of(p, node, columns[c].measure), text);
        snprintf(cell, sizeof cell, "%s%s", text, has_problem(p, node, columns[c].check) ? " !" : "");
        print_cell(file, cell, 15);
    }
    if (p->rounds) {
        dtx_report_scaled(dtx_preflight_best_pair(p, node), "B/s", text);
        snprintf(cell, sizeof cell, "%s%s", text, has_problem(p, node, "link") ? " !" : "");
        print_cell(file, cell, 15);
        dtx_report_seconds(fabs(first->clock), text);
        snprintf(cell, sizeof cell, "%s%s%s", first->clock < 0 ? "-" : "", first->clock == 0 ? "0 s" : text,
                 has_problem(p, node, "clock") ? " !" : "");
        print_cell(file, cell, 12);
    }
    fprintf(file, "\n");
}

static void print_table(const struct dtx_preflight *p, FILE *file)
{
    int left_out = 0, shown = 0;
    fprintf(file, "%-16s %5s", "node", "ranks");
    for (int c = 0; c < COLUMNS; c++)
        fprintf(file, "%15s", columns[c].name);
    if (p->rounds)
        fprintf(file, "%15s%12s", "best link", "clock");
    fprintf(file, "\n");
    for (int n = 0; n < p->n_nodes; n++) {
        if (!has_problem(p, n, NULL) && shown++ >= MOST_ROWS)
            left_out++;
        else
            print_row(p, n, file);
    }
    if (left_out)
        fprintf(file, "and %d more nodes without a finding\n", left_out);
    fprintf(file, "%-22s", "median");
    for (int c = 0; c < COLUMNS; c++) {
        char text[32];
        double median = dtx_preflight_median(p, columns[c].measure);
        scale(c, median > 0 ? median : NAN, text);
        print_cell(file, text, 15);
    }
    fprintf(
        file,
        "\nGEMM, memory: of each node's slowest rank, all at once; links: each way, all pairs of a round at once\n");
}

static void print_network(const struct dtx_preflight *p, FILE *file)
{
    char speed[32], one[32];
    if (p->rounds == 0)
        return;
    dtx_report_scaled(p->reduce, "B/s", speed);
    dtx_report_seconds(p->reduce_one, one);
    fprintf(file, "all-reduce over all ranks: 16 MiB at %s, one number in %s\n", speed, one);
}

static void print_steps(const struct dtx_preflight *p, FILE *file)
{
    if (!p->steps_compared)
        fprintf(file, "three steps: not compared: %s\n", p->steps_left_out);
    else if (p->steps.wrong)
        fprintf(file, "three steps: WRONG: %s\n", p->steps.text);
    else
        fprintf(
            file,
            "three steps: as they should be (off by %.0e in losses, %.0e in norms, %.0e in gradients, %.0e in λ's)\n",
            p->steps.worst[0], p->steps.worst[1], p->steps.worst[2], p->steps.worst[3]);
}

void dtx_preflight_show(const struct dtx_preflight *p, FILE *file)
{
    int bad = 0, fatal = 0;
    print_table(p, file);
    print_network(p, file);
    print_steps(p, file);
    for (int i = 0; i < p->n_problems; i++) {
        const struct dtx_preflight_problem *problem = &p->problems[i];
        fatal += problem->fatal;
        fprintf(file, "%s %s%s%s\n", problem->fatal ? "FAULT  " : "warning",
                problem->node < 0 ? "" : p->nodes[problem->node].name, problem->node < 0 ? "" : ": ", problem->text);
    }
    for (int n = 0; n < p->n_nodes; n++)
        bad += dtx_preflight_bad(p, n);
    fprintf(file, "pre-flight: %s: %d node%s, %d rank%s, %.1f s", fatal ? "FAILED" : "passed", p->n_nodes,
            p->n_nodes == 1 ? "" : "s", p->world->size, p->world->size == 1 ? "" : "s", p->took);
    for (int n = 0, said = 0; n < p->n_nodes; n++)
        if (dtx_preflight_bad(p, n))
            fprintf(file, "%s%s", said++ ? ", " : "; unfit: ", p->nodes[n].name);
    fprintf(file, "%s\n", fatal && !bad ? "; no single node is to blame" : "");
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *node_json(const struct dtx_preflight *p, int node)
{
    const struct dtx_preflight_node *n = &p->nodes[node];
    const struct dtx_preflight_rank *first = &p->ranks[n->rank[0]];
    json_t *object =
        json_pack("{s:s, s:b, s:s, s:s, s:s, s:i, s:b, s:o, s:o}", "node", n->name, "fit", !dtx_preflight_bad(p, node),
                  "libraries", first->libraries, "processor", first->processor, "instruction_set",
                  dtx_isa_name(first->isa), "threads", first->threads, "sees_folder", first->sees_folder,
                  "clock_seconds", number(first->clock), "clock_error_seconds", number(first->clock_error));
    json_t *ranks = json_array(), *links = json_object();
    for (int c = 2; c < COLUMNS; c++)
        json_object_set_new(object, columns[c].key, number(first->value[columns[c].measure]));
    for (int i = 0; i < n->n; i++) {
        const struct dtx_preflight_rank *r = &p->ranks[n->rank[i]];
        json_t *rank = json_pack("{s:i}", "rank", n->rank[i]);
        for (int c = 0; c < 2; c++)
            json_object_set_new(rank, columns[c].key, number(r->value[columns[c].measure]));
        json_array_append_new(ranks, rank);
    }
    for (int round = 0; round < p->rounds; round++) {
        int other = dtx_preflight_partner(p, node, round);
        if (other != node)
            json_object_set_new(links, p->nodes[other].name, number(dtx_preflight_pair(p, node, round)));
    }
    json_object_set_new(object, "ranks", ranks);
    json_object_set_new(object, "link_bytes_per_second", links);
    return object;
}

static json_t *whole_json(const struct dtx_preflight *p)
{
    json_t *nodes = json_array(), *problems = json_array();
    bool passed = true;
    for (int n = 0; n < p->n_nodes; n++)
        json_array_append_new(nodes, node_json(p, n));
    for (int i = 0; i < p->n_problems; i++) {
        const struct dtx_preflight_problem *problem = &p->problems[i];
        passed = passed && !problem->fatal;
        json_array_append_new(problems,
                              json_pack("{s:o, s:b, s:s, s:s}", "node",
                                        problem->node < 0 ? json_null() : json_string(p->nodes[problem->node].name),
                                        "fatal", problem->fatal, "check", problem->check, "text", problem->text));
    }
    json_t *steps = json_pack("{s:b, s:b, s:s}", "compared", p->steps_compared, "right", !p->steps.wrong, "text",
                              p->steps_compared ? p->steps.text : p->steps_left_out);
    return json_pack("{s:b, s:i, s:f, s:f, s:o, s:o, s:o, s:o, s:o}", "passed", passed, "ranks", p->world->size,
                     "seconds", p->took, "time", dtx_clock_wall(), "all_reduce_bytes_per_second", number(p->reduce),
                     "all_reduce_latency_seconds", number(p->reduce_one), "steps", steps, "problems", problems, "nodes",
                     nodes);
}

enum dtx_status dtx_preflight_write_json(const struct dtx_preflight *p, const char *path)
{
    json_t *root = whole_json(p);
    FILE *file = root ? fopen(path, "w") : NULL;
    bool good = file && json_dumpf(root, file, JSON_INDENT(2)) == 0 && fputc('\n', file) != EOF;
    if (file)
        good = fclose(file) == 0 && good;
    json_decref(root);
    return good ? DTX_OK : dtx_fail(p->ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
}

enum dtx_status dtx_preflight_write_bad(const struct dtx_preflight *p, const bool *bad)
{
    if (!p->bad_nodes[0])
        return DTX_OK;
    FILE *file = fopen(p->bad_nodes, "w");
    bool good = file != NULL;
    for (int n = 0; bad && n < p->n_nodes && good; n++)
        good = !bad[n] || fprintf(file, "%s\n", p->nodes[n].name) > 0;
    if (file)
        good = fclose(file) == 0 && good;
    return good ? DTX_OK : dtx_fail(p->ctx, DTX_E_IO, "%s: cannot write: %s", p->bad_nodes, strerror(errno));
}
