/*
 * Launches that are recorded instead of run: what streams of runtime.cc do between the beginning and the end of a
 * capture, and what a launch of the record does later. Arguments of kernels are those of the record; memory of the host
 * is read when the record runs.
 */
#ifndef DTX_KERNELS_SIMT_GRAPH_H
#define DTX_KERNELS_SIMT_GRAPH_H

#include <functional>
#include <random>
#include <set>
#include <vector>

struct graph {
    struct node {
        std::function<int()> run;
        std::vector<int> after; /* earlier nodes that come before it */
    };
    std::vector<node> nodes;
    std::set<const char *> memory; /* where the allocations begin that it uses */

    /* Whether everything comes before one of these nodes, or is one. */
    bool ends_with(const std::vector<int> &last) const;
    /* All nodes, each behind those that come before it: the first recorded that may run, the last, or any. Stops at the
     * first fault, which it returns. */
    enum order { FIRST, LAST, ANY };
    int run(order how, std::mt19937_64 &random) const;
};

#endif
