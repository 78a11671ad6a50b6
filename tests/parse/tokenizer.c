/* tokenizer.json and vocab.bpe. */
#include "tests/parse/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[512];
    parse_write("tokenizer", data, n, path);
    parse_tokenizer(path, (const char *)data, (int64_t)(n < 256 ? n : 256));
    return 0;
}
