/* AdamW (Loshchilov & Hutter, arXiv 1711.05101): decay acts on the weight, scaled by the learning rate. */
#include <math.h>

#include "trainer/optim.h"

static void hyper(const struct dtx_optim_config *config, int64_t step, double lr, double clip, double out[4])
{
    out[0] = lr;
    out[1] = clip;
    out[2] = 1.0 - pow(config->beta1, (double)step);
    out[3] = 1.0 - pow(config->beta2, (double)step);
}

static struct dtx_tensor flat(const struct dtx_tensor *t, int64_t n)
{
    return dtx_tensor_1d(t->data, t->dtype, n);
}

static enum dtx_status update(struct dtx_queue *queue, const struct dtx_optim_config *config, struct dtx_param *item,
                              const struct dtx_tensor *hyper_values)
{
    struct dtx_adamw_args args = {.master = flat(&item->master, item->count),
                                  .m = flat(&item->state[0], item->count),
                                  .v = flat(&item->state[1], item->count),
                                  .grad = flat(&item->grad, item->count),
                                  .hyper = *hyper_values,
                                  .beta1 = config->beta1,
                                  .beta2 = config->beta2,
                                  .eps = config->eps,
                                  .decay = item->row.decay ? config->decay : 0.0,
                                  .lr_mult = item->row.lr_mult};
    if (item->weight.data != item->master.data)
        args.weight = flat(&item->weight, item->count);
    return dtx_adamw(queue, &args);
}

const struct dtx_optim_variant dtx_optim_adamw = {"adamw", 2, {"adam_m", "adam_v"}, hyper, update};
