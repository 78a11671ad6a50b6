/* test: label=ranks ranks=4 timeout=60 */
/*
 * The launcher's fence waits for every rank, whatever its node: MPI_Init ends with one, and a rank that left it early
 * would send to ranks that cannot receive yet and die. MPI_Finalize's is the same fence and can be seen: the last rank
 * comes late to it. (cluster/fence.sh: the same under srun.)
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/clock.h"

int main(int argc, char **argv)
{
    int rank, size;
    double late = argc > 1 ? atof(argv[1]) : 0.3;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = dtx_clock_now();
    if (rank == size - 1)
        dtx_clock_sleep(late);
    MPI_Finalize();
    double seconds = dtx_clock_now() - begin;
    if (seconds < 0.8 * late)
        printf("rank %d left the fence after %.2f s, before the last rank came\n", rank, seconds);
    return seconds < 0.8 * late;
}
