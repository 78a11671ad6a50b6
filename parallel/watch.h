/*
 * The watch: when a rank dies, stops, or does something else than the others, all ranks leave with one table that says
 * who is missing where and who disagrees.
 *
 * Every rank keeps a ledger (ledger.h), by default a file in /dev/shm of its node. A thread of each rank looks at its
 * own ledger and at the process of one neighbour on the node. A collective or wait that takes longer than `timeout`, a
 * dead neighbour, or an error of MPI raises the alarm: a file that one rank alone can make. That rank reads the others'
 * ledgers (of its own node where they lie, of other nodes from the copies that ranks alive leave in RUN/watch), prints
 * the table and aborts the job. The thread calls nothing of MPI but MPI_Abort. Time in which a whole job was suspended
 * does not count.
 */
#ifndef DTX_PARALLEL_WATCH_H
#define DTX_PARALLEL_WATCH_H

#include "parallel/comm.h"
#include "parallel/ledger.h"

struct dtx_watch_options {
    double timeout;  /* seconds that a collective or wait may take; 0: no thread, and nobody raises an alarm */
    const char *dir; /* folder of the ledgers, on the node; "": /dev/shm or else $TMPDIR or /tmp; "none": memory */
    bool check;      /* compare operation, bytes, dtype and root over the communicator before every collective */
    int (*stop_asked)(void); /* non-zero once this rank was sent a signal to stop; NULL: never. Any thread */
};

/* Begins to watch the world and what is split from it from now on. Ledgers of dead ranks of the same run, and any older
 * than a week, are removed from the folder. A folder that cannot be used is a warning. Collective; nothing for a world
 * of one rank. */
enum dtx_status dtx_watch_start(struct dtx_comm *world, const struct dtx_watch_options *options);
/* The run's folder, which all ranks can write to: from now on the alarm and copies of ledgers lie in RUN/watch, and
 * `dtx watch RUN` finds the ranks. `reported` is called on the rank that reports, by any thread, before the job is
 * aborted. Collective over the world. */
enum dtx_status dtx_watch_share(struct dtx_comm *world, const char *run,
                                void (*reported)(void *self, const char *cause), void *self);
/* For `reported`: [ranks of the world] those that the table is about (dead, stopped, failed, missing). Not collective.
 */
void dtx_watch_blamed(struct dtx_comm *world, bool *blamed);
/* The members of `comm` are at disks between its collectives: one that waits counts as hanging after `seconds` (0:
 * never) instead of the watch's timeout, and until then nobody is said to be missing there. Not collective. */
void dtx_watch_patience(struct dtx_comm *comm, double seconds);
/* "tp 0 dp 1 pp 0", for the table. Not collective. */
void dtx_watch_describe(struct dtx_comm *world, const char *mesh);

/* The rest is between the files of the communicators. */

/* What of this rank runs where no thread waits for it: on a device. Lives in the caller until it is taken out. */
struct dtx_watch_beside {
    struct dtx_watch_beside *next;
    void *self;
    /* Notes in the ledger what has ended. False: something failed and will not end; why. Any thread. */
    bool (*look)(void *self, char *why, size_t size);
    void (*stop)(void *self); /* ends it unfinished, for a rank that leaves; may take its time. Any thread */
};
void dtx_watch_beside(struct dtx_watch *watch, struct dtx_watch_beside *beside); /* watch NULL: nothing */
/* Afterwards nobody is in it. */
void dtx_watch_beside_end(struct dtx_watch *watch, struct dtx_watch_beside *beside);

/* A page of the ledger for `part`, just split from `parent` with `color`. */
void dtx_watch_join(struct dtx_comm *part, struct dtx_comm *parent, int color);
/* Debug mode: what the members of `comm` are about to do, compared. Always the same call of MPI. DTX_E_INTERNAL on all
 * members when they disagree. By the thread that executes the collective, before it. */
enum dtx_status dtx_watch_compare(struct dtx_comm *comm, struct dtx_ledger_mark mark);
/* This rank failed (ctx->error) and leaves while the others may be anywhere; `table`: where all are belongs to the
 * report. Prints, unless another rank has the alarm, and aborts the job. Returns only when nobody watches. */
void dtx_watch_fail(struct dtx_comm *world, bool table, int exit_code);
/* This rank has failed: its ledger says why. table: others may want to see it. */
void dtx_watch_failing(struct dtx_comm *world, bool table);
/* The table alone, when all ranks have come to the end and one has printed the error that concerns them all. */
void dtx_watch_print(struct dtx_comm *world);
/* Before a rank aborts the job by itself: its death is then no news. */
void dtx_watch_leave(struct dtx_comm *world);
/* Ends the thread and removes the ledger. Before MPI_Finalize, when all ranks have come to the end. */
void dtx_watch_stop(struct dtx_comm *world);

#endif
