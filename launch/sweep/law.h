/*
 * Laws of the loss L as a function of weights N and tokens D, and their fit to measured losses:
 *
 *   min Σ w_i Huber_δ(ln L(N_i, D_i) − ln L_i), started from the law's whole grid of starts, natural logarithms.
 *
 * A law may be shared by several groups (attention variants): each has its own parameters after the common ones.
 * Results do not depend on the number of threads. Pure, but for dtx_law_fit, which may start OpenMP threads.
 */
#ifndef DTX_LAUNCH_SWEEP_LAW_H
#define DTX_LAUNCH_SWEEP_LAW_H

#include "kernels/base/status.h"

enum { DTX_LAW_GROUPS = 8, DTX_LAW_PARAMETERS = 3 + 2 * DTX_LAW_GROUPS };

struct dtx_law {
    const char *name, *formula;
    int common, per_group;      /* parameters */
    const char *const *symbols; /* [common + per_group], NULL behind them */
    /* ln L at x = ln N, y = ln D for a group; sets gradient [common + per_group·groups] with respect to p where it is
     * not zero. */
    double (*ln_loss)(const double *p, double x, double y, int group, double *gradient);
    /* Makes p the parameters of the same law in x − x0 and y − y0. */
    void (*move)(double *p, int groups, double x0, double y0);
    /* The k-th start for one group, about the origin (x0, y0), which is the middle of the data; false: there is none.
     */
    bool (*start)(int k, double ln_loss, double *p);
    /* Is the start given in ln N and ln D themselves instead? */
    bool absolute_starts;
    /* What the symbols stand for, of one group. */
    void (*show)(const double *p, int group, double *values);
    /* L is a sum of terms (or a power of one): the logarithms of their factors are parameter 0, if common_term, and the
     * first own_terms of each group's. */
    bool common_term;
    int own_terms;
    /* It takes so many different N and D, and one point more than a group has parameters. */
    int sizes, tokens;
};

/* E + A/N^α + B/D^β as e = ln E, α, β | a = ln A, b = ln B */
extern const struct dtx_law dtx_law_surface;
/* ((N_c/N)^(α_N/α_D) + D_c/D)^α_D as α_D, u = α_N/α_D, | p = u ln N_c, q = ln D_c */
extern const struct dtx_law dtx_law_kaplan;
/* E + A/N^α and E + B/D^β as e, exponent | ln of the factor */
extern const struct dtx_law dtx_law_size, dtx_law_tokens;
/* (N_c/N)^α and (D_c/D)^β as exponent | exponent · ln of the constant */
extern const struct dtx_law dtx_law_power_n, dtx_law_power_d;

/* Measured losses. A weight of 0 leaves a sample out; whole weights count a sample as often. */
struct dtx_samples {
    int64_t n;
    int groups;
    double *x, *y, *ln_loss, *weight; /* [n]: ln N, ln D, ln L, w */
    int *group;                       /* [n] */
};

enum dtx_status dtx_samples_make(struct dtx_ctx *ctx, int64_t n, int groups, struct dtx_samples *out);
void dtx_samples_free(struct dtx_samples *s);

enum { DTX_LAW_OPTIMA = 6 };

struct dtx_law_fit {
    const struct dtx_law *law;
    int groups, n; /* parameters */
    double delta;  /* 0: the sum of absolute differences */
    double p[DTX_LAW_PARAMETERS];
    double objective;
    int starts;
    /* Where refits start: p, the best different ends within reach of it, and p with each term that vanishes in it made
     * large again, which other points may have. */
    int n_optima;
    double optima[DTX_LAW_OPTIMA][DTX_LAW_PARAMETERS];
};

/* From the law's grid of starts, or from `starts` where n_starts > 0. DTX_E_NUMERIC when none comes to a finite end. */
enum dtx_status dtx_law_fit(struct dtx_ctx *ctx, const struct dtx_law *law, const struct dtx_samples *s, double delta,
                            int n_starts, double (*starts)[DTX_LAW_PARAMETERS], int threads, struct dtx_law_fit *out);
/* The same from the optima of a fit of other weights only; p [n]. Returns the objective. */
double dtx_law_refit(const struct dtx_law_fit *fit, const struct dtx_samples *s, double *p);
/* The objective at p. */
double dtx_law_objective(const struct dtx_law *law, const struct dtx_samples *s, double delta, const double *p);
double dtx_law_loss(const struct dtx_law *law, const double *p, double n, double d, int group);

#endif
