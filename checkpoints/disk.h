/*
 * Files and folders: whole reads and writes, syncs, folders. Every message names the path and the system's cause.
 * Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_DISK_H
#define DTX_CHECKPOINTS_DISK_H

#include <stdint.h>

#include "kernels/base/status.h"

enum { DTX_DISK_PATH = 4096, DTX_DISK_PAGE = 4096 };

/* out = dir/name; DTX_E_CONFIG when it is too long. */
enum dtx_status dtx_disk_join(struct dtx_ctx *ctx, const char *dir, const char *name, char out[DTX_DISK_PATH]);
/* False: it is certainly not there. (What cannot be looked at exists; whoever opens it learns why.) */
bool dtx_disk_exists(const char *path);
bool dtx_disk_is_folder(const char *path); /* true: it certainly is */
enum dtx_status dtx_disk_size(struct dtx_ctx *ctx, const char *path, int64_t *bytes);
/* The folder and its missing parents; each new entry is synced into its parent. */
enum dtx_status dtx_disk_make_folders(struct dtx_ctx *ctx, const char *path);
enum dtx_status dtx_disk_make_folder(struct dtx_ctx *ctx, const char *path);
/* Removes the files of a folder; the folder with them. */
enum dtx_status dtx_disk_empty_folder(struct dtx_ctx *ctx, const char *path);
enum dtx_status dtx_disk_remove_folder(struct dtx_ctx *ctx, const char *path);
/* The folder that holds `path`, as its name says. */
void dtx_disk_parent(const char *path, char out[DTX_DISK_PATH]);
enum dtx_status dtx_disk_rename(struct dtx_ctx *ctx, const char *from, const char *to);
/* The same when `to` is a folder that exists: afterwards `from` holds what `to` held. Atomic where the file system can;
 * else by way of the name `aside`. */
enum dtx_status dtx_disk_swap(struct dtx_ctx *ctx, const char *from, const char *to, const char *aside);
/* Takes the folder for this process: a lock on .lock in it, which goes with the process, however it ends; *fd: closed,
 * it is given back. DTX_E_CONFIG, led by `key`: another has it. File systems without locks are used without one. */
enum dtx_status dtx_disk_lock(struct dtx_ctx *ctx, const char *key, const char *path, int *fd);
/* fsync of a file or of a folder's entries. */
enum dtx_status dtx_disk_sync(struct dtx_ctx *ctx, const char *path);
/* fsync of the folder in which the path's last name stands. */
enum dtx_status dtx_disk_sync_name(struct dtx_ctx *ctx, const char *path);

enum dtx_status dtx_disk_open_read(struct dtx_ctx *ctx, const char *path, int *fd);
/* Exactly `bytes` bytes; an early end is DTX_E_FORMAT. */
enum dtx_status dtx_disk_read_at(struct dtx_ctx *ctx, int fd, const char *path, void *data, int64_t bytes,
                                 int64_t offset);
/* A new or emptied file of that size, all holes. */
enum dtx_status dtx_disk_open_new(struct dtx_ctx *ctx, const char *path, int64_t bytes, int *fd);
enum dtx_status dtx_disk_write_at(struct dtx_ctx *ctx, int fd, const char *path, const void *data, int64_t bytes,
                                  int64_t offset);
/* The same past the page cache, where the file system can, else as ever: nothing is copied by the system, and no page
 * of other files makes room. Memory, offset and, of a write, length are multiples of DTX_DISK_PAGE; a read may fill
 * memory up to the next multiple. Nobody else reads or writes `fd` meanwhile. */
enum dtx_status dtx_disk_read_direct(struct dtx_ctx *ctx, int fd, const char *path, void *data, int64_t bytes,
                                     int64_t offset);
enum dtx_status dtx_disk_write_direct(struct dtx_ctx *ctx, int fd, const char *path, const void *data, int64_t bytes,
                                      int64_t offset);
/* Where the first page in this memory begins. */
static inline char *dtx_disk_page_of(void *memory)
{
    return (char *)memory + (DTX_DISK_PAGE - (uintptr_t)memory % DTX_DISK_PAGE) % DTX_DISK_PAGE;
}
/* Hints: the file will be read in order; these bytes, just written, may go to the disk already. */
void dtx_disk_read_in_order(int fd);
void dtx_disk_flush_early(int fd, int64_t offset, int64_t bytes);
enum dtx_status dtx_disk_resize(struct dtx_ctx *ctx, int fd, const char *path, int64_t bytes);
/* fsync and close: a close may report a lost write. */
enum dtx_status dtx_disk_close_written(struct dtx_ctx *ctx, int fd, const char *path);
/* The same of a file that was synced before; error: that sync's errno, or 0. */
enum dtx_status dtx_disk_close_synced(struct dtx_ctx *ctx, int fd, const char *path, int error);

/* A new small file, synced. */
enum dtx_status dtx_disk_write_text(struct dtx_ctx *ctx, const char *path, const char *text);
/* A whole file, with a zero byte behind it (free with dtx_mem_free); DTX_E_FORMAT beyond `limit` bytes. */
enum dtx_status dtx_disk_read(struct dtx_ctx *ctx, const char *path, int64_t limit, char **data, int64_t *bytes);

#endif
