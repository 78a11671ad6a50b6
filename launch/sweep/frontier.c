#include "launch/sweep/frontier.h"

#include <math.h>

#include "kernels/base/mutant.h"

static const double reach = 20; /* of a logarithm */
enum { HALVINGS = 60 };

struct dtx_frontier dtx_frontier_of(const double *p, int group)
{
    double alpha = p[1], beta = p[2], ln_a = p[3 + 2 * group], ln_b = p[4 + 2 * group];
    if (!(alpha > 0 && beta > 0))
        return (struct dtx_frontier){NAN, NAN, NAN};
    double g = exp((log(alpha) + ln_a - log(beta) - ln_b) / (alpha + beta));
    if (DTX_MUTANT(frontier_swapped))
        return (struct dtx_frontier){g, alpha / (alpha + beta), beta / (alpha + beta)};
    return (struct dtx_frontier){g, beta / (alpha + beta), alpha / (alpha + beta)};
}

double dtx_frontier_size(const struct dtx_frontier *f, double c)
{
    return f->g * pow(c / 6, f->a);
}

double dtx_frontier_tokens(const struct dtx_frontier *f, double c)
{
    return pow(c / 6, f->b) / f->g;
}

double dtx_frontier_loss(const double *p, int group, double c)
{
    struct dtx_frontier f = dtx_frontier_of(p, group);
    return dtx_law_loss(&dtx_law_surface, p, dtx_frontier_size(&f, c), dtx_frontier_tokens(&f, c), group);
}

/* The loss of a side where the looked-for quantity is e^t times what the base has. */
enum axis { AXIS_WEIGHTS, AXIS_TOKENS, AXIS_COMPUTE };

static double loss_at(const struct dtx_side *s, enum axis axis, double n, double d, double t)
{
    double factor = exp(t);
    if (axis == AXIS_COMPUTE)
        return dtx_frontier_loss(s->p, s->group, n * factor); /* n: the compute */
    return dtx_law_loss(s->law, s->p, axis == AXIS_WEIGHTS ? n * factor : n, axis == AXIS_TOKENS ? d * factor : d,
                        s->group);
}

/* The losses fall with t: by halving. */
static double find_share(const struct dtx_side *base, const struct dtx_side *other, enum axis axis, double n, double d)
{
    double target = loss_at(base, axis, n, d, 0), low = -reach, high = reach;
    double at_low = loss_at(other, axis, n, d, low), at_high = loss_at(other, axis, n, d, high);
    if (isnan(target) || isnan(at_low) || isnan(at_high))
        return NAN;
    if (at_high > target)
        return INFINITY;
    if (at_low <= target)
        return 0;
    for (int k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        if (loss_at(other, axis, n, d, middle) > target)
            low = middle;
        else
            high = middle;
    }
    return exp((low + high) / 2);
}

double dtx_share_of_weights(const struct dtx_side *base, const struct dtx_side *other, double n, double d)
{
    return DTX_MUTANT(share_inverted) ? 1 / find_share(base, other, AXIS_WEIGHTS, n, d)
                                      : find_share(base, other, AXIS_WEIGHTS, n, d);
}

double dtx_share_of_tokens(const struct dtx_side *base, const struct dtx_side *other, double n, double d)
{
    return find_share(base, other, AXIS_TOKENS, n, d);
}

double dtx_share_of_compute(const struct dtx_side *base, const struct dtx_side *other, double c)
{
    return find_share(base, other, AXIS_COMPUTE, c, 0);
}
