/* Every state that a power cut can leave: after each operation of a record, in several ways to lose what was not
 * synced. In each the newest complete checkpoint must load, as new as the last one that was reported as saved. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoints/disk.h"
#include "kernels/base/hash.h"
#include "tests/disk/model.h"
#include "tests/disk/states.h"
#include "tests/harness/ckpt_state.h"

static const struct {
    enum model_names names;
    enum model_data data;
    uint64_t seed;
} ways[] = {{NAMES_LOST, DATA_LOST, 0},   {NAMES_KEPT, DATA_KEPT, 0}, {NAMES_LOST, DATA_ZEROED, 0},
            {NAMES_LOST, DATA_KEPT, 0},   {NAMES_KEPT, DATA_LOST, 0}, {NAMES_KEPT, DATA_ZEROED, 0},
            {NAMES_KEPT, DATA_TORN, 1},   {NAMES_SOME, DATA_LOST, 2}, {NAMES_SOME, DATA_TORN, 3},
            {NAMES_SOME, DATA_ZEROED, 4}, {NAMES_SOME, DATA_TORN, 5}};
enum { WAYS = sizeof ways / sizeof *ways, TEXT = 1024, SEEN = 1 << 20 };

struct replay {
    struct dtx_ctx ctx;
    struct dtx_comm *alone;
    struct model *model;
    char folder[300]; /* in which states are rebuilt */
    char below[400];  /* of it, where the checkpoints are */
    bool run; /* a run's record without marks: a save counts once it survives the loss of all that is unsynced */
    int64_t saved, begun;
    int64_t operations, states, different;
    uint64_t *seen; /* hashes of what was tried; 0: free */
};

static bool tried_before(struct replay *r, uint64_t hash)
{
    hash = dtx_hash(&r->saved, sizeof r->saved, hash) | 1;
    for (uint64_t i = hash;; i++) {
        uint64_t *slot = &r->seen[i % SEEN];
        if (*slot == hash)
            return true;
        if (*slot == 0) {
            *slot = hash;
            return false;
        }
    }
}

/* A name that promises a whole checkpoint keeps it (where an unlucky subset of the changes survived, a folder that was
 * being removed may be back without its files). */
static bool names_hold(struct replay *r, enum model_names names)
{
    char path[DTX_DISK_PATH];
    DIR *folder = opendir(r->below);
    struct dirent *entry;
    bool good = true;
    while (good && folder && names != NAMES_SOME && (entry = readdir(folder)))
        if (strncmp(entry->d_name, "step-", 5) == 0)
            good = ckpt_find_whole(&r->ctx, r->alone, r->below, entry->d_name, path, sizeof path) == DTX_OK;
    if (folder)
        closedir(folder);
    return good;
}

/* The number of the newest checkpoint (of a run: its step); −1 when none loads. */
static int64_t newest(struct replay *r)
{
    char path[DTX_DISK_PATH];
    if (!r->run)
        return numbered_load(r->alone, r->below, "latest");
    enum dtx_status status = ckpt_find_whole(&r->ctx, r->alone, r->below, "latest", path, sizeof path);
    return status == DTX_OK ? atoll(strrchr(path, '-') + 1) : -1;
}

static bool goes_on(struct replay *r)
{
    return numbered_save(r->alone, r->below, 100, r->begun + 1, false) == DTX_OK && newest(r) == 100;
}

static bool state_is_good(struct replay *r, int way)
{
    char cause[600] = "";
    const char *fault = "";
    int64_t found = newest(r);
    if (found < r->saved || found > r->begun)
        fault = r->saved || found > 0 ? "another checkpoint loads than was saved" : "";
    if (!fault[0] && !names_hold(r, ways[way].names))
        fault = "a checkpoint is not whole";
    if (!fault[0] && r->saved)
        fault = latest_fault(r->alone, r->below, r->run); /* of a run it comes a little later than the checkpoint */
    if (fault[0])
        snprintf(cause, sizeof cause, "%.200s: %.380s", fault, r->ctx.error.text);
    dtx_error_clear(&r->ctx);
    if (!cause[0] && r->run && ways[way].names == NAMES_LOST && ways[way].data == DATA_LOST)
        r->saved = found > 0 ? found : 0;
    if (!cause[0] && !r->run && r->different % 16 == 0 && !goes_on(r))
        snprintf(cause, sizeof cause, "a run cannot go on: %.500s", r->ctx.error.text);
    if (cause[0])
        printf("operation %lld, way %d (names %d, data %d): save %lld was reported, %lld loads: %s\n",
               (long long)r->operations, way, ways[way].names, ways[way].data, (long long)r->saved, (long long)found,
               cause);
    return !cause[0];
}

static bool try_ways(struct replay *r)
{
    for (int way = 0; way < WAYS; way++) {
        uint64_t seed = ways[way].seed * 1000003 + (uint64_t)r->operations;
        r->states++;
        if (tried_before(r, model_crash(r->model, ways[way].names, ways[way].data, seed, NULL)))
            continue;
        r->different++;
        if (mkdir(r->folder, 0777) != 0) {
            perror(r->folder);
            return false;
        }
        model_crash(r->model, ways[way].names, ways[way].data, seed, r->folder);
        bool good = state_is_good(r, way);
        ckpt_temp_remove(r->folder);
        if (!good)
            return false;
    }
    return true;
}

static bool read_text(FILE *file, int32_t bytes, char out[TEXT])
{
    if (bytes < 0 || bytes >= TEXT || fread(out, 1, (size_t)bytes, file) != (size_t)bytes)
        return false;
    out[bytes] = '\0';
    return true;
}

/* One record after another; false at the first that is wrong or leaves a bad state. */
static bool read_all(struct replay *r, FILE *file, int64_t counts[CALL_MARK + 1], int *processes)
{
    struct disk_record record;
    char path[TEXT], other[TEXT];
    while (fread(&record, sizeof record, 1, file) == 1) {
        char *data = malloc((size_t)record.data_bytes + 1);
        bool good = read_text(file, record.path_bytes, path) && read_text(file, record.other_bytes, other) && data &&
                    fread(data, 1, (size_t)record.data_bytes, file) == (size_t)record.data_bytes;
        if (record.call == CALL_MARK && strncmp(path, "folder ", 7) == 0)
            r->model = model_make(path + 7);
        else if (record.call == CALL_MARK)
            sscanf(path, "begin %ld", &r->begun), sscanf(path, "saved %ld", &r->saved);
        good = good && r->model && (model_apply(r->model, &record, path, other, data) || r->run);
        free(data);
        if (!good) {
            printf("operation %lld of the record does not fit: %d %s %s\n", (long long)r->operations, record.call, path,
                   other);
            return false;
        }
        r->operations += record.call != CALL_MARK;
        counts[record.call]++;
        *processes = record.process >= *processes ? record.process + 1 : *processes;
        if (!try_ways(r))
            return false;
    }
    return true;
}

static int replay_record(struct replay *r, const char *path, const char *below, int64_t last)
{
    int64_t counts[CALL_MARK + 1] = {0};
    int processes = 0;
    char temporary[256];
    FILE *file = fopen(path, "rb");
    dtx_ctx_init(&r->ctx);
    r->ctx.log_level = DTX_LOG_ERROR + 1;
    r->seen = calloc(SEEN, sizeof *r->seen);
    if (!file || !r->seen || dtx_comm_self(&r->ctx, &r->alone) != DTX_OK)
        return 1;
    ckpt_temp_make(temporary);
    snprintf(r->folder, sizeof r->folder, "%s/state", temporary);
    snprintf(r->below, sizeof r->below, "%s%s%.90s", r->folder, below[0] ? "/" : "", below);
    bool good = read_all(r, file, counts, &processes);
    fclose(file);
    if (good && r->saved != last) {
        printf("after the end save %lld of %lld survives\n", (long long)r->saved, (long long)last);
        good = false;
    }
    printf("%lld operations of %d processes (%lld opened, %lld writes, %lld sizes, %lld syncs, %lld renames, %lld "
           "removed, "
           "%lld folders): %lld states after a crash, %lld of them different%s\n",
           (long long)r->operations, processes, (long long)counts[CALL_OPEN], (long long)counts[CALL_WRITE],
           (long long)counts[CALL_TRUNCATE], (long long)counts[CALL_SYNC],
           (long long)(counts[CALL_RENAME] + counts[CALL_EXCHANGE]), (long long)counts[CALL_UNLINK],
           (long long)counts[CALL_MKDIR], (long long)r->states, (long long)r->different,
           good ? ": every one loads" : "");
    if (r->model)
        model_free(r->model);
    ckpt_temp_remove(temporary);
    free(r->seen);
    dtx_comm_free(r->alone);
    return !good;
}

int replay(const char *record)
{
    struct replay r = {.run = false};
    return replay_record(&r, record, "", SAVES);
}

int replay_run(const char *record, const char *root, const char *below, int64_t last_step)
{
    struct replay r = {.run = true, .begun = last_step, .model = model_make(root)};
    return replay_record(&r, record, below, last_step);
}
