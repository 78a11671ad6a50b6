/*
 * Which ranks hold the others up: the time that a rank spends in steps and in no collective, message or wait of its
 * communicators, beside the median of the ranks of its pipeline stage, which all do the same work. Asked every
 * log.every steps. A rank above health.slow times the median for health.slow_intervals intervals in a row is named with
 * its host, and again after twice as long, four times, …
 */
#ifndef DTX_TRAINER_SLOW_H
#define DTX_TRAINER_SLOW_H

#include "parallel/mesh.h"

/* Seconds of one rank. */
struct dtx_slow_times {
    double own, data; /* own work; of it waiting for samples */
};

struct dtx_slow {
    struct dtx_comm *world;
    double factor; /* 0: nobody asks */
    int intervals; /* in a row */
    int64_t every; /* steps of an interval */
    int64_t steps; /* of this one; −1: the first step, which sets things up, does not count */
    double waited; /* the thread's, when the step began */
    double began;
    struct dtx_slow_times mine, *all; /* [ranks] */
    int peers;                        /* ranks of a stage: neighbours in the world */
    int *in_a_row;                    /* [ranks]: intervals */
    double *sorted;                   /* [peers] */
};

/* What the last interval came to. */
struct dtx_slow_report {
    int slowest;    /* rank */
    double ratio;   /* of its time to the median; 0: no interval ended, or no stage has two ranks */
    int named;      /* rank that is to be named, −1: none */
    char text[640]; /* what is to be said of it, and of others with it */
};

/* Collective over the world. */
enum dtx_status dtx_slow_open(const struct dtx_mesh *mesh, double factor, int intervals, int64_t every,
                              struct dtx_slow *out);
void dtx_slow_close(struct dtx_slow *slow);
/* Around a step's work, by the thread that does it. Not collective. */
void dtx_slow_begin(struct dtx_slow *slow);
void dtx_slow_end(struct dtx_slow *slow, double data_seconds);
/* After each step. Collective over the world where an interval ends; the report is the same on all ranks. */
enum dtx_status dtx_slow_ask(struct dtx_slow *slow, struct dtx_slow_report *out);
/* The part without messages: from slow->all, seconds of `every` steps. */
void dtx_slow_compare(struct dtx_slow *slow, struct dtx_slow_report *out);

#endif
