/*
 * HDF5 as dtx uses it: no messages of its own, errors converted with the library's innermost cause.
 * HDF5 works in memory only: a system call that fails while it closes a file leaves HDF5 1.10 with a dangling file, and
 * the process crashes at its end. dtx reads and writes the bytes; so there are no HDF5 file locks either.
 * HDF5 is not thread-safe: one thread per process calls this. Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_H5_H
#define DTX_CHECKPOINTS_H5_H

#include <hdf5.h>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

/* Records "PATH: WHAT: <HDF5's cause>" and empties HDF5's error stack. */
enum dtx_status dtx_h5_fail_at(struct dtx_ctx *ctx, const char *path, const char *what, const char *file, int line,
                               const char *function);
#define dtx_h5_fail(ctx, path, what) dtx_h5_fail_at(ctx, path, what, __FILE__, __LINE__, __func__)

/* Stores the id or result of an HDF5 call; when it is negative, records the failure and jumps to `label`. */
#define DTX_H5_GOTO(ctx, status, result, call, path, what, label)                                                      \
    do {                                                                                                               \
        if (((result) = (call)) < 0) {                                                                                 \
            (status) = dtx_h5_fail(ctx, path, what);                                                                   \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

/* A file being made. Large objects lie at multiples of 4096 bytes; what HDF5 allocates but does not write is a hole. */
struct dtx_h5_out {
    hid_t file, driver;
    struct page **pages; /* sorted */
    int64_t n, room, bytes;
};
enum dtx_status dtx_h5_create(struct dtx_ctx *ctx, const char *path, struct dtx_h5_out *out);
/* Ends the file and writes it to the disk, synced. `out` is empty afterwards, whatever happened. */
enum dtx_status dtx_h5_finish(struct dtx_ctx *ctx, const char *path, struct dtx_h5_out *out);
/* The same into an open file, which already has what is written past HDF5; it is neither synced nor closed. */
enum dtx_status dtx_h5_finish_into(struct dtx_ctx *ctx, const char *path, int fd, struct dtx_h5_out *out);
void dtx_h5_discard(struct dtx_h5_out *out);

/* Makes a dataset and the groups that its name lacks; `creation` may be H5P_DEFAULT, else it has no times either
 * (dtx_h5_creation_list). Close `set` with H5Dclose. */
enum dtx_status dtx_h5_create_set(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name, hid_t type,
                                  hid_t space, hid_t creation, hid_t *set);
/* Creation properties of a class (H5P_DATASET_CREATE, …) without the hour of the day, which HDF5 would write into every
 * object: the same state is the same bytes (close with H5Pclose; negative on failure). */
hid_t dtx_h5_creation_list(hid_t class);

/* The bytes of a whole file, read-only; they are copied. `path` is for messages. */
enum dtx_status dtx_h5_open(struct dtx_ctx *ctx, const char *path, const void *data, int64_t bytes, hid_t *file);
/* The properties of every file dtx opens (close with H5Pclose; negative on failure). */
hid_t dtx_h5_access_list(void);

/* The little-endian file type of a dtype (close with H5Tclose). bf16 is a custom float that every reader converts. */
hid_t dtx_h5_type(enum dtx_dtype dtype);

/* Attributes of `object`: n values of `type` in memory, stored as `type`, n 0 for a scalar. Texts have a fixed length.
 */
enum dtx_status dtx_h5_write_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                       hid_t type, int n, const void *data);
enum dtx_status dtx_h5_read_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name, hid_t type,
                                      int n, void *data);
enum dtx_status dtx_h5_write_text_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                            const char *text);
enum dtx_status dtx_h5_read_text_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                           char *text, size_t text_bytes);
/* A text of any length as a scalar dataset; on reading free it with dtx_mem_free. */
enum dtx_status dtx_h5_write_text(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name,
                                  const char *text);
enum dtx_status dtx_h5_read_text(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name, char **text);

#endif
