/* The threads that engines start for themselves. */
#ifndef EK_COMM_THREAD_H
#define EK_COMM_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create, with all signals blocked: they are for the program's own threads. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

#endif
