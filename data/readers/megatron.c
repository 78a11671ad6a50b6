/* Megatron's PREFIX.bin and PREFIX.idx (bytes: data/README.md). */
#include <stdio.h>
#include <string.h>

#include "data/reader.h"
#include "data/megatron_format.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { LENGTHS, OFFSETS, DOCUMENTS }; /* in dtx_source.at: the index's arrays */
enum { BLOCK = 4096, PATH_ROOM = 4096 };

static const char *const type_names[] = {NULL, "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"}; /* by code */
enum { N_TYPES = sizeof type_names / sizeof *type_names };

/* PREFIX, PREFIX.bin and PREFIX.idx all name a pair. True when its index is there. */
static bool find_prefix(const char *path, char prefix[PATH_ROOM])
{
    bool plain = dtx_reader_exists(path, ".idx");
    bool named = !plain && (dtx_reader_ends(path, ".bin") || dtx_reader_ends(path, ".idx"));
    size_t n = strlen(path) - (named ? 4 : 0);
    if (n >= PATH_ROOM)
        n = PATH_ROOM - 1;
    memcpy(prefix, path, n);
    prefix[n] = '\0';
    return plain || (named && dtx_reader_exists(prefix, ".idx"));
}

static bool owns(const char *path)
{
    char prefix[PATH_ROOM];
    return find_prefix(path, prefix);
}

static enum dtx_status read_index(struct dtx_ctx *ctx, struct dtx_source *s, int array, int64_t entry, size_t bytes,
                                  int64_t n, void *out)
{
    return dtx_poolfile_read(ctx, &s->index, out, bytes * (size_t)n, s->at[array] + entry * (int64_t)bytes);
}

static enum dtx_status check_type(struct dtx_ctx *ctx, struct dtx_source *s, int code)
{
    if (code < 1 || code >= N_TYPES)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: type code %d at offset 17 is none of 1…8", s->index.path, code);
    s->type = dtx_token_type_find(type_names[code]);
    if (!s->type)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: type code %d at offset 17 (%s) cannot hold token ids", s->index.path,
                        code, type_names[code]);
    return DTX_OK;
}

/* Counts are bounded before they are multiplied; n more bytes are the modes of multimodal data. */
static enum dtx_status check_size(struct dtx_ctx *ctx, struct dtx_source *s, uint64_t n, uint64_t m)
{
    const char *path = s->index.path;
    int64_t bytes = s->index.bytes;
    uint64_t room = (uint64_t)bytes - INDEX_HEADER_BYTES;
    bool fits = n <= room / 12 && m <= room / 8;
    uint64_t need = fits ? 12 * n + 8 * m : 0;
    if (!fits || room < need)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: truncated: %llu sequences and %llu boundaries (offsets 18 and 26) need more than its %lld "
                        "bytes",
                        path, (unsigned long long)n, (unsigned long long)m, (long long)bytes);
    if (room != need && room != need + n && !DTX_MUTANT(megatron_oversized_index))
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: oversized: %llu sequences and %llu boundaries need %llu bytes (or %llu with modes), it "
                        "has %lld",
                        path, (unsigned long long)n, (unsigned long long)m,
                        (unsigned long long)(need + INDEX_HEADER_BYTES),
                        (unsigned long long)(need + n + INDEX_HEADER_BYTES), (long long)bytes);
    if (m == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: 0 document boundaries (offset 26); even without documents there is one",
                        path);
    return DTX_OK;
}

static enum dtx_status check_header(struct dtx_ctx *ctx, struct dtx_source *s)
{
    const char *path = s->index.path;
    unsigned char h[INDEX_HEADER_BYTES];
    if (s->index.bytes < INDEX_HEADER_BYTES)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are too short for a header of %d: truncated", path,
                        (long long)s->index.bytes, INDEX_HEADER_BYTES);
    DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->index, h, sizeof h, 0));
    if (memcmp(h, INDEX_MAGIC, INDEX_MAGIC_BYTES) != 0)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: starts with bytes %02x %02x %02x %02x, not with the magic MMIDIDX: not a token index",
                        path, h[0], h[1], h[2], h[3]);
    uint64_t version, n, m;
    memcpy(&version, h + 9, 8);
    memcpy(&n, h + 18, 8);
    memcpy(&m, h + 26, 8);
    if (version == UINT64_C(1) << 56)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: version at offset 9 is 1 in big-endian byte order; only little endian is read", path);
    if (version != 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: version at offset 9 is %llu, only 1 is known", path,
                        (unsigned long long)version);
    DTX_TRY(ctx, check_type(ctx, s, h[17]));
    DTX_TRY(ctx, check_size(ctx, s, n, m));
    s->info.sequences = (int64_t)n;
    s->info.documents = (int64_t)m - 1;
    s->at[LENGTHS] = INDEX_HEADER_BYTES;
    s->at[OFFSETS] = s->at[LENGTHS] + 4 * (int64_t)n;
    s->at[DOCUMENTS] = s->at[OFFSETS] + 8 * (int64_t)n;
    return DTX_OK;
}

/* The first and last entries and the size of the data: cheap, whatever the size. */
static enum dtx_status check_ends(struct dtx_ctx *ctx, struct dtx_source *s)
{
    int64_t n = s->info.sequences, first = 0, last = 0, end = 0;
    int32_t length = 0;
    DTX_TRY(ctx, read_index(ctx, s, DOCUMENTS, 0, 8, 1, &first));
    DTX_TRY(ctx, read_index(ctx, s, DOCUMENTS, s->info.documents, 8, 1, &last));
    if (first != 0 || last != n)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: document boundaries run from %lld (offset %lld) to %lld; they must from 0 to the %lld "
                        "sequences",
                        s->index.path, (long long)first, (long long)s->at[DOCUMENTS], (long long)last, (long long)n);
    if (n > 0) {
        DTX_TRY(ctx, read_index(ctx, s, LENGTHS, n - 1, 4, 1, &length));
        DTX_TRY(ctx, read_index(ctx, s, OFFSETS, n - 1, 8, 1, &end));
        if (length < 0 || end < 0 || end > INT64_MAX / 2)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the last sequence has length %d and byte offset %lld",
                            s->index.path, length, (long long)end);
        end += (int64_t)length * s->type->bytes;
    }
    if (end != s->data.bytes && !DTX_MUTANT(megatron_data_size))
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s describes %lld bytes of %s tokens, %s has %lld: the two do not belong together or one was "
                        "cut off",
                        s->index.path, (long long)end, s->type->name, s->data.path, (long long)s->data.bytes);
    s->info.tokens = s->data.bytes / s->type->bytes;
    return DTX_OK;
}

/* Offsets must be the running sum of the lengths: only then the data is one array of tokens. */
static enum dtx_status check_sequences(struct dtx_ctx *ctx, struct dtx_source *s)
{
    int32_t lengths[BLOCK];
    int64_t offsets[BLOCK], expected = 0, n = s->info.sequences;
    for (int64_t q = 0; q < n; q += BLOCK) {
        int64_t part = dtx_min64(BLOCK, n - q);
        DTX_TRY(ctx, read_index(ctx, s, LENGTHS, q, 4, part, lengths));
        DTX_TRY(ctx, read_index(ctx, s, OFFSETS, q, 8, part, offsets));
        for (int64_t i = 0; i < part; i++) {
            if (lengths[i] < 0)
                return dtx_fail(ctx, DTX_E_FORMAT, "%s: sequence %lld has length %d (offset %lld)", s->index.path,
                                (long long)(q + i), lengths[i], (long long)(s->at[LENGTHS] + 4 * (q + i)));
            if (offsets[i] != expected && !DTX_MUTANT(megatron_offsets_unchecked))
                return dtx_fail(ctx, DTX_E_FORMAT,
                                "%s: sequence %lld starts at byte %lld (offset %lld); those before it end at %lld",
                                s->index.path, (long long)(q + i), (long long)offsets[i],
                                (long long)(s->at[OFFSETS] + 8 * (q + i)), (long long)expected);
            expected += (int64_t)lengths[i] * s->type->bytes;
        }
    }
    return DTX_OK;
}

static enum dtx_status check_documents(struct dtx_ctx *ctx, struct dtx_source *s)
{
    int64_t bounds[BLOCK], before = 0, m = s->info.documents + 1;
    for (int64_t d = 0; d < m; d += BLOCK) {
        int64_t part = dtx_min64(BLOCK, m - d);
        DTX_TRY(ctx, read_index(ctx, s, DOCUMENTS, d, 8, part, bounds));
        for (int64_t i = 0; i < part; i++) {
            if (bounds[i] < before || bounds[i] > s->info.sequences)
                return dtx_fail(ctx, DTX_E_FORMAT,
                                "%s: document boundary %lld is %lld (offset %lld), after %lld, with %lld sequences",
                                s->index.path, (long long)(d + i), (long long)bounds[i],
                                (long long)(s->at[DOCUMENTS] + 8 * (d + i)), (long long)before,
                                (long long)s->info.sequences);
            before = bounds[i];
        }
    }
    return DTX_OK;
}

static enum dtx_status check(struct dtx_ctx *ctx, struct dtx_source *s)
{
    DTX_TRY(ctx, check_sequences(ctx, s));
    return check_documents(ctx, s);
}

static enum dtx_status open_pair(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                 struct dtx_source *s)
{
    char prefix[PATH_ROOM];
    find_prefix(path, prefix);
    DTX_TRY(ctx, dtx_reader_add(ctx, config, prefix, ".idx", &s->index));
    DTX_TRY(ctx, dtx_reader_add(ctx, config, prefix, ".bin", &s->data));
    DTX_TRY(ctx, check_header(ctx, s));
    DTX_TRY(ctx, check_ends(ctx, s));
    bool small = s->info.sequences + s->info.documents <= DTX_READER_CHECKED;
    return small && !config->trusted ? check(ctx, s) : DTX_OK;
}

static enum dtx_status document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t d, int64_t *first)
{
    int64_t sequence, offset;
    DTX_TRY(ctx, read_index(ctx, s, DOCUMENTS, d, 8, 1, &sequence));
    if (sequence < 0 || sequence > s->info.sequences)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: document %lld starts at sequence %lld of %lld (offset %lld)",
                        s->index.path, (long long)d, (long long)sequence, (long long)s->info.sequences,
                        (long long)(s->at[DOCUMENTS] + 8 * d));
    if (sequence == s->info.sequences) {
        *first = s->info.tokens;
        return DTX_OK;
    }
    DTX_TRY(ctx, read_index(ctx, s, OFFSETS, sequence, 8, 1, &offset));
    if (offset < 0 || offset > s->data.bytes || offset % s->type->bytes != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: sequence %lld starts at byte %lld of %lld (offset %lld)", s->index.path,
                        (long long)sequence, (long long)offset, (long long)s->data.bytes,
                        (long long)(s->at[OFFSETS] + 8 * sequence));
    *first = offset / s->type->bytes;
    return DTX_OK;
}

const struct dtx_reader dtx_reader_megatron = {
    .name = "megatron",
    .help = "Megatron's PREFIX.bin with PREFIX.idx",
    .owns = owns,
    .open = open_pair,
    .document = document,
    .check = check,
};
