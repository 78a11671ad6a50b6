/*
 * `dtx doctor --ranks`: are the nodes of an allocation fit for a run? Every rank measures, all results are gathered,
 * and rank 0 compares each node with the median of all. Functions are collective over the world unless they say
 * otherwise; each ends in a gather, so a rank that hangs is named by the watch.
 */
#ifndef DTX_LAUNCH_DOCTOR_PREFLIGHT_H
#define DTX_LAUNCH_DOCTOR_PREFLIGHT_H

#include "launch/doctor/measure.h"
#include "trainer/selfcheck.h"
#include "trainer/session.h"

enum { DTX_PREFLIGHT_ROUNDS = 7 };

/* What is compared between ranks or nodes. The first two are of every rank, the others of each node's first. */
enum dtx_preflight_measure {
    DTX_PREFLIGHT_GEMM,   /* FLOP/s, fp32 */
    DTX_PREFLIGHT_MEMORY, /* bytes/s of a triad */
    DTX_PREFLIGHT_WRITE,  /* bytes/s, in the run's folder */
    DTX_PREFLIGHT_READ,   /* bytes/s */
    DTX_PREFLIGHT_SYNC,   /* seconds of a small write + fsync */
    DTX_PREFLIGHT_REDUCE, /* bytes/s of an all-reduce among the node's ranks */
    DTX_PREFLIGHT_MEASURES
};

/* What a rank found; exchanged as bytes. Values that were not measured are NaN. */
struct dtx_preflight_rank {
    char node[64], host[64]; /* Slurm's name for it, or the host's; the host's */
    uint64_t program;        /* hash of the executable */
    char libraries[128];     /* "dtx 0.1.0, Open MPI …" */
    char processor[96];
    int isa, threads;
    double value[DTX_PREFLIGHT_MEASURES];
    double link[DTX_PREFLIGHT_ROUNDS]; /* bytes/s each way with that round's partner */
    double clock, clock_error;         /* of a node's first rank: seconds ahead of rank 0's */
    bool sees_folder;
    char failure[256]; /* of a measurement */
};

struct dtx_preflight_node {
    char name[64];
    int n, *rank; /* world ranks, ascending */
};

/* A finding about a node, or about none. */
struct dtx_preflight_problem {
    int node;   /* −1: no single node */
    bool fatal; /* the node is unfit, or the run would not work; else only worth knowing */
    const char *check;
    char text[600];
};

struct dtx_preflight_limits { /* shares of the median; seconds */
    double gemm, memory, disk, node, link, clock;
};

struct dtx_preflight {
    struct dtx_ctx *ctx;
    struct dtx_comm *world;
    struct dtx_backend *backend;
    struct dtx_preflight_limits limits;
    double seconds;
    char folder[DTX_PATH]; /* made for this call in the run's folder; "": not yet */
    char bad_nodes[DTX_PATH];
    struct dtx_preflight_rank mine, *ranks; /* [size]: all, after the last gather */
    int n_nodes, node, local;               /* this rank's node, and its number there */
    struct dtx_preflight_node *nodes;
    int *node_of;                /* [size] */
    struct dtx_comm *node_ranks; /* of this node */
    int rounds;                  /* of links */
    double reduce, reduce_one;   /* all-reduce over all ranks: bytes/s; seconds for one number. NaN: one node */
    bool steps_compared;
    char steps_left_out[128]; /* why not */
    const struct dtx_selfcheck_model *model;
    struct dtx_selfcheck_verdict steps;
    bool *suspect; /* [size] of the steps */
    int n_problems, problems_room;
    struct dtx_preflight_problem *problems; /* rank 0 */
    double begin, took;
};

/* The command; argv still holds --ranks. */
enum dtx_status dtx_preflight(struct dtx_ctx *ctx, int argc, char **argv);

/* Who is where, and is it the same program everywhere: fills nodes, mine, ranks. */
enum dtx_status dtx_preflight_identify(struct dtx_preflight *p);
void dtx_preflight_free(struct dtx_preflight *p); /* memory; not collective */
/* This rank's results go to all. */
enum dtx_status dtx_preflight_gather(struct dtx_preflight *p);
/* A measurement that failed on this rank: noted, the others go on. Not collective. */
void dtx_preflight_note(struct dtx_preflight *p, enum dtx_status status);

/* Makes p->folder in `folder`, or without it in the run's or the nearest above that exists, and finds out which nodes
 * see it and what others write there. */
enum dtx_status dtx_preflight_share_folder(struct dtx_preflight *p, const char *folder, const char *run_dir);
void dtx_preflight_empty_folder(struct dtx_preflight *p); /* what the checks left; not collective */

/* How far the nodes' clocks are apart; all-reduce on each node; nodes in pairs, in rounds. */
enum dtx_status dtx_preflight_clocks(struct dtx_preflight *p);
enum dtx_status dtx_preflight_links(struct dtx_preflight *p);
/* The partner of a node in a round; itself: none. Not collective. */
int dtx_preflight_partner(const struct dtx_preflight *p, int node, int round);

/* Rank 0: what is out of line. */
enum dtx_status dtx_preflight_judge(struct dtx_preflight *p);
bool dtx_preflight_slow(const struct dtx_preflight *p); /* worth a second look at speeds; every rank, not collective */
/* Of the ranks' values of a measure (NaN left out); 0 without any. Not collective. */
double dtx_preflight_median(const struct dtx_preflight *p, enum dtx_preflight_measure measure);
/* A pair's speed each way, all ranks of both together; NaN: not measured. */
double dtx_preflight_pair(const struct dtx_preflight *p, int node, int round);
double dtx_preflight_best_pair(const struct dtx_preflight *p, int node); /* of all rounds */
bool dtx_preflight_bad(const struct dtx_preflight *p, int node);         /* the node has a fatal problem */

/* Rank 0: the table; the whole as JSON to a path. */
void dtx_preflight_show(const struct dtx_preflight *p, FILE *file);
enum dtx_status dtx_preflight_write_json(const struct dtx_preflight *p, const char *path);
/* Names of nodes, one a line, to p->bad_nodes ("": nowhere); any rank. NULL: of none. */
enum dtx_status dtx_preflight_write_bad(const struct dtx_preflight *p, const bool *bad);

#endif
