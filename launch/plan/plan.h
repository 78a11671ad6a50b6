/*
 * The planner: every mesh of a number of ranks, with every setting that changes memory or time, judged by the trainer's
 * own functions: its configuration checks refuse, trainer/estimate.h counts. Not collective; no MPI.
 */
#ifndef DTX_LAUNCH_PLAN_PLAN_H
#define DTX_LAUNCH_PLAN_PLAN_H

#include "launch/plan/machine.h"
#include "trainer/estimate.h"

/* In the order of preference. */
enum dtx_verdict { DTX_PLAN_FITS, DTX_PLAN_TOO_BIG, DTX_PLAN_REFUSED };

struct dtx_plan_row {
    int mesh[DTX_AXES], chunks, zero;
    bool sequence, ring;
    const char *schedule, *recompute;
    enum dtx_verdict verdict;
    char reason[240]; /* why it does not fit, else empty */
    /* Of rows that are not refused. */
    int64_t micro_batch;
    int micro_batches, worst;  /* worst: the stage that takes most memory */
    struct dtx_estimate stage; /* of that stage's first rank */
    double bytes;              /* its memory with the overhead */
    double sent[DTX_AXES];     /* bytes a step, of the rank that sends most over that axis */
    double bubble;
    double compute, tensor, context, idle, pipe, data, update, step; /* seconds (judge.c); step is the others' sum */
    double mfu;
};

extern const struct dtx_opt_row dtx_plan_options[]; /* of the command, beside the trainer's */

struct dtx_plan {
    struct dtx_ctx *ctx;
    char *options;        /* the user's, resolved, as YAML */
    struct dtx_opt *held; /* what flags and variables say: not varied */
    const struct dtx_machine *machine;
    struct dtx_machine found; /* what machine points to */
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    double efficiency;
    int64_t length; /* of a sequence */
    int ranks, n;
    int64_t capacity;
    struct dtx_plan_row *row;
};

/* Everything but `held` (which the caller has set, and dtx_plan_free frees) from the user's resolved options: the
 * trainer's, "machine" and "efficiency". ranks 0: one node of the machine. per_node: ranks that share a node where the
 * machine is this one; 0: all. */
enum dtx_status dtx_plan_open(struct dtx_plan *plan, const struct dtx_opt *opt, int ranks, int per_node);
/* DTX_E_CONFIG when the best row does not fit, with its reason. */
enum dtx_status dtx_plan_check(const struct dtx_plan *plan);
/* Fills plan->row, the best first: those that fit by time, then too big ones by memory, then refused ones. With `all`
 * every setting of each mesh, else its best one. */
enum dtx_status dtx_plan_search(struct dtx_plan *plan, bool all);
void dtx_plan_free(struct dtx_plan *plan);
/* The trainer's configuration of a row; *opt owns texts that out points to. A refusal is a row's reason, not an error:
 * then *refused. */
enum dtx_status dtx_plan_configure(struct dtx_plan *plan, struct dtx_plan_row *row, struct dtx_opt **opt,
                                   struct dtx_engine_config *out, bool *refused);
/* Memory of a rank with the machine's overhead and, where it counts, the host's. */
double dtx_plan_bytes(const struct dtx_plan *plan, const struct dtx_estimate *estimate);
/* Everything of a row that is not refused: memory, traffic, time, verdict. */
enum dtx_status dtx_plan_judge(struct dtx_plan *plan, struct dtx_plan_row *row, const struct dtx_engine_config *config);
/* The row's mesh and settings as options of dtx train, "--parallel.tp=2", one after another. */
void dtx_plan_flags(const struct dtx_plan_row *row, void (*word)(void *self, const char *text), void *self);
/* stages: also every stage of the rows that are shown. */
enum dtx_status dtx_plan_print(struct dtx_plan *plan, int top, bool stages);
enum dtx_status dtx_plan_print_json(struct dtx_plan *plan, int top, bool stages);

#endif
