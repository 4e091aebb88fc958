/* User-level failure mitigation (ULFM), an extension of MPI that Open MPI has since version 5, where mpirun is asked
 * for it (--with-ft ulfm). */
#include "comm/mpi_rank.h"

#include <stdlib.h>
#include <string.h>

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

/* mpirun --with-ft ulfm sets it for its processes; there is no call that tells. */
bool mpi_can_lose(void)
{
    const char *enabled = getenv("OMPI_MCA_mpi_ft_enable");
    return enabled && (!strcmp(enabled, "1") || !strcmp(enabled, "true"));
}

void mpi_revoke(MPI_Comm comm)
{
    MPIX_Comm_revoke(comm);
}

int mpi_shrink(MPI_Comm *comm)
{
    return MPIX_Comm_shrink(MPI_COMM_WORLD, comm);
}

#else

bool mpi_can_lose(void)
{
    return false;
}

void mpi_revoke(MPI_Comm comm)
{
    (void)comm;
}

/* The loss of a rank ends the job before anybody comes here. */
int mpi_shrink(MPI_Comm *comm)
{
    *comm = MPI_COMM_NULL;
    return MPI_ERR_OTHER;
}

#endif
