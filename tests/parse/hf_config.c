/* Hugging Face's config.json: a model that is accepted fits together. */
#include "checkpoints/hf/config.h"
#include "tests/parse/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    struct dtx_ckpt_model m;
    dtx_ctx_init(&ctx);
    enum dtx_status status = dtx_hf_parse_config(&ctx, "config.json", (const char *)data, (int64_t)n, &m);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED);
    PROMISE(status != DTX_OK || (m.width == m.heads * m.head_dim * (m.diff ? 2 : 1) && m.heads % m.kv_heads == 0 &&
                                 m.head_dim % 2 == 0 && m.layers > 0 && m.vocab > 0 && m.rope_theta >= 1));
    return 0;
}
