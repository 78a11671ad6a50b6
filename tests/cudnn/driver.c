/*
 * What stands for libcuda.so.1 where cuDNN makes plans for a GPU that is not here: there is no device, but machine code
 * that cuDNN has compiled can be "loaded". The names are those that cuDNN 9.19 and 9.28 ask for.
 */
enum { NO_DEVICE = 34 };

#define REFUSED(name)                                                                                                  \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return NO_DEVICE;                                                                                              \
    }
#define DONE(name)                                                                                                     \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return 0;                                                                                                      \
    }
/* Gives something that is not NULL. */
#define GIVEN(name)                                                                                                    \
    int name(void **out);                                                                                              \
    int name(void **out)                                                                                               \
    {                                                                                                                  \
        static char thing;                                                                                             \
        *out = &thing;                                                                                                 \
        return 0;                                                                                                      \
    }

GIVEN(cuLibraryLoadData)
GIVEN(cuLibraryLoadFromFile)
GIVEN(cuLibraryGetKernel)
GIVEN(cuKernelGetFunction)
GIVEN(cuModuleLoadData)
GIVEN(cuModuleGetFunction)
DONE(cuModuleUnload)
DONE(cuTensorMapEncodeTiled)
DONE(cuTensorMapEncodeIm2col)
DONE(cuLibraryUnload)
DONE(cuKernelSetAttribute)
DONE(cuKernelGetAttribute)
DONE(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuInit)
REFUSED(cuDriverGetVersion)
REFUSED(cuGetProcAddress_v2)
REFUSED(cuGetErrorName)
REFUSED(cuGetErrorString)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuStreamGetCtx)
REFUSED(cuLinkCreate)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkDestroy)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuDeviceGetCount)
REFUSED(cuDeviceGet)
