/* test: label=unit timeout=300 */
/* attn_fwd, attn_dots, attn_bwd against the references: sizes, GQA, documents, pieces, parts, empty rows. Pieces of
 * keys merged by attn_merge and attn_finish are the whole; gradients with `parts` are added to what is there. The norm
 * behind attention is that of o as it is written, and changes nothing else. */
#include "tests/harness/op_case.h"

#include <string.h>

struct shape {
    int64_t b, tq, tk, h, hkv, d, dv;
    int maps;
    int64_t q_first, k_first, document; /* document: length of each, 0: none */
    int64_t window;                     /* with documents: how many keys a query sees at most, 0: all */
    bool parts;
};

/* Documents of `document` tokens (one more in each further sample); every eleventh row sees nothing. */
static struct op_array documents(struct op_env *e, const struct shape *s)
{
    int32_t *start = calloc((size_t)(s->b * s->tq) + 1, sizeof *start);
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t i = 0; i < s->tq; i++) {
            int64_t position = s->q_first + i, length = s->document + b;
            start[b * s->tq + i] = (int32_t)(position / length * length);
            if (s->window && position - s->window + 1 > start[b * s->tq + i])
                start[b * s->tq + i] = (int32_t)(position - s->window + 1);
            if (position % 11 == 10)
                start[b * s->tq + i] = (int32_t)position + 1; /* sees no key */
        }
    struct op_array a = op_indices(e, start, OP_DIMS(s->b, s->tq));
    free(start);
    return a;
}

struct inputs {
    struct op_array q, k, v, lambda, doc;
    struct ref_attn ref;
};

static struct inputs make_inputs(struct op_env *e, const struct shape *s)
{
    struct inputs in;
    in.q = op_random(e, "q", e->act, 1.5, OP_DIMS(s->b, s->tq, s->h * s->maps, s->d));
    in.k = op_random(e, "k", e->act, 1.5, OP_DIMS(s->b, s->tk, s->hkv * s->maps, s->d));
    in.v = op_random(e, "v", e->act, 1, OP_DIMS(s->b, s->tk, s->hkv, s->dv));
    in.lambda = op_values(e, e->master, (double[]){0.37}, OP_DIMS(1));
    in.doc = s->document ? documents(e, s) : (struct op_array){0};
    in.ref = (struct ref_attn){s->b,
                               s->tq,
                               s->tk,
                               s->h,
                               s->hkv,
                               s->d,
                               s->dv,
                               s->q_first,
                               s->k_first,
                               s->maps,
                               1 / sqrt((double)s->d),
                               in.lambda.value[0],
                               in.q.value,
                               in.k.value,
                               in.v.value,
                               in.doc.index};
    return in;
}

/* Tensor cores take p and ds in bf16, so each term of a sum is off by up to 2^-8 of itself. Results in bf16 hide that;
 * parts are fp32 and may be off by 2^-8·Σ|terms| beyond what fp32 is. Zeros, for the sizes of the terms of `name`;
 * NULL where nothing is rounded. */
static double *terms_of(struct op_env *e, const struct shape *s, const char *name, int64_t n)
{
    bool tensor_cores = e->act == DTX_BF16 && s->d % 32 == 0 && strcmp(op_device(), "cpu") != 0;
    return tensor_cores && s->parts ? op_expect(e, name, n).ref : NULL;
}

static void round_terms(double *terms, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        terms[i] = ldexp(terms[i], -8);
}

static void forward_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct inputs in = make_inputs(e, s);
    enum dtx_dtype out = s->parts ? e->master : e->act;
    int64_t n = s->b * s->tq * s->h * s->dv, rows = s->b * s->maps * s->h * s->tq;
    struct op_array o = op_output(e, out, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array o2 = op_output(e, out, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array lse = op_output(e, e->master, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct dtx_attn_fwd_args args = {in.q.t,     in.k.t,  in.v.t,   in.lambda.t,  in.doc.t, s->q_first,
                                     s->k_first, s->maps, s->parts, in.ref.scale, o.t,      .lse = lse.t};
    if (s->maps == 2)
        args.o2 = o2.t;
    struct op_expect xo = op_expect(e, "o", n), xo2 = op_expect(e, "o2", n), xl = op_expect(e, "lse", rows);
    double *o_terms = terms_of(e, s, "o terms", n), *o2_terms = terms_of(e, s, "o2 terms", n);
    if (e->fresh) {
        double *whole = op_doubles(e, n), *whole_naive = op_doubles(e, n);
        e->exact->attn_fwd(&in.ref, s->parts ? xo.ref : whole, xo2.ref, s->parts ? whole : xo.ref, xl.ref);
        e->naive->attn_fwd(&in.ref, s->parts ? xo.naive : whole_naive, xo2.naive, s->parts ? whole_naive : xo.naive,
                           xl.naive);
        if (o_terms) {
            struct ref_attn sizes = in.ref;
            double *v = op_doubles(e, in.v.n), *lse_again = op_doubles(e, rows);
            for (int64_t i = 0; i < in.v.n; i++)
                v[i] = fabs(in.v.value[i]);
            sizes.v = v;
            e->exact->attn_fwd(&sizes, o_terms, o2_terms, whole, lse_again);
            round_terms(o_terms, n);
            round_terms(o2_terms, n);
        }
    }
    args.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &args));
    op_ok(e, dtx_attn_fwd(e->queue, &args));
    op_compare_slack(e, "o", &o, 2, o_terms);
    op_compare(e, "lse", &lse, 2);
    if (s->maps == 2)
        op_compare_slack(e, "o2", &o2, 2, o2_terms);
}

/* The norm's tensors for rows of s->dv; with_gain: else absent. */
struct norm {
    struct op_array gain, y, rstd;
    struct dtx_attn_norm args;
};

static struct norm make_norm(struct op_env *e, const struct shape *s, bool with_gain)
{
    struct norm n = {.y = op_output(e, e->act, OP_DIMS(s->b, s->tq, s->h, s->dv)),
                     .rstd = op_output(e, e->master, OP_DIMS(s->b, s->tq, s->h))};
    n.args = (struct dtx_attn_norm){.y = n.y.t, .rstd = n.rstd.t, .eps = 1e-5, .out_scale = 0.645};
    if (with_gain) {
        n.gain = op_random(e, "gain", e->master, 1, OP_DIMS(s->dv));
        n.args.gain = n.gain.t;
    }
    return n;
}

/* `got` and `like` must hold the same bits. */
static void same_bits(struct op_env *e, const char *name, const struct op_array *got, const struct op_array *like)
{
    size_t bytes = dtx_tensor_bytes(&got->t);
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    op_ok(e, dtx_tensor_get(e->queue, &got->t, a));
    op_ok(e, dtx_tensor_get(e->queue, &like->t, b));
    if (memcmp(a, b, bytes) != 0)
        fail_msg("%s has other bits (%s, %s)", name, dtx_dtype_name(e->act), dtx_isa_name(e->backend->isa));
    free(a);
    free(b);
}

static void near(const char *name, int64_t i, double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%s[%lld] = %.9g, must be %.9g", name, (long long)i, got, want);
}

/* y and rstd are the reference's norm of the o that was written; on the CPU rmsnorm_fwd's bits. */
static void check_norm(struct op_env *e, const struct shape *s, struct op_array *o, struct norm *n)
{
    int64_t rows = s->b * s->tq * s->h, width = s->dv;
    double *y = op_doubles(e, o->n), *rstd = op_doubles(e, rows), wide = e->act == DTX_F64 ? 1e-14 : 2e-6;
    op_read(e, o);
    op_read(e, &n->y);
    op_read(e, &n->rstd);
    e->exact->rmsnorm_fwd(rows, width, o->value, n->gain.value, n->args.eps, n->args.out_scale, y, rstd);
    for (int64_t i = 0; i < rows; i++)
        near("rstd", i, n->rstd.value[i], rstd[i], wide);
    for (int64_t i = 0; i < o->n; i++)
        near("y", i, n->y.value[i], y[i], e->act == DTX_BF16 ? 0x1p-8 + wide : wide);
    op_compare_bits(e, "y", &n->y);
    op_compare_bits(e, "rstd", &n->rstd);
    if (strcmp(op_device(), "cpu") != 0)
        return;
    struct op_array y_again = op_output(e, e->act, OP_DIMS(rows, width)),
                    rstd_again = op_output(e, e->master, OP_DIMS(rows));
    struct dtx_rmsnorm_fwd_args norm = {.x = dtx_tensor_view_2d(&o->t, rows, width),
                                        .gain = n->args.gain,
                                        .y = y_again.t,
                                        .rstd = rstd_again.t,
                                        .eps = n->args.eps,
                                        .out_scale = n->args.out_scale};
    op_ok(e, dtx_rmsnorm_fwd(e->queue, &norm));
    same_bits(e, "y", &n->y, &y_again);
    same_bits(e, "rstd", &n->rstd, &rstd_again);
}

/* With the norm and without: the same o, o2 and lse. Even numbers of heads have a gain. */
static void norm_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct inputs in = make_inputs(e, s);
    struct norm norm = make_norm(e, s, s->h % 2 == 0);
    struct op_array o[2], o2[2], lse[2];
    for (int i = 0; i < 2; i++) {
        o[i] = op_output(e, e->act, OP_DIMS(s->b, s->tq, s->h, s->dv));
        o2[i] = op_output(e, e->act, OP_DIMS(s->b, s->tq, s->h, s->dv));
        lse[i] = op_output(e, e->master, OP_DIMS(s->b, s->maps * s->h, s->tq));
        struct dtx_attn_fwd_args args = {in.q.t,     in.k.t,  in.v.t,   in.lambda.t,  in.doc.t, s->q_first,
                                         s->k_first, s->maps, s->parts, in.ref.scale, o[i].t,   .lse = lse[i].t};
        if (s->maps == 2)
            args.o2 = o2[i].t;
        if (i == 0)
            args.norm = norm.args;
        args.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &args));
        op_ok(e, dtx_attn_fwd(e->queue, &args));
    }
    same_bits(e, "o", &o[0], &o[1]);
    same_bits(e, "lse", &lse[0], &lse[1]);
    if (s->maps == 2)
        same_bits(e, "o2", &o2[0], &o2[1]);
    check_norm(e, s, &o[0], &norm);
}

static void dots_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct ref_attn ref = {.b = s->b, .tq = s->tq, .h = s->h, .dv = s->dv, .maps = s->maps};
    struct op_array do_ = op_random(e, "do", e->act, 1, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array o = op_random(e, "o", e->act, 1, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array o2 = op_random(e, "o2", e->act, 1, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array lambda = op_values(e, e->master, (double[]){0.37}, OP_DIMS(1));
    struct op_array dsum = op_output(e, e->master, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct op_array dlambda = op_inout(e, "dlambda", e->master, 1, OP_DIMS(s->h));
    ref.lambda = lambda.value[0];
    struct op_expect xd = op_expect(e, "dsum", dsum.n), xl = op_expect(e, "dlambda", s->h);
    double *terms = op_doubles(e, s->h), *spare = op_doubles(e, s->h);
    double *before = op_doubles(e, s->h);
    for (int64_t i = 0; i < s->h; i++)
        before[i] = dlambda.value[i];
    if (e->fresh) {
        for (int64_t i = 0; i < s->h; i++)
            xl.ref[i] = xl.naive[i] = before[i];
        e->exact->attn_dots(&ref, do_.value, o.value, o2.value, xd.ref, xl.ref, terms);
        e->naive->attn_dots(&ref, do_.value, o.value, o2.value, xd.naive, xl.naive, spare);
    }
    struct dtx_attn_dots_args args = {.do_ = do_.t, .o = o.t, .dsum = dsum.t, .maps = s->maps};
    if (s->maps == 2) {
        args.o2 = o2.t;
        args.lambda = lambda.t;
        args.dlambda = dlambda.t;
    }
    op_ok(e, dtx_attn_dots(e->queue, &args));
    op_compare(e, "dsum", &dsum, 2);
    if (s->maps == 1)
        return;
    /* λ's gradient cancels: bounded by its terms. */
    op_read(e, &dlambda);
    op_compare_bits(e, "dlambda", &dlambda);
    for (int64_t i = 0; e->fresh && i < s->h; i++)
        if (!(fabs(dlambda.value[i] - xl.ref[i]) <= 5e-4 * terms[i]))
            fail_msg("dlambda[%lld] = %g, must be %g (terms %g)", (long long)i, dlambda.value[i], xl.ref[i], terms[i]);
}

/* With `parts` gradients are fp32 and added to what is there. */
static struct op_array gradient(struct op_env *e, const struct shape *s, const char *name, int ndim, const int64_t *dim)
{
    return s->parts ? op_inout(e, name, e->master, 1, ndim, dim) : op_output(e, e->act, ndim, dim);
}

static void add_before(const struct shape *s, const struct op_array *gradient, const struct op_expect *x)
{
    for (int64_t i = 0; i < gradient->n && s->parts; i++) {
        x->ref[i] += gradient->value[i];
        x->naive[i] = gradient->t.dtype == DTX_F64 ? x->naive[i] + gradient->value[i]
                                                   : (double)((float)x->naive[i] + (float)gradient->value[i]);
    }
}

static void backward_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct inputs in = make_inputs(e, s);
    int64_t n = s->b * s->tq * s->h * s->dv, rows = s->b * s->maps * s->h * s->tq;
    struct op_array do_ = op_random(e, "do", e->act, 1, OP_DIMS(s->b, s->tq, s->h, s->dv));
    /* lse and dsum as a forward pass would give them, from the reference in double. */
    double *o1 = op_doubles(e, n), *o2 = op_doubles(e, n), *o = op_doubles(e, n), *l = op_doubles(e, rows);
    double *d = op_doubles(e, rows), *dlambda = op_doubles(e, s->h), *terms = op_doubles(e, s->h);
    e->naive->attn_fwd(&in.ref, o1, o2, o, l);
    e->naive->attn_dots(&in.ref, do_.value, o, o2, d, dlambda, terms);
    struct op_array lse = op_values(e, e->master, l, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct op_array dsum = op_values(e, e->master, d, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct op_array dq = gradient(e, s, "dq", OP_DIMS(s->b, s->tq, s->h * s->maps, s->d));
    struct op_array dk = gradient(e, s, "dk", OP_DIMS(s->b, s->tk, s->hkv * s->maps, s->d));
    struct op_array dv = gradient(e, s, "dv", OP_DIMS(s->b, s->tk, s->hkv, s->dv));
    struct op_expect xq = op_expect(e, "dq", dq.n), xk = op_expect(e, "dk", dk.n), xv = op_expect(e, "dv", dv.n);
    double *q_terms = terms_of(e, s, "dq terms", dq.n), *k_terms = terms_of(e, s, "dk terms", dk.n);
    double *v_terms = terms_of(e, s, "dv terms", dv.n);
    if (e->fresh) {
        e->exact->attn_bwd(&in.ref, do_.value, lse.value, dsum.value, false, xq.ref, xk.ref, xv.ref);
        e->naive->attn_bwd(&in.ref, do_.value, lse.value, dsum.value, false, xq.naive, xk.naive, xv.naive);
        add_before(s, &dq, &xq);
        add_before(s, &dk, &xk);
        add_before(s, &dv, &xv);
        if (q_terms) {
            e->exact->attn_bwd(&in.ref, do_.value, lse.value, dsum.value, true, q_terms, k_terms, v_terms);
            round_terms(q_terms, dq.n);
            round_terms(k_terms, dk.n);
            round_terms(v_terms, dv.n);
        }
    }
    struct dtx_attn_bwd_args args = {in.q.t,     in.k.t,     in.v.t,  in.lambda.t,  in.doc.t,
                                     s->q_first, s->k_first, s->maps, in.ref.scale, do_.t,
                                     lse.t,      dsum.t,     dq.t,    dk.t,         .dv = dv.t};
    args.parts = s->parts;
    args.work = op_work(e, dtx_attn_bwd_work_bytes(e->queue, &args));
    op_ok(e, dtx_attn_bwd(e->queue, &args));
    op_compare_slack(e, "dq", &dq, 3, q_terms);
    op_compare_slack(e, "dk", &dk, 3, k_terms);
    op_compare_slack(e, "dv", &dv, 3, v_terms);
}

static const struct shape list[] = {
    {1, 1, 1, 1, 1, 2, 2, 1, .q_first = 0},
    {7, 1, 1, 1, 1, 8, 16, 2, .q_first = 0},      /* dq is what rounding leaves: several, so that its size is no luck */
    {2, 13, 13, 2, 2, 6, 10, 2, .q_first = 0},    /* odd sizes */
    {1, 37, 37, 4, 2, 16, 16, 1, .q_first = 0},   /* plain with GQA */
    {2, 70, 70, 4, 2, 16, 32, 2, .q_first = 0},   /* differential with GQA */
    {1, 131, 131, 6, 1, 8, 8, 2, .document = 17}, /* one kv head, documents, empty rows */
    {2, 45, 45, 2, 1, 16, 32, 2, .document = 1},  /* documents of one token */
    {1, 1, 90, 3, 1, 16, 32, 2, .q_first = 89},   /* generation with a cache */
    {1, 20, 75, 2, 2, 16, 32, 2, .q_first = 55},  /* prefill behind a cache */
    {1, 33, 40, 2, 2, 16, 32, 2, .q_first = 30, .k_first = 40, .parts = true}, /* a piece, partly above the diagonal */
    {1, 33, 40, 2, 2, 16, 16, 1, .q_first = 64, .k_first = 7, .parts = true},
    {2, 70, 90, 4, 2, 16, 32, 2, .q_first = 128, .k_first = 60, .document = 37, .parts = true},
    {1, 8, 16, 2, 2, 8, 16, 2, .q_first = 0, .k_first = 100, .parts = true}, /* all of it behind the queries */
    {1, 8, 16, 2, 2, 8, 16, 2, .q_first = 0, .k_first = 100},                /* nothing visible at all */
    {1, 3, 0, 2, 1, 16, 32, 2, .q_first = 0},                                /* no keys */
    {1, 0, 5, 2, 1, 16, 32, 2, .q_first = 0},                                /* no queries */
    {2, 64, 100, 2, 1, 16, 32, 2, .q_first = 50, .k_first = 3, .document = 23},
    {1, 80, 80, 1, 1, 64, 128, 2, .q_first = 0},
    {1, 66, 66, 1, 1, 64, 64, 1, .q_first = 0},
    {1, 40, 40, 1, 1, 300, 300, 2, .q_first = 0}, /* wide heads */
};
enum { SHAPES = sizeof list / sizeof *list };

/* Widths that have tensor-core kernels, in bf16: more than one tile of rows and keys, ends that fill no tile. */
static const struct shape wide[] = {
    {1, 150, 150, 2, 1, 32, 64, 2, .q_first = 0},
    {2, 97, 97, 1, 1, 64, 128, 2, .q_first = 0},
    {1, 131, 131, 4, 2, 64, 128, 2, .document = 40}, /* documents, empty rows, GQA */
    {1, 70, 70, 1, 1, 96, 192, 2, .q_first = 0},
    {1, 90, 90, 2, 1, 128, 256, 2, .q_first = 0},
    {1, 140, 140, 2, 2, 32, 32, 1, .document = 51},
    {1, 200, 200, 3, 1, 64, 64, 1, .q_first = 0},
    {1, 65, 65, 1, 1, 96, 96, 1, .q_first = 0},
    {1, 130, 130, 1, 1, 128, 128, 1, .q_first = 0},
    {1, 210, 210, 1, 1, 64, 128, 2, .document = 150, .window = 33}, /* more tiles than stages */
    {1, 150, 150, 2, 1, 128, 256, 2, .document = 100, .window = 70},
    {1, 70, 200, 2, 1, 128, 128, 1, .q_first = 128, .document = 190, .parts = true},
    {1, 70, 420, 1, 1, 64, 128, 2, .q_first = 350},
    {1, 40, 270, 1, 1, 128, 256, 2, .q_first = 230},
    {1, 1, 130, 2, 1, 64, 128, 2, .q_first = 129}, /* generation with a cache */
    {1, 33, 100, 2, 1, 64, 128, 2, .q_first = 67}, /* prefill behind a cache */
    {1, 70, 90, 2, 2, 32, 64, 2, .q_first = 128, .k_first = 60, .document = 37, .parts = true},
    {1, 33, 40, 2, 1, 128, 256, 2, .q_first = 30, .k_first = 40, .parts = true}, /* partly above the diagonal */
    {1, 33, 40, 2, 1, 64, 64, 1, .q_first = 64, .k_first = 7, .parts = true},
    {1, 8, 16, 2, 2, 32, 64, 2, .q_first = 0, .k_first = 100}, /* nothing visible at all */
    {1, 3, 0, 2, 1, 64, 128, 2, .q_first = 0},                 /* no keys */
    {1, 0, 5, 2, 1, 64, 128, 2, .q_first = 0},                 /* no queries */
};
enum { WIDE = sizeof wide / sizeof *wide };

static void run_all(op_function *function)
{
    for (int i = 0; i < SHAPES; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, function, &list[i]);
    for (int i = 0; i < WIDE; i++)
        op_run(DTX_BF16, function, &wide[i]);
}

static void forward(void **state)
{
    (void)state;
    run_all(forward_case);
}

static const struct shape normed[] = {
    {2, 13, 13, 2, 2, 6, 10, 2, .q_first = 0},                /* odd sizes */
    {1, 37, 37, 4, 2, 16, 16, 1, .q_first = 0},               /* plain with GQA */
    {2, 70, 70, 4, 2, 16, 32, 2, .q_first = 0},               /* differential with GQA */
    {2, 70, 70, 3, 1, 16, 32, 2, .document = 17},             /* documents, empty rows, no gain */
    {1, 1, 90, 3, 1, 16, 32, 2, .q_first = 89},               /* generation with a cache */
    {1, 8, 16, 2, 2, 8, 16, 2, .q_first = 0, .k_first = 100}, /* nothing visible at all */
    {1, 3, 0, 2, 1, 16, 32, 2, .q_first = 0},                 /* no keys */
    {1, 0, 5, 2, 1, 16, 32, 2, .q_first = 0},                 /* no queries */
    {1, 40, 40, 1, 1, 300, 300, 2, .q_first = 0},             /* wide heads */
    {1, 70, 70, 2, 1, 32, 64, 2, .q_first = 0},
    {2, 97, 97, 2, 1, 64, 128, 2, .document = 40},
    {1, 65, 65, 1, 1, 64, 128, 2, .q_first = 0},
    {1, 70, 70, 2, 2, 96, 192, 2, .q_first = 0},
    {1, 90, 90, 2, 1, 128, 256, 2, .q_first = 0},
    {1, 130, 130, 2, 1, 64, 64, 1, .q_first = 0},
    {1, 3, 0, 2, 1, 64, 128, 2, .q_first = 0}, /* no keys */
};
enum { NORMED = sizeof normed / sizeof *normed };

static void norms(void **state)
{
    (void)state;
    for (int i = 0; i < NORMED; i++)
        for (enum dtx_dtype act = normed[i].d % 32 ? DTX_F64 : DTX_BF16; act <= DTX_BF16; act++)
            op_run(act, norm_case, &normed[i]);
}

static void dots(void **state)
{
    (void)state;
    run_all(dots_case);
}

static void backward(void **state)
{
    (void)state;
    run_all(backward_case);
}

enum { T = 60, PIECES = 3 };
static const int64_t cuts[PIECES + 1] = {0, 7, 33, T}; /* of the keys, uneven */

/* One row of keys: piece p of k or v. */
static struct op_array piece_of(struct op_env *e, const struct op_array *whole, int p)
{
    int64_t b = whole->t.dim[0], row = whole->t.dim[2] * whole->t.dim[3], n = cuts[p + 1] - cuts[p];
    double *values = op_doubles(e, b * n * row);
    for (int64_t i = 0; i < b; i++)
        for (int64_t j = 0; j < n * row; j++)
            values[i * n * row + j] = whole->value[(i * T + cuts[p]) * row + j];
    return op_values(e, whole->t.dtype, values, OP_DIMS(b, n, whole->t.dim[2], whole->t.dim[3]));
}

/* Keys in three pieces, the last one first: parts merged and finished are the whole forward pass. Rows see nothing in
 * some pieces, and some rows nothing at all. */
static void merge_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct inputs in = make_inputs(e, s);
    int64_t n = s->b * s->tq * s->h * s->dv, n_lse = s->b * s->maps * s->h * s->tq;
    struct op_array part[2] = {op_output(e, e->master, OP_DIMS(s->b, s->tq, s->h, s->dv)),
                               op_output(e, e->master, OP_DIMS(s->b, s->tq, s->h, s->dv))};
    struct op_array into[2] = {op_output(e, e->master, OP_DIMS(s->b, s->tq, s->h, s->dv)),
                               op_output(e, e->master, OP_DIMS(s->b, s->tq, s->h, s->dv))};
    struct op_array o = op_output(e, e->act, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array o2 = op_output(e, e->act, OP_DIMS(s->b, s->tq, s->h, s->dv));
    struct op_array part_lse = op_output(e, e->master, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct op_array lse = op_output(e, e->master, OP_DIMS(s->b, s->maps * s->h, s->tq));
    struct op_expect xo = op_expect(e, "o", n), xo2 = op_expect(e, "o2", n), xl = op_expect(e, "lse", n_lse);
    if (e->fresh) {
        double *o1 = op_doubles(e, n), *o1_naive = op_doubles(e, n);
        e->exact->attn_fwd(&in.ref, o1, xo2.ref, xo.ref, xl.ref);
        e->naive->attn_fwd(&in.ref, o1_naive, xo2.naive, xo.naive, xl.naive);
    }
    for (int p = PIECES - 1; p >= 0; p--) {
        bool first = p == PIECES - 1;
        struct op_array k = piece_of(e, &in.k, p), v = piece_of(e, &in.v, p);
        struct dtx_attn_fwd_args args = {.q = in.q.t, .k = k.t, .v = v.t, .lambda = in.lambda.t, .doc_start = in.doc.t};
        args.k_first = cuts[p];
        args.maps = s->maps;
        args.parts = true;
        args.scale = in.ref.scale;
        args.o = first ? into[0].t : part[0].t;
        if (s->maps == 2)
            args.o2 = first ? into[1].t : part[1].t;
        args.lse = first ? lse.t : part_lse.t;
        args.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &args));
        op_ok(e, dtx_attn_fwd(e->queue, &args));
        struct dtx_attn_merge_args merge = {part[0].t, part[1].t, part_lse.t, into[0].t, into[1].t, lse.t, s->maps};
        if (!first)
            op_ok(e, dtx_attn_merge(e->queue, &merge));
    }
    struct norm norm = make_norm(e, s, s->h > 1);
    struct dtx_attn_finish_args finish = {into[0].t, into[1].t, in.lambda.t, o.t, o2.t, s->maps, {.y = {0}}};
    if (s->b == 1)
        finish.norm = norm.args;
    op_ok(e, dtx_attn_finish(e->queue, &finish));
    if (s->b == 1)
        check_norm(e, s, &o, &norm);
    op_compare(e, "o", &o, 2);
    op_compare(e, "lse", &lse, 2);
    if (s->maps == 2)
        op_compare(e, "o2", &o2, 2);
}

static const struct shape merges[] = {{2, T, T, 4, 2, 16, 32, 2, .q_first = 0},
                                      {1, T, T, 2, 1, 6, 10, 2, .document = 9},
                                      {2, T, T, 3, 3, 8, 8, 1, .document = 25},
                                      {1, T, T, 1, 1, 16, 300, 2, .q_first = 0},
                                      {1, T, T, 2, 1, 64, 128, 2, .document = 25}};

static void merge(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, merge_case, &merges[i]);
}

/* A NaN in one query makes its own outputs NaN and no other's; one in a key reaches every query that sees it. */
static void nan_case(struct op_env *e, const void *data)
{
    bool in_key = *(const bool *)data;
    enum { N = 20, AT = 7, H = 2, D = 16, DV = 32 };
    double *q = op_doubles(e, N * 2 * H * D), *k = op_doubles(e, N * 2 * H * D);
    for (int i = 0; i < N * 2 * H * D; i++) {
        q[i] = sin(i);
        k[i] = cos(i);
    }
    (in_key ? k : q)[AT * 2 * H * D] = NAN; /* map 1 of head 0 */
    struct op_array qa = op_values(e, e->act, q, OP_DIMS(1, N, 2 * H, D)),
                    ka = op_values(e, e->act, k, OP_DIMS(1, N, 2 * H, D));
    struct op_array v = op_random(e, "v", e->act, 1, OP_DIMS(1, N, H, DV)),
                    lambda = op_values(e, e->master, (double[]){0.3}, OP_DIMS(1));
    struct op_array o = op_output(e, e->act, OP_DIMS(1, N, H, DV)), o2 = op_output(e, e->act, OP_DIMS(1, N, H, DV));
    struct op_array lse = op_output(e, e->master, OP_DIMS(1, 2 * H, N));
    struct dtx_attn_fwd_args args = {
        .q = qa.t, .k = ka.t, .v = v.t, .lambda = lambda.t, .maps = 2, .scale = 0.25, .o = o.t};
    args.o2 = o2.t;
    args.lse = lse.t;
    args.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &args));
    op_ok(e, dtx_attn_fwd(e->queue, &args));
    op_read(e, &o);
    for (int i = 0; i < N * H * DV; i++) {
        int row = i / DV / H, head = i / DV % H;
        bool hit = head == 0 && (in_key ? row >= AT : row == AT);
        if (!isnan(o.value[i]) == hit)
            fail_msg("row %d of head %d is %g (%s, %s)", row, head, o.value[i], dtx_dtype_name(e->act),
                     dtx_isa_name(e->backend->isa));
    }
}

static void nans(void **state)
{
    (void)state;
    for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
        for (int in_key = 0; in_key < 2; in_key++)
            op_run(act, nan_case, &(bool){in_key});
}

static void refusal_case(struct op_env *e, const void *data)
{
    (void)data;
    struct inputs in = make_inputs(e, &list[4]);
    struct op_array o = op_output(e, e->act, OP_DIMS(2, 70, 4, 32)), o2 = op_output(e, e->act, OP_DIMS(2, 70, 4, 32));
    struct op_array lse = op_output(e, e->master, OP_DIMS(2, 8, 70));
    struct dtx_attn_fwd_args args = {.q = in.q.t, .k = in.k.t, .v = in.v.t, .lambda = in.lambda.t, .maps = 2};
    args.o = o.t;
    args.o2 = o2.t;
    args.lse = lse.t;
    args.maps = 3;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "3 maps", NULL);
    args.maps = 1;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor k", "4 sub-heads", NULL);
    args.maps = 2;
    args.o2 = (struct dtx_tensor){0};
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor o2", "[2,70,4,32]", NULL);
    args.o2 = o2.t;
    args.parts = true;
    args.norm = make_norm(e, &list[4], true).args;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "parts", "merged", NULL);
    args.parts = false;
    args.norm.gain.dim[0] = 16;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor gain", "f32 [16]", "f32 [32]", NULL);
    args.norm.rstd.dim[1] = 4;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor rstd", "f32 [2,70,4]", NULL);
    args.norm.y = args.o;
    args.norm.rstd.dim[1] = 70;
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor y is o", NULL);
    args.norm.y.data = NULL;
    args.lse = dtx_tensor_3d(lse.t.data, DTX_F32, 2, 4, 70);
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor lse", "f32 [2,4,70]", "f32 [2,8,70]", NULL);
    args.lambda = (struct dtx_tensor){0};
    op_refused(e, dtx_attn_fwd(e->queue, &args), "attn_fwd", "tensor lambda", NULL);
}

static void refusals(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, 0, refusal_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward),  cmocka_unit_test(norms), cmocka_unit_test(dots),
                                       cmocka_unit_test(backward), cmocka_unit_test(merge), cmocka_unit_test(nans),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
