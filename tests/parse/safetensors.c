/* The header of a safetensors file: as a whole file, and as a header of its own in front of some bytes of data. */
#include "checkpoints/hf/safetensors.h"
#include "kernels/base/mem.h"
#include "tests/parse/parse.h"

/* What is accepted covers the data end to end. */
static void check(enum dtx_status status, struct dtx_st_header *h, int64_t data_bytes)
{
    int64_t at = 0;
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
    if (status != DTX_OK)
        return;
    for (int64_t i = 0; i < h->n; i++) {
        PROMISE(h->tensors[i].offset == at && h->tensors[i].bytes >= 0);
        at += h->tensors[i].bytes;
    }
    PROMISE(at == data_bytes);
    dtx_mem_free(h->tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    struct dtx_st_header h;
    char path[512];
    int fd;
    int64_t begin;
    dtx_ctx_init(&ctx);
    parse_write("x.safetensors", data, n, path);
    enum dtx_status status = dtx_st_open(&ctx, path, &fd, &begin, &h);
    check(status, &h, (int64_t)n - (status == DTX_OK ? begin : 0));
    if (status == DTX_OK)
        close(fd);
    if (n < 2)
        return 0;
    int64_t bytes = data[0] | data[1] << 8;
    dtx_ctx_init(&ctx);
    check(dtx_st_parse(&ctx, "x", (const char *)data + 2, (int64_t)n - 2, bytes, &h), &h, bytes);
    return 0;
}
