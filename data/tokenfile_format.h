/* Constants shared by the reader and the writer of token files. */
#ifndef DTX_DATA_TOKENFILE_FORMAT_H
#define DTX_DATA_TOKENFILE_FORMAT_H

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little endian and are read and written without swapping"
#endif

#define INDEX_MAGIC "MMIDIDX\0\0"
enum { INDEX_MAGIC_BYTES = 9, INDEX_HEADER_BYTES = 34, CODE_I32 = 4, CODE_U16 = 8, U16_VOCAB_LIMIT = 65500 };

#endif
