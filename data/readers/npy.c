/* OLMo's .npy: raw tokens without any header, despite the name. A file that does begin with NumPy's header (magic,
 * version, length of the header, a Python dictionary with descr, fortran_order, shape) is read by it. No documents. */
#include <stdio.h>
#include <string.h>

#include "data/reader.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

#define MAGIC "\x93NUMPY"
enum { MAGIC_BYTES = 6, HEADER_ROOM = 4096 };

static bool owns(const char *path)
{
    return dtx_reader_ends(path, ".npy");
}

/* What stands behind 'key': in the dictionary, spaces skipped; NULL: it is not there. */
static const char *find_key(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", key);
    const char *p = strstr(header, quoted);
    if (!p)
        return NULL;
    for (p += strlen(quoted); *p == ' ' || *p == ':';)
        p++;
    return p;
}

static enum dtx_status parse_type(struct dtx_ctx *ctx, struct dtx_source *s, const char *header)
{
    const char *descr = find_key(header, "descr");
    char order, kind;
    int bytes;
    if (!descr || sscanf(descr, "'%c%c%d'", &order, &kind, &bytes) != 3)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: NumPy's header has no simple 'descr': %.100s", s->data.path, header);
    if (order == '>' && bytes > 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: 'descr' is big endian ('%.4s); only little endian is read",
                        s->data.path, descr + 1);
    char name[16] = "";
    if (bytes >= 1 && bytes <= 8)
        snprintf(name, sizeof name, "%c%d", kind, 8 * bytes);
    s->type = dtx_token_type_find(name);
    if (!s->type)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: 'descr' %.8s is no type of token ids", s->data.path, descr);
    return DTX_OK;
}

static enum dtx_status parse_shape(struct dtx_ctx *ctx, struct dtx_source *s, const char *header)
{
    const char *shape = find_key(header, "shape");
    long long n;
    char comma;
    int end = 0;
    if (!shape || sscanf(shape, "( %lld %c )%n", &n, &comma, &end) < 2 || n < 0 || comma != ',' || end == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: 'shape' is not (n,), one row of tokens: %.60s", s->data.path,
                        shape ? shape : header);
    if (n > (INT64_MAX - s->data_at) / s->type->bytes)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld tokens in 'shape' are too many", s->data.path, n);
    int64_t need = s->data_at + n * s->type->bytes;
    if (s->data.bytes != need && !DTX_MUTANT(npy_size_unchecked))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s: %lld tokens of %s need %lld bytes, it has %lld", s->data.path,
                        s->data.bytes < need ? "truncated" : "oversized", n, s->type->name, (long long)need,
                        (long long)s->data.bytes);
    s->info.tokens = n;
    return DTX_OK;
}

static enum dtx_status open_numpy(struct dtx_ctx *ctx, const struct dtx_source_config *config, struct dtx_source *s)
{
    unsigned char head[12] = {0};
    char header[HEADER_ROOM + 1];
    const char *path = s->data.path;
    DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, head, (size_t)dtx_min64(12, s->data.bytes), 0));
    int version = head[MAGIC_BYTES];
    if (version < 1 || version > 3)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: NumPy version %d at offset 6; 1 to 3 are known", path, version);
    int64_t start = version == 1 ? 10 : 12, n = head[8] | head[9] << 8;
    if (version > 1)
        n |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
    if (start + n > s->data.bytes)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: NumPy's header has %lld bytes (offset 8), the file %lld: truncated",
                        path, (long long)n, (long long)s->data.bytes);
    if (n > HEADER_ROOM)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: NumPy's header has %lld bytes (offset 8), at most %d are expected",
                        path, (long long)n, HEADER_ROOM);
    DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, header, (size_t)n, start));
    header[n] = '\0';
    s->data_at = start + n;
    DTX_TRY(ctx, parse_type(ctx, s, header));
    DTX_TRY(ctx, parse_shape(ctx, s, header));
    if (config->type && strcmp(config->type, "auto") != 0 && strcmp(config->type, s->type->name) != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: its header says %s, the type given is %s", path, s->type->name,
                        config->type);
    return DTX_OK;
}

static enum dtx_status open_file(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                 struct dtx_source *s)
{
    char magic[MAGIC_BYTES] = {0};
    DTX_TRY(ctx, dtx_reader_add(ctx, config, path, "", &s->data));
    s->info.documents = s->info.sequences = -1;
    if (s->data.bytes >= MAGIC_BYTES)
        DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, magic, sizeof magic, 0));
    if (memcmp(magic, MAGIC, MAGIC_BYTES) == 0)
        return open_numpy(ctx, config, s);
    DTX_TRY(ctx, dtx_reader_raw_type(ctx, config, s));
    if (s->data.bytes % s->type->bytes != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are no whole number of %s tokens: truncated", path,
                        (long long)s->data.bytes, s->type->name);
    s->info.tokens = s->data.bytes / s->type->bytes;
    return DTX_OK;
}

const struct dtx_reader dtx_reader_npy = {
    .name = "npy",
    .help = "OLMo's raw .npy (its type is an option), or NumPy's own",
    .owns = owns,
    .open = open_file,
};
