/* Is the run's folder on a file system that all nodes share? */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mutant.h"
#include "launch/doctor/preflight.h"

#define PATIENCE 3.0 /* seconds until a file must be seen: attribute caches of network file systems */

static void file_path(const struct dtx_preflight *p, int node, char path[DTX_PATH + 32])
{
    snprintf(path, DTX_PATH + 32, "%s/node-%d", p->folder, node);
}

/* Rank 0: a folder of a name that nobody else has. */
static enum dtx_status make_folder(struct dtx_preflight *p, const char *folder, const char *run_dir)
{
    char parent[DTX_PATH - 64];
    uint64_t token = 0;
    struct stat info;
    snprintf(parent, sizeof parent, "%s", folder[0] ? folder : run_dir[0] ? run_dir : ".");
    while (!folder[0] && stat(parent, &info) != 0 && errno == ENOENT) {
        char *slash = strrchr(parent, '/');
        if (slash == parent)
            slash[1] = '\0';
        else if (slash)
            *slash = '\0';
        else
            snprintf(parent, sizeof parent, ".");
    }
    if (getrandom(&token, sizeof token, GRND_NONBLOCK) != sizeof token)
        token = (uint64_t)(1e9 * dtx_clock_wall());
    snprintf(p->folder, sizeof p->folder, "%s/.dtx-doctor-%016" PRIx64, parent, token);
    if (mkdir(p->folder, 0777) != 0) {
        enum dtx_status status =
            dtx_fail(p->ctx, dtx_status_of_path(errno), "%s: cannot make a folder: %s", p->folder, strerror(errno));
        p->folder[0] = '\0';
        return status;
    }
    return DTX_OK;
}

static enum dtx_status write_file(struct dtx_preflight *p)
{
    char path[DTX_PATH + 32];
    file_path(p, p->node, path);
    FILE *file = fopen(path, "w");
    bool good = file && fprintf(file, "%s %d\n", p->folder, p->node) > 0;
    good = file && fflush(file) == 0 && fsync(fileno(file)) == 0 && good;
    if (file)
        good = fclose(file) == 0 && good;
    return good ? DTX_OK : dtx_fail(p->ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
}

/* Does this node see what another wrote? */
static bool sees_file(const struct dtx_preflight *p, int node)
{
    char path[DTX_PATH + 32], got[DTX_PATH + 32], expected[DTX_PATH + 32];
    double end = dtx_clock_now() + PATIENCE;
    file_path(p, node, path);
    snprintf(expected, sizeof expected, "%s %d\n", p->folder, node);
    if (DTX_MUTANT(doctor_folder_unshared) && p->node == p->n_nodes - 1)
        return false;
    do {
        FILE *file = fopen(path, "r");
        bool same = file && fgets(got, sizeof got, file) && strcmp(got, expected) == 0;
        if (file)
            fclose(file);
        if (same)
            return true;
        dtx_clock_sleep(0.1);
    } while (dtx_clock_now() < end);
    return false;
}

/* Its first rank looks for a node: at rank 0's file and at that of the node behind it. */
enum dtx_status dtx_preflight_share_folder(struct dtx_preflight *p, const char *folder, const char *run_dir)
{
    enum dtx_status status = p->world->rank == 0 ? make_folder(p, folder, run_dir) : DTX_OK;
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    DTX_TRY(p->ctx, dtx_comm_broadcast_bytes(p->world, p->folder, sizeof p->folder, 0));
    status = p->world->rank == 0 ? write_file(p) : DTX_OK;
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    bool first = p->local == 0;
    p->mine.sees_folder = !first || sees_file(p, 0);
    if (first && p->mine.sees_folder && p->world->rank != 0)
        dtx_preflight_note(p, write_file(p));
    DTX_TRY(p->ctx, dtx_preflight_gather(p));
    int next = (p->node + 1) % p->n_nodes;
    if (first && p->mine.sees_folder && p->ranks[p->nodes[next].rank[0]].sees_folder && !sees_file(p, next))
        p->mine.sees_folder = false;
    return dtx_preflight_gather(p);
}

void dtx_preflight_empty_folder(struct dtx_preflight *p)
{
    char path[DTX_PATH + 32];
    if (!p->folder[0] || p->local != 0)
        return;
    file_path(p, p->node, path);
    unlink(path);
}
