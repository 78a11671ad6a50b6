#include "kernels/base/opt.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/opt_impl.h"

struct opt_value *dtx_opt_find(const struct dtx_opt *opt, const char *key)
{
    for (int i = 0; i < opt->n_values; i++)
        if (strcmp(opt->values[i].row->key, key) == 0)
            return &opt->values[i];
    return NULL;
}

/* Levenshtein's distance, exact for texts under DTX_OPT_KEY_LENGTH characters; longer ones count as far away. */
int dtx_opt_distance(const char *a, const char *b)
{
    int row[DTX_OPT_KEY_LENGTH + 1], n = (int)strlen(b);
    if (n > DTX_OPT_KEY_LENGTH)
        return INT32_MAX;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int least = replace < row[j] + 1 ? replace : row[j] + 1;
            row[j] = least < row[j - 1] + 1 ? least : row[j - 1] + 1;
        }
    }
    return row[n];
}

const char *dtx_opt_nearest(const struct dtx_opt *opt, const char *key)
{
    const char *best = NULL;
    int limit = (int)strlen(key) / 3, least = limit < 2 ? 3 : limit + 1;
    for (int i = 0; i < opt->n_values; i++) {
        const char *known = opt->values[i].row->key, *dot = strchr(known, '.');
        int distance = dtx_opt_distance(key, known);
        if (dot && strcmp(dot + 1, key) == 0)
            distance = 0; /* the group was forgotten */
        if (distance < least) {
            least = distance;
            best = known;
        }
    }
    return best;
}

void dtx_opt_fault(struct dtx_opt *opt, const char *format, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, format);
    int length = vasprintf(&text, format, ap);
    va_end(ap);
    char **faults = length < 0 ? NULL : realloc(opt->faults, sizeof *faults * (size_t)(opt->n_faults + 1));
    if (!faults) {
        opt->out_of_memory = true;
        if (length >= 0)
            free(text);
        return;
    }
    opt->faults = faults;
    opt->faults[opt->n_faults++] = text;
}

enum dtx_status dtx_opt_check(struct dtx_ctx *ctx, struct dtx_opt *opt)
{
    if (opt->out_of_memory)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory while reading the options");
    if (opt->n_faults == 0)
        return DTX_OK;
    if (opt->n_faults == 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s", opt->faults[0]);
    char text[DTX_ERROR_TEXT];
    int used = snprintf(text, sizeof text, "%d faults in the configuration:", opt->n_faults);
    for (int i = 0; i < opt->n_faults; i++) {
        if (used + (int)strlen(opt->faults[i]) + 64 > DTX_ERROR_TEXT) {
            snprintf(text + used, sizeof text - (size_t)used, "\n  … and %d more", opt->n_faults - i);
            break;
        }
        used += snprintf(text + used, sizeof text - (size_t)used, "\n  %s", opt->faults[i]);
    }
    return dtx_fail(ctx, DTX_E_CONFIG, "%s", text);
}

/* Is the row itself right? A fault here is a mistake in a table of dtx. */
static enum dtx_status check_row(struct dtx_ctx *ctx, const struct dtx_opt *opt, const struct dtx_opt_row *row)
{
    int dots = 0;
    for (const char *p = row->key; *p; p++) {
        dots += *p == '.';
        if (!islower((unsigned char)*p) && !isdigit((unsigned char)*p) && !strchr("_.-", *p))
            return dtx_fail(ctx, DTX_E_INTERNAL, "option table: key '%s' may hold only a-z, 0-9, _, - and one dot",
                            row->key);
    }
    if (dots > 1 || strlen(row->key) >= DTX_OPT_KEY_LENGTH)
        return dtx_fail(ctx, DTX_E_INTERNAL, "option table: key '%s' has more than one dot or is too long", row->key);
    if (dtx_opt_find(opt, row->key))
        return dtx_fail(ctx, DTX_E_INTERNAL, "option table: key '%s' stands in two rows", row->key);
    return DTX_OK;
}

static enum dtx_status set_default(struct dtx_ctx *ctx, struct dtx_opt *opt, const struct dtx_opt_row *row)
{
    DTX_TRY(ctx, check_row(ctx, opt, row));
    char canonical[DTX_OPT_KEY_LENGTH] = "", reason[DTX_OPT_REASON_LENGTH];
    struct opt_value value = {.row = row, .source = DTX_OPT_DEFAULT};
    const char *initial = row->initial ? row->initial : "";
    if (!dtx_opt_parse_value(row, initial, &value, canonical, sizeof canonical, reason))
        return dtx_fail(ctx, DTX_E_INTERNAL, "option table: the default of %s = '%s' %s", row->key, initial, reason);
    value.text = strdup(*canonical ? canonical : initial);
    if (!value.text)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory while reading the options");
    opt->values[opt->n_values++] = value;
    return DTX_OK;
}

enum dtx_status dtx_opt_create(struct dtx_ctx *ctx, const struct dtx_opt_row *const *tables, int n_tables,
                               struct dtx_opt **out)
{
    int64_t n_rows = 0;
    for (int i = 0; i < n_tables; i++)
        for (const struct dtx_opt_row *row = tables[i]; row->key; row++)
            n_rows++;
    void *memory;
    enum dtx_status status;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_opt), &memory));
    struct dtx_opt *opt = memory;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, n_rows, sizeof(struct opt_value), &memory), failed);
    opt->values = memory;
    for (int i = 0; i < n_tables; i++)
        for (const struct dtx_opt_row *row = tables[i]; row->key; row++)
            DTX_TRY_GOTO(ctx, status, set_default(ctx, opt, row), failed);
    *out = opt;
    return DTX_OK;
failed:
    dtx_opt_free(opt);
    return status;
}

void dtx_opt_free(struct dtx_opt *opt)
{
    if (!opt)
        return;
    for (int i = 0; i < opt->n_values; i++) {
        free(opt->values[i].from);
        free(opt->values[i].text);
    }
    for (int i = 0; i < opt->n_faults; i++)
        free(opt->faults[i]);
    free(opt->faults);
    dtx_mem_free(opt->values);
    dtx_mem_free(opt);
}

void dtx_opt_set(struct dtx_opt *opt, const char *key, const char *text, enum dtx_opt_source source, const char *name)
{
    struct opt_value *value = dtx_opt_find(opt, key);
    if (!value) {
        const char *nearest = dtx_opt_nearest(opt, key);
        dtx_opt_fault(opt, nearest ? "%s: there is no option '%s'; did you mean '%s'?" : "%s: there is no option '%s'",
                      name, key, nearest);
        return;
    }
    char canonical[DTX_OPT_KEY_LENGTH] = "", reason[DTX_OPT_REASON_LENGTH];
    struct opt_value new_value = {.row = value->row, .source = source};
    if (!dtx_opt_parse_value(value->row, text, &new_value, canonical, sizeof canonical, reason)) {
        dtx_opt_fault(opt, "%s: %s = '%s' %s", name, key, text, reason);
        return;
    }
    if (source < value->source && !DTX_MUTANT(option_order_ignored))
        return;
    new_value.text = strdup(*canonical ? canonical : text);
    new_value.from = strdup(name);
    if (!new_value.text || !new_value.from) {
        opt->out_of_memory = true;
        free(new_value.text);
        free(new_value.from);
        return;
    }
    free(value->text);
    free(value->from);
    *value = new_value;
}

static const struct opt_value *value_of(const struct dtx_opt *opt, const char *key, bool right_type,
                                        const struct opt_value *value)
{
    if (value && right_type)
        return value;
    fprintf(stderr, "dtx: internal error: option '%s' %s (of %d options)\n", key,
            value ? "has another type than the code asks for" : "stands in no table", opt->n_values);
    abort();
}

int64_t dtx_opt_int(const struct dtx_opt *opt, const char *key)
{
    const struct opt_value *value = dtx_opt_find(opt, key);
    return value_of(opt, key, value && value->row->type == DTX_OPT_INT, value)->integer;
}

double dtx_opt_real(const struct dtx_opt *opt, const char *key)
{
    const struct opt_value *value = dtx_opt_find(opt, key);
    return value_of(opt, key, value && value->row->type == DTX_OPT_REAL, value)->real;
}

bool dtx_opt_bool(const struct dtx_opt *opt, const char *key)
{
    const struct opt_value *value = dtx_opt_find(opt, key);
    return value_of(opt, key, value && value->row->type == DTX_OPT_BOOL, value)->boolean;
}

const char *dtx_opt_text(const struct dtx_opt *opt, const char *key)
{
    const struct opt_value *value = dtx_opt_find(opt, key);
    bool is_text = value && (value->row->type == DTX_OPT_TEXT || value->row->type == DTX_OPT_CHOICE);
    return value_of(opt, key, is_text, value)->text;
}

bool dtx_opt_is_set(const struct dtx_opt *opt, const char *key)
{
    return value_of(opt, key, true, dtx_opt_find(opt, key))->source != DTX_OPT_DEFAULT;
}

bool dtx_opt_is_given(const struct dtx_opt *opt, const char *key)
{
    return value_of(opt, key, true, dtx_opt_find(opt, key))->source > DTX_OPT_STORED;
}

const char *dtx_opt_from(const struct dtx_opt *opt, const char *key)
{
    const char *from = value_of(opt, key, true, dtx_opt_find(opt, key))->from;
    return from ? from : "default";
}

void dtx_opt_adopt(struct dtx_opt *opt, const struct dtx_opt *stored, const char *prefix, const char *stored_name)
{
    for (int i = 0; i < stored->n_values; i++)
        if (strncmp(stored->values[i].row->key, prefix, strlen(prefix)) == 0)
            dtx_opt_set(opt, stored->values[i].row->key, stored->values[i].text, DTX_OPT_STORED, stored_name);
}

void dtx_opt_compare_fixed(struct dtx_opt *opt, const struct dtx_opt *stored, const char *prefix,
                           const char *stored_name)
{
    for (int i = 0; i < opt->n_values; i++) {
        const struct opt_value *mine = &opt->values[i], *theirs = dtx_opt_find(stored, mine->row->key);
        if (mine->row->resume != DTX_OPT_FIXED || DTX_MUTANT(option_fixed_ignored) || !theirs ||
            strncmp(mine->row->key, prefix, strlen(prefix)) != 0 || strcmp(mine->text, theirs->text) == 0)
            continue;
        dtx_opt_fault(opt, "%s: %s = '%s', but %s was made with '%s', and this option must match",
                      mine->from ? mine->from : "default", mine->row->key, mine->text, stored_name, theirs->text);
    }
}
