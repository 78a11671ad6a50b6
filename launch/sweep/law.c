/* The laws' formulas, derivatives and starts. */
#include "launch/sweep/law.h"

#include <math.h>

static double surface_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    const double *own = p + 3 + 2 * group;
    double e = exp(p[0]), n = exp(own[0] - p[1] * x), d = exp(own[1] - p[2] * y), sum = e + n + d;
    gradient[0] = e / sum;
    gradient[1] = -x * n / sum;
    gradient[2] = -y * d / sum;
    gradient[3 + 2 * group] = n / sum;
    gradient[4 + 2 * group] = d / sum;
    return log(sum);
}

static void surface_move(double *p, int groups, double x0, double y0)
{
    for (int g = 0; g < groups; g++) {
        p[3 + 2 * g] -= p[1] * x0;
        p[4 + 2 * g] -= p[2] * y0;
    }
}

/* Hoffmann et al. 2022, appendix D.3 */
static bool surface_start(int k, double ln_loss, double *p)
{
    (void)ln_loss;
    p[0] = -1 + 0.5 * (k % 5);
    p[1] = 0.5 * (k / 5 % 5);
    p[2] = 0.5 * (k / 25 % 5);
    p[3] = 5 * (k / 125 % 6);
    p[4] = 5 * (k / 750 % 6);
    return k < 4500;
}

static void surface_show(const double *p, int group, double *values)
{
    values[0] = exp(p[0]);
    values[1] = p[1];
    values[2] = p[2];
    values[3] = exp(p[3 + 2 * group]);
    values[4] = exp(p[4 + 2 * group]);
}

static const char *const surface_symbols[] = {"E", "alpha", "beta", "A", "B", NULL};
const struct dtx_law dtx_law_surface = {"surface",
                                        "L = E + A/N^alpha + B/D^beta",
                                        3,
                                        2,
                                        surface_symbols,
                                        surface_ln_loss,
                                        surface_move,
                                        surface_start,
                                        true,
                                        surface_show,
                                        true,
                                        2,
                                        3,
                                        3};

static double kaplan_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    const double *own = p + 2 + 2 * group;
    double n = exp(own[0] - p[1] * x), d = exp(own[1] - y), sum = n + d;
    gradient[0] = log(sum);
    gradient[1] = -p[0] * x * n / sum;
    gradient[2 + 2 * group] = p[0] * n / sum;
    gradient[3 + 2 * group] = p[0] * d / sum;
    return p[0] * log(sum);
}

static void kaplan_move(double *p, int groups, double x0, double y0)
{
    for (int g = 0; g < groups; g++) {
        p[2 + 2 * g] -= p[1] * x0;
        p[3 + 2 * g] -= y0;
    }
}

/* In the middle of the data the two terms are alike or one is e⁴ of the other, and the loss is the data's. */
static bool kaplan_start(int k, double ln_loss, double *p)
{
    static const double exponents[] = {0.05, 0.1, 0.2, 0.4, 0.8}, ratios[] = {0.25, 0.5, 0.75, 1, 2};
    double lead = 2 * (k / 25 % 3 - 1);
    p[0] = exponents[k % 5];
    p[1] = ratios[k / 5 % 5];
    double sum = ln_loss / p[0] - log(exp(lead) + exp(-lead));
    p[2] = sum + lead;
    p[3] = sum - lead;
    return k < 75;
}

static void kaplan_show(const double *p, int group, double *values)
{
    values[0] = p[0];
    values[1] = p[0] * p[1];
    values[2] = exp(p[2 + 2 * group] / p[1]);
    values[3] = exp(p[3 + 2 * group]);
}

static const char *const kaplan_symbols[] = {"alpha_D", "alpha_N", "N_c", "D_c", NULL};
const struct dtx_law dtx_law_kaplan = {"kaplan",
                                       "L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D",
                                       2,
                                       2,
                                       kaplan_symbols,
                                       kaplan_ln_loss,
                                       kaplan_move,
                                       kaplan_start,
                                       false,
                                       kaplan_show,
                                       false,
                                       2,
                                       3,
                                       3};

static double line_ln_loss(const double *p, double x, int group, double *gradient)
{
    double e = exp(p[0]), n = exp(p[2 + group] - p[1] * x), sum = e + n;
    gradient[0] = e / sum;
    gradient[1] = -x * n / sum;
    gradient[2 + group] = n / sum;
    return log(sum);
}

static double size_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    (void)y;
    return line_ln_loss(p, x, group, gradient);
}

static double tokens_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    (void)x;
    return line_ln_loss(p, y, group, gradient);
}

static void line_move(double *p, int groups, double x0)
{
    for (int g = 0; g < groups; g++)
        p[2 + g] -= p[1] * x0;
}

static void size_move(double *p, int groups, double x0, double y0)
{
    (void)y0;
    line_move(p, groups, x0);
}

static void tokens_move(double *p, int groups, double x0, double y0)
{
    (void)x0;
    line_move(p, groups, y0);
}

/* In the middle of the data E is 0.1 to 0.99 of the loss. */
static bool line_start(int k, double ln_loss, double *p)
{
    static const double shares[] = {0.1, 0.5, 0.8, 0.9, 0.99}, exponents[] = {0.1, 0.2, 0.35, 0.5, 1, 2};
    double share = shares[k % 5];
    p[0] = ln_loss + log(share);
    p[1] = exponents[k / 5 % 6];
    p[2] = ln_loss + log1p(-share);
    return k < 30;
}

static void line_show(const double *p, int group, double *values)
{
    values[0] = exp(p[0]);
    values[1] = p[1];
    values[2] = exp(p[2 + group]);
}

static const char *const size_symbols[] = {"E", "alpha", "A", NULL};
static const char *const tokens_symbols[] = {"E", "beta", "B", NULL};
const struct dtx_law dtx_law_size = {
    "size", "L = E + A/N^alpha", 2, 1, size_symbols, size_ln_loss, size_move, line_start, false, line_show, true, 1, 4,
    1};
const struct dtx_law dtx_law_tokens = {"tokens",
                                       "L = E + B/D^beta",
                                       2,
                                       1,
                                       tokens_symbols,
                                       tokens_ln_loss,
                                       tokens_move,
                                       line_start,
                                       false,
                                       line_show,
                                       true,
                                       1,
                                       1,
                                       4};

static double power_n_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    (void)y;
    gradient[0] = -x;
    gradient[1 + group] = 1;
    return p[1 + group] - p[0] * x;
}

static double power_d_ln_loss(const double *p, double x, double y, int group, double *gradient)
{
    return power_n_ln_loss(p, y, x, group, gradient);
}

static void power_n_move(double *p, int groups, double x0, double y0)
{
    (void)y0;
    for (int g = 0; g < groups; g++)
        p[1 + g] -= p[0] * x0;
}

static void power_d_move(double *p, int groups, double x0, double y0)
{
    power_n_move(p, groups, y0, x0);
}

static bool power_start(int k, double ln_loss, double *p)
{
    p[0] = 0.1 * k;
    p[1] = ln_loss;
    return k < 5;
}

static void power_show(const double *p, int group, double *values)
{
    values[0] = p[0];
    values[1] = exp(p[1 + group] / p[0]);
}

static const char *const power_n_symbols[] = {"alpha", "N_c", NULL};
static const char *const power_d_symbols[] = {"beta", "D_c", NULL};
const struct dtx_law dtx_law_power_n = {"power_n",
                                        "L = (N_c/N)^alpha",
                                        1,
                                        1,
                                        power_n_symbols,
                                        power_n_ln_loss,
                                        power_n_move,
                                        power_start,
                                        false,
                                        power_show,
                                        false,
                                        1,
                                        3,
                                        1};
const struct dtx_law dtx_law_power_d = {"power_d",
                                        "L = (D_c/D)^beta",
                                        1,
                                        1,
                                        power_d_symbols,
                                        power_d_ln_loss,
                                        power_d_move,
                                        power_start,
                                        false,
                                        power_show,
                                        false,
                                        1,
                                        1,
                                        3};
