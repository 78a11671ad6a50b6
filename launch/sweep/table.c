#include "launch/sweep/table.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { FORMAT = 1 };
static const int64_t TABLE_LIMIT = (int64_t)1 << 30;

/* Where each number of a row lies. */
static const struct {
    const char *key;
    size_t offset;
} whole_keys[] =
    {
#define WHOLE(key)                                                                                                     \
    {                                                                                                                  \
#key, offsetof(struct dtx_sweep_trial, key)                                                                    \
    }
        WHOLE(width),  WHOLE(layers), WHOLE(heads),      WHOLE(kv_heads), WHOLE(head_dim),
        WHOLE(ffn),    WHOLE(vocab),  WHOLE(length),     WHOLE(batch),    WHOLE(steps),
        WHOLE(tokens), WHOLE(seed),   WHOLE(start_step), WHOLE(until)
#undef WHOLE
},
  real_keys[] =
      {
          {"lr", offsetof(struct dtx_sweep_trial, lr)},
          {"lr_scale", offsetof(struct dtx_sweep_trial, lr_scale)},
          {"budget", offsetof(struct dtx_sweep_trial, budget)},
          {"flops", offsetof(struct dtx_sweep_trial, flops[DTX_SWEEP_EXACT])},
          {"flops_palm", offsetof(struct dtx_sweep_trial, flops[DTX_SWEEP_PALM])},
          {"flops_6nd", offsetof(struct dtx_sweep_trial, flops[DTX_SWEEP_6ND])},
},
  count_keys[] = {
      {"n_total", offsetof(struct dtx_sweep_trial, n[DTX_SWEEP_TOTAL])},
      {"n_nonembedding", offsetof(struct dtx_sweep_trial, n[DTX_SWEEP_NONEMBEDDING])},
      {"n_matmul", offsetof(struct dtx_sweep_trial, n[DTX_SWEEP_MATMUL])},
};
#define LENGTH(array) (sizeof(array) / sizeof *(array))

static json_t *row_json(const struct dtx_sweep *sweep, int i)
{
    const struct dtx_sweep_trial *t = &sweep->trials.item[i];
    const char *base = (const char *)t;
    json_t *row =
        json_pack("{s:i, s:s, s:s, s:s}", "trial", i + 1, "id", t->id, "label", t->label, "variant", t->variant);
    for (size_t k = 0; k < LENGTH(whole_keys); k++)
        json_object_set_new(row, whole_keys[k].key, json_integer(*(const int64_t *)(base + whole_keys[k].offset)));
    for (size_t k = 0; k < LENGTH(count_keys); k++)
        json_object_set_new(row, count_keys[k].key, json_integer(*(const int64_t *)(base + count_keys[k].offset)));
    for (size_t k = 0; k < LENGTH(real_keys); k++)
        json_object_set_new(row, real_keys[k].key, json_real(*(const double *)(base + real_keys[k].offset)));
    json_object_set_new(row, "start", json_string(t->start >= 0 ? sweep->trials.item[t->start].id : ""));
    json_object_set_new(row, "stem", json_boolean(t->stem));
    return row;
}

static int index_of(const struct dtx_sweep_trials *trials, const char *id)
{
    for (int i = 0; i < trials->n; i++)
        if (strcmp(trials->item[i].id, id) == 0)
            return i;
    return -1;
}

static bool read_row(const json_t *row, struct dtx_sweep_trials *trials, struct dtx_sweep_trial *t)
{
    const char *id, *label, *variant, *start;
    char *base = (char *)t;
    int stem, number;
    if (json_unpack((json_t *)row, "{s:i, s:s, s:s, s:s, s:s, s:b}", "trial", &number, "id", &id, "label", &label,
                    "variant", &variant, "start", &start, "stem", &stem) != 0)
        return false;
    snprintf(t->id, sizeof t->id, "%s", id);
    snprintf(t->label, sizeof t->label, "%s", label);
    snprintf(t->variant, sizeof t->variant, "%s", variant);
    t->stem = stem;
    for (size_t k = 0; k < LENGTH(whole_keys); k++)
        *(int64_t *)(base + whole_keys[k].offset) = json_integer_value(json_object_get(row, whole_keys[k].key));
    for (size_t k = 0; k < LENGTH(count_keys); k++)
        *(int64_t *)(base + count_keys[k].offset) = json_integer_value(json_object_get(row, count_keys[k].key));
    for (size_t k = 0; k < LENGTH(real_keys); k++)
        *(double *)(base + real_keys[k].offset) = json_number_value(json_object_get(row, real_keys[k].key));
    t->start = index_of(trials, start);
    return number == trials->n && t->steps > 0 && strlen(t->id) == DTX_SWEEP_ID - 1 && (!*start || t->start >= 0);
}

static void table_path(const char *dir, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/plan.jsonl", dir);
}

/* Lines between the first and the last. */
static enum dtx_status parse(struct dtx_ctx *ctx, const char *path, char *text, struct dtx_sweep *out)
{
    int format = 0, ranks = 0, line_number = 0;
    const char *name = "", *folder = "", *dtype = "";
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the last line is torn", path);
        json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        bool good = json_is_object(row);
        struct dtx_sweep_trial *t;
        line_number++;
        if (good && line_number == 1) {
            good = json_unpack(row, "{s:i, s:s, s:s, s:i, s:s}", "dtx_sweep", &format, "name", &name, "folder", &folder,
                               "ranks", &ranks, "dtype", &dtype) == 0;
            if (good && format > FORMAT) {
                json_decref(row);
                return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s has format %d; this dtx reads up to %d", path, format,
                                FORMAT);
            }
            snprintf(out->name, sizeof out->name, "%s", name);
            snprintf(out->folder, sizeof out->folder, "%s", folder);
            snprintf(out->dtype, sizeof out->dtype, "%s", dtype);
            out->ranks = ranks;
        } else if (good) {
            enum dtx_status status = dtx_sweep_trials_add(ctx, &out->trials, &t);
            good = status == DTX_OK && read_row(row, &out->trials, t);
        }
        json_decref(row);
        if (!good)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s:%d: this line is no row of a sweep", path, line_number);
    }
    return DTX_OK;
}

/* The checksum in the last line is of all before it; cuts the text there. */
static enum dtx_status check_end(struct dtx_ctx *ctx, const char *path, char *text, int64_t bytes)
{
    char expected[64];
    char *last = text;
    for (char *p = text; p < text + bytes - 1; p++)
        if (*p == '\n')
            last = p + 1;
    snprintf(expected, sizeof expected, "{\"end\":\"%016llx\"}\n",
             (unsigned long long)dtx_hash(text, (size_t)(last - text), 0));
    if (strcmp(last, expected) != 0 && !DTX_MUTANT(sweep_table_unchecked))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged or was edited: its checksum is not that of its lines", path);
    *last = '\0';
    return DTX_OK;
}

enum dtx_status dtx_sweep_read(struct dtx_ctx *ctx, const char *dir, struct dtx_sweep *out)
{
    char path[DTX_SWEEP_PATH], absolute[PATH_MAX], *text;
    int64_t bytes;
    *out = (struct dtx_sweep){0};
    table_path(dir, path);
    if (access(path, R_OK) != 0)
        return dtx_fail(ctx, dtx_status_of_path(errno), "%s: %s; `dtx sweep plan` makes a sweep's folder", path,
                        strerror(errno));
    if (!realpath(dir, absolute) || strlen(absolute) >= sizeof out->dir)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: the path is too long or cannot be resolved", dir);
    snprintf(out->dir, sizeof out->dir, "%.*s", (int)sizeof out->dir - 1, absolute);
    DTX_TRY(ctx, dtx_disk_read(ctx, path, TABLE_LIMIT, &text, &bytes));
    enum dtx_status status = check_end(ctx, path, text, bytes);
    if (status == DTX_OK)
        status = parse(ctx, path, text, out);
    dtx_mem_free(text);
    return status;
}

void dtx_sweep_free(struct dtx_sweep *sweep)
{
    dtx_sweep_trials_free(&sweep->trials);
}

void dtx_sweep_config_path(const struct dtx_sweep *sweep, int trial, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/configs/%s.yaml", sweep->dir, sweep->trials.item[trial].id);
}

void dtx_sweep_run_path(const struct dtx_sweep *sweep, int trial, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/runs/%s", sweep->dir, sweep->trials.item[trial].id);
}

int dtx_sweep_find(const struct dtx_sweep *sweep, const char *word)
{
    char *end;
    long long number = strtoll(word, &end, 10);
    if (*word && !*end && number >= 1 && number <= sweep->trials.n)
        return (int)number - 1;
    int found = -1, n = 0;
    for (int i = 0; i < sweep->trials.n && *word; i++)
        if (strcmp(sweep->trials.item[i].label, word) == 0 ||
            strncmp(sweep->trials.item[i].id, word, strlen(word)) == 0) {
            found = i;
            n++;
        }
    return n == 1 ? found : -1;
}

/* The whole file as text; free with free. */
static char *table_text(const struct dtx_sweep *sweep)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (!file)
        return NULL;
    json_t *head = json_pack("{s:i, s:s, s:s, s:i, s:s}", "dtx_sweep", FORMAT, "name", sweep->name, "folder",
                             sweep->folder, "ranks", sweep->ranks, "dtype", sweep->dtype);
    for (int i = -1; i < sweep->trials.n; i++) {
        json_t *row = i < 0 ? head : row_json(sweep, i);
        json_dumpf(row, file, JSON_COMPACT);
        fputc('\n', file);
        json_decref(row);
    }
    fflush(file);
    fprintf(file, "{\"end\":\"%016llx\"}\n", (unsigned long long)dtx_hash(text, length, 0));
    return fclose(file) == 0 ? text : NULL;
}

/* A file in the sweep's folder, whole or not at all. */
static enum dtx_status put(struct dtx_ctx *ctx, const char *path, const char *text)
{
    char temporary[DTX_SWEEP_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    DTX_TRY(ctx, dtx_disk_write_text(ctx, temporary, text));
    DTX_TRY(ctx, dtx_disk_rename(ctx, temporary, path));
    return dtx_disk_sync_name(ctx, path);
}

enum dtx_status dtx_sweep_write(struct dtx_ctx *ctx, struct dtx_sweep *sweep, const char *spec)
{
    static const char *const folders[] = {"", "/configs", "/runs", "/state"};
    char path[DTX_SWEEP_PATH];
    for (size_t i = 0; i < LENGTH(folders); i++) {
        snprintf(path, sizeof path, "%s%s", sweep->dir, folders[i]);
        if (!dtx_disk_is_folder(path))
            DTX_TRY(ctx, dtx_disk_make_folders(ctx, path));
    }
    for (int i = 0; i < sweep->trials.n; i++) {
        dtx_sweep_config_path(sweep, i, path);
        if (sweep->trials.item[i].config)
            DTX_TRY(ctx, put(ctx, path, sweep->trials.item[i].config));
    }
    snprintf(path, sizeof path, "%s/spec.yaml", sweep->dir);
    DTX_TRY(ctx, put(ctx, path, spec));
    char *text = table_text(sweep);
    if (!text)
        return dtx_fail(ctx, DTX_E_MEMORY, "sweep: no memory for the table");
    table_path(sweep->dir, path);
    enum dtx_status status = put(ctx, path, text);
    free(text);
    return status;
}

/* Puts the rows of `old` before those of the new plan, each once. */
static enum dtx_status merge(struct dtx_ctx *ctx, struct dtx_sweep *sweep, struct dtx_sweep *old)
{
    struct dtx_sweep_trials made = sweep->trials;
    for (int i = 0; i < made.n; i++) {
        struct dtx_sweep_trial *t, moved = made.item[i];
        if (index_of(&old->trials, moved.id) >= 0)
            continue;
        moved.start = moved.start < 0 ? -1 : index_of(&old->trials, made.item[moved.start].id);
        DTX_TRY(ctx, dtx_sweep_trials_add(ctx, &old->trials, &t));
        *t = moved;
        made.item[i].config = NULL;
    }
    dtx_sweep_trials_free(&made);
    sweep->trials = old->trials;
    old->trials = (struct dtx_sweep_trials){0};
    return DTX_OK;
}

enum dtx_status dtx_sweep_compare(struct dtx_ctx *ctx, struct dtx_sweep *sweep, bool extend,
                                  struct dtx_sweep_change *change)
{
    struct dtx_sweep old = {0};
    char path[DTX_SWEEP_PATH];
    *change = (struct dtx_sweep_change){.added = sweep->trials.n};
    table_path(sweep->dir, path);
    if (!dtx_disk_exists(path) || DTX_MUTANT(sweep_plan_overwrites))
        return DTX_OK;
    enum dtx_status status = dtx_sweep_read(ctx, sweep->dir, &old);
    for (int i = 0; i < sweep->trials.n && status == DTX_OK; i++)
        change->kept += index_of(&old.trials, sweep->trials.item[i].id) >= 0;
    if (status == DTX_OK && old.ranks != sweep->ranks)
        status = dtx_fail(ctx, DTX_E_CONFIG,
                          "sweep.ranks: the trials of %s have %d ranks each, those of this plan %d: --dir makes "
                          "another sweep",
                          sweep->dir, old.ranks, sweep->ranks);
    change->there = true;
    change->added = sweep->trials.n - change->kept;
    change->missing = old.trials.n - change->kept;
    if (status == DTX_OK && (change->added > 0 || change->missing > 0) && !extend)
        status =
            dtx_fail(ctx, DTX_E_CONFIG,
                     "%s holds another sweep: of this plan's %d trials %d are new, and %d of its own are not in this "
                     "plan. A table never changes: --extend adds the new ones behind it, --dir makes another",
                     sweep->dir, sweep->trials.n, change->added, change->missing);
    if (status == DTX_OK && change->added > 0 && strcmp(old.folder, sweep->folder) != 0)
        status = dtx_fail(ctx, DTX_E_CONFIG,
                          "%s was planned in %s, where the relative paths of its trials begin: extend it from there",
                          sweep->dir, old.folder);
    if (status == DTX_OK)
        status = merge(ctx, sweep, &old);
    dtx_sweep_free(&old);
    return status;
}
