/*
 * Options: one row per option makes the YAML key, the flag `--parallel.tp 2`, the variable DTX_PARALLEL_TP, the line of
 * --help and the text stored in a checkpoint. Order of precedence: flag > variable > file > preset > the resumed
 * checkpoint > default.
 *
 * Faults (unknown keys with the nearest known one, values out of type or range, both with their source) are collected
 * while sources are read and reported together by dtx_opt_check. Not thread-safe; not collective.
 */
#ifndef DTX_KERNELS_BASE_OPT_H
#define DTX_KERNELS_BASE_OPT_H

#include <stdio.h>

#include "kernels/base/status.h"

enum dtx_opt_type { DTX_OPT_INT, DTX_OPT_REAL, DTX_OPT_BOOL, DTX_OPT_TEXT, DTX_OPT_CHOICE };

/* May the value differ between a checkpoint and the run that resumes it? */
enum dtx_opt_resume {
    DTX_OPT_FREE,
    DTX_OPT_FIXED,
    DTX_OPT_CALL /* belongs to one call of the program: stored nowhere */
};

struct dtx_opt_row {
    const char *key; /* "parallel.tp"; one or two words joined by a dot, lower case, _ and - */
    enum dtx_opt_type type;
    const char *initial; /* the default, as text */
    const char *range;   /* INT, REAL: "lowest..highest", either end may be missing; CHOICE: "a|b|c"; else NULL */
    enum dtx_opt_resume resume;
    const char *help; /* one line */
};

struct dtx_opt; /* tables, values and where each value came from */

/* `tables` are arrays that end with a row whose key is NULL; both must outlive the object. Sets every default. */
enum dtx_status dtx_opt_create(struct dtx_ctx *ctx, const struct dtx_opt_row *const *tables, int n_tables,
                               struct dtx_opt **out);
void dtx_opt_free(struct dtx_opt *opt);

enum dtx_opt_source { DTX_OPT_DEFAULT, DTX_OPT_STORED, DTX_OPT_PRESET, DTX_OPT_FILE, DTX_OPT_VARIABLE, DTX_OPT_FLAG };

/* Reads YAML (nested maps of one level or dotted keys) from a file, or from text with `name` for messages. Only an
 * unreadable file or broken YAML fails here; faults of keys and values wait for dtx_opt_check. */
enum dtx_status dtx_opt_load_file(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *path,
                                  enum dtx_opt_source source);
enum dtx_status dtx_opt_load_text(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *text, const char *name,
                                  enum dtx_opt_source source);
/* The same for a text that has more keys than the tables: the others are passed over. */
enum dtx_status dtx_opt_load_known(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *text, const char *name,
                                   enum dtx_opt_source source);
/* Every variable DTX_GROUP_KEY of `environment`; an unknown DTX_ variable is a fault. */
enum dtx_status dtx_opt_load_env(struct dtx_ctx *ctx, struct dtx_opt *opt, char *const *environment);
/* `--key value`, `--key=value`, `--flag` for BOOL (and --flag false). Words that are no flags go to `words`, in order,
 * at most `max_words` (more is a fault). argv[0] is not skipped. */
enum dtx_status dtx_opt_load_args(struct dtx_ctx *ctx, struct dtx_opt *opt, int argc, char *const *argv,
                                  const char **words, int max_words, int *n_words);
/* Adds a fault found by the caller (contradictions between options) to those that dtx_opt_check reports. */
void dtx_opt_fault(struct dtx_opt *opt, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* DTX_E_CONFIG with all faults in one text, or DTX_OK. */
enum dtx_status dtx_opt_check(struct dtx_ctx *ctx, struct dtx_opt *opt);

/* Values. The key must exist with that type (else the program aborts: an error of the programmer). */
int64_t dtx_opt_int(const struct dtx_opt *opt, const char *key);
double dtx_opt_real(const struct dtx_opt *opt, const char *key);
bool dtx_opt_bool(const struct dtx_opt *opt, const char *key);
const char *dtx_opt_text(const struct dtx_opt *opt, const char *key); /* TEXT and CHOICE; owned by opt */
bool dtx_opt_is_set(const struct dtx_opt *opt, const char *key);      /* by anything but the default */
/* By the user: flag, variable, file or preset; not by the default or a checkpoint. */
bool dtx_opt_is_given(const struct dtx_opt *opt, const char *key);
/* Where its value was given: "run.yaml:3", "flag --parallel.tp"; "default" for a default. Owned by opt. */
const char *dtx_opt_from(const struct dtx_opt *opt, const char *key);
/* Sets one value by code; a wrong value becomes a fault. */
void dtx_opt_set(struct dtx_opt *opt, const char *key, const char *value, enum dtx_opt_source source, const char *name);

/* All keys and values as YAML, in table order: loads back to the same values. Free with dtx_mem_free. */
enum dtx_status dtx_opt_dump(struct dtx_ctx *ctx, const struct dtx_opt *opt, char **out);
/* The same without the options of one call: what a run's folder and its checkpoints keep. */
enum dtx_status dtx_opt_dump_stored(struct dtx_ctx *ctx, const struct dtx_opt *opt, char **out);
/* Takes the values of `stored` (with the same keys) whose keys begin with `prefix`, as DTX_OPT_STORED. */
void dtx_opt_adopt(struct dtx_opt *opt, const struct dtx_opt *stored, const char *prefix, const char *stored_name);
/* Adds a fault for each FIXED option whose value differs between the two (both values named), of those whose keys begin
 * with `prefix`. */
void dtx_opt_compare_fixed(struct dtx_opt *opt, const struct dtx_opt *stored, const char *prefix,
                           const char *stored_name);
void dtx_opt_help(const struct dtx_opt *opt, FILE *file);

#endif
