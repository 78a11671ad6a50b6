/*
 * A file system that may lose whatever was not synced, built from a record of tests/disk/preload.c: after any number of
 * operations it tells what could be found once the power was back.
 *
 * fsync of a file makes its contents and size durable and says nothing of its name; fsync of a folder makes the names
 * in it durable, a rename always as a whole. Nothing else is durable: a file that was never synced is empty, a folder
 * that was never synced has no names.
 */
#ifndef DTX_TESTS_DISK_MODEL_H
#define DTX_TESTS_DISK_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/disk/disk.h"

enum model_data {
    DATA_KEPT,   /* as it was written */
    DATA_LOST,   /* as it was at the last sync, size too */
    DATA_ZEROED, /* the size as it was written, zeros where nothing was synced */
    DATA_TORN    /* every page of 512 bytes the one or the other way */
};
enum model_names { NAMES_KEPT, NAMES_LOST, NAMES_SOME /* each unsynced change survives or not */ };

struct model;

/* `root`: the folder that was watched; it exists, durable. */
struct model *model_make(const char *root);
void model_free(struct model *model);
/* Applies one operation; false when the record does not fit what was recorded before. */
bool model_apply(struct model *model, const struct disk_record *record, const char *path, const char *other,
                 const char *data);
/* Writes the state after a crash into the folder `out`, which exists and is empty. `seed` chooses for TORN and SOME.
 * Returns a hash of names and contents: equal states have equal hashes. out NULL: the hash alone. */
uint64_t model_crash(const struct model *model, enum model_names names, enum model_data data, uint64_t seed,
                     const char *out);

#endif
