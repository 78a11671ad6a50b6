/* GPT-2's alphabet, in which tokenizer files write bytes: a printable character for each. */
#ifndef DTX_DATA_ALPHABET_H
#define DTX_DATA_ALPHABET_H

#include "data/buffer.h"

uint32_t dtx_byte_to_char(int byte);
int dtx_char_to_byte(uint32_t code); /* −1: not in the alphabet */
/* Appends bytes written in that alphabet (n bytes of UTF-8) to out as bytes; false when a character is not in it. */
enum dtx_status dtx_alphabet_decode(struct dtx_ctx *ctx, const char *text, int64_t n, struct dtx_bytes *out, bool *ok);
enum dtx_status dtx_alphabet_encode(struct dtx_ctx *ctx, const char *bytes, int64_t n, struct dtx_bytes *out);

#endif
