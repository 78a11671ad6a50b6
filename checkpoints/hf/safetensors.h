/*
 * The safetensors file: u64 length of the header, the header (JSON: name → dtype, shape, data_offsets), the bytes of
 * the tensors, little-endian, without gaps. A reader believes nothing: every number is checked against the file's size
 * before it is used, and the tensors must cover the data exactly. Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_HF_SAFETENSORS_H
#define DTX_CHECKPOINTS_HF_SAFETENSORS_H

#include "checkpoints/disk.h"
#include "kernels/base/tensor.h"

enum { DTX_ST_DIMS = 8, DTX_ST_NAME = 256, DTX_ST_SHAPE_TEXT = 200, DTX_ST_HEADER_BYTES = 100000000 };
enum dtx_st_dtype { DTX_ST_F32, DTX_ST_BF16, DTX_ST_F16, DTX_ST_OTHER };

struct dtx_st_tensor {
    char name[DTX_ST_NAME];
    char dtype_name[16];
    enum dtx_st_dtype dtype;
    int ndim;
    int64_t shape[DTX_ST_DIMS];
    int64_t offset, bytes; /* in the data, behind the header */
};

struct dtx_st_header {
    struct dtx_st_tensor *tensors; /* in the order of their data; free with dtx_mem_free */
    int64_t n;
};

/* Parses the JSON text of a header, for `data_bytes` of data behind it. `path` leads messages. */
enum dtx_status dtx_st_parse(struct dtx_ctx *ctx, const char *path, const char *text, int64_t bytes, int64_t data_bytes,
                             struct dtx_st_header *out);
/* Opens a file, reads and checks its header; *data is where the data begins. */
enum dtx_status dtx_st_open(struct dtx_ctx *ctx, const char *path, int *fd, int64_t *data, struct dtx_st_header *out);
/* A new file with this header (name, dtype F32 or BF16, ndim and shape are set; offset and bytes are filled in), of its
 * final size; *data is where the data begins. Close with dtx_disk_close_written. */
enum dtx_status dtx_st_create(struct dtx_ctx *ctx, const char *path, struct dtx_st_header *header, int *fd,
                              int64_t *data);

void dtx_st_shape_text(const int64_t *shape, int ndim, char out[DTX_ST_SHAPE_TEXT]); /* "12, 3" */
size_t dtx_st_dtype_bytes(enum dtx_st_dtype dtype);                                  /* 0 for OTHER */
/* n elements of a file as fp32 (every value is exact), and fp32 as elements of a file (F32 or BF16). */
void dtx_st_to_f32(enum dtx_st_dtype dtype, const void *in, int64_t n, float *out);
void dtx_st_from_f32(enum dtx_st_dtype dtype, const float *in, int64_t n, void *out);

#endif
