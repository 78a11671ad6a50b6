/* Between the files of the watch. */
#ifndef DTX_PARALLEL_WATCH_IMPL_H
#define DTX_PARALLEL_WATCH_IMPL_H

#include <pthread.h>

#include "parallel/watch.h"
#include "parallel/watch_view.h"

struct dtx_watch {
    struct dtx_comm *world;
    struct dtx_ctx ctx; /* of the thread */
    struct dtx_watch_options options;
    struct dtx_ledger *ledger;
    char path[DTX_WATCH_PATH]; /* of the ledger; "": in memory */
    struct dtx_watch_place place;
    atomic_bool shared; /* place.run and `reported` are set on all ranks */
    void (*reported)(void *self, const char *cause);
    void *reported_self;
    int neighbour; /* the next rank of this host, whose process this one looks at; −1: none */
    bool one_host, lowest_here;
    atomic_bool leaving;  /* a thread of this rank is in an alarm */
    double looked, floor; /* when the thread looked last; waits count from `floor` at the earliest */
    pthread_t thread;
    bool threaded, stop;
    pthread_mutex_t mutex; /* of stop */
    struct dtx_watch_beside *beside;
    pthread_mutex_t beside_mutex;
    pthread_cond_t changed;
};

/* What a rank is about to do, for the debug mode. */
struct dtx_watch_record {
    uint64_t number;
    int64_t count, bytes;
    int32_t op, dtype, peer, line;
    char file[DTX_LEDGER_FILE];
};

/* RUN/watch/NAME; NAME "": the folder. */
void dtx_watch_shared_path(const struct dtx_watch *w, const char *name, char path[DTX_WATCH_PATH]);
/* Ends the job with one table: the rank that makes the alarm file prints, the others leave their ledgers and wait to be
 * killed. table: where everybody is. death: the others are about to be killed, do not wait for them long. Does not
 * return. */
void dtx_watch_alarm(struct dtx_watch *w, const char *reason, bool table, bool death);
/* The same for a rank that is not concerned, if there is an alarm; else returns. */
void dtx_watch_follow(struct dtx_watch *w);

/* watch_beside.c: looks at what runs beside, and raises the alarm when that failed; ends it, when this rank leaves. */
void dtx_watch_look_beside(struct dtx_watch *w);
void dtx_watch_stop_beside(struct dtx_watch *w);

#endif
