/*
 * The ledger of one rank: what its last collectives and messages were and which of them are under way. It lies in a
 * shared mapping of a small file, so that it outlives the rank however that ends, and others may read it at any time.
 *
 * Writing takes no lock and no system call (the clock is read through the vDSO). One page a communicator: `begin` is
 * called by one thread at a time for a communicator, `wait` and `end` by any. An entry that is read while it is written
 * is left out, not misread. The bytes are the machine's own: a file is read where it was written, or by its like.
 */
#ifndef DTX_PARALLEL_LEDGER_H
#define DTX_PARALLEL_LEDGER_H

#include <stdatomic.h>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

enum { DTX_LEDGER_FORMAT = 2, DTX_LEDGER_RING = 16, DTX_LEDGER_PAGES = 24, DTX_LEDGER_FILE = 64 };

enum dtx_ledger_op {
    DTX_LEDGER_ALL_REDUCE_SUM,
    DTX_LEDGER_ALL_REDUCE_MAX,
    DTX_LEDGER_REDUCE_SCATTER,
    DTX_LEDGER_ALL_GATHER,
    DTX_LEDGER_BROADCAST,
    DTX_LEDGER_BARRIER,
    DTX_LEDGER_SPLIT,
    DTX_LEDGER_END,  /* the last meeting of all ranks */
    DTX_LEDGER_SEND, /* from here on: messages, each kind numbered for itself */
    DTX_LEDGER_RECEIVE,
    DTX_LEDGER_OPS
};
const char *dtx_ledger_op_name(enum dtx_ledger_op op);

enum dtx_ledger_state {
    DTX_LEDGER_EMPTY,   /* never written, or torn */
    DTX_LEDGER_STARTED, /* a message that nobody waits for yet */
    DTX_LEDGER_WAITING, /* a collective from its begin, a message from its wait */
    DTX_LEDGER_DONE,
    DTX_LEDGER_FAILED
};

struct dtx_ledger_entry {
    _Atomic uint64_t stamp; /* 2·place + 2; odd: being written */
    uint64_t number;        /* 1, 2, … of its kind on this communicator: equal on all ranks */
    int64_t count, bytes;   /* of this rank's input */
    double start, end;      /* monotonic clock; start of the wait for messages */
    char file[DTX_LEDGER_FILE];
    int32_t line, peer; /* root, or the other end of a message; −1: all */
    uint8_t op, dtype;
    _Atomic uint8_t state;
};

/* One communicator. Its id is equal on its members and on no other communicator. World rank of member r: first +
 * stride·r (stride 0: not so regular). */
struct dtx_ledger_page {
    _Atomic uint64_t id; /* 0: free */
    char name[16];
    int32_t rank, size, first, stride;
    uint64_t splits;                       /* made from this communicator */
    _Atomic uint64_t written;              /* entries, ever */
    uint64_t collectives, sends, receives; /* begun */
    _Atomic double ended;                  /* when one last ended */
    _Atomic double patience; /* seconds that something may take here, if not as anywhere else; 0: as anywhere */
    struct dtx_ledger_entry ring[DTX_LEDGER_RING];
};

enum dtx_ledger_end {
    DTX_LEDGER_RUNS,
    DTX_LEDGER_FAILS, /* has reported an error of its own (cause) and leaves */
    DTX_LEDGER_LEAVES /* has seen another's alarm and leaves */
};

struct dtx_ledger {
    char magic[8];
    uint32_t format, bytes;
    int32_t rank, size, pid;
    _Atomic int32_t end;
    uint64_t token;      /* of this launch */
    uint64_t born;       /* start time of the process, in /proc's clock ticks: a pid may be used again */
    double wall;         /* wall clock − monotonic clock */
    _Atomic double seen; /* monotonic; by the watch thread, a few times a second */
    int32_t observed;    /* in a copy made by another rank: the letter of the process' state ('T', or 'X': gone) */
    char host[64], mesh[64], cause[256], run[512];
    struct dtx_ledger_page pages[DTX_LEDGER_PAGES];
};

/* Makes the file (which must not exist) and maps it; path NULL: memory that is lost with the rank. */
enum dtx_status dtx_ledger_create(struct dtx_ctx *ctx, const char *path, struct dtx_ledger **out);
void dtx_ledger_unmap(struct dtx_ledger *ledger);
/* A free page for a new communicator, or NULL when all are taken. Threads must not take pages at the same time. */
struct dtx_ledger_page *dtx_ledger_open_page(struct dtx_ledger *ledger, uint64_t id, const char *name, int rank,
                                             int size);
void dtx_ledger_close_page(struct dtx_ledger_page *page);

/* Where an entry stands; whoever ends it needs nothing else. Plain; page NULL: recorded nowhere. */
struct dtx_ledger_mark {
    struct dtx_ledger_page *page;
    uint64_t place;
};
/* `file` must be readable for DTX_LEDGER_FILE bytes (DTX_HERE_FILE). peer: in the communicator. */
struct dtx_ledger_mark dtx_ledger_begin(struct dtx_ledger_page *page, enum dtx_ledger_op op, enum dtx_dtype dtype,
                                        int64_t count, int peer, const char *file, int line);
void dtx_ledger_wait(struct dtx_ledger_mark mark);
void dtx_ledger_finish(struct dtx_ledger_mark mark, bool ok);

/* Whether a page's entry that waits at time `now` may well do so: where others may be at a disk for long. */
bool dtx_ledger_patient(const struct dtx_ledger_page *page, const struct dtx_ledger_entry *entry, double now);
/* The entry of a page that waits longest, or NULL; *since: from when on nothing went on there. */
const struct dtx_ledger_entry *dtx_ledger_waiting(const struct dtx_ledger_page *page, double *since);
/* A consistent copy (free with dtx_mem_free): torn entries are EMPTY. */
enum dtx_status dtx_ledger_copy(struct dtx_ctx *ctx, const struct dtx_ledger *ledger, struct dtx_ledger **out);
/* The same from a file. DTX_E_FORMAT: no ledger, or of another format. */
enum dtx_status dtx_ledger_read(struct dtx_ctx *ctx, const char *path, struct dtx_ledger **out);

/* __FILE__ for dtx_ledger_begin. */
#define DTX_HERE_ZEROS "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define DTX_HERE_FILE  __FILE__ DTX_HERE_ZEROS DTX_HERE_ZEROS DTX_HERE_ZEROS DTX_HERE_ZEROS

#endif
