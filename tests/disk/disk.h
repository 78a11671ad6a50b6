/*
 * A library between a program and its disk (LD_PRELOAD): makes the n-th call below one folder fail, and records all of
 * them with their data. It knows nothing of dtx: open, write, sync, rename, … are what it sees, of every thread.
 *
 * Whole programs are told by variables, programs of tests/disk by disk_control():
 *   DISK_FOLDER=PATH     only what lies below it counts
 *   DISK_KIND=WORD       eio enospc short die unreadable mixed (see below);  DISK_AT=N: the N-th call that can meet it
 *   DISK_EVERY=N         and every N-th after that;  DISK_UNTIL=N: none after so many calls
 *   DISK_PAUSE=MS        every call that changes something takes so much longer
 *   DISK_READ_PAUSE=MS   every read takes so much longer
 *   DISK_RANK=N          of this rank of the launcher alone
 *   DISK_LOG=FILE        every change is appended, in the order in which it happened, over all processes
 *   DISK_COUNT=FILE      a line "rank calls faults" is appended when the process ends
 */
#ifndef DTX_TESTS_DISK_DISK_H
#define DTX_TESTS_DISK_DISK_H

#include <stdbool.h>
#include <stdint.h>

enum disk_kind {
    DISK_NONE,
    DISK_EIO,        /* any call fails once */
    DISK_ENOSPC,     /* what grows fails, from then on */
    DISK_SHORT,      /* a write takes half of its bytes */
    DISK_DIE,        /* the process is killed before the call; a write is half done */
    DISK_UNREADABLE, /* opening, looking at and reading fail, from then on */
    DISK_MIXED,      /* EIO, ENOSPC and a short write in turn, each once */
    DISK_KINDS
};

enum disk_call {
    CALL_OPEN,
    CALL_WRITE,
    CALL_TRUNCATE,
    CALL_SYNC,
    CALL_RENAME,
    CALL_EXCHANGE,
    CALL_LINK,
    CALL_UNLINK,
    CALL_MKDIR,
    CALL_MARK
};

struct disk_control {
    char folder[512]; /* absolute; empty: nothing is watched */
    enum disk_kind kind;
    int64_t at, every, until;
    int64_t pause;         /* milliseconds before every change */
    int64_t read_pause;    /* before every read */
    int64_t calls, faults; /* seen; met */
    bool no_exchange;      /* a file system that cannot exchange two names */
    int log;               /* descriptor, or -1 */
};

/* One line of the record; path, other path (of renames) and data follow it, without zeros at their ends. */
struct disk_record {
    int32_t call, process;      /* process: number of the rank */
    uint64_t inode;             /* of the file or folder; renames and unlinks: 0 */
    int64_t offset, data_bytes; /* CALL_TRUNCATE: offset is the new size */
    int32_t path_bytes, other_bytes;
};

/* Found by dlsym: NULL without the library. */
typedef struct disk_control *disk_control_function(void);
typedef void disk_mark_function(const char *text);

#endif
