#include "trainer/context.h"

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* In core->context, one after another. m sequences, c positions of a chunk, T = 2·cp·c. */
struct buffers {
    struct dtx_tensor dq; /* master, as q: gradients that pairs add to */
    /* gather */
    struct dtx_tensor swap;         /* bytes of the master dtype: all ranks' parts, in the order of ranks */
    struct dtx_tensor k, v, dk, dv; /* [m,T,…]: in the order of positions; k, v act, dk, dv master */
    /* ring */
    struct dtx_tensor k_in[2], v_in[2];          /* act, as k and v: received in turn */
    struct dtx_tensor o, o2;                     /* master, as o: what was merged so far */
    struct dtx_tensor part_o, part_o2, part_lse; /* master, of one piece of queries: a further part */
    struct dtx_tensor dk_out[2], dv_out[2];      /* master, as k and v: made and sent in turn */
    struct dtx_tensor dk_in, dv_in;              /* received */
    int64_t bytes;
};

static struct dtx_tensor take(const struct dtx_tensor *memory, struct buffers *x, enum dtx_dtype dtype, int64_t b,
                              const struct dtx_tensor *like)
{
    char *base = memory->data;
    struct dtx_tensor t = *like;
    t.data = base ? base + x->bytes : NULL;
    t.dtype = dtype;
    t.dim[0] = b;
    x->bytes += dtx_round_up((int64_t)dtx_tensor_bytes(&t), 64);
    return t;
}

static void place_ring(const struct dtx_env *env, const struct dtx_attn_core *core, struct buffers *x)
{
    int64_t b = core->q.dim[0], m = b / env->pieces, t = core->q.dim[1], maps = core->k.dim[2] / core->v.dim[2];
    struct dtx_tensor o = dtx_tensor_4d(NULL, env->master, b, t, core->q.dim[2] / maps, core->v.dim[3]);
    struct dtx_tensor lse = dtx_tensor_3d(NULL, env->master, b, core->q.dim[2], t);
    for (int i = 0; i < 2; i++) {
        x->k_in[i] = take(&core->context, x, env->act, b, &core->k);
        x->v_in[i] = take(&core->context, x, env->act, b, &core->v);
        x->dk_out[i] = take(&core->context, x, env->master, b, &core->k);
        x->dv_out[i] = take(&core->context, x, env->master, b, &core->v);
    }
    x->dk_in = take(&core->context, x, env->master, b, &core->k);
    x->dv_in = take(&core->context, x, env->master, b, &core->v);
    x->o = take(&core->context, x, env->master, b, &o);
    x->part_o = take(&core->context, x, env->master, m, &o);
    x->part_lse = take(&core->context, x, env->master, m, &lse);
    if (maps == 2) {
        x->o2 = take(&core->context, x, env->master, b, &o);
        x->part_o2 = take(&core->context, x, env->master, m, &o);
    }
}

static void place_gather(const struct dtx_env *env, const struct dtx_attn_core *core, struct buffers *x)
{
    int64_t m = core->q.dim[0] / env->pieces, positions = core->q.dim[1] * env->pieces * env->mesh->size[DTX_AXIS_CP];
    struct dtx_tensor k = core->k, v = core->v, widest;
    k.dim[1] = v.dim[1] = positions;
    widest = k.dim[2] * k.dim[3] > v.dim[2] * v.dim[3] ? k : v;
    x->swap = take(&core->context, x, env->master, m, &widest);
    x->k = take(&core->context, x, env->act, m, &k);
    x->v = take(&core->context, x, env->act, m, &v);
    x->dk = take(&core->context, x, env->master, m, &k);
    x->dv = take(&core->context, x, env->master, m, &v);
}

static struct buffers place(const struct dtx_env *env, const struct dtx_attn_core *core)
{
    struct buffers x = {.bytes = 0};
    x.dq = take(&core->context, &x, env->master, core->q.dim[0], &core->q);
    if (env->ring)
        place_ring(env, core, &x);
    else
        place_gather(env, core, &x);
    return x;
}

int64_t dtx_context_bytes(const struct dtx_env *env, const struct dtx_attn_core *largest)
{
    return place(env, largest).bytes;
}

/* Where this rank's piece of queries begins. */
static int64_t query_first(const struct dtx_env *env, int piece)
{
    int rank = env->mesh->rank[DTX_AXIS_CP], ranks = env->mesh->size[DTX_AXIS_CP];
    if (DTX_MUTANT(context_tail_in_order) && piece == 1)
        return (ranks + rank) * env->max_piece;
    return dtx_piece_first(env, rank, piece);
}

/* The part of a call that n sequences' rows from `first` on make, against keys of their own. */
static struct dtx_attn_fwd_args forward_part(const struct dtx_attn_fwd_args *args, int64_t first, int64_t n)
{
    struct dtx_attn_fwd_args part = *args;
    part.q = dtx_tensor_rows(&args->q, first, n);
    part.o = dtx_tensor_rows(&args->o, first, n);
    part.o2 = dtx_tensor_rows(&args->o2, first, n);
    part.lse = dtx_tensor_rows(&args->lse, first, n);
    part.doc_start = dtx_tensor_rows(&args->doc_start, first, n);
    part.norm.y = dtx_tensor_rows(&args->norm.y, first, n);
    part.norm.rstd = dtx_tensor_rows(&args->norm.rstd, first, n);
    return part;
}

static struct dtx_attn_bwd_args backward_part(const struct dtx_attn_bwd_args *args, const struct dtx_tensor *dq,
                                              int64_t first, int64_t n)
{
    struct dtx_attn_bwd_args part = *args;
    part.q = dtx_tensor_rows(&args->q, first, n);
    part.dq = dtx_tensor_rows(dq, first, n);
    part.do_ = dtx_tensor_rows(&args->do_, first, n);
    part.lse = dtx_tensor_rows(&args->lse, first, n);
    part.dsum = dtx_tensor_rows(&args->dsum, first, n);
    part.doc_start = dtx_tensor_rows(&args->doc_start, first, n);
    part.parts = true;
    return part;
}

/* All gathered keys of sequence i that are not behind position `end`: a prefix. */
static struct dtx_tensor keys_until(const struct dtx_tensor *whole, int64_t i, int64_t end)
{
    struct dtx_tensor prefix = dtx_tensor_rows(whole, i, 1);
    prefix.dim[1] = end;
    return prefix;
}

/* Between the order of ranks (rank, piece, sequence) and that of positions (sequence, chunk). */
static enum dtx_status reorder(struct dtx_env *env, const struct dtx_tensor *by_rank, const struct dtx_tensor *whole,
                               bool into_whole)
{
    const struct dtx_memory_table *memory = env->queue->backend->memory;
    int64_t m = whole->dim[0], row = whole->dim[2] * whole->dim[3] * (int64_t)dtx_dtype_bytes(whole->dtype);
    char *next = by_rank->data;
    for (int u = 0; u < env->mesh->size[DTX_AXIS_CP]; u++)
        for (int p = 0; p < env->pieces; p++)
            for (int64_t i = 0; i < m; i++, next += env->length * row) {
                char *there = (char *)whole->data + (i * whole->dim[1] + dtx_piece_first(env, u, p)) * row;
                DTX_TRY(env->ctx, memory->copy(env->queue, into_whole ? there : next, into_whole ? next : there,
                                               (size_t)(env->length * row)));
            }
    return DTX_OK;
}

static enum dtx_status gather(struct dtx_env *env, const struct dtx_tensor *own, const struct dtx_tensor *swap,
                              const struct dtx_tensor *whole)
{
    struct dtx_tensor by_rank = *whole;
    by_rank.data = swap->data;
    DTX_TRY(env->ctx, dtx_comm_all_gather(env->mesh->axis[DTX_AXIS_CP], env->queue, own, &by_rank));
    return reorder(env, &by_rank, whole, true);
}

/* own (act) = this rank's part of the sum of all ranks' whole (master). */
static enum dtx_status scatter(struct dtx_env *env, const struct dtx_tensor *whole, const struct dtx_tensor *swap,
                               const struct dtx_tensor *own)
{
    struct dtx_comm *cp = env->mesh->axis[DTX_AXIS_CP];
    struct dtx_tensor by_rank = *whole, part = *own;
    int64_t count = dtx_tensor_count(own);
    by_rank.data = swap->data;
    part.dtype = env->master;
    part.data = (char *)swap->data + cp->rank * count * (int64_t)dtx_dtype_bytes(env->master);
    DTX_TRY(env->ctx, reorder(env, &by_rank, whole, false));
    if (!DTX_MUTANT(context_keys_gradient_not_summed))
        DTX_TRY(env->ctx, dtx_comm_reduce_scatter_sum(cp, env->queue, &by_rank, &part));
    return dtx_add_to(env, &part, NULL, own);
}

static enum dtx_status gather_forward(struct dtx_env *env, const struct dtx_attn_core *core,
                                      const struct dtx_attn_fwd_args *args)
{
    struct buffers x = place(env, core);
    int64_t m = args->q.dim[0] / env->pieces;
    DTX_TRY(env->ctx, gather(env, &args->k, &x.swap, &x.k));
    DTX_TRY(env->ctx, gather(env, &args->v, &x.swap, &x.v));
    for (int64_t row = 0; row < env->pieces * m; row++) {
        struct dtx_attn_fwd_args one = forward_part(args, row, 1);
        one.q_first = query_first(env, (int)(row / m));
        one.k = keys_until(&x.k, row % m, one.q_first + env->length);
        one.v = keys_until(&x.v, row % m, one.q_first + env->length);
        DTX_TRY(env->ctx, dtx_attn_fwd(env->queue, &one));
    }
    return DTX_OK;
}

static enum dtx_status gather_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                       const struct dtx_attn_bwd_args *args)
{
    struct buffers x = place(env, core);
    int64_t m = args->q.dim[0] / env->pieces;
    const struct dtx_tensor *sums[] = {&x.dq, &x.dk, &x.dv};
    DTX_TRY(env->ctx, gather(env, &args->k, &x.swap, &x.k));
    DTX_TRY(env->ctx, gather(env, &args->v, &x.swap, &x.v));
    for (int i = 0; i < 3; i++)
        DTX_TRY(env->ctx, dtx_tensor_zero(env->queue, sums[i]));
    for (int64_t row = 0; row < env->pieces * m; row++) {
        struct dtx_attn_bwd_args one = backward_part(args, &x.dq, row, 1);
        one.q_first = query_first(env, (int)(row / m));
        int64_t i = row % m, end = one.q_first + env->length;
        one.k = keys_until(&x.k, i, end);
        one.v = keys_until(&x.v, i, end);
        one.dk = keys_until(&x.dk, i, end);
        one.dv = keys_until(&x.dv, i, end);
        DTX_TRY(env->ctx, dtx_attn_bwd(env->queue, &one));
    }
    DTX_TRY(env->ctx, scatter(env, &x.dk, &x.swap, &args->dk));
    DTX_TRY(env->ctx, scatter(env, &x.dv, &x.swap, &args->dv));
    return dtx_add_to(env, &x.dq, NULL, &args->dq);
}

/* Two tensors on their way to the next rank or from the one before. */
struct transfer {
    struct dtx_request request[2];
    int started;
};

static enum dtx_status start(struct dtx_env *env, bool send, const struct dtx_tensor *a, const struct dtx_tensor *b,
                             struct transfer *t)
{
    struct dtx_comm *cp = env->mesh->axis[DTX_AXIS_CP];
    const struct dtx_tensor *both[] = {a, b};
    int peer = (cp->rank + (send ? 1 : cp->size - 1)) % cp->size;
    for (t->started = 0; t->started < 2; t->started++)
        DTX_TRY(env->ctx, send ? dtx_comm_send_start(cp, env->queue, both[t->started], peer, &t->request[t->started])
                               : dtx_comm_recv_start(cp, env->queue, both[t->started], peer, &t->request[t->started]));
    return DTX_OK;
}

static enum dtx_status finish(struct dtx_env *env, struct transfer *t)
{
    for (int i = 0; i < t->started; i++)
        DTX_TRY(env->ctx, dtx_comm_wait(&t->request[i]));
    t->started = 0;
    return DTX_OK;
}

/* One step of a ring: whose keys are here, and the next ones on their way. */
struct ring {
    struct dtx_tensor k, v; /* [b,t,…] of rank `owner` */
    int owner, step;
    struct transfer out, in;
};

static struct ring begin_ring(const struct dtx_env *env, const struct dtx_tensor *k, const struct dtx_tensor *v)
{
    return (struct ring){.k = *k, .v = *v, .owner = env->mesh->rank[DTX_AXIS_CP]};
}

/* Starts to pass the keys on and to receive the next ones, unless this is the last step. */
static enum dtx_status pass_keys(struct dtx_env *env, struct ring *ring, const struct buffers *x)
{
    if (ring->step == env->mesh->size[DTX_AXIS_CP] - 1)
        return DTX_OK;
    DTX_TRY(env->ctx, start(env, false, &x->k_in[ring->step % 2], &x->v_in[ring->step % 2], &ring->in));
    return start(env, true, &ring->k, &ring->v, &ring->out);
}

/* Waits for the next keys. */
static enum dtx_status turn(struct dtx_env *env, struct ring *ring, const struct buffers *x)
{
    int ranks = env->mesh->size[DTX_AXIS_CP];
    DTX_TRY(env->ctx, finish(env, &ring->in));
    DTX_TRY(env->ctx, finish(env, &ring->out));
    ring->k = x->k_in[ring->step % 2];
    ring->v = x->v_in[ring->step % 2];
    ring->step++;
    ring->owner = (ring->owner + ranks - 1 - DTX_MUTANT(ring_owner_off_by_one)) % ranks;
    return DTX_OK;
}

/* Does any of this rank's queries of a piece see a key of that piece? */
static bool is_visible(const struct dtx_env *env, const struct ring *ring, int queries, int keys)
{
    return dtx_piece_first(env, ring->owner, keys) < query_first(env, queries) + env->length;
}

static struct dtx_tensor documents_of(const struct dtx_env *env, const struct ring *ring, struct dtx_tensor starts)
{
    if (DTX_MUTANT(ring_documents_ignored) && ring->owner != env->mesh->rank[DTX_AXIS_CP])
        starts.data = NULL;
    return starts;
}

/* Piece `queries` against piece `keys` of those that are here: the first part as it is, others merged. */
static enum dtx_status forward_pair(struct dtx_env *env, const struct dtx_attn_fwd_args *args, const struct ring *ring,
                                    const struct buffers *x, int queries, int keys, bool first)
{
    int64_t m = args->q.dim[0] / env->pieces;
    struct dtx_attn_fwd_args part = forward_part(args, queries * m, m);
    struct dtx_attn_merge_args merge = {.o = x->part_o,
                                        .o2 = x->part_o2,
                                        .lse = x->part_lse,
                                        .into_o = dtx_tensor_rows(&x->o, queries * m, m),
                                        .into_o2 = dtx_tensor_rows(&x->o2, queries * m, m),
                                        .into_lse = part.lse,
                                        .maps = args->maps};
    part.o = first ? merge.into_o : merge.o;
    part.o2 = first ? merge.into_o2 : merge.o2;
    part.lse = first ? merge.into_lse : merge.lse;
    part.parts = !DTX_MUTANT(lambda_before_merge);
    part.norm = (struct dtx_attn_norm){0}; /* of the finished rows */
    part.doc_start = documents_of(env, ring, part.doc_start);
    part.q_first = query_first(env, queries);
    part.k_first = dtx_piece_first(env, ring->owner, keys);
    part.k = dtx_tensor_rows(&ring->k, keys * m, m);
    part.v = dtx_tensor_rows(&ring->v, keys * m, m);
    DTX_TRY(env->ctx, dtx_attn_fwd(env->queue, &part));
    return first ? DTX_OK : dtx_attn_merge(env->queue, &merge);
}

static enum dtx_status ring_forward(struct dtx_env *env, const struct dtx_attn_core *core,
                                    const struct dtx_attn_fwd_args *args)
{
    struct buffers x = place(env, core);
    struct ring ring = begin_ring(env, &args->k, &args->v);
    bool begun[2] = {false, false};
    while (ring.step < env->mesh->size[DTX_AXIS_CP]) {
        DTX_TRY(env->ctx, pass_keys(env, &ring, &x));
        for (int queries = 0; queries < env->pieces; queries++)
            for (int keys = 0; keys < env->pieces; keys++)
                if (is_visible(env, &ring, queries, keys)) {
                    DTX_TRY(env->ctx, forward_pair(env, args, &ring, &x, queries, keys, !begun[queries]));
                    begun[queries] = true;
                }
        DTX_TRY(env->ctx, turn(env, &ring, &x));
    }
    struct dtx_attn_finish_args done = {.o1 = x.o,
                                        .part_o2 = x.o2,
                                        .lambda = args->lambda,
                                        .o = args->o,
                                        .o2 = args->o2,
                                        .maps = args->maps,
                                        .norm = args->norm};
    return dtx_attn_finish(env->queue, &done);
}

static enum dtx_status backward_pair(struct dtx_env *env, const struct dtx_attn_bwd_args *args, const struct ring *ring,
                                     const struct buffers *x, int queries, int keys)
{
    int64_t m = args->q.dim[0] / env->pieces;
    struct dtx_attn_bwd_args part = backward_part(args, &x->dq, queries * m, m);
    part.doc_start = documents_of(env, ring, part.doc_start);
    part.q_first = query_first(env, queries);
    part.k_first = dtx_piece_first(env, ring->owner, keys);
    part.k = dtx_tensor_rows(&ring->k, keys * m, m);
    part.v = dtx_tensor_rows(&ring->v, keys * m, m);
    part.dk = dtx_tensor_rows(&x->dk_out[ring->step % 2], keys * m, m);
    part.dv = dtx_tensor_rows(&x->dv_out[ring->step % 2], keys * m, m);
    return dtx_attn_bwd(env->queue, &part);
}

/* This rank's addends to the gradients of the keys that are here, behind those of the ranks before it. */
static enum dtx_status add_gradients(struct dtx_env *env, const struct dtx_attn_bwd_args *args, const struct ring *ring,
                                     const struct buffers *x, struct transfer *in)
{
    const struct dtx_tensor *dk = &x->dk_out[ring->step % 2], *dv = &x->dv_out[ring->step % 2];
    DTX_TRY(env->ctx, dtx_tensor_zero(env->queue, dk));
    DTX_TRY(env->ctx, dtx_tensor_zero(env->queue, dv));
    for (int queries = 0; queries < env->pieces; queries++)
        for (int keys = 0; keys < env->pieces; keys++)
            if (is_visible(env, ring, queries, keys))
                DTX_TRY(env->ctx, backward_pair(env, args, ring, x, queries, keys));
    if (ring->step == 0)
        return DTX_OK;
    DTX_TRY(env->ctx, finish(env, in));
    if (DTX_MUTANT(ring_gradient_not_added))
        return DTX_OK;
    DTX_TRY(env->ctx, dtx_add_to(env, &x->dk_in, dk, dk));
    return dtx_add_to(env, &x->dv_in, dv, dv);
}

/* What goes on to the next rank and what comes from the one before, of the gradients behind step − 1. Both are started
 * before either is waited for: between GPUs they go as one, since each rank's send ends when the next one receives. */
static enum dtx_status pass_gradients(struct dtx_env *env, const struct ring *ring, const struct buffers *x,
                                      struct transfer *in, struct transfer *out)
{
    int before = (ring->step - 1) % 2;
    DTX_TRY(env->ctx, start(env, false, &x->dk_in, &x->dv_in, in));
    return start(env, true, &x->dk_out[before], &x->dv_out[before], &out[before]);
}

/* Receives are started in the order of the rank before: gradients, then keys. */
static enum dtx_status ring_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                     const struct dtx_attn_bwd_args *args)
{
    struct buffers x = place(env, core);
    struct ring ring = begin_ring(env, &args->k, &args->v);
    struct transfer in = {.started = 0}, out[2] = {{.started = 0}, {.started = 0}};
    DTX_TRY(env->ctx, dtx_tensor_zero(env->queue, &x.dq));
    while (ring.step < env->mesh->size[DTX_AXIS_CP]) {
        int here = ring.step % 2;
        if (ring.step > 0)
            DTX_TRY(env->ctx, pass_gradients(env, &ring, &x, &in, out));
        DTX_TRY(env->ctx, pass_keys(env, &ring, &x));
        DTX_TRY(env->ctx, finish(env, &out[here])); /* of two steps ago */
        DTX_TRY(env->ctx, add_gradients(env, args, &ring, &x, &in));
        DTX_TRY(env->ctx, turn(env, &ring, &x));
    }
    DTX_TRY(env->ctx, pass_gradients(env, &ring, &x, &in, out)); /* home */
    DTX_TRY(env->ctx, finish(env, &in));
    for (int i = 0; i < 2; i++)
        DTX_TRY(env->ctx, finish(env, &out[i]));
    DTX_TRY(env->ctx, dtx_add_to(env, &x.dk_in, NULL, &args->dk));
    DTX_TRY(env->ctx, dtx_add_to(env, &x.dv_in, NULL, &args->dv));
    return dtx_add_to(env, &x.dq, NULL, &args->dq);
}

enum dtx_status dtx_context_forward(struct dtx_env *env, const struct dtx_attn_core *core,
                                    const struct dtx_attn_fwd_args *args)
{
    return env->ring ? ring_forward(env, core, args) : gather_forward(env, core, args);
}

enum dtx_status dtx_context_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                     const struct dtx_attn_bwd_args *args)
{
    return env->ring ? ring_backward(env, core, args) : gather_backward(env, core, args);
}

size_t dtx_context_work_bytes(const struct dtx_env *env, const struct dtx_attn_fwd_args *forward,
                              const struct dtx_attn_bwd_args *backward)
{
    int64_t m = env->ring ? forward->q.dim[0] / env->pieces : 1, shortest = env->max_piece, most = shortest;
    struct dtx_attn_fwd_args f = forward_part(forward, 0, m);
    struct dtx_attn_bwd_args b = backward_part(backward, &backward->dq, 0, m);
    size_t bytes = 0;
    if (!env->ring) /* every length of keys that any rank meets */
        most *= env->pieces * env->mesh->size[DTX_AXIS_CP];
    f.k.dim[0] = f.v.dim[0] = b.k.dim[0] = b.v.dim[0] = m;
    f.parts = env->ring;
    for (int64_t keys = shortest; keys <= most; keys += shortest) {
        f.k.dim[1] = f.v.dim[1] = b.k.dim[1] = b.v.dim[1] = keys;
        size_t one = dtx_attn_fwd_work_bytes(env->queue, &f), other = dtx_attn_bwd_work_bytes(env->queue, &b);
        bytes = one > bytes ? one : bytes;
        bytes = other > bytes ? other : bytes;
    }
    return bytes;
}

struct dtx_context_traffic dtx_context_traffic(const struct dtx_env *env, int64_t elements)
{
    int ranks = env->mesh->size[DTX_AXIS_CP];
    double keys = (double)elements * (double)dtx_dtype_bytes(env->act) * (ranks - 1);
    double gradients = (double)elements * (double)dtx_dtype_bytes(env->master) * (env->ring ? ranks : ranks - 1);
    int passes = env->ring ? 2 * (ranks - 1) : 2;
    if (ranks == 1)
        return (struct dtx_context_traffic){0};
    return (struct dtx_context_traffic){.forward = keys,
                                        .backward = keys + gradients,
                                        .forward_calls = passes,
                                        .backward_calls = passes + (env->ring ? 2 * ranks : 2)};
}
