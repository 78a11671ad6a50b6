#include "data/tokenize_state.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/buffer.h"
#include "data/file.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"

enum { FORMAT = 1 };

void dtx_tokenize_state_free(struct dtx_tokenize_state *s)
{
    dtx_mem_free(s->shards);
    s->shards = NULL;
}

uint64_t dtx_tokenize_inputs_hash(const struct dtx_tokenize_state *s)
{
    uint64_t hash = 0;
    for (int i = 0; i < s->n_inputs; i++) {
        const struct dtx_tokenize_input *in = &s->inputs[i];
        const int64_t values[] = {in->size, in->modified};
        hash = dtx_hash(values, sizeof values, dtx_hash_text(in->path, hash));
    }
    return hash;
}

enum dtx_status dtx_tokenize_add_shard(struct dtx_ctx *ctx, struct dtx_tokenize_state *s,
                                       const struct dtx_tokenize_shard *shard)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, s->shards, s->n_shards, s->n_shards + 1, sizeof *s->shards, &s->capacity, &p));
    s->shards = p;
    s->shards[s->n_shards++] = *shard;
    return DTX_OK;
}

enum dtx_status dtx_tokenize_shard_prefix(struct dtx_ctx *ctx, const struct dtx_tokenize_state *s, const char *out,
                                          int64_t k, char **prefix)
{
    char number[32] = "";
    if (s->shard_bytes > 0)
        snprintf(number, sizeof number, "-%05lld", (long long)k);
    return dtx_path_join(ctx, out, number, prefix);
}

static json_t *hex(uint64_t value)
{
    return json_sprintf("%016" PRIx64, value);
}

static json_t *pack_job(const struct dtx_tokenize_state *s)
{
    return json_pack("{s:o, s:I, s:I, s:s, s:s, s:I, s:o}", "tokenizer", hex(s->tokenizer), "vocab",
                     (json_int_t)s->vocab, "separator", (json_int_t)s->separator, "split", s->split, "field", s->field,
                     "shard_bytes", (json_int_t)s->shard_bytes, "inputs", hex(s->inputs_hash));
}

static json_t *pack_input(const struct dtx_tokenize_input *in)
{
    return json_pack("{s:s%, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path", in->path, strlen(in->path), "size",
                     (json_int_t)in->size, "text_bytes", (json_int_t)in->text_bytes, "documents",
                     (json_int_t)in->documents, "tokens", (json_int_t)in->tokens, "invalid_utf8",
                     (json_int_t)in->invalid, "bad_lines", (json_int_t)in->bad_lines, "empty", (json_int_t)in->empty);
}

static json_t *pack_mark(const struct dtx_tokenwriter_mark *m)
{
    return json_pack("{s:I, s:I, s:I}", "tokens", (json_int_t)m->tokens, "sequences", (json_int_t)m->sequences,
                     "documents", (json_int_t)m->documents);
}

static json_t *pack_shard(const struct dtx_tokenize_state *s, int64_t k)
{
    const struct dtx_tokenize_shard *shard = &s->shards[k];
    json_t *o = pack_mark(&shard->counts);
    json_t *sums = json_pack("{s:I, s:o, s:I, s:o}", "bin_bytes", (json_int_t)shard->sums.data_bytes, "bin_xxh3",
                             hex(shard->sums.data_hash), "idx_bytes", (json_int_t)shard->sums.index_bytes, "idx_xxh3",
                             hex(shard->sums.index_hash));
    json_object_update(o, sums);
    json_decref(sums);
    return o;
}

static json_t *pack(const struct dtx_tokenize_state *s, bool finished)
{
    json_t *inputs = json_array(), *shards = json_array();
    struct dtx_tokenize_input all = {.path = ""};
    for (int i = 0; i < s->n_inputs; i++) {
        const struct dtx_tokenize_input *in = &s->inputs[i];
        json_array_append_new(inputs, pack_input(in));
        all.size += in->size;
        all.text_bytes += in->text_bytes;
        all.documents += in->documents;
        all.tokens += in->tokens;
        all.invalid += in->invalid;
        all.bad_lines += in->bad_lines;
        all.empty += in->empty;
    }
    for (int64_t k = 0; k < s->n_shards; k++)
        json_array_append_new(shards, pack_shard(s, k));
    json_t *total = pack_input(&all);
    json_object_del(total, "path");
    json_t *root = json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "format", "dtx tokenize", "version", FORMAT, "job",
                             pack_job(s), "total", total, "shards", shards, "inputs", inputs);
    if (!finished)
        json_object_set_new(root, "next",
                            json_pack("{s:i, s:I, s:o, s:b}", "input", s->input, "lines", (json_int_t)s->lines, "shard",
                                      pack_mark(&s->mark), "renaming", (int)s->renaming));
    return root;
}

enum dtx_status dtx_tokenize_state_write(struct dtx_ctx *ctx, const struct dtx_tokenize_state *s, const char *path,
                                         bool finished)
{
    struct dtx_outfile file;
    json_t *root = pack(s, finished);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s cannot be written: no memory, or a path that is not UTF-8", path);
    enum dtx_status status = dtx_outfile_open(ctx, &file, path);
    if (status == DTX_OK) {
        status = dtx_outfile_write(ctx, &file, text, strlen(text));
        if (status == DTX_OK)
            status = dtx_outfile_write(ctx, &file, "\n", 1);
        if (status == DTX_OK)
            status = dtx_outfile_sync(ctx, &file);
        if (status == DTX_OK)
            status = dtx_outfile_rename(ctx, &file);
        dtx_outfile_discard(&file);
    }
    free(text);
    return status == DTX_OK ? dtx_file_sync_folder(ctx, path) : status;
}

/* Numbers that are missing or of another kind count as damage. */
struct unpacking {
    bool damaged;
};

static int64_t take(struct unpacking *u, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    u->damaged |= !json_is_integer(value) || json_integer_value(value) < 0;
    return json_integer_value(value);
}

static uint64_t take_hex(struct unpacking *u, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    u->damaged |= !text;
    return text ? strtoull(text, NULL, 16) : 0;
}

static void take_mark(struct unpacking *u, const json_t *object, struct dtx_tokenwriter_mark *m)
{
    m->tokens = take(u, object, "tokens");
    m->sequences = take(u, object, "sequences");
    m->documents = take(u, object, "documents");
}

static const char *difference(const json_t *theirs, const json_t *ours)
{
    static const char *const keys[] = {"tokenizer", "vocab", "separator", "split", "field", "shard_bytes", "inputs"};
    static const char *const names[] = {"with another tokenizer",
                                        "with another vocabulary",
                                        "with another separator",
                                        "with another --split",
                                        "with another --field",
                                        "with another --shard_bytes",
                                        "from other inputs, or they have changed since"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_equal(json_object_get(theirs, keys[i]), json_object_get(ours, keys[i])))
            return names[i];
    return NULL;
}

static enum dtx_status unpack_done(struct dtx_ctx *ctx, struct dtx_tokenize_state *s, const json_t *root,
                                   struct unpacking *u)
{
    const json_t *inputs = json_object_get(root, "inputs"), *shards = json_object_get(root, "shards");
    u->damaged |= json_array_size(inputs) != (size_t)s->n_inputs;
    for (int i = 0; i < s->n_inputs && !u->damaged; i++) {
        const json_t *o = json_array_get(inputs, (size_t)i);
        struct dtx_tokenize_input *in = &s->inputs[i];
        in->text_bytes = take(u, o, "text_bytes");
        in->documents = take(u, o, "documents");
        in->tokens = take(u, o, "tokens");
        in->invalid = take(u, o, "invalid_utf8");
        in->bad_lines = take(u, o, "bad_lines");
        in->empty = take(u, o, "empty");
    }
    for (size_t k = 0; k < json_array_size(shards) && !u->damaged; k++) {
        const json_t *o = json_array_get(shards, k);
        struct dtx_tokenize_shard shard;
        take_mark(u, o, &shard.counts);
        shard.sums = (struct dtx_tokenwriter_sums){take(u, o, "bin_bytes"), take(u, o, "idx_bytes"),
                                                   take_hex(u, o, "bin_xxh3"), take_hex(u, o, "idx_xxh3")};
        DTX_TRY(ctx, dtx_tokenize_add_shard(ctx, s, &shard));
    }
    return DTX_OK;
}

static void unpack_next(struct dtx_tokenize_state *s, const json_t *next, struct unpacking *u)
{
    int64_t input = take(u, next, "input");
    u->damaged |= input > s->n_inputs;
    s->input = u->damaged ? 0 : (int)input;
    s->lines = take(u, next, "lines");
    take_mark(u, json_object_get(next, "shard"), &s->mark);
    s->renaming = json_is_true(json_object_get(next, "renaming"));
    u->damaged |= s->renaming && s->n_shards == 0;
}

enum dtx_status dtx_tokenize_state_read(struct dtx_ctx *ctx, struct dtx_tokenize_state *s, const char *path,
                                        bool finished, bool *same, char why[200])
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *job = pack_job(s);
    const char *other = NULL;
    struct unpacking u = {false};
    enum dtx_status status = DTX_OK;
    *same = false;
    if (!root || json_integer_value(json_object_get(root, "version")) != FORMAT || !job) {
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s is no state of dtx tokenize: %s; remove it to begin anew", path,
                          root ? "another version" : error.text);
        goto done;
    }
    other = difference(json_object_get(root, "job"), job);
    if (other) {
        snprintf(why, 200, "%s", other);
        goto done;
    }
    DTX_TRY_GOTO(ctx, status, unpack_done(ctx, s, root, &u), done);
    if (!finished)
        unpack_next(s, json_object_get(root, "next"), &u);
    if (u.damaged)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged; remove it to begin anew", path);
    *same = status == DTX_OK;
done:
    json_decref(job);
    json_decref(root);
    return status;
}
