/* tiktoken files; the first byte chooses the pattern. What is too short for 256 bytes gets them in front. */
#include "tests/parse/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const kinds[] = {"gpt2", "cl100k", "o200k"};
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char path[512], named[600], *file = malloc(n + 256 * 10);
    size_t at = 0;
    PROMISE(file);
    for (int b = 0; b < 256 && n > 0 && data[0] < 128; b++)
        at += (size_t)sprintf(file + at, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    if (n > 1)
        memcpy(file + at, data + 1, n - 1);
    parse_write("ranks", file, at + (n > 1 ? n - 1 : 0), path);
    snprintf(named, sizeof named, "%s:%s", kinds[n > 0 ? data[0] % 3 : 0], path);
    parse_tokenizer(named, (const char *)data, (int64_t)(n < 256 ? n : 256));
    free(file);
    return 0;
}
