#include "kernels/simt/graph.h"

bool graph::ends_with(const std::vector<int> &last) const
{
    std::vector<bool> reached(nodes.size());
    for (int i : last)
        reached[(size_t)i] = true;
    for (size_t i = nodes.size(); i-- > 0;) {
        if (!reached[i])
            return false;
        for (int before : nodes[i].after)
            reached[(size_t)before] = true;
    }
    return true;
}

int graph::run(order how, std::mt19937_64 &random) const
{
    std::vector<bool> done(nodes.size());
    for (size_t ran = 0; ran < nodes.size(); ran++) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool free = !done[i];
            for (int before : nodes[i].after)
                free = free && done[(size_t)before];
            if (free)
                ready.push_back(i);
        }
        size_t next = how == FIRST ? ready.front() : how == LAST ? ready.back() : ready[random() % ready.size()];
        if (int code = nodes[next].run())
            return code;
        done[next] = true;
    }
    return 0;
}
