/* A tokenizer file of any format, told apart by its content. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenizer_formats.h"
#include "kernels/base/mem.h"

enum { MOST_FILE_BYTES = 1 << 30 };

static enum dtx_status read_whole(struct dtx_ctx *ctx, const char *path, struct dtx_bytes *out)
{
    int fd;
    int64_t bytes;
    DTX_TRY(ctx, dtx_file_open(ctx, path, &fd, &bytes));
    enum dtx_status status;
    if (bytes > MOST_FILE_BYTES)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes: not a tokenizer", path, (long long)bytes);
    else
        status = dtx_bytes_reserve(ctx, out, bytes);
    if (status == DTX_OK)
        status = dtx_file_read_at(ctx, fd, path, out->data, (size_t)bytes, 0);
    out->n = status == DTX_OK ? bytes : 0;
    close(fd);
    return status;
}

/* The first of `names` that exists in the folder of `path` (path itself where it is one); *out NULL: none. */
static enum dtx_status find_beside(struct dtx_ctx *ctx, const char *path, bool is_folder, const char *const *names,
                                   char **out)
{
    const char *slash = strrchr(path, '/');
    char *folder, *found = NULL;
    DTX_TRY(ctx, dtx_mem_text(ctx, path, &folder));
    if (!is_folder)
        folder[slash ? slash - path + 1 : 0] = '\0';
    enum dtx_status status = DTX_OK;
    for (; *names && !found && status == DTX_OK; names++) {
        char *prefix;
        status = dtx_path_join(ctx, folder, is_folder ? "/" : "", &prefix);
        if (status == DTX_OK) {
            status = dtx_path_join(ctx, prefix, *names, &found);
            dtx_mem_free(prefix);
        }
        if (status == DTX_OK && access(found, F_OK) != 0) {
            dtx_mem_free(found);
            found = NULL;
        }
    }
    dtx_mem_free(folder);
    if (status == DTX_OK)
        *out = found;
    return status;
}

static enum dtx_status read_object(struct dtx_ctx *ctx, const char *path, const struct dtx_bytes *text, json_t **out)
{
    json_error_t error;
    *out = json_loadb(text->data, (size_t)text->n, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    return DTX_OK;
}

/* encoder.json whose object is read, with the merges beside it. */
static enum dtx_status load_encoder(struct dtx_ctx *ctx, const char *path, json_t *ids, struct dtx_tokenizer **out)
{
    static const char *const names[] = {"vocab.bpe", "merges.txt", NULL};
    struct dtx_bytes merges = {0};
    char *merges_path;
    DTX_TRY(ctx, find_beside(ctx, path, false, names, &merges_path));
    if (!merges_path)
        return dtx_fail(
            ctx, DTX_E_FORMAT,
            "%s has no model: it is no tokenizer.json; an encoder.json needs vocab.bpe or merges.txt beside it", path);
    enum dtx_status status = read_whole(ctx, merges_path, &merges);
    if (status == DTX_OK)
        status = dtx_tokenizer_read_encoder(ctx, path, ids, merges_path, merges.data, merges.n, out);
    dtx_bytes_free(&merges);
    dtx_mem_free(merges_path);
    return status;
}

static enum dtx_status load_object(struct dtx_ctx *ctx, const char *path, const struct dtx_bytes *text,
                                   struct dtx_tokenizer **out)
{
    json_t *root;
    DTX_TRY(ctx, read_object(ctx, path, text, &root));
    /* "model" may be a token. */
    bool flat = json_object_size(root) > 0 &&
                (!json_object_get(root, "model") || json_is_integer(json_object_get(root, "model")));
    enum dtx_status status = flat ? load_encoder(ctx, path, root, out) : dtx_tokenizer_read_json(ctx, path, root, out);
    json_decref(root);
    return status;
}

/* vocab.bpe, with the ids of an encoder.json if there is one beside it. */
static enum dtx_status load_bpe(struct dtx_ctx *ctx, const char *path, const struct dtx_bytes *text,
                                struct dtx_tokenizer **out)
{
    static const char *const names[] = {"encoder.json", "vocab.json", NULL};
    struct dtx_bytes ids_text = {0};
    char *ids_path;
    json_t *ids = NULL;
    DTX_TRY(ctx, find_beside(ctx, path, false, names, &ids_path));
    if (!ids_path)
        return dtx_tokenizer_read_bpe(ctx, path, text->data, text->n, out);
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, read_whole(ctx, ids_path, &ids_text), done);
    DTX_TRY_GOTO(ctx, status, read_object(ctx, ids_path, &ids_text, &ids), done);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_read_encoder(ctx, ids_path, ids, path, text->data, text->n, out), done);
done:
    json_decref(ids);
    dtx_bytes_free(&ids_text);
    dtx_mem_free(ids_path);
    return status;
}

static enum dtx_status load_file(struct dtx_ctx *ctx, const char *path, int kind, struct dtx_tokenizer **out)
{
    struct dtx_bytes text = {0};
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, read_whole(ctx, path, &text), done);
    int64_t start = 0;
    while (start < text.n && strchr(" \t\r\n", text.data[start]) && text.data[start])
        start++;
    if (kind < 0 && start < text.n && text.data[start] == '{')
        status = load_object(ctx, path, &text, out);
    else if (kind < 0 && text.n >= 8 && memcmp(text.data, "#version", 8) == 0)
        status = load_bpe(ctx, path, &text, out);
    else if (dtx_tiktoken_looks_so(text.data, text.n))
        status = dtx_tokenizer_read_tiktoken(ctx, path, kind, text.data, text.n, out);
    else
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s is neither a tokenizer.json, a vocab.bpe nor a tiktoken file", path);
done:
    dtx_bytes_free(&text);
    return status;
}

enum dtx_status dtx_tokenizer_load(struct dtx_ctx *ctx, const char *path, struct dtx_tokenizer **out)
{
    static const char *const names[] = {"tokenizer.json", "encoder.json", "vocab.json", "vocab.bpe", NULL};
    const char *colon = strchr(path, ':');
    int kind = colon ? dtx_tiktoken_kind(path, (size_t)(colon - path)) : -1;
    struct stat st;
    if (kind >= 0)
        return load_file(ctx, colon + 1, kind, out);
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return load_file(ctx, path, -1, out);
    char *inside;
    DTX_TRY(ctx, find_beside(ctx, path, true, names, &inside));
    if (!inside)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s has no tokenizer.json, encoder.json or vocab.bpe in it", path);
    enum dtx_status status = load_file(ctx, inside, -1, out);
    dtx_mem_free(inside);
    return status;
}
