/* Products of a group of 128 threads, asynchronous: fence, issue, commit, wait. Included by hopper.h. */
#ifndef DTX_KERNELS_DEVICE_HOPPER_MMA_H
#define DTX_KERNELS_DEVICE_HOPPER_MMA_H

#if defined(__CUDACC__)
/* The sums as text of operands, and as operands. */
#define DTX_WGMMA_SUMS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define DTX_WGMMA_SUMS_32                                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"               \
    "%27,%28,%29,%30,%31"
#define DTX_WGMMA_SUMS_64                                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"               \
    "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"             \
    "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DTX_WGMMA_SUMS_128                                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"               \
    "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"             \
    "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,"             \
    "%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,"                \
    "%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,"             \
    "%121,%122,%123,%124,%125,%126,%127"
#define DTX_SUM_4(n)   "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define DTX_SUM_16(n)  DTX_SUM_4(n), DTX_SUM_4(n + 1), DTX_SUM_4(n + 2), DTX_SUM_4(n + 3)
#define DTX_SUM_32(n)  DTX_SUM_16(n), DTX_SUM_16(n + 4)
#define DTX_SUM_64(n)  DTX_SUM_32(n), DTX_SUM_32(n + 8)
#define DTX_SUM_128(n) DTX_SUM_64(n), DTX_SUM_64(n + 16)
#endif

/* Before the first product after registers were written: pins the sums. */
template <int N> DTX_FN void dtx_group_mma_begin(float (&sum)[N][4])
{
#if !defined(__CUDACC__)
    (void)sum;
    dtx_simt_group_fence();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    DTX_UNROLL for (int n = 0; n < N; n++) asm volatile("" : DTX_SUM_4(n)::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
DTX_FN void dtx_group_mma_commit()
{
#if !defined(__CUDACC__)
    dtx_simt_group_commit();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Until at most `Left` committed groups are under way; `sum` is then readable if it was in none of them. */
template <int Left, int N> DTX_FN void dtx_group_mma_wait(float (&sum)[N][4], dtx_site site = {})
{
#if !defined(__CUDACC__)
    (void)sum;
    dtx_simt_group_wait(Left, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
    DTX_UNROLL for (int n = 0; n < N; n++) asm volatile("" : DTX_SUM_4(n)::"memory");
#endif
}

/* sum [64,64] (+)= a [64,16]·b [64,16]ᵀ: 16 columns of panels of shared memory. Thread t of the group holds the rows of
 * warp t/32 as the m16n8k16 fragments do. */
DTX_FN void dtx_group_mma_rows(float (&sum)[8][4], uint64_t a, uint64_t b, bool add, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(nullptr, site);
    dtx_simt_group_mma(sum[0], 64, nullptr, a, b, add, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_32
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : DTX_SUM_32(0)
                 : "l"(a), "l"(b), "r"((int)add));
#endif
}

/* sum [64,32] (+)= a [64,16]·b [32,16]ᵀ, the same way. */
DTX_FN void dtx_group_mma_rows(float (&sum)[4][4], uint64_t a, uint64_t b, bool add, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(nullptr, site);
    dtx_simt_group_mma(sum[0], 32, nullptr, a, b, add, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_16
                 "}, %16, %17, p, 1, 1, 0, 0;\n}"
                 : DTX_SUM_16(0)
                 : "l"(a), "l"(b), "r"((int)add));
#endif
}

/* sum [64,128] (+)= a [64,16]·b [128,16]ᵀ, the same way. */
DTX_FN void dtx_group_mma_rows(float (&sum)[16][4], uint64_t a, uint64_t b, bool add, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(nullptr, site);
    dtx_simt_group_mma(sum[0], 128, nullptr, a, b, add, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_64
                 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : DTX_SUM_64(0)
                 : "l"(a), "l"(b), "r"((int)add));
#endif
}

/* sum [64,64] += a [64,16] in registers · b [16,64], rows of panels. */
DTX_FN void dtx_group_mma_columns(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(a, site);
    dtx_simt_group_mma(sum[0], 64, a, 0, b, true, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : DTX_SUM_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

/* sum [64,128] += a [64,16] in registers · b [16,128], rows of panels. */
DTX_FN void dtx_group_mma_columns(float (&sum)[16][4], const uint32_t (&a)[4], uint64_t b, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(a, site);
    dtx_simt_group_mma(sum[0], 128, a, 0, b, true, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : DTX_SUM_64(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

/* sum [64,256] += a [64,16] in registers · b [16,256], rows of panels. */
DTX_FN void dtx_group_mma_columns(float (&sum)[32][4], const uint32_t (&a)[4], uint64_t b, dtx_site site = {})
{
#if !defined(__CUDACC__)
    dtx_simt_group_registers(a, site);
    dtx_simt_group_mma(sum[0], 256, a, 0, b, true, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_128
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : DTX_SUM_128(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

#endif
