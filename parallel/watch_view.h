/*
 * What the ledgers of all ranks say together: collected by a rank that reports, or by `dtx watch RUN` from outside. Not
 * collective; no MPI.
 */
#ifndef DTX_PARALLEL_WATCH_VIEW_H
#define DTX_PARALLEL_WATCH_VIEW_H

#include <stdio.h>

#include "parallel/ledger.h"

enum { DTX_WATCH_PATH = 4096 };

/* Who a rank is. */
struct dtx_watch_rank {
    char host[64];
    int32_t pid;
    uint64_t born; /* as in the ledger; 0: unknown */
};

/* Where the ledgers of a launch are. */
struct dtx_watch_place {
    char prefix[DTX_WATCH_PATH]; /* ledger of rank r: "PREFIX-<r>"; "": nowhere on a disk */
    char run[DTX_WATCH_PATH];    /* copies: RUN/watch/rank-<r>; "": none */
    uint64_t token;
    int size;
    struct dtx_watch_rank *ranks; /* [size] */
};

/* RUN/watch/ranks: how others find the ledgers of a run. read: DTX_E_IO when there is none; free the ranks with
 * dtx_mem_free. */
enum dtx_status dtx_watch_place_write(struct dtx_ctx *ctx, const struct dtx_watch_place *place);
enum dtx_status dtx_watch_place_read(struct dtx_ctx *ctx, const char *run, struct dtx_watch_place *out);
void dtx_watch_ledger_path(const struct dtx_watch_place *place, int rank, char path[DTX_WATCH_PATH]);
void dtx_watch_copy_path(const struct dtx_watch_place *place, int rank, char path[DTX_WATCH_PATH]);

/* 'R' a process that lives, 'T' stopped, 'X' gone, '?' unknown; *born: its start time (may be NULL). born_then: the pid
 * with another start time is another process (0: not asked). */
char dtx_watch_process(int32_t pid, uint64_t born_then, uint64_t *born);

struct dtx_watch_seat {
    const struct dtx_watch_rank *who;
    struct dtx_ledger *ledger; /* NULL: none found */
    char process;              /* as above */
    bool here;                 /* on this host */
};

struct dtx_watch_view {
    int size;
    struct dtx_watch_seat *seats; /* [size] */
};

/* own: this rank's ledger, or NULL; host: this one. `place` must outlive the view. */
enum dtx_status dtx_watch_view_make(struct dtx_ctx *ctx, const struct dtx_watch_place *place, const char *host,
                                    const struct dtx_ledger *own, struct dtx_watch_view *out);
void dtx_watch_view_free(struct dtx_watch_view *view);

/* Who is dead, stopped or unheard of; who is missing in which collective; who disagrees; and a row for every place at
 * which ranks are, equal ones in one row. Returns the number of findings (0: all is well, as far as can be seen). */
int dtx_watch_view_print(struct dtx_ctx *ctx, const struct dtx_watch_view *view, FILE *file);
/* blamed [size]: those ranks that the findings are about: dead, stopped, failed, or missing where others wait. */
void dtx_watch_view_blame(struct dtx_ctx *ctx, const struct dtx_watch_view *view, bool *blamed);
/* "0-3,7" */
void dtx_watch_ranges(const int *ranks, int n, char *text, size_t bytes);

#endif
