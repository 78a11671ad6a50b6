/* Writes tokenizer.json as Hugging Face tokenizers reads it. */
#include <string.h>

#include "data/alphabet.h"
#include "data/file.h"
#include "data/tokenizer_formats.h"

/* The token as tokenizer.json spells it, added tokens as they are; NUL-terminated in `out`. */
static enum dtx_status spell(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, int32_t id, bool added,
                             struct dtx_bytes *out)
{
    const struct dtx_token *token = &t->tokens[id];
    const char *bytes = t->text.data + token->first;
    out->n = 0;
    if (added)
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, bytes, token->n));
    else
        DTX_TRY(ctx, dtx_alphabet_encode(ctx, bytes, token->n, out));
    return dtx_bytes_append(ctx, out, "", 1);
}

static enum dtx_status pack_added(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, json_t *added, json_t *vocab,
                                  struct dtx_bytes *text)
{
    int failed = 0;
    for (int64_t i = 0; i < t->n_added; i++) {
        const struct dtx_added *a = &t->added[i];
        DTX_TRY(ctx, spell(ctx, t, a->id, true, text));
        failed |= json_object_set_new(vocab, text->data, json_integer(a->id));
        failed |= json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", a->id, "content",
                                                         text->data, "single_word", a->single_word, "lstrip", a->lstrip,
                                                         "rstrip", a->rstrip, "normalized", a->normalized, "special",
                                                         a->special));
    }
    return failed ? dtx_fail(ctx, DTX_E_MEMORY, "out of memory writing a tokenizer") : DTX_OK;
}

static bool is_added(const struct dtx_tokenizer *t, int32_t id)
{
    for (int64_t i = 0; i < t->n_added; i++)
        if (t->added[i].id == id)
            return true;
    return false;
}

static enum dtx_status pack_model(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, json_t *added, json_t *vocab,
                                  json_t *merges)
{
    struct dtx_bytes a = {0}, b = {0};
    enum dtx_status status = DTX_OK;
    int failed = 0;
    for (int32_t id = 0; id < t->vocab; id++) {
        if (t->tokens[id].n == 0 || is_added(t, id))
            continue;
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, id, false, &a), done);
        failed |= json_object_set_new(vocab, a.data, json_integer(id));
    }
    DTX_TRY_GOTO(ctx, status, pack_added(ctx, t, added, vocab, &a), done);
    for (int64_t m = 0; m < t->n_merges; m++) {
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, t->merges[m].left, false, &a), done);
        a.data[a.n - 1] = ' ';
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, t->merges[m].right, false, &b), done);
        DTX_TRY_GOTO(ctx, status, dtx_bytes_append(ctx, &a, b.data, b.n), done);
        failed |= json_array_append_new(merges, json_string(a.data));
    }
    if (failed)
        status = dtx_fail(ctx, DTX_E_MEMORY, "out of memory writing a tokenizer");
done:
    dtx_bytes_free(&a);
    dtx_bytes_free(&b);
    return status;
}

struct sink {
    struct dtx_ctx *ctx;
    struct dtx_outfile file;
};

static int write_chunk(const char *data, size_t bytes, void *sink)
{
    struct sink *s = sink;
    return dtx_outfile_write(s->ctx, &s->file, data, bytes) == DTX_OK ? 0 : -1;
}

static enum dtx_status write_json(struct dtx_ctx *ctx, const json_t *root, const char *path)
{
    struct sink sink = {.ctx = ctx};
    DTX_TRY(ctx, dtx_outfile_open(ctx, &sink.file, path));
    enum dtx_status status;
    if (json_dump_callback(root, write_chunk, &sink, JSON_INDENT(1)) != 0)
        status = dtx_fail(ctx, DTX_E_IO, "cannot write %s", path);
    else
        status = dtx_outfile_sync(ctx, &sink.file);
    if (status == DTX_OK)
        status = dtx_outfile_rename(ctx, &sink.file);
    dtx_outfile_discard(&sink.file);
    return status == DTX_OK ? dtx_file_sync_folder(ctx, path) : status;
}

enum dtx_status dtx_tokenizer_save(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const char *path)
{
    if (t->by_rank || t->n_forms > 0 || !dtx_pattern_is(t->pattern, DTX_SCAN_GPT2))
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "%s: only a tokenizer with GPT-2's pattern and a list of merges can be written", path);
    json_t *added = json_array(), *vocab = json_object(), *merges = json_array();
    enum dtx_status status = pack_model(ctx, t, added, vocab, merges);
    /* json_pack takes the references with o, also when it fails. */
    json_t *root =
        json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b},"
                  " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                  "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor",
                  "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model",
                  "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  0, "byte_fallback", 0, "ignore_merges", t->ignore_merges, "vocab", vocab, "merges", merges);
    if (status == DTX_OK && !root)
        status = dtx_fail(ctx, DTX_E_MEMORY, "out of memory writing %s", path);
    if (status == DTX_OK)
        status = write_json(ctx, root, path);
    json_decref(root);
    return status;
}
