#include "data/source.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/file.h"
#include "data/reader.h"
#include "kernels/base/mem.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little endian and are read without swapping"
#endif

#define DTX_VARIANT(reader) extern const struct dtx_reader dtx_reader_##reader;
#include "data/readers.inc"
#undef DTX_VARIANT

static const struct dtx_reader *const readers[] = {
#define DTX_VARIANT(reader) &dtx_reader_##reader,
#include "data/readers.inc"
#undef DTX_VARIANT
};
enum { N_READERS = sizeof readers / sizeof *readers };

#define DTX_VARIANT(reader) "|" #reader
static const char formats[] =
#include "data/readers.inc"
    ;
#undef DTX_VARIANT

const char *dtx_source_formats(void)
{
    return formats + 1;
}

static const struct dtx_token_type token_types[] = {
    {"u8", 1, 1 << 8},
    {"i8", 1, 1 << 7},
    {"i16", 2, 1 << 15},
    {"u16", 2, 1 << 16},
    {"i32", 4, INT64_C(1) << 31},
    {"u32", 4, INT64_C(1) << 32},
    {"i64", 8, INT64_MAX},
    {"u64", 8, INT64_MAX},
};

const struct dtx_token_type *dtx_token_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof token_types / sizeof *token_types; i++)
        if (strcmp(token_types[i].name, name) == 0)
            return &token_types[i];
    return NULL;
}

bool dtx_reader_ends(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

bool dtx_reader_exists(const char *path, const char *suffix)
{
    char whole[4096];
    struct stat st;
    int n = snprintf(whole, sizeof whole, "%s%s", path, suffix);
    return n > 0 && n < (int)sizeof whole && stat(whole, &st) == 0;
}

enum dtx_status dtx_reader_add(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                               const char *suffix, struct dtx_poolfile *f)
{
    char *whole;
    DTX_TRY(ctx, dtx_path_join(ctx, path, suffix, &whole));
    enum dtx_status status = dtx_poolfile_add(ctx, config->files, whole, f);
    dtx_mem_free(whole);
    return status;
}

enum { LOOKED_AT = 256 };

/* Ids under 65,536 written as u32 and read as u16 are 0 at every second place, and not at the others. */
static enum dtx_status refuse_wide(struct dtx_ctx *ctx, struct dtx_source *s)
{
    uint16_t ids[LOOKED_AT];
    int64_t n = dtx_min64(LOOKED_AT, (s->data.bytes - s->data_at) / 4 * 2);
    bool high = false, low = false;
    DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, ids, (size_t)n * sizeof *ids, s->data_at));
    for (int64_t i = 0; i < n; i += 2) {
        low |= ids[i] != 0;
        high |= ids[i + 1] != 0;
    }
    if (n >= 8 && low && !high)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: taken as u16, since the vocabulary fits, but every second one of its first %lld tokens is "
                        "0: it looks like u32; give the type (--type u32, data.type)",
                        s->data.path, (long long)n);
    return DTX_OK;
}

enum dtx_status dtx_reader_raw_type(struct dtx_ctx *ctx, const struct dtx_source_config *config, struct dtx_source *s)
{
    const char *name = config->type ? config->type : "auto";
    bool guess = strcmp(name, "auto") == 0;
    if (guess && config->vocab <= 0 && s->data.bytes > s->data_at)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "%s: nothing in it says what type its tokens are; give it (--type u16 or u32, data.type)",
                        s->data.path);
    s->type = dtx_token_type_find(guess ? config->vocab <= 1 << 16 ? "u16" : "u32" : name);
    if (!s->type)
        return dtx_fail(ctx, DTX_E_CONFIG, "'%s' is no type of tokens: u8 i8 i16 u16 i32 u32 i64 u64", name);
    return guess && s->type->bytes == 2 ? refuse_wide(ctx, s) : DTX_OK;
}

/* FORMAT:PATH, else what the path's name and neighbours say. */
static enum dtx_status choose(struct dtx_ctx *ctx, const char *path, const struct dtx_reader **reader,
                              const char **rest)
{
    for (int i = 0; i < N_READERS; i++) {
        size_t n = strlen(readers[i]->name);
        if (strncmp(path, readers[i]->name, n) == 0 && path[n] == ':') {
            *reader = readers[i];
            *rest = path + n + 1;
            return DTX_OK;
        }
    }
    *rest = path;
    for (int i = 0; i < N_READERS; i++)
        if (readers[i]->owns(path)) {
            *reader = readers[i];
            return DTX_OK;
        }
    size_t word = strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (word > 0 && path[word] == ':')
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: '%.*s' is no format of token files; there are %s", path, (int)word,
                        path, formats + 1);
    /* What is nothing else is the prefix of a Megatron pair: the message then names the file that is missing. */
    *reader = &dtx_reader_megatron;
    return DTX_OK;
}

static enum dtx_status finish(struct dtx_ctx *ctx, struct dtx_source *s)
{
    struct dtx_source_info *info = &s->info;
    info->data_bytes = s->data.bytes;
    info->data_path = s->data.path;
    info->index_path = s->index.path;
    info->index_bytes = s->index.path ? s->index.bytes : 0;
    info->format = s->reader->name;
    info->type = s->type->name;
    info->token_bytes = s->type->bytes;
    if (s->vocab > s->type->ids)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: tokens of type %s hold ids below %lld, the vocabulary has %lld: the file was written for "
                        "a smaller vocabulary; tokenize again",
                        s->data.path, s->type->name, (long long)s->type->ids, (long long)s->vocab);
    return DTX_OK;
}

enum dtx_status dtx_source_open(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                struct dtx_source **out)
{
    void *p;
    const char *rest;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_source), &p));
    struct dtx_source *s = p;
    s->vocab = config->vocab;
    s->separator = config->separator;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, choose(ctx, path, &s->reader, &rest), fail);
    DTX_TRY_GOTO(ctx, status, s->reader->open(ctx, config, rest, s), fail);
    DTX_TRY_GOTO(ctx, status, finish(ctx, s), fail);
    *out = s;
    return DTX_OK;
fail:
    dtx_source_close(s);
    return status;
}

void dtx_source_close(struct dtx_source *s)
{
    if (!s)
        return;
    dtx_poolfile_close(&s->data);
    dtx_poolfile_close(&s->index);
    dtx_mem_free(s);
}

const struct dtx_source_info *dtx_source_info(const struct dtx_source *s)
{
    return &s->info;
}
