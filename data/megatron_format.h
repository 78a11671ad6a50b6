/* Constants shared by the reader and the writer of Megatron's pairs. */
#ifndef DTX_DATA_MEGATRON_FORMAT_H
#define DTX_DATA_MEGATRON_FORMAT_H

#define INDEX_MAGIC "MMIDIDX\0\0"
enum { INDEX_MAGIC_BYTES = 9, INDEX_HEADER_BYTES = 34, CODE_I32 = 4, CODE_U16 = 8, U16_VOCAB_LIMIT = 65500 };

#endif
