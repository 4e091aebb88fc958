/* What a rank of the engine "mpi" knows: see mpi.h. */
#ifndef EK_COMM_MPI_RANK_H
#define EK_COMM_MPI_RANK_H

#include "comm/mpi.h"

#include <mpi.h>

/* A message under way. */
struct mpi_part {
    uint32_t peer;
    bool receives;
    size_t bytes;
};

struct mpi_lane {
    struct queue queue;
    struct mpi_engine *engine;
    ek_lane id;
    MPI_Comm comm; /* MPI_COMM_NULL: it could not be made */

    /* of whichever thread runs an operation; only one does */
    bool beats; /* the compute thread does */
    MPI_Request *requests;
    MPI_Status *statuses;
    struct mpi_part *parts;
    size_t count, room; /* of these three */
    ek_status failure;  /* of the first that could not be posted */
    float *scratch;
    size_t scratch_bytes;
};

struct mpi_engine {
    struct ek_engine base;
    struct mpi_job *job;
    struct mpi_page *page;
    uint64_t epoch;
    struct heap heap;
    uint32_t spins;      /* polls before napping */
    _Atomic bool broken; /* an operation failed in this epoch, or communicators could not be made */
    bool has_lost;       /* since the beginning */
    int *comm_ranks;     /* [ranks] place in the lanes' communicators */
    ek_agreement agreement;
    bool live[EK_RANKS_MOST], newcomers[EK_RANKS_MOST];
    struct mpi_lane lanes[EK_LANES];
};

struct mpi_group {
    struct ek_group base;
    uint64_t epoch;
    int tag; /* of its messages */
};

static inline void mpi_beat(const struct mpi_engine *engine)
{
    atomic_fetch_add_explicit(&engine->page->beats, 1, memory_order_relaxed);
}

/* Sends a message to the guard; from any thread. */
void mpi_tell(const struct mpi_engine *engine, enum mpi_message_type type, const void *data, size_t bytes);

/* mpi_lane.c. Messages are posted, then completed together. */
void mpi_lane_create(struct mpi_lane *lane, struct mpi_engine *engine, ek_lane id);
void mpi_lane_destroy(struct mpi_lane *lane);
ek_status mpi_submit(ek_engine *engine, ek_lane lane, const struct ek_operation *operation, ek_request *request);
ek_status mpi_wait(ek_engine *engine, ek_lane lane, ek_request request);
void mpi_post_send(struct mpi_lane *lane, uint32_t peer, const void *data, size_t bytes, int tag);
void mpi_post_receive(struct mpi_lane *lane, uint32_t peer, void *data, size_t bytes, int tag);
/* Until all that is posted is complete. EK_PEER_LOST: a rank is lost, or somebody's MPI failed; EK_INVALID: a message
 * of another size came. Nothing is under way when it returns. */
ek_status mpi_complete(struct mpi_lane *lane);
/* At least so many bytes, the lane's until the next call. */
ek_status mpi_scratch(struct mpi_lane *lane, size_t bytes);
/* EK_PEER_LOST, with what is known of whom. */
ek_status mpi_fail_lost(const struct mpi_engine *engine);
/* From now on the operations of this epoch fail, here and, by way of the supervisor, everywhere. */
void mpi_break(struct mpi_engine *engine, const char *text);

/* mpi_collectives.c */
ek_status mpi_group_create(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag, uint32_t *members,
                           uint32_t count, uint32_t index);
void mpi_group_destroy(ek_group *group);
ek_status mpi_collective(struct mpi_lane *lane, const struct ek_operation *operation);

/* mpi_ulfm.c: what only an MPI with ULFM can do. */
/* Ends what others wait for on the communicator. */
void mpi_revoke(MPI_Comm comm);
/* A communicator of those that are left of MPI_COMM_WORLD: collective over them. An error of MPI's, or MPI_SUCCESS. */
int mpi_shrink(MPI_Comm *comm);

#endif
