/* A checkpoint's list of files, COMPLETE, with the checksum made right so that what lies behind it is reached. The
 * index and the shards are read only after their checksums in this list. */
#include <inttypes.h>

#include "checkpoints/manifest.h"
#include "kernels/base/hash.h"
#include "tests/parse/parse.h"

static void read_list(const void *data, size_t n)
{
    struct dtx_ctx ctx;
    static struct dtx_ckpt_manifest list;
    char path[512];
    dtx_ctx_init(&ctx);
    parse_write(DTX_CKPT_MANIFEST, data, n, path);
    *strrchr(path, '/') = '\0';
    enum dtx_status status = dtx_ckpt_manifest_read(&ctx, path, &list);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED);
    PROMISE(status != DTX_OK || (list.n_files >= 1 && list.n_files <= 1 + DTX_CKPT_SHARDS));
    PROMISE(status != DTX_OK || (list.step >= 0 && list.sequence > 0 && list.sequence <= DTX_CKPT_SEQUENCE_MAX));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 64), path[512];
    parse_write(DTX_CKPT_INDEX, "0123456789", 10, path);
    read_list(data, n);
    memcpy(text, data, n);
    snprintf(text + n, 64, "end %016" PRIx64 "\n", dtx_hash(text, n, 0));
    read_list(text, n + strlen(text + n));
    free(text);
    return 0;
}
