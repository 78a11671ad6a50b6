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

static enum dtx_status update(struct dtx_queue *queue, const struct dtx_optim_config *config, struct dtx_param *item,
                              const struct dtx_tensor *hyper_values)
{
    struct dtx_adamw_args args = {.master = item->master,
                                  .m = item->state[0],
                                  .v = item->state[1],
                                  .grad = item->reduced,
                                  .hyper = *hyper_values,
                                  .beta1 = config->beta1,
                                  .beta2 = config->beta2,
                                  .eps = config->eps * item->row.eps_mult,
                                  .decay = item->row.decay ? config->decay * item->row.decay_mult : 0.0,
                                  .lr_mult = item->row.lr_mult,
                                  .stochastic = config->stochastic};
    if (item->weight.dtype != item->master.dtype)
        args.weight = dtx_param_part(item, &item->weight);
    return dtx_adamw(queue, &args);
}

const struct dtx_optim_variant dtx_optim_adamw = {"adamw", 2, {"adam_m", "adam_v"}, hyper, update};
