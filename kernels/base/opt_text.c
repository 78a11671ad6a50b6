/* Options written out: as YAML and as help. */
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/opt_impl.h"

struct growing {
    char *text;
    size_t length, room;
};

static int append(void *data, unsigned char *bytes, size_t n)
{
    struct growing *g = data;
    if (g->length + n + 1 > g->room) {
        size_t room = 2 * (g->length + n + 1);
        char *text = realloc(g->text, room);
        if (!text)
            return 0;
        g->text = text;
        g->room = room;
    }
    memcpy(g->text + g->length, bytes, n);
    g->length += n;
    g->text[g->length] = '\0';
    return 1;
}

static bool emit_scalar(yaml_emitter_t *emitter, const char *text, bool quoted)
{
    yaml_event_t event;
    return yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)text, (int)strlen(text), 1, 1,
                                        quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE) &&
           yaml_emitter_emit(emitter, &event);
}

static bool emit_all(yaml_emitter_t *emitter, const struct dtx_opt *opt, bool all)
{
    yaml_event_t event;
    bool good = yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING) && yaml_emitter_emit(emitter, &event) &&
                yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1) &&
                yaml_emitter_emit(emitter, &event) &&
                yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE) &&
                yaml_emitter_emit(emitter, &event);
    for (int i = 0; good && i < opt->n_values; i++) {
        const struct opt_value *value = &opt->values[i];
        if (!all && value->row->resume == DTX_OPT_CALL && !DTX_MUTANT(until_kept_on_resume))
            continue;
        bool quoted = value->row->type == DTX_OPT_TEXT || value->row->type == DTX_OPT_CHOICE;
        good = emit_scalar(emitter, value->row->key, false) && emit_scalar(emitter, value->text, quoted);
    }
    return good && yaml_mapping_end_event_initialize(&event) && yaml_emitter_emit(emitter, &event) &&
           yaml_document_end_event_initialize(&event, 1) && yaml_emitter_emit(emitter, &event) &&
           yaml_stream_end_event_initialize(&event) && yaml_emitter_emit(emitter, &event);
}

static enum dtx_status dump(struct dtx_ctx *ctx, const struct dtx_opt *opt, bool all, char **out)
{
    yaml_emitter_t emitter;
    if (!yaml_emitter_initialize(&emitter))
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory while writing the options");
    struct growing text = {0};
    yaml_emitter_set_output(&emitter, append, &text);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    enum dtx_status status;
    if (!emit_all(&emitter, opt, all))
        status = dtx_fail(ctx, DTX_E_LIBRARY, "libyaml could not write the options: %s",
                          emitter.problem ? emitter.problem : "unknown problem");
    else
        status = dtx_mem_text(ctx, text.text, out);
    yaml_emitter_delete(&emitter);
    free(text.text);
    return status;
}

enum dtx_status dtx_opt_dump(struct dtx_ctx *ctx, const struct dtx_opt *opt, char **out)
{
    return dump(ctx, opt, true, out);
}

enum dtx_status dtx_opt_dump_stored(struct dtx_ctx *ctx, const struct dtx_opt *opt, char **out)
{
    return dump(ctx, opt, false, out);
}

static size_t group_length(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot ? (size_t)(dot - key) : 0;
}

static bool same_group(const char *a, const char *b)
{
    size_t length = group_length(a);
    return length == group_length(b) && strncmp(a, b, length) == 0;
}

static void help_row(const struct dtx_opt_row *row, int width, FILE *file)
{
    static const char *const types[] = {"N", "X", "", "TEXT", "NAME"};
    char flag[2 * DTX_OPT_KEY_LENGTH];
    snprintf(flag, sizeof flag, "--%s %s", row->key, types[row->type]);
    fprintf(file, "  %c %-*s  %s [", row->resume == DTX_OPT_FIXED ? '*' : ' ', width, flag, row->help);
    if (row->range)
        fprintf(file, "%s; ", row->range);
    const char *initial = row->initial && *row->initial ? row->initial : "empty";
    fprintf(file, "default %s]\n", initial);
}

void dtx_opt_help(const struct dtx_opt *opt, FILE *file)
{
    int width = 0;
    for (int i = 0; i < opt->n_values; i++) {
        int length = (int)strlen(opt->values[i].row->key) + 2 + 5;
        width = length > width ? length : width;
    }
    fprintf(file, "Options marked * keep their value when a run resumes. Each is also a key of the YAML file and a\n"
                  "variable: --parallel.tp is DTX_PARALLEL_TP. Flag > variable > file > preset > default.\n");
    for (int i = 0; i < opt->n_values; i++) {
        const char *key = opt->values[i].row->key;
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = !same_group(opt->values[j].row->key, key);
        if (!first)
            continue;
        fprintf(file, "\n%.*s\n", (int)(group_length(key) ? group_length(key) : 7),
                group_length(key) ? key : "general");
        for (int j = i; j < opt->n_values; j++)
            if (same_group(opt->values[j].row->key, key))
                help_row(opt->values[j].row, width, file);
    }
}
