#include "data/tokenfile.h"

#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenfile_format.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static const struct token_type {
    const char *name;
    int code, bytes;
    int64_t ids; /* ids 0 … ids − 1 can be stored; 0: not a type for tokens */
} token_types[] = {
    {"u8", 1, 1, 1 << 8},     {"i8", 2, 1, 1 << 7}, {"i16", 3, 2, 1 << 15}, {"i32", 4, 4, INT64_C(1) << 31},
    {"i64", 5, 8, INT64_MAX}, {"f64", 6, 8, 0},     {"f32", 7, 4, 0},       {"u16", 8, 2, 1 << 16},
};
enum { N_TOKEN_TYPES = sizeof token_types / sizeof *token_types };

struct dtx_tokenfile {
    struct dtx_tokenfile_info info;
    char *data_path, *index_path;
    int data_fd, index_fd;
    int code;
    int64_t vocab;
    int64_t lengths_at, offsets_at, documents_at; /* byte offsets of the index's arrays */
};

static enum dtx_status read_index(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t at, int64_t entry,
                                  size_t bytes, void *out)
{
    return dtx_file_read_at(ctx, f->index_fd, f->index_path, out, bytes, at + entry * (int64_t)bytes);
}

static enum dtx_status check_type(struct dtx_ctx *ctx, struct dtx_tokenfile *f, int code)
{
    const struct token_type *type = NULL;
    for (int i = 0; i < N_TOKEN_TYPES; i++)
        if (token_types[i].code == code)
            type = &token_types[i];
    if (!type)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: type code %d at offset 17 is none of 1…8", f->index_path, code);
    if (type->ids == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: type code %d at offset 17 (%s) cannot hold token ids", f->index_path,
                        code, type->name);
    if (f->vocab > type->ids)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: tokens of type %s hold ids below %lld, the vocabulary has %lld: the file was written "
                        "for a smaller vocabulary; tokenize again",
                        f->index_path, type->name, (long long)type->ids, (long long)f->vocab);
    f->code = code;
    f->info.type = type->name;
    f->info.token_bytes = type->bytes;
    return DTX_OK;
}

static enum dtx_status check_header(struct dtx_ctx *ctx, struct dtx_tokenfile *f)
{
    const char *path = f->index_path;
    int64_t bytes = f->info.index_bytes;
    unsigned char h[INDEX_HEADER_BYTES];
    if (bytes < INDEX_HEADER_BYTES)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are too short for a header of %d: truncated", path,
                        (long long)bytes, INDEX_HEADER_BYTES);
    DTX_TRY(ctx, dtx_file_read_at(ctx, f->index_fd, path, h, sizeof h, 0));
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
                        "%s: version at offset 9 is 1 in big-endian byte order; only little endian "
                        "is read",
                        path);
    if (version != 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: version at offset 9 is %llu, only 1 is known", path,
                        (unsigned long long)version);
    DTX_TRY(ctx, check_type(ctx, f, h[17]));
    /* Bounded before multiplied; n more bytes are the modes of multimodal data. */
    uint64_t room = (uint64_t)bytes - INDEX_HEADER_BYTES;
    bool fits = n <= room / 12 && m <= room / 8;
    uint64_t need = fits ? 12 * n + 8 * m : 0;
    if (!fits || room < need)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: truncated: %llu sequences and %llu boundaries (offsets 18 and 26) need more than its %lld "
                        "bytes",
                        path, (unsigned long long)n, (unsigned long long)m, (long long)bytes);
    if (room != need && room != need + n && !DTX_MUTANT(tokenfile_oversized_index))
        return dtx_fail(
            ctx, DTX_E_FORMAT,
            "%s: oversized: %llu sequences and %llu boundaries need %llu bytes (or %llu with modes), it has "
            "%lld",
            path, (unsigned long long)n, (unsigned long long)m, (unsigned long long)(need + INDEX_HEADER_BYTES),
            (unsigned long long)(need + n + INDEX_HEADER_BYTES), (long long)bytes);
    if (m == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: 0 document boundaries (offset 26); even without documents there is one",
                        path);
    f->info.sequences = (int64_t)n;
    f->info.documents = (int64_t)m - 1;
    f->lengths_at = INDEX_HEADER_BYTES;
    f->offsets_at = f->lengths_at + 4 * (int64_t)n;
    f->documents_at = f->offsets_at + 8 * (int64_t)n;
    return DTX_OK;
}

/* The first and last entries and the size of the data: cheap, whatever the size. */
static enum dtx_status check_ends(struct dtx_ctx *ctx, struct dtx_tokenfile *f)
{
    int64_t n = f->info.sequences, first = 0, last = 0, end = 0;
    int32_t length = 0;
    DTX_TRY(ctx, read_index(ctx, f, f->documents_at, 0, 8, &first));
    DTX_TRY(ctx, read_index(ctx, f, f->documents_at, f->info.documents, 8, &last));
    if (first != 0 || last != n)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: document boundaries run from %lld (offset %lld) to %lld; they must from 0 to the %lld "
                        "sequences",
                        f->index_path, (long long)first, (long long)f->documents_at, (long long)last, (long long)n);
    if (n > 0) {
        DTX_TRY(ctx, read_index(ctx, f, f->lengths_at, n - 1, 4, &length));
        DTX_TRY(ctx, read_index(ctx, f, f->offsets_at, n - 1, 8, &end));
        if (length < 0 || end < 0 || end > INT64_MAX / 2)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the last sequence has length %d and byte offset %lld",
                            f->index_path, length, (long long)end);
        end += (int64_t)length * f->info.token_bytes;
    }
    if (end != f->info.data_bytes && !DTX_MUTANT(tokenfile_data_size))
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s describes %lld bytes of %s tokens, %s has %lld: the two do not belong together or one was "
                        "cut off",
                        f->index_path, (long long)end, f->info.type, f->data_path, (long long)f->info.data_bytes);
    f->info.tokens = f->info.data_bytes / f->info.token_bytes;
    return DTX_OK;
}

enum { BLOCK = 4096 };

/* Offsets must be the running sum of the lengths: only then the data is one array of tokens. */
static enum dtx_status check_sequences(struct dtx_ctx *ctx, const struct dtx_tokenfile *f)
{
    int32_t lengths[BLOCK];
    int64_t offsets[BLOCK], expected = 0, n = f->info.sequences;
    for (int64_t s = 0; s < n; s += BLOCK) {
        int64_t part = dtx_min64(BLOCK, n - s);
        DTX_TRY(ctx,
                dtx_file_read_at(ctx, f->index_fd, f->index_path, lengths, 4 * (size_t)part, f->lengths_at + 4 * s));
        DTX_TRY(ctx,
                dtx_file_read_at(ctx, f->index_fd, f->index_path, offsets, 8 * (size_t)part, f->offsets_at + 8 * s));
        for (int64_t i = 0; i < part; i++) {
            if (lengths[i] < 0)
                return dtx_fail(ctx, DTX_E_FORMAT, "%s: sequence %lld has length %d (offset %lld)", f->index_path,
                                (long long)(s + i), lengths[i], (long long)(f->lengths_at + 4 * (s + i)));
            if (offsets[i] != expected && !DTX_MUTANT(tokenfile_offsets_unchecked))
                return dtx_fail(ctx, DTX_E_FORMAT,
                                "%s: sequence %lld starts at byte %lld (offset %lld); those before it end at %lld",
                                f->index_path, (long long)(s + i), (long long)offsets[i],
                                (long long)(f->offsets_at + 8 * (s + i)), (long long)expected);
            expected += (int64_t)lengths[i] * f->info.token_bytes;
        }
    }
    return DTX_OK;
}

static enum dtx_status check_documents(struct dtx_ctx *ctx, const struct dtx_tokenfile *f)
{
    int64_t bounds[BLOCK], before = 0, m = f->info.documents + 1;
    for (int64_t d = 0; d < m; d += BLOCK) {
        int64_t part = dtx_min64(BLOCK, m - d);
        DTX_TRY(ctx,
                dtx_file_read_at(ctx, f->index_fd, f->index_path, bounds, 8 * (size_t)part, f->documents_at + 8 * d));
        for (int64_t i = 0; i < part; i++) {
            if (bounds[i] < before || bounds[i] > f->info.sequences)
                return dtx_fail(ctx, DTX_E_FORMAT,
                                "%s: document boundary %lld is %lld (offset %lld), after %lld, with %lld sequences",
                                f->index_path, (long long)(d + i), (long long)bounds[i],
                                (long long)(f->documents_at + 8 * (d + i)), (long long)before,
                                (long long)f->info.sequences);
            before = bounds[i];
        }
    }
    return DTX_OK;
}

static enum dtx_status open_both(struct dtx_ctx *ctx, struct dtx_tokenfile *f, const char *prefix, bool trusted)
{
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, ".bin", &f->data_path));
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, ".idx", &f->index_path));
    f->info.data_path = f->data_path;
    f->info.index_path = f->index_path;
    DTX_TRY(ctx, dtx_file_open(ctx, f->index_path, &f->index_fd, &f->info.index_bytes));
    DTX_TRY(ctx, dtx_file_open(ctx, f->data_path, &f->data_fd, &f->info.data_bytes));
    DTX_TRY(ctx, check_header(ctx, f));
    DTX_TRY(ctx, check_ends(ctx, f));
    if (!trusted && f->info.sequences + f->info.documents <= DTX_TOKENFILE_CHECKED) {
        DTX_TRY(ctx, check_sequences(ctx, f));
        DTX_TRY(ctx, check_documents(ctx, f));
    }
    return DTX_OK;
}

static enum dtx_status open_file(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, bool trusted,
                                 struct dtx_tokenfile **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tokenfile), &p));
    struct dtx_tokenfile *f = p;
    f->data_fd = f->index_fd = -1;
    f->vocab = vocab;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, open_both(ctx, f, prefix, trusted), fail);
    *out = f;
    return DTX_OK;
fail:
    dtx_tokenfile_close(f);
    return status;
}

enum dtx_status dtx_tokenfile_open(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, struct dtx_tokenfile **out)
{
    return open_file(ctx, prefix, vocab, false, out);
}

enum dtx_status dtx_tokenfile_open_trusted(struct dtx_ctx *ctx, const char *prefix, int64_t vocab,
                                           struct dtx_tokenfile **out)
{
    return open_file(ctx, prefix, vocab, true, out);
}

void dtx_tokenfile_close(struct dtx_tokenfile *f)
{
    if (!f)
        return;
    if (f->data_fd >= 0)
        close(f->data_fd);
    if (f->index_fd >= 0)
        close(f->index_fd);
    dtx_mem_free(f->data_path);
    dtx_mem_free(f->index_path);
    dtx_mem_free(f);
}

const struct dtx_tokenfile_info *dtx_tokenfile_info(const struct dtx_tokenfile *f)
{
    return &f->info;
}

#define WIDEN(type, wide)                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        type v;                                                                                                        \
        memcpy(&v, raw + i * (int64_t)sizeof v, sizeof v);                                                             \
        out[i] = (int32_t)v;                                                                                           \
        bad |= (wide)v >= (wide)limit;                                                                                 \
    }

/* raw[n] tokens of the file's type to int32; true when all are in [0, limit), limit ≤ 2^31. */
static bool widen(int code, const char *raw, int64_t n, int64_t limit, int32_t *out)
{
    int bad = 0;
    switch (code) {
    case 1:
        WIDEN(uint8_t, uint32_t) break;
    case 2:
        WIDEN(int8_t, uint32_t) break;
    case 3:
        WIDEN(int16_t, uint32_t) break;
    case 4:
        WIDEN(int32_t, uint32_t) break;
    case 5:
        WIDEN(int64_t, uint64_t) break;
    default:
        WIDEN(uint16_t, uint32_t) break;
    }
    return !bad;
}

static int64_t raw_value(int code, const char *p)
{
    int32_t v = 0;
    int64_t wide;
    switch (code) {
    case 5:
        memcpy(&wide, p, sizeof wide);
        return wide;
    default:
        widen(code, p, 1, 0, &v);
        return v;
    }
}

/* raw[n] holds tokens from `first` on, one of which is out of range: says which. */
static enum dtx_status fail_id(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, const char *raw, int64_t first,
                               int64_t limit)
{
    int64_t i = 0, value, document = -1;
    for (;; i++) {
        value = raw_value(f->code, raw + i * f->info.token_bytes);
        if (value < 0 || value >= limit)
            break;
    }
    struct dtx_ctx scratch;
    dtx_ctx_init_child(&scratch, ctx);
    if (dtx_tokenfile_find(&scratch, f, first + i, &document) != DTX_OK)
        document = -1;
    return dtx_fail(ctx, DTX_E_FORMAT,
                    "%s: id %lld at byte offset %lld (token %lld, document %lld) is outside the vocabulary of %lld",
                    f->data_path, (long long)value, (long long)((first + i) * f->info.token_bytes),
                    (long long)(first + i), (long long)document, (long long)limit);
}

enum dtx_status dtx_tokenfile_read(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t first, int64_t n,
                                   int32_t *out)
{
    if (first < 0 || n < 0 || first > f->info.tokens - n)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tokens %lld … %lld are wanted, it has %lld", f->data_path,
                        (long long)first, (long long)(first + n), (long long)f->info.tokens);
    _Alignas(64) char raw[32768];
    int bytes = f->info.token_bytes;
    int64_t limit = f->vocab > 0 ? f->vocab : INT64_C(1) << 31, block = (int64_t)sizeof raw / bytes;
    if (DTX_MUTANT(tokenfile_ids_unchecked))
        limit = INT64_C(1) << 31;
    for (int64_t done = 0; done < n; done += block) {
        int64_t part = dtx_min64(block, n - done), at = (first + done) * bytes;
        if (DTX_MUTANT(tokenfile_offset_32))
            at = (uint32_t)at;
        DTX_TRY(ctx, dtx_file_read_at(ctx, f->data_fd, f->data_path, raw, (size_t)(part * bytes), at));
        if (!widen(f->code, raw, part, limit, out + done))
            return fail_id(ctx, f, raw, first + done, limit);
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenfile_document(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t d, int64_t *first)
{
    if (d < 0 || d > f->info.documents)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: document %lld is wanted, it has %lld", f->index_path, (long long)d,
                        (long long)f->info.documents);
    int64_t sequence, offset;
    DTX_TRY(ctx, read_index(ctx, f, f->documents_at, d, 8, &sequence));
    if (sequence < 0 || sequence > f->info.sequences)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: document %lld starts at sequence %lld of %lld (offset %lld)",
                        f->index_path, (long long)d, (long long)sequence, (long long)f->info.sequences,
                        (long long)(f->documents_at + 8 * d));
    if (sequence == f->info.sequences) {
        *first = f->info.tokens;
        return DTX_OK;
    }
    DTX_TRY(ctx, read_index(ctx, f, f->offsets_at, sequence, 8, &offset));
    if (offset < 0 || offset > f->info.data_bytes || offset % f->info.token_bytes != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: sequence %lld starts at byte %lld of %lld (offset %lld)", f->index_path,
                        (long long)sequence, (long long)offset, (long long)f->info.data_bytes,
                        (long long)(f->offsets_at + 8 * sequence));
    *first = offset / f->info.token_bytes;
    return DTX_OK;
}

enum dtx_status dtx_tokenfile_find(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t token, int64_t *d)
{
    if (token < 0 || token >= f->info.tokens)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: token %lld is wanted, it has %lld", f->data_path, (long long)token,
                        (long long)f->info.tokens);
    int64_t low = 0, high = f->info.documents; /* start(low) ≤ token < start(high) */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, first = 0;
        DTX_TRY(ctx, dtx_tokenfile_document(ctx, f, middle, &first));
        if (first <= token)
            low = middle;
        else
            high = middle;
    }
    *d = low;
    return DTX_OK;
}

enum dtx_status dtx_tokenfile_verify(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t *largest)
{
    DTX_TRY(ctx, check_sequences(ctx, f));
    DTX_TRY(ctx, check_documents(ctx, f));
    int32_t ids[BLOCK];
    int64_t max = -1;
    for (int64_t t = 0; t < f->info.tokens; t += BLOCK) {
        int64_t part = dtx_min64(BLOCK, f->info.tokens - t);
        DTX_TRY(ctx, dtx_tokenfile_read(ctx, f, t, part, ids));
        for (int64_t i = 0; i < part; i++)
            max = dtx_max64(max, ids[i]);
    }
    *largest = max;
    return DTX_OK;
}
