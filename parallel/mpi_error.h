/* Turns MPI's codes into dtx's. The one place that does so; included by comm_mpi.c only. */
#ifndef DTX_PARALLEL_MPI_ERROR_H
#define DTX_PARALLEL_MPI_ERROR_H

#include <mpi.h>
#include <stdio.h>

#include "parallel/comm.h"

/* DTX_OK for MPI_SUCCESS, else DTX_E_LIBRARY: which operation on which communicator, its bytes, the peer (−1: all). */
static inline enum dtx_status dtx_mpi_status(const struct dtx_comm *comm, int code, const char *operation,
                                             int64_t bytes, int peer)
{
    if (code == MPI_SUCCESS)
        return DTX_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        text[0] = '\0';
    char with[32] = "all ranks";
    if (peer >= 0)
        snprintf(with, sizeof with, "rank %d", peer);
    return dtx_fail(comm->ctx, DTX_E_LIBRARY,
                    "MPI: %s of %lld bytes with %s on communicator '%s' (this is rank %d of %d) failed: %s (code %d)",
                    operation, (long long)bytes, with, comm->name, comm->rank, comm->size, text, code);
}

#endif
