/* What the leading side of a job of the engine "mpi" knows: mpi_supervisor.c is its life: time, signals, the loop;
 * mpi_seats.c its connections to the guards; mpi_decide.c says what is committed, who is lost, what is agreed. */
#ifndef EK_COMM_MPI_SUPERVISOR_H
#define EK_COMM_MPI_SUPERVISOR_H

#include "comm/mpi.h"

#include <poll.h>
#include <pthread.h>

enum seat_state {
    SEAT_ABSENT,
    SEAT_AWAITED, /* has not said hello */
    SEAT_LIVE,
    SEAT_DONE,
    SEAT_LOST
};

/* A rank as the supervisor sees it. */
struct seat {
    enum seat_state state;
    struct wire wire;
    char host[JOB_HOST_BYTES];
    uint64_t silent; /* ticks without a word */
    bool just_lost;  /* on_lost is still to be called */
    ek_loss loss;
    bool voted;
    struct mpi_ballot ballot;
    bool agreeing;
    struct mpi_consent consent;
};

struct supervisor {
    struct ek_launcher base;
    struct mpi_job *job;
    const ek_launch_options *options;
    struct seat *seats;     /* [ranks] */
    struct wire *visitors;  /* [ranks] connected, but have not said hello; fd -1: free */
    struct pollfd *polled;  /* [2 ranks + 2] */
    uint32_t awaited, live; /* how many seats are */
    int signal_fd;
    uint64_t tick_ns, next_tick_ns;
    uint64_t until_ns;     /* by then all must have said hello; when all is over, have gone */
    pthread_mutex_t mutex; /* of what is sent; the main thread has it, but while it waits and in callbacks */
    pthread_cond_t end_of_beats;
    pthread_t beater;
    bool beats, beaten;     /* the beater is there; it shall end */
    uint64_t epoch, step;   /* the current epoch; the open step */
    bool aborted;           /* the open step is */
    uint32_t lost_in_epoch; /* ranks */
    bool disturbed;         /* operations fail in this epoch */
    uint32_t vain;          /* epochs in a row that were disturbed without a loss */
    char trouble[JOB_TROUBLE_BYTES];
    uint64_t wish; /* what ranks are asked for */
    bool any_lost, any_done;
    bool signalled; /* the job has had a signal: what ends then was ended by it */
    bool over;      /* the job ends now, with this: */
    struct mpi_end end;
};

/* The job ends with this, unless it ends already. */
void mpi_end_job(struct supervisor *supervisor, ek_status status, const char *error);
/* What callbacks and the like want: a status other than EK_OK ends the job with it and with ek_error(). */
void mpi_obey(struct supervisor *supervisor, ek_status status);

/* Callbacks may take their time, as where they write to a disk that is busy: beats go on. */
#define CALL_BACK(supervisor, call)                                                                                    \
    do {                                                                                                               \
        pthread_mutex_unlock(&(supervisor)->mutex);                                                                    \
        ek_status called_back = (call);                                                                                \
        pthread_mutex_lock(&(supervisor)->mutex);                                                                      \
        mpi_obey(supervisor, called_back);                                                                             \
    } while (0)

/* mpi_seats.c */
ek_status mpi_take_seats(struct supervisor *supervisor);
void mpi_leave_seats(struct supervisor *supervisor);
/* Hears all that has come. */
void mpi_listen_to_seats(struct supervisor *supervisor);
void mpi_listen_to_visitors(struct supervisor *supervisor);
/* Nobody else is waited for. */
void mpi_turn_away_visitors(struct supervisor *supervisor);
/* To the ranks that are in the job; to every guard that can be reached. */
void mpi_tell_live(struct supervisor *supervisor, enum mpi_message_type type, const void *data, size_t bytes);
void mpi_tell_connected(struct supervisor *supervisor, enum mpi_message_type type, const void *data, size_t bytes);

/* mpi_decide.c */
/* Acts on what a live rank or its guard says. */
void mpi_hear(struct supervisor *supervisor, uint32_t rank, const struct wire_message *message);
void mpi_lose(struct supervisor *supervisor, uint32_t rank, struct mpi_lost how);
/* Calls on_lost for the ranks lost since. */
void mpi_tell_losses(struct supervisor *supervisor);
/* Completes the agreement that every live rank waits in, if they all do. */
void mpi_try_agreement(struct supervisor *supervisor);

#endif
