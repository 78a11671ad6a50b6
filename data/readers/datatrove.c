/* datatrove's NAME.ds, as nanotron reads it: raw u16 or u32 tokens. NAME.ds.index: u64 ends of the documents in tokens.
 * NAME.ds.metadata: a line "TOKENIZER|BYTES" (BYTES of a token; older files leave it out and have 2), a line with the
 * number of tokens. Both may be missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/reader.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { BLOCK = 4096, METADATA_BYTES = 65536 };

static bool owns(const char *path)
{
    return dtx_reader_ends(path, ".ds");
}

struct metadata {
    bool present;
    int token_bytes; /* 0: not said */
    int64_t tokens;
};

static enum dtx_status parse_metadata(struct dtx_ctx *ctx, const char *path, char *text, struct metadata *m)
{
    char *line = strchr(text, '\n'), *end;
    if (!line)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s.metadata: no second line with the number of tokens", path);
    *line++ = '\0';
    const char *bar = strrchr(text, '|');
    if (bar && strcmp(bar, "|2") != 0 && strcmp(bar, "|4") != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s.metadata: '%s' bytes a token in line 1; 2 and 4 are known", path,
                        bar + 1);
    m->token_bytes = bar ? bar[1] - '0' : 0;
    long long tokens = strtoll(line, &end, 10);
    if (end == line || (*end && *end != '\n' && *end != '\r') || tokens < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s.metadata: line 2 is '%.40s', not a number of tokens", path, line);
    m->tokens = tokens;
    return DTX_OK;
}

static enum dtx_status read_metadata(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                     struct metadata *m)
{
    *m = (struct metadata){.present = dtx_reader_exists(path, ".metadata")};
    if (!m->present)
        return DTX_OK;
    struct dtx_poolfile f;
    void *text = NULL;
    enum dtx_status status;
    DTX_TRY(ctx, dtx_reader_add(ctx, config, path, ".metadata", &f));
    if (f.bytes > METADATA_BYTES) {
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are too long for three lines", f.path, (long long)f.bytes);
        goto done;
    }
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, f.bytes + 1, 1, &text), done);
    DTX_TRY_GOTO(ctx, status, dtx_poolfile_read(ctx, &f, text, (size_t)f.bytes, 0), done);
    DTX_TRY_GOTO(ctx, status, parse_metadata(ctx, path, text, m), done);
done:
    dtx_mem_free(text);
    dtx_poolfile_close(&f);
    return status;
}

/* *end = the last document's end, 0 without documents. */
static enum dtx_status open_index(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                  struct dtx_source *s, int64_t *end)
{
    s->info.documents = -1;
    *end = 0;
    if (!dtx_reader_exists(path, ".index"))
        return DTX_OK;
    DTX_TRY(ctx, dtx_reader_add(ctx, config, path, ".index", &s->index));
    if (s->index.bytes % 8 != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are no whole number of u64: truncated", s->index.path,
                        (long long)s->index.bytes);
    s->info.documents = s->index.bytes / 8;
    if (s->info.documents > 0)
        DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->index, end, 8, s->index.bytes - 8));
    if (*end < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: the last document ends at %llu (offset %lld)", s->index.path,
                        (unsigned long long)*end, (long long)s->index.bytes - 8);
    return DTX_OK;
}

/* What the metadata says; else what the size says, given the tokens by the index; else as for raw tokens. */
static enum dtx_status choose_type(struct dtx_ctx *ctx, const struct dtx_source_config *config, struct dtx_source *s,
                                   const struct metadata *m, int64_t end)
{
    int bytes = m->token_bytes;
    int64_t tokens = m->present ? m->tokens : end;
    bool given = config->type && strcmp(config->type, "auto") != 0;
    if (!bytes && !given && tokens > 0)
        bytes = s->data.bytes / tokens >= 4 ? 4 : 2;
    if (!bytes)
        return dtx_reader_raw_type(ctx, config, s);
    s->type = dtx_token_type_find(bytes == 4 ? "u32" : "u16");
    if (given && strcmp(config->type, s->type->name) != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: its metadata says %s, the type given is %s", s->data.path,
                        s->type->name, config->type);
    return DTX_OK;
}

static enum dtx_status check(struct dtx_ctx *ctx, struct dtx_source *s)
{
    uint64_t ends[BLOCK], before = 0;
    for (int64_t d = 0; d < s->info.documents; d += BLOCK) {
        int64_t part = dtx_min64(BLOCK, s->info.documents - d);
        DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->index, ends, 8 * (size_t)part, 8 * d));
        for (int64_t i = 0; i < part; i++) {
            if (ends[i] < before || ends[i] > (uint64_t)s->info.tokens)
                return dtx_fail(ctx, DTX_E_FORMAT,
                                "%s: document %lld ends at token %llu (offset %lld), after %llu, with %lld tokens",
                                s->index.path, (long long)(d + i), (unsigned long long)ends[i],
                                (long long)(8 * (d + i)), (unsigned long long)before, (long long)s->info.tokens);
            before = ends[i];
        }
    }
    return DTX_OK;
}

static enum dtx_status open_file(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                 struct dtx_source *s)
{
    struct metadata m;
    int64_t end;
    DTX_TRY(ctx, dtx_reader_add(ctx, config, path, "", &s->data));
    DTX_TRY(ctx, read_metadata(ctx, config, path, &m));
    DTX_TRY(ctx, open_index(ctx, config, path, s, &end));
    DTX_TRY(ctx, choose_type(ctx, config, s, &m, end));
    int64_t bytes = s->data.bytes, size = s->type->bytes;
    if (bytes % size != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are no whole number of %s tokens: truncated", path,
                        (long long)bytes, s->type->name);
    s->info.tokens = bytes / size;
    s->info.sequences = s->info.documents;
    if (s->info.documents >= 0 && end != s->info.tokens && !DTX_MUTANT(datatrove_index_unchecked))
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: the last document ends at token %lld, %s has %lld tokens of %s (%lld bytes): the two do "
                        "not belong together or one was cut off",
                        s->index.path, (long long)end, path, (long long)s->info.tokens, s->type->name,
                        (long long)bytes);
    if (m.present && m.tokens != s->info.tokens)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s.metadata says %lld tokens, %s has %lld of %s (%lld bytes)", path,
                        (long long)m.tokens, path, (long long)s->info.tokens, s->type->name, (long long)bytes);
    return s->info.documents > 0 && s->info.documents <= DTX_READER_CHECKED && !config->trusted ? check(ctx, s)
                                                                                                : DTX_OK;
}

static enum dtx_status document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t d, int64_t *first)
{
    int64_t start = 0;
    if (d > 0)
        DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->index, &start, 8, 8 * (d - 1)));
    if (start < 0 || start > s->info.tokens)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: document %lld ends at token %llu of %lld (offset %lld)", s->index.path,
                        (long long)d - 1, (unsigned long long)start, (long long)s->info.tokens,
                        (long long)(8 * (d - 1)));
    *first = start;
    return DTX_OK;
}

const struct dtx_reader dtx_reader_datatrove = {
    .name = "datatrove",
    .help = "datatrove's and nanotron's .ds, with .ds.index and .ds.metadata where they are there",
    .owns = owns,
    .open = open_file,
    .document = document,
    .check = check,
};
