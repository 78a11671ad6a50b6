/* The sources of options: YAML, variables, flags. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/opt_impl.h"

enum { NAME_LENGTH = 4096 + 16, KEY_TEXT = 256, FILE_LIMIT = 16 << 20 };

struct yaml_source {
    struct dtx_opt *opt;
    yaml_document_t document;
    const char *name;
    enum dtx_opt_source source;
    bool known_only; /* keys that stand in no table are passed over */
    size_t *lines;   /* per option: the line where this text gave it, 0 = not yet */
};

/* The text of a scalar without NUL bytes, else NULL. */
static const char *scalar_text(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    bool good = node->type == YAML_SCALAR_NODE && strlen(text) == node->data.scalar.length;
    return good ? text : NULL;
}

static void set_from_yaml(struct yaml_source *y, const char *key, size_t line, const yaml_node_t *node)
{
    char from[NAME_LENGTH];
    snprintf(from, sizeof from, "%s:%zu", y->name, line);
    const struct opt_value *value = dtx_opt_find(y->opt, key);
    if (!value && y->known_only)
        return;
    if (value && y->lines[value - y->opt->values] && !DTX_MUTANT(option_twice_ignored)) {
        dtx_opt_fault(y->opt, "%s: %s was already given in line %zu", from, key, y->lines[value - y->opt->values]);
        return;
    }
    if (value)
        y->lines[value - y->opt->values] = line;
    const char *text = node->type == YAML_SCALAR_NODE ? scalar_text(node) : NULL;
    if (text || !value)
        dtx_opt_set(y->opt, key, text ? text : "", y->source, from);
    else
        dtx_opt_fault(y->opt, "%s: %s must be one value, not %s", from, key,
                      node->type == YAML_SEQUENCE_NODE  ? "a list"
                      : node->type == YAML_MAPPING_NODE ? "a map"
                                                        : "a text with NUL bytes");
}

/* Is `word` the first word of some known "word.key"? */
static bool is_group(const struct dtx_opt *opt, const char *word)
{
    size_t length = strlen(word);
    for (int i = 0; i < opt->n_values; i++)
        if (strncmp(opt->values[i].row->key, word, length) == 0 && opt->values[i].row->key[length] == '.')
            return true;
    return false;
}

/* Options of one map; `group` is NULL at the top. */
static void read_map(struct yaml_source *y, const yaml_node_t *map, const char *group)
{
    for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key_node = yaml_document_get_node(&y->document, pair->key);
        const yaml_node_t *node = yaml_document_get_node(&y->document, pair->value);
        size_t line = key_node->start_mark.line + 1;
        const char *word = key_node->type == YAML_SCALAR_NODE ? scalar_text(key_node) : NULL;
        char key[KEY_TEXT];
        if (!word || snprintf(key, sizeof key, "%s%s%s", group ? group : "", group ? "." : "", word) >= KEY_TEXT) {
            dtx_opt_fault(y->opt, "%s:%zu: this key is no name of an option", y->name, line);
            continue;
        }
        bool empty = node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0 &&
                     node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        if (!group && node->type == YAML_MAPPING_NODE && !dtx_opt_find(y->opt, word))
            read_map(y, node, word);
        else if (group || !empty || !is_group(y->opt, word)) /* `group:` with nothing under it sets nothing */
            set_from_yaml(y, key, line, node);
    }
}

/* Reads the only document of `parser` into y->document. */
static enum dtx_status read_document(struct dtx_ctx *ctx, yaml_parser_t *parser, struct yaml_source *y)
{
    if (!yaml_parser_load(parser, &y->document))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s:%zu: broken YAML: %s%s%s", y->name, parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "cannot be read", parser->context ? " " : "",
                        parser->context ? parser->context : "");
    const yaml_node_t *root = yaml_document_get_root_node(&y->document);
    if (root && root->type != YAML_MAPPING_NODE)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s:%zu: expected a map of options (key: value)", y->name,
                        root->start_mark.line + 1);
    if (root)
        read_map(y, root, NULL);
    return DTX_OK;
}

/* After the first document nothing may follow. */
static enum dtx_status expect_end(struct dtx_ctx *ctx, yaml_parser_t *parser, const char *name)
{
    yaml_document_t second;
    if (!yaml_parser_load(parser, &second))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s:%zu: broken YAML: %s", name, parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "cannot be read");
    const yaml_node_t *root = yaml_document_get_root_node(&second);
    size_t line = root ? root->start_mark.line + 1 : 0;
    yaml_document_delete(&second);
    return root ? dtx_fail(ctx, DTX_E_CONFIG, "%s:%zu: a second document; options must stand in one", name, line)
                : DTX_OK;
}

static enum dtx_status load_bytes(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *bytes, size_t n,
                                  const char *name, enum dtx_opt_source source, bool known_only)
{
    struct yaml_source y = {.opt = opt, .name = name, .source = source, .known_only = known_only};
    void *lines;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, opt->n_values, sizeof *y.lines, &lines));
    y.lines = lines;
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        dtx_mem_free(lines);
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory while reading %s", name);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)bytes, n);
    enum dtx_status status = read_document(ctx, &parser, &y);
    bool empty = status == DTX_OK && !yaml_document_get_root_node(&y.document);
    yaml_document_delete(&y.document);
    if (status == DTX_OK && !empty)
        status = expect_end(ctx, &parser, name);
    yaml_parser_delete(&parser);
    dtx_mem_free(lines);
    return status;
}

enum dtx_status dtx_opt_load_text(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *text, const char *name,
                                  enum dtx_opt_source source)
{
    DTX_TRY(ctx, load_bytes(ctx, opt, text, strlen(text), name, source, false));
    return DTX_OK;
}

enum dtx_status dtx_opt_load_known(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *text, const char *name,
                                   enum dtx_opt_source source)
{
    DTX_TRY(ctx, load_bytes(ctx, opt, text, strlen(text), name, source, true));
    return DTX_OK;
}

enum dtx_status dtx_opt_load_file(struct dtx_ctx *ctx, struct dtx_opt *opt, const char *path,
                                  enum dtx_opt_source source)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: cannot open this configuration file: %s", path, strerror(errno));
    void *bytes = NULL;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, FILE_LIMIT, 1, &bytes), done);
    size_t n = fread(bytes, 1, FILE_LIMIT, file);
    if (ferror(file))
        status = dtx_fail(ctx, DTX_E_CONFIG, "%s: cannot read this configuration file: %s", path, strerror(errno));
    else if (n == FILE_LIMIT)
        status = dtx_fail(ctx, DTX_E_CONFIG, "%s: over 16 MiB: this is no configuration file", path);
    else
        DTX_TRY_GOTO(ctx, status, load_bytes(ctx, opt, bytes, n, path, source, false), done);
done:
    dtx_mem_free(bytes);
    fclose(file);
    return status;
}

/* "parallel.tp" → "DTX_PARALLEL_TP" */
static void variable_name(const char *key, char out[KEY_TEXT])
{
    int n = snprintf(out, KEY_TEXT, "DTX_%s", key);
    for (int i = 4; i < n; i++)
        out[i] = out[i] == '.' || out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* A variable that names no option is a fault when it begins with a known group or nearly is a known name; others belong
 * to somebody else (DTX_MUTANT, variables of scripts). */
static void unknown_variable(struct dtx_opt *opt, const char *name)
{
    bool in_group = false;
    int least = 3;
    char nearest[KEY_TEXT] = "", known[KEY_TEXT];
    for (int i = 0; i < opt->n_values; i++) {
        const char *key = opt->values[i].row->key, *dot = strchr(key, '.');
        variable_name(key, known);
        in_group = in_group || (dot && strncmp(name, known, (size_t)(dot - key) + 5) == 0);
        int distance = dtx_opt_distance(name, known);
        if (distance < least && dot && strchr(name + 4, '_')) {
            least = distance;
            strcpy(nearest, known);
        }
    }
    if (*nearest)
        dtx_opt_fault(opt, "variable %s: there is no such option; did you mean %s?", name, nearest);
    else if (in_group)
        dtx_opt_fault(opt, "variable %s: there is no such option", name);
}

enum dtx_status dtx_opt_load_env(struct dtx_ctx *ctx, struct dtx_opt *opt, char *const *environment)
{
    (void)ctx;
    for (char *const *entry = environment; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        char name[KEY_TEXT], known[KEY_TEXT], from[KEY_TEXT + 16];
        if (strncmp(*entry, "DTX_", 4) != 0 || !equals ||
            snprintf(name, sizeof name, "%.*s", (int)(equals - *entry), *entry) >= KEY_TEXT)
            continue;
        int i = 0;
        for (; i < opt->n_values; i++) {
            variable_name(opt->values[i].row->key, known);
            if (strcmp(known, name) == 0)
                break;
        }
        snprintf(from, sizeof from, "variable %s", name);
        if (i < opt->n_values)
            dtx_opt_set(opt, opt->values[i].row->key, equals + 1, DTX_OPT_VARIABLE, from);
        else
            unknown_variable(opt, name);
    }
    return DTX_OK;
}

/* Behind an option of a run that is true or false: its value, be it a wrong one, and not the name of a file? */
static bool is_truth(const char *key, const char *word)
{
    bool truth;
    return dtx_opt_parse_bool(word, &truth) || (strchr(key, '.') && !strpbrk(word, "./") && access(word, F_OK) != 0);
}

/* Handles the flag argv[i] (which begins with --); returns how many words it took. */
static int read_flag(struct dtx_opt *opt, int argc, char *const *argv, int i)
{
    const char *word = argv[i] + 2, *equals = strchr(word, '=');
    char key[KEY_TEXT], from[KEY_TEXT + 16];
    if (snprintf(key, sizeof key, "%.*s", equals ? (int)(equals - word) : (int)strlen(word), word) >= KEY_TEXT) {
        dtx_opt_fault(opt, "flag %.40s…: there is no such option", argv[i]);
        return 1;
    }
    snprintf(from, sizeof from, "flag --%s", key);
    const struct opt_value *value = dtx_opt_find(opt, key);
    bool has_next = i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0;
    if (equals) {
        dtx_opt_set(opt, key, equals + 1, DTX_OPT_FLAG, from);
        return 1;
    }
    if (value && value->row->type == DTX_OPT_BOOL) {
        has_next = has_next && is_truth(key, argv[i + 1]);
        dtx_opt_set(opt, key, has_next ? argv[i + 1] : "true", DTX_OPT_FLAG, from);
    } else if (value && !has_next) {
        dtx_opt_fault(opt, "%s: a value must follow", from);
    } else {
        dtx_opt_set(opt, key, value ? argv[i + 1] : "", DTX_OPT_FLAG, from);
    }
    return has_next ? 2 : 1;
}

enum dtx_status dtx_opt_load_args(struct dtx_ctx *ctx, struct dtx_opt *opt, int argc, char *const *argv,
                                  const char **words, int max_words, int *n_words)
{
    (void)ctx;
    int n = 0;
    bool flags = true; /* until the word "--" */
    for (int i = 0; i < argc;) {
        bool number = argv[i][0] == '-' && (isdigit((unsigned char)argv[i][1]) || argv[i][1] == '.');
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
            i++;
        } else if (flags && strncmp(argv[i], "--", 2) == 0) {
            i += read_flag(opt, argc, argv, i);
        } else if (flags && argv[i][0] == '-' && argv[i][1] && !number) {
            dtx_opt_fault(opt, "flag %s: flags begin with two dashes", argv[i++]);
        } else if (n == max_words) {
            dtx_opt_fault(opt, "'%s' is one word too many on the command line", argv[i++]);
        } else {
            words[n++] = argv[i++];
        }
    }
    *n_words = n;
    return DTX_OK;
}
