/*
 * Files that are read, opened when they are needed: any number of them under a bounded number of descriptors (or
 * mappings). A file that was read least recently is closed when the bound is reached and opened again at its next
 * read; it must then still have its size. Reads are whole or fail, naming path and offset. Safe on several threads.
 * With mapping, a file that is cut off while it is mapped kills the reader (SIGBUS), and some parallel file systems are
 * slow: so it is an option. Not collective.
 */
#ifndef DTX_DATA_FILEPOOL_H
#define DTX_DATA_FILEPOOL_H

#include "kernels/base/status.h"

struct dtx_filepool;

/* One file; belongs to its user, who zeroes it before dtx_poolfile_add. Read only by this module but for the size. */
struct dtx_poolfile {
    struct dtx_filepool *pool;
    char *path; /* NULL: no file */
    int64_t bytes;
    const char *map;
    char *local;                        /* where it is opened from then on, NULL: where it lies */
    bool asked;                         /* for a copy */
    int fd, users;                      /* fd −1: closed; users: reads in progress */
    struct dtx_poolfile *newer, *older; /* among the open ones */
};

/* limit: most files open at once; 0: a quarter of the process's descriptors, or 16,384 mappings. */
enum dtx_status dtx_filepool_create(struct dtx_ctx *ctx, bool map, int limit, struct dtx_filepool **out);
void dtx_filepool_free(struct dtx_filepool *pool); /* after its files; accepts NULL */
int dtx_filepool_open_files(struct dtx_filepool *pool);

/* Opens the file, so that a missing one is found here, and takes its size. */
enum dtx_status dtx_poolfile_add(struct dtx_ctx *ctx, struct dtx_filepool *pool, const char *path,
                                 struct dtx_poolfile *f);
void dtx_poolfile_close(struct dtx_poolfile *f); /* accepts one never added */
/* Reads go to a copy in folder `dir` (data/cache.h) from now on; called again it does nothing. Where no copy can be
 * made that is a warning, and the file is read where it lies. */
void dtx_poolfile_cache(struct dtx_ctx *ctx, struct dtx_poolfile *f, const char *dir);
/* Tells the system that these bytes will be read soon, where the file is open. */
void dtx_poolfile_advise(struct dtx_poolfile *f, size_t bytes, int64_t offset);
enum dtx_status dtx_poolfile_read(struct dtx_ctx *ctx, struct dtx_poolfile *f, void *out, size_t bytes, int64_t offset);

#endif
