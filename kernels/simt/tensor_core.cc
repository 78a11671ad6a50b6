/* What the lanes of a warp compute together. */
#include <cstring>

#include "kernels/device/mma.h"

/* out[l]: the four sums of lane l, updated. Products of bf16 are exact in fp32. */
void dtx_simt_mma(const void *const *in, void *const *out, const void *argument)
{
    (void)argument;
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const dtx_simt_mma_in *f = (const dtx_simt_mma_in *)in[lane];
        int g = lane / 4, i = lane % 4;
        for (int x = 0; x < 4; x++) {
            int row = g + (x & 1) * 8, column = 2 * i + (x >> 1) * 8;
            a[row][column] = dtx_bf16_low(f->a[x]);
            a[row][column + 1] = dtx_bf16_high(f->a[x]);
        }
        for (int x = 0; x < 2; x++) {
            b[2 * i + x * 8][g] = dtx_bf16_low(f->b[x]);
            b[2 * i + x * 8 + 1][g] = dtx_bf16_high(f->b[x]);
        }
    }
    for (int row = 0; row < 16; row++) {
        float sum[8] = {0};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                sum[n] += a[row][k] * b[k][n];
        for (int n = 0; n < 8; n++)
            ((float *)out[row % 8 * 4 + n / 2])[(row / 8) * 2 + n % 2] += sum[n];
    }
}

/* in[l]: 16 bytes of shared memory, read when the last lane has come; out[l]: four registers. */
void dtx_simt_matrix(const void *const *in, void *const *out, const void *transposed)
{
    uint16_t row[32][8];
    for (int lane = 0; lane < 32; lane++)
        memcpy(row[lane], in[lane], 16);
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, i = lane % 4;
        for (int m = 0; m < 4; m++) {
            uint32_t low = transposed ? row[m * 8 + 2 * i][g] : row[m * 8 + g][2 * i];
            uint32_t high = transposed ? row[m * 8 + 2 * i + 1][g] : row[m * 8 + g][2 * i + 1];
            ((uint32_t *)out[lane])[m] = low | high << 16;
        }
    }
}
