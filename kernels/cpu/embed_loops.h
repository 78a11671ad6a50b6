/* embed_fwd, embed_bwd. Included per dtype by loops_act.h. */

/* Unit: a row of out. */
static void FN(embed_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_embed_fwd_args *args = a;
    int64_t rows = args->table.dim[0], width = args->table.dim[1];
    bool master = args->out.dtype != args->table.dtype;
    for (int64_t r = first; r < last; r++) {
        int64_t token = ((const int32_t *)args->tokens.data)[r] - args->first;
        bool here = token >= 0 && token < rows;
        if (!master) {
            T *out = (T *)args->out.data + r * width;
            if (here)
                memcpy(out, (const T *)args->table.data + token * width, (size_t)width * sizeof *out);
            else
                memset(out, 0, (size_t)width * sizeof *out);
            continue;
        }
        for (int64_t i = 0; i < width; i += W) {
            V x = here ? LOAD((const T *)args->table.data + token * width + i, width - i) : SPLAT(0);
            STOREM((M *)args->out.data + r * width + i, x, width - i);
        }
    }
}

/* Unit: a column of dtable. Rows are added in the order of the tokens. */
static void FN(embed_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_embed_bwd_args *args = a;
    int64_t rows = args->dtable.dim[0], width = args->dtable.dim[1];
    for (int64_t r = 0; r < args->tokens.dim[0]; r++) {
        int64_t token = ((const int32_t *)args->tokens.data)[r] - args->first;
        if (token < 0 || token >= rows || (DTX_MUTANT(embed_last_row_lost) && token == rows - 1))
            continue;
        const T *dout = (const T *)args->dout.data + r * width;
        M *dtable = (M *)args->dtable.data + token * width;
        for (int64_t i = first; i < last; i += W)
            STOREM(dtable + i, LOADM(dtable + i, last - i) + LOAD(dout + i, last - i), last - i);
    }
}
