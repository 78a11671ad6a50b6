/* llm.c's token files: a header of 256 i32 (magic, version, tokens), then the tokens. There are no documents. */
#include <stdio.h>
#include <string.h>

#include "data/reader.h"
#include "kernels/base/mutant.h"

enum { HEADER_BYTES = 256 * 4, EVALUATION_MAGIC = 20240522 };

static const struct kind {
    int32_t magic, version;
    const char *type;
} kinds[] = {{20240520, 1, "u16"}, {20240801, 7, "u32"}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static bool owns(const char *path)
{
    char stem[4096]; /* with an index beside it, it is half of a Megatron pair */
    bool named = dtx_reader_ends(path, ".bin");
    int n = snprintf(stem, sizeof stem, "%.*s", named ? (int)strlen(path) - 4 : 0, path);
    return named && n < (int)sizeof stem && !dtx_reader_exists(stem, ".idx");
}

static enum dtx_status find_kind(struct dtx_ctx *ctx, const char *path, const int32_t *head, const struct kind **out)
{
    for (int i = 0; i < N_KINDS; i++) {
        if ((int32_t)__builtin_bswap32((uint32_t)head[0]) == kinds[i].magic)
            return dtx_fail(ctx, DTX_E_FORMAT,
                            "%s: the magic %d at offset 0 is in big-endian byte order; only little endian is read",
                            path, kinds[i].magic);
        if (head[0] != kinds[i].magic)
            continue;
        if (head[1] != kinds[i].version && !DTX_MUTANT(llmc_version_unchecked))
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: version at offset 4 is %d; with magic %d only %d is known", path,
                            head[1], head[0], kinds[i].version);
        *out = &kinds[i];
        return DTX_OK;
    }
    if (head[0] == EVALUATION_MAGIC)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: magic %d at offset 0: questions of an evaluation, no text to train on",
                        path, head[0]);
    return dtx_fail(ctx, DTX_E_FORMAT,
                    "%s: magic %d at offset 0 is none of llm.c's 20240520 (u16) and 20240801 (u32); if it is half of a "
                    "Megatron pair, its .idx is missing; raw tokens are read as npy:PATH",
                    path, head[0]);
}

static enum dtx_status open_file(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                 struct dtx_source *s)
{
    int32_t head[3];
    const struct kind *kind;
    DTX_TRY(ctx, dtx_reader_add(ctx, config, path, "", &s->data));
    if (s->data.bytes < HEADER_BYTES)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are too short for a header of %d: truncated", path,
                        (long long)s->data.bytes, HEADER_BYTES);
    DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, head, sizeof head, 0));
    DTX_TRY(ctx, find_kind(ctx, path, head, &kind));
    s->type = dtx_token_type_find(kind->type);
    if (head[2] < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %d tokens at offset 8: negative", path, head[2]);
    int64_t need = HEADER_BYTES + (int64_t)head[2] * s->type->bytes;
    if (s->data.bytes != need && !DTX_MUTANT(llmc_size_unchecked))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s: %d tokens of %s (offset 8) need %lld bytes, it has %lld", path,
                        s->data.bytes < need ? "truncated" : "oversized", head[2], kind->type, (long long)need,
                        (long long)s->data.bytes);
    s->data_at = HEADER_BYTES;
    s->info.tokens = head[2];
    s->info.documents = s->info.sequences = -1;
    return DTX_OK;
}

const struct dtx_reader dtx_reader_llmc = {
    .name = "llmc",
    .help = "llm.c's .bin (both headers: u16 and u32)",
    .owns = owns,
    .open = open_file,
};
