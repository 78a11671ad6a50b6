#include "tests/ref/ref.h"

#include <math.h>
#include <stdlib.h>

#define R         long double
#define S(name)   name##_long
#define R_EXP(x)  expl(x)
#define R_LOG(x)  logl(x)
#define R_SQRT(x) sqrtl(x)
#define R_ABS(x)  fabsl(x)
#define R_INF     ((long double)INFINITY)
#include "tests/ref/ref_body.h"
#undef R
#undef S
#undef R_EXP
#undef R_LOG
#undef R_SQRT
#undef R_ABS
#undef R_INF

#define R         double
#define S(name)   name##_double
#define R_EXP(x)  exp(x)
#define R_LOG(x)  log(x)
#define R_SQRT(x) sqrt(x)
#define R_ABS(x)  fabs(x)
#define R_INF     ((double)INFINITY)
#include "tests/ref/ref_body.h"
#undef R
#undef S
#undef R_EXP
#undef R_LOG
#undef R_SQRT
#undef R_ABS
#undef R_INF

#define R         float
#define S(name)   name##_float
#define R_EXP(x)  expf(x)
#define R_LOG(x)  logf(x)
#define R_SQRT(x) sqrtf(x)
#define R_ABS(x)  fabsf(x)
#define R_INF     INFINITY
#include "tests/ref/ref_body.h"

const struct ref_ops *ref_exact(enum dtx_dtype act)
{
    return act == DTX_F64 ? &table_long : &table_double;
}

const struct ref_ops *ref_naive(enum dtx_dtype act)
{
    return act == DTX_F64 ? &table_double : &table_float;
}

double ref_round(double value, enum dtx_dtype dtype)
{
    if (dtype == DTX_F32)
        return (double)(float)value;
    if (dtype == DTX_BF16)
        return (double)dtx_bf16_to_f32(dtx_f32_to_bf16((float)value));
    return value;
}
