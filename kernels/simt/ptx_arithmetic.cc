/* What an instruction computes from its thread's registers alone: a table by name. */
#include <cmath>

#include "kernels/device/device.h"
#include "kernels/simt/ptx.h"

/* a, b, c: the operands as `type`; the result goes to the first register as what the expression gives. */
#define OP(name, type, expression)                                                                                     \
    {                                                                                                                  \
        name, [](ptx_thread &t, const ptx_ins &i) {                                                                    \
            const type a = t.get<type>(i.r[1]), b = t.get<type>(i.r[2]), c = t.get<type>(i.r[3]);                      \
            (void)a, (void)b, (void)c;                                                                                 \
            t.put(i.r[0], expression);                                                                                 \
        }                                                                                                              \
    }

/* Kinds of rows. Sums and products of whole numbers wrap, so they are made without sign. */
#define WHOLE(op, expression)                                                                                          \
    OP(op ".u16", uint16_t, (uint16_t)(expression)), OP(op ".s16", uint16_t, (uint16_t)(expression)),                  \
        OP(op ".u32", uint32_t, expression), OP(op ".s32", uint32_t, expression), OP(op ".u64", uint64_t, expression), \
        OP(op ".s64", uint64_t, expression)
#define SIGNED_OR_NOT(op, expression)                                                                                  \
    OP(op ".u16", uint16_t, (uint16_t)(expression)), OP(op ".s16", int16_t, (int16_t)(expression)),                    \
        OP(op ".u32", uint32_t, expression), OP(op ".s32", int32_t, expression), OP(op ".u64", uint64_t, expression),  \
        OP(op ".s64", int64_t, expression)
#define BITS(op, expression)                                                                                           \
    OP(op ".b16", uint16_t, (uint16_t)(expression)), OP(op ".b32", uint32_t, expression),                              \
        OP(op ".b64", uint64_t, expression), OP(op ".pred", uint64_t, (expression)&1)
#define FLOATS(op, expression) OP(op ".f32", float, expression), OP(op ".f64", double, expression)
#define COMPARE(op, expression)                                                                                        \
    OP("setp." op ".u16", uint16_t, (expression)), OP("setp." op ".s16", int16_t, (expression)),                       \
        OP("setp." op ".u32", uint32_t, (expression)), OP("setp." op ".s32", int32_t, (expression)),                   \
        OP("setp." op ".u64", uint64_t, (expression)), OP("setp." op ".s64", int64_t, (expression)),                   \
        OP("setp." op ".f32", float, (expression)), OP("setp." op ".f64", double, (expression))
#define COMPARE_BITS(op, expression)                                                                                   \
    OP("setp." op ".b16", uint16_t, (expression)), OP("setp." op ".b32", uint32_t, (expression)),                      \
        OP("setp." op ".b64", uint64_t, (expression))
/* True also when a value is NaN. */
#define COMPARE_NAN(op, expression)                                                                                    \
    OP("setp." op ".f32", float, (a != a || b != b || (expression))),                                                  \
        OP("setp." op ".f64", double, (a != a || b != b || (expression)))
#define SELECT(type, bits)                                                                                             \
    {                                                                                                                  \
        "selp." type, [](ptx_thread &t, const ptx_ins &i) {                                                            \
            t.put(i.r[0], t.get<bits>(t.get<uint64_t>(i.r[3]) & 1 ? i.r[1] : i.r[2]));                                 \
        }                                                                                                              \
    }
#define SHIFT(name, type, expression)                                                                                  \
    {                                                                                                                  \
        name, [](ptx_thread &t, const ptx_ins &i) {                                                                    \
            const type a = t.get<type>(i.r[1]);                                                                        \
            const uint32_t n = t.get<uint32_t>(i.r[2]), most = sizeof a * 8;                                           \
            t.put(i.r[0], (type)(expression));                                                                         \
        }                                                                                                              \
    }
#define SHIFTS(bits)                                                                                                   \
    SHIFT("shl.b" #bits, uint##bits##_t, n >= most ? 0 : a << n),                                                      \
        SHIFT("shr.u" #bits, uint##bits##_t, n >= most ? 0 : a >> n),                                                  \
        SHIFT("shr.b" #bits, uint##bits##_t, n >= most ? 0 : a >> n),                                                  \
        SHIFT("shr.s" #bits, int##bits##_t, a >> (n >= most ? most - 1 : n))
#define CONVERT(name, to, from)                                                                                        \
    {                                                                                                                  \
        "cvt." name, [](ptx_thread &t, const ptx_ins &i) { t.put(i.r[0], widened((to)t.get<from>(i.r[1]))); }          \
    }
#define CONVERT_WHOLE(name, from)                                                                                      \
    CONVERT("u16." name, uint16_t, from), CONVERT("s16." name, int16_t, from), CONVERT("u32." name, uint32_t, from),   \
        CONVERT("s32." name, int32_t, from), CONVERT("u64." name, uint64_t, from),                                     \
        CONVERT("s64." name, int64_t, from), CONVERT("rn.f32." name, float, from),                                     \
        CONVERT("rn.f64." name, double, from)

/* The destination may be wider than the type: the sign fills it. */
template <class T> static T widened(T value)
{
    return value;
}
static int64_t widened(int16_t value)
{
    return value;
}
static int64_t widened(int32_t value)
{
    return value;
}

/* a·b + c rounded towards −∞. */
static float fma_down(float a, float b, float c)
{
    double product = (double)a * b, sum = product + c; /* the product is exact */
    double part = sum - product, rest = (product - (sum - part)) + (c - part);
    float f = (float)sum;
    return !DTX_MUTANT(ptx_rounds_to_nearest) && std::isfinite(f) && (f > sum || (f == sum && rest < 0))
               ? std::nextafter(f, -INFINITY)
               : f;
}

/* The high word of 1/x; the low word is 0. */
static double reciprocal_high(double x)
{
    double y = 1 / x;
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits &= 0xffffffff00000000u;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Bytes of b:a chosen by the four digits of c. */
static uint32_t permute(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int n = 0; n < 4; n++) {
        uint32_t digit = c >> 4 * n & 15, byte = (uint32_t)(all >> 8 * (digit & 7)) & 255;
        out |= (digit & 8 ? (byte >> 7) * 255 : byte) << 8 * n;
    }
    return out;
}

template <class T> static T quotient(T a, T b)
{
    return b == (T)-1 && (T)-1 < 0 ? (T)(0 - (uint64_t)a) : (T)(a / b);
}
template <class T> static T remainder(T a, T b)
{
    return b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b);
}

template <class T, bool REST> static void divide(ptx_thread &t, const ptx_ins &i)
{
    const T a = t.get<T>(i.r[1]), b = t.get<T>(i.r[2]);
    if (b == 0)
        ptx_fault(t, i, "division by zero");
    t.put(i.r[0], REST ? remainder(a, b) : quotient(a, b));
}

static void bit_field_insert(ptx_thread &t, const ptx_ins &i)
{
    const uint32_t from = t.get<uint32_t>(i.r[1]), into = t.get<uint32_t>(i.r[2]);
    const uint32_t at = t.get<uint32_t>(i.r[3]) & 255, n = t.get<uint32_t>(i.r[4]) & 255;
    const uint64_t mask = ((n >= 32 ? (uint64_t)1 << 32 : (uint64_t)1 << n) - 1) << (at > 32 ? 32 : at);
    t.put(i.r[0], (uint32_t)((into & ~mask) | (((uint64_t)from << (at > 32 ? 32 : at)) & mask)));
}

template <class T> static void move(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], t.get<T>(i.r[1]));
}
/* A register from its halves, and the other way round. */
template <class T, class HALF> static void pack(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], (T)(t.get<HALF>(i.r[1]) | (T)t.get<HALF>(i.r[2]) << sizeof(HALF) * 8));
}
template <class T, class HALF> static void unpack(ptx_thread &t, const ptx_ins &i)
{
    const T whole = t.get<T>(i.r[2]);
    t.put(i.r[0], (HALF)whole);
    t.put(i.r[1], (HALF)(whole >> sizeof(HALF) * 8));
}

static const std::unordered_map<std::string, ptx_step *> &table()
{
    static const std::unordered_map<std::string, ptx_step *> rows = {
        WHOLE("add", a + b),
        WHOLE("sub", a - b),
        WHOLE("neg", 0 - a),
        WHOLE("mul.lo", (uint64_t)a * b),
        WHOLE("mad.lo", (uint64_t)a * b + c),
        SIGNED_OR_NOT("min", a < b ? a : b),
        SIGNED_OR_NOT("max", a > b ? a : b),
        BITS("and", a & b),
        BITS("or", a | b),
        BITS("xor", a ^ b),
        BITS("not", ~a),
        SHIFTS(16),
        SHIFTS(32),
        SHIFTS(64),
        OP("mul.wide.s32", int32_t, (int64_t)a * b),
        OP("mul.wide.u32", uint32_t, (uint64_t)a * b),
        OP("mul.wide.s16", int16_t, (int32_t)a * b),
        OP("mul.wide.u16", uint16_t, (uint32_t)a * b),
        OP("mul.hi.s32", int32_t, (int32_t)((int64_t)a * b >> 32)),
        OP("mul.hi.u32", uint32_t, (uint32_t)((uint64_t)a * b >> 32)),
        {"div.s32", divide<int32_t, false>},
        {"div.u32", divide<uint32_t, false>},
        {"div.s64", divide<int64_t, false>},
        {"div.u64", divide<uint64_t, false>},
        {"rem.s32", divide<int32_t, true>},
        {"rem.u32", divide<uint32_t, true>},
        {"rem.s64", divide<int64_t, true>},
        {"rem.u64", divide<uint64_t, true>},
        {"bfi.b32", bit_field_insert},
        OP("prmt.b32", uint32_t, permute(a, b, c)),

        FLOATS("add", a + b),
        FLOATS("add.rn", a + b),
        FLOATS("sub", a - b),
        FLOATS("sub.rn", a - b),
        FLOATS("mul", a * b),
        FLOATS("mul.rn", a * b),
        FLOATS("div.rn", a / b),
        FLOATS("rcp.rn", 1 / a),
        FLOATS("sqrt.rn", std::sqrt(a)),
        FLOATS("fma.rn", std::fma(a, b, c)),
        FLOATS("neg", -a),
        FLOATS("abs", std::fabs(a)),
        FLOATS("min", std::fmin(a, b)),
        FLOATS("max", std::fmax(a, b)),
        OP("fma.rm.f32", float, fma_down(a, b, c)),
        OP("ex2.approx.ftz.f32", float, std::exp2(a)),
        OP("rsqrt.approx.f32", float, 1 / std::sqrt(a)),
        OP("rsqrt.approx.ftz.f32", float, 1 / std::sqrt(a)),
        OP("rcp.approx.ftz.f64", double, reciprocal_high(a)),

        COMPARE("eq", a == b),
        COMPARE("ne", a != b && a == a && b == b),
        COMPARE("lt", a < b),
        COMPARE("le", a <= b),
        COMPARE("gt", a > b),
        COMPARE("ge", a >= b),
        COMPARE_BITS("eq", a == b),
        COMPARE_BITS("ne", a != b),
        COMPARE_NAN("equ", a == b),
        COMPARE_NAN("neu", a != b),
        COMPARE_NAN("ltu", a < b),
        COMPARE_NAN("leu", a <= b),
        COMPARE_NAN("gtu", a > b),
        COMPARE_NAN("geu", a >= b),
        COMPARE_NAN("nan", false),
        OP("setp.num.f32", float, (a == a && b == b)),
        OP("setp.num.f64", double, (a == a && b == b)),
        SELECT("b16", uint16_t),
        SELECT("b32", uint32_t),
        SELECT("u32", uint32_t),
        SELECT("s32", uint32_t),
        SELECT("f32", uint32_t),
        SELECT("b64", uint64_t),
        SELECT("u64", uint64_t),
        SELECT("s64", uint64_t),
        SELECT("f64", uint64_t),

        CONVERT_WHOLE("u8", uint8_t),
        CONVERT_WHOLE("s8", int8_t),
        CONVERT_WHOLE("u16", uint16_t),
        CONVERT_WHOLE("s16", int16_t),
        CONVERT_WHOLE("u32", uint32_t),
        CONVERT_WHOLE("s32", int32_t),
        CONVERT_WHOLE("u64", uint64_t),
        CONVERT_WHOLE("s64", int64_t),
        CONVERT("f64.f32", double, float),
        CONVERT("rn.f32.f64", float, double),
        OP("cvt.rni.f32.f32", float, std::nearbyint(a)),
        OP("cvt.rzi.u32.f32", float, (a > 0 ? a < 0x1p32f ? (uint32_t)a : UINT32_MAX : 0u)),
        OP("cvt.sat.f32.f32", float, (a > 0 ? std::fmin(a, 1.f) : 0.f)),
        OP("cvt.rn.bf16x2.f32", float, dtx_pack_bf16(b, a)),

        {"mov.pred", move<uint64_t>},
        {"mov.b16", move<uint16_t>},
        {"mov.u16", move<uint16_t>},
        {"mov.b32", move<uint32_t>},
        {"mov.u32", move<uint32_t>},
        {"mov.s32", move<uint32_t>},
        {"mov.f32", move<uint32_t>},
        {"mov.b64", move<uint64_t>},
        {"mov.u64", move<uint64_t>},
        {"mov.f64", move<uint64_t>},
        {"mov.b32 {}", pack<uint32_t, uint16_t>},
        {"mov.b64 {}", pack<uint64_t, uint32_t>},
        {"{} mov.b32", unpack<uint32_t, uint16_t>},
        {"{} mov.b64", unpack<uint64_t, uint32_t>},
        {"cvta.to.global.u64", move<uint64_t>},
    };
    return rows;
}

ptx_step *ptx_find_arithmetic(const std::string &op)
{
    auto found = table().find(op);
    return found == table().end() ? nullptr : found->second;
}
