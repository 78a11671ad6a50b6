/*
 * Copies of files on a node's own disk. The first process of the node that asks for a file copies it, the others wait
 * for it; a copy appears under its name when it is complete and on disk, and is found again by later runs. Its name is
 * made of the file's path, size and time of change: a file that is replaced gets another copy. Nothing is ever removed:
 * the folder is the user's. Not collective.
 */
#ifndef DTX_DATA_CACHE_H
#define DTX_DATA_CACHE_H

#include "kernels/base/status.h"

/* The path of the copy of `path` in folder `dir`, made where it is missing (free with dtx_mem_free). */
enum dtx_status dtx_cache_copy(struct dtx_ctx *ctx, const char *dir, const char *path, char **copy);

#endif
