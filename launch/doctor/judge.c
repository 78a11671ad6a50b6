/* What is out of line: each value beside the median of its kind, each name beside what most ranks say. Rank 0. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "launch/doctor/preflight.h"
#include "launch/doctor/report.h"

static void report(struct dtx_preflight *p, int node, bool fatal, const char *check, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void report(struct dtx_preflight *p, int node, bool fatal, const char *check, const char *format, ...)
{
    va_list arguments;
    if (p->n_problems == p->problems_room) {
        int room = 2 * p->problems_room + 16;
        void *more = realloc(p->problems, (size_t)room * sizeof *p->problems);
        if (!more) {
            dtx_fail(p->ctx, DTX_E_MEMORY, "no memory for %d findings", room);
            return;
        }
        p->problems = more;
        p->problems_room = room;
    }
    struct dtx_preflight_problem *problem = &p->problems[p->n_problems++];
    *problem = (struct dtx_preflight_problem){.node = node, .fatal = fatal, .check = check};
    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
}

bool dtx_preflight_bad(const struct dtx_preflight *p, int node)
{
    for (int i = 0; i < p->n_problems; i++)
        if (p->problems[i].node == node && p->problems[i].fatal)
            return true;
    return false;
}

double dtx_preflight_median(const struct dtx_preflight *p, enum dtx_preflight_measure measure)
{
    double *values = malloc((size_t)p->world->size * sizeof *values), median = 0;
    int n = 0;
    for (int r = 0; values && r < p->world->size; r++)
        if (!isnan(p->ranks[r].value[measure]))
            values[n++] = p->ranks[r].value[measure];
    if (values)
        median = dtx_measure_median(values, n);
    free(values);
    return median;
}

static double limit_of(const struct dtx_preflight *p, enum dtx_preflight_measure measure)
{
    return measure == DTX_PREFLIGHT_GEMM     ? p->limits.gemm
           : measure == DTX_PREFLIGHT_MEMORY ? p->limits.memory
           : measure == DTX_PREFLIGHT_REDUCE ? p->limits.node
                                             : p->limits.disk;
}

/* Below its share of the median (a time: above the median by as much). */
static bool out_of_line(const struct dtx_preflight *p, enum dtx_preflight_measure measure, double value, double median)
{
    double limit = limit_of(p, measure);
    if (measure == DTX_PREFLIGHT_SYNC)
        return value * limit > median;
    return value < limit * median;
}

bool dtx_preflight_slow(const struct dtx_preflight *p)
{
    static const enum dtx_preflight_measure speeds[] = {DTX_PREFLIGHT_GEMM, DTX_PREFLIGHT_MEMORY};
    for (int i = 0; i < 2; i++) {
        double median = dtx_preflight_median(p, speeds[i]);
        for (int r = 0; r < p->world->size; r++)
            if (out_of_line(p, speeds[i], p->ranks[r].value[speeds[i]], median))
                return true;
    }
    return false;
}

/* A speed of each rank or node. */
static void judge_speed(struct dtx_preflight *p, enum dtx_preflight_measure measure, const char *check,
                        const char *what, bool fatal)
{
    double median = dtx_preflight_median(p, measure);
    bool time = measure == DTX_PREFLIGHT_SYNC, each = measure <= DTX_PREFLIGHT_MEMORY;
    for (int r = 0; r < p->world->size; r++) {
        double value = p->ranks[r].value[measure];
        char got[32], usual[32], rank[32] = "";
        if (isnan(value) || !out_of_line(p, measure, value, median))
            continue;
        if (time) {
            dtx_report_seconds(value, got);
            dtx_report_seconds(median, usual);
        } else {
            dtx_report_scaled(value, measure == DTX_PREFLIGHT_GEMM ? "FLOP/s" : "B/s", got);
            dtx_report_scaled(median, measure == DTX_PREFLIGHT_GEMM ? "FLOP/s" : "B/s", usual);
        }
        if (each)
            snprintf(rank, sizeof rank, " of rank %d", r);
        report(p, p->node_of[r], fatal, check, "%s%s: %s, the median is %s (limit: %g of it)", what, rank, got, usual,
               limit_of(p, measure));
    }
}

double dtx_preflight_pair(const struct dtx_preflight *p, int node, int round)
{
    int other = dtx_preflight_partner(p, node, round);
    double sum = NAN;
    for (int i = 0; i < p->nodes[node].n && other != node; i++) {
        double mine = p->ranks[p->nodes[node].rank[i]].link[round];
        double both = i < p->nodes[other].n ? fmin(mine, p->ranks[p->nodes[other].rank[i]].link[round]) : NAN;
        if (!isnan(both))
            sum = isnan(sum) ? both : sum + both;
    }
    return sum;
}

double dtx_preflight_best_pair(const struct dtx_preflight *p, int node)
{
    double best = NAN;
    for (int round = 0; round < p->rounds; round++)
        best = fmax(best, dtx_preflight_pair(p, node, round)); /* of a number and NaN the number */
    return best;
}

/* A node that is slow with everybody has a bad adapter or cable; a pair that is slow alone has a bad link between. */
static void judge_links(struct dtx_preflight *p)
{
    double *best = malloc((size_t)p->n_nodes * sizeof *best), usual;
    int n = 0;
    char got[32], text[32];
    for (int node = 0; best && node < p->n_nodes; node++)
        if (!isnan(dtx_preflight_best_pair(p, node)))
            best[n++] = dtx_preflight_best_pair(p, node);
    usual = best ? dtx_measure_median(best, n) : 0;
    dtx_report_scaled(usual, "B/s", text);
    for (int node = 0; node < p->n_nodes; node++)
        if (dtx_preflight_best_pair(p, node) < p->limits.link * usual) {
            dtx_report_scaled(dtx_preflight_best_pair(p, node), "B/s", got);
            report(p, node, true, "link",
                   "network: %s with the best of its partners, the nodes' median is %s (limit: %g of it)", got, text,
                   p->limits.link);
        }
    for (int node = 0; node < p->n_nodes; node++)
        for (int round = 0; round < p->rounds; round++) {
            int other = dtx_preflight_partner(p, node, round);
            double pair = dtx_preflight_pair(p, node, round);
            if (other <= node || !(pair < p->limits.link * usual) || dtx_preflight_bad(p, node) ||
                dtx_preflight_bad(p, other))
                continue;
            dtx_report_scaled(pair, "B/s", got);
            report(p, -1, false, "link", "network between %s and %s: %s, others have %s: a bad link between them",
                   p->nodes[node].name, p->nodes[other].name, got, text);
        }
    free(best);
}

/* Clocks beside the median of all: rank 0's may be the one that is wrong. */
static void judge_clocks(struct dtx_preflight *p)
{
    double *ahead = malloc((size_t)p->n_nodes * sizeof *ahead);
    for (int n = 0; ahead && n < p->n_nodes; n++)
        ahead[n] = p->ranks[p->nodes[n].rank[0]].clock;
    double median = ahead ? dtx_measure_median(ahead, p->n_nodes) : 0;
    free(ahead);
    for (int n = 0; n < p->n_nodes; n++) {
        const struct dtx_preflight_rank *r = &p->ranks[p->nodes[n].rank[0]];
        double off = r->clock - median;
        char text[32];
        if (!(fabs(off) - r->clock_error > p->limits.clock))
            continue;
        dtx_report_seconds(fabs(off), text);
        report(p, n, true, "clock",
               "its clock is %s %s the nodes' median (limit: %g s); is it synchronised (chrony, ntp)?", text,
               off > 0 ? "ahead of" : "behind", p->limits.clock);
    }
}

/* How many ranks have this rank's value in a field of the record. */
static int same(const struct dtx_preflight *p, int rank, size_t offset, size_t bytes)
{
    int n = 0;
    for (int r = 0; r < p->world->size; r++)
        n += memcmp((const char *)&p->ranks[r] + offset, (const char *)&p->ranks[rank] + offset, bytes) == 0;
    return n;
}

/* The rank whose value is the most frequent. */
static int usual_rank(const struct dtx_preflight *p, size_t offset, size_t bytes)
{
    int usual = 0;
    for (int n = 1; n < p->n_nodes; n++)
        if (same(p, p->nodes[n].rank[0], offset, bytes) > same(p, usual, offset, bytes))
            usual = p->nodes[n].rank[0];
    return usual;
}
#define FIELD(name) offsetof(struct dtx_preflight_rank, name), sizeof(((struct dtx_preflight_rank *)NULL)->name)

static void judge_programs(struct dtx_preflight *p)
{
    int program = usual_rank(p, FIELD(program)), libraries = usual_rank(p, FIELD(libraries)),
        isa = usual_rank(p, FIELD(isa));
    for (int n = 0; n < p->n_nodes; n++)
        for (int i = 0, said = 0; i < p->nodes[n].n && !said; i++) {
            const struct dtx_preflight_rank *r = &p->ranks[p->nodes[n].rank[i]];
            said = 1;
            if (strcmp(r->libraries, p->ranks[libraries].libraries) != 0)
                report(p, n, true, "libraries", "has %s; most have %s", r->libraries, p->ranks[libraries].libraries);
            else if (r->program != p->ranks[program].program)
                report(p, n, true, "program",
                       "runs another executable of dtx than most (%016llx, not %016llx): an old copy on its own disk?",
                       (unsigned long long)r->program, (unsigned long long)p->ranks[program].program);
            else if (r->isa != p->ranks[isa].isa)
                report(p, n, false, "processor", "%s has instruction set %s, most have %s: all ranks take the lowest",
                       r->processor, dtx_isa_name(r->isa), dtx_isa_name(p->ranks[isa].isa));
            else
                said = 0;
        }
}

/* Which side of a folder that is not shared is wrong, nobody can tell when as many see it as do not. */
static void judge_folder(struct dtx_preflight *p)
{
    int blind = 0;
    for (int n = 0; n < p->n_nodes; n++)
        blind += !p->ranks[p->nodes[n].rank[0]].sees_folder;
    bool few = 2 * blind < p->n_nodes;
    for (int n = 0; n < p->n_nodes; n++)
        if (!p->ranks[p->nodes[n].rank[0]].sees_folder)
            report(p, few ? n : -1, true, "folder",
                   "%s%s does not see what other nodes write in %.300s: run.dir must lie on a file system of all nodes",
                   few ? "" : p->nodes[n].name, few ? "it" : "", p->folder);
}

static void judge_steps(struct dtx_preflight *p)
{
    bool clean = false;
    if (!p->steps_compared || !p->steps.wrong)
        return;
    for (int n = 0; n < p->n_nodes; n++) {
        bool suspect = false;
        for (int i = 0; i < p->nodes[n].n; i++)
            suspect = suspect || p->suspect[p->nodes[n].rank[i]];
        clean = clean || !suspect;
    }
    report(p, -1, true, "steps", "three fp32 steps on this mesh do not give what they should");
    for (int r = 0; r < p->world->size && clean; r++)
        if (p->suspect[r])
            report(p, p->node_of[r], true, "steps", "rank %d is to blame for wrong steps", r);
}

enum dtx_status dtx_preflight_judge(struct dtx_preflight *p)
{
    p->n_problems = 0;
    judge_programs(p);
    for (int r = 0; r < p->world->size; r++)
        if (p->ranks[r].failure[0])
            report(p, p->node_of[r], true, "error", "rank %d: %s", r, p->ranks[r].failure);
    judge_folder(p);
    judge_speed(p, DTX_PREFLIGHT_GEMM, "gemm", "GEMM fp32", true);
    judge_speed(p, DTX_PREFLIGHT_MEMORY, "memory", "memory (triad)", true);
    judge_speed(p, DTX_PREFLIGHT_REDUCE, "node", "all-reduce on the node", true);
    judge_speed(p, DTX_PREFLIGHT_WRITE, "disk", "writing to run.dir", false);
    judge_speed(p, DTX_PREFLIGHT_READ, "disk", "reading from run.dir", false);
    judge_speed(p, DTX_PREFLIGHT_SYNC, "disk", "4 KiB + fsync in run.dir", false);
    judge_clocks(p);
    judge_links(p);
    judge_steps(p);
    return p->ctx->error.status;
}
