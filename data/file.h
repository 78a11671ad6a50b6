/*
 * Files as data/ uses them: whole reads at 64-bit offsets, and buffered output that appears under its final name only
 * when it is complete and on disk. Errors name the path and the offset. Not collective.
 */
#ifndef DTX_DATA_FILE_H
#define DTX_DATA_FILE_H

#include "kernels/base/status.h"

/* Opens for reading; *bytes gets the size (0 for pipes). */
enum dtx_status dtx_file_open(struct dtx_ctx *ctx, const char *path, int *fd, int64_t *bytes);
/* Exactly `bytes` bytes at `offset`; a shorter file is an error. Safe from several threads on one descriptor. */
enum dtx_status dtx_file_read_at(struct dtx_ctx *ctx, int fd, const char *path, void *out, size_t bytes,
                                 int64_t offset);
/* The next bytes of a sequential file, at most `bytes`; *got = 0 at its end. */
enum dtx_status dtx_file_read_some(struct dtx_ctx *ctx, int fd, const char *path, void *out, size_t bytes,
                                   int64_t *got);

/* Output under PATH.partial, locked against a second writer, until it is renamed to PATH. */
struct dtx_outfile {
    int fd; /* -1: closed */
    char *path, *partial, *buffer;
    size_t used;
    int64_t written; /* bytes so far, the buffer included */
};

enum dtx_status dtx_outfile_open(struct dtx_ctx *ctx, struct dtx_outfile *f, const char *path);
/* Goes on with the partial file that a killed run left: its first `bytes` bytes stay, what follows is cut off. */
enum dtx_status dtx_outfile_reopen(struct dtx_ctx *ctx, struct dtx_outfile *f, const char *path, int64_t bytes);
enum dtx_status dtx_outfile_write(struct dtx_ctx *ctx, struct dtx_outfile *f, const void *data, size_t bytes);
enum dtx_status dtx_outfile_flush(struct dtx_ctx *ctx, struct dtx_outfile *f);
/* Flush and fsync: after it only the rename is missing. */
enum dtx_status dtx_outfile_sync(struct dtx_ctx *ctx, struct dtx_outfile *f);
/* Renames to the final name (after dtx_outfile_sync) and frees the object. The folder is not synced. */
enum dtx_status dtx_outfile_rename(struct dtx_ctx *ctx, struct dtx_outfile *f);
/* Closes and frees the object; the partial file stays, if it still has that name. */
void dtx_outfile_keep(struct dtx_outfile *f);
/* Removes the partial file and frees the object; accepts one never opened (zeroed) or already renamed. */
void dtx_outfile_discard(struct dtx_outfile *f);
/* fsync of the folder that holds `path`. */
enum dtx_status dtx_file_sync_folder(struct dtx_ctx *ctx, const char *path);

/* prefix followed by suffix, to be freed with dtx_mem_free. */
enum dtx_status dtx_path_join(struct dtx_ctx *ctx, const char *prefix, const char *suffix, char **out);

#endif
