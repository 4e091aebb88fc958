/* What every engine provides, and the parts of engines and groups that all engines share. engine.c checks the arguments
 * of the public functions and calls the engine through its table; nothing outside an engine's own files knows more
 * than this. */
#ifndef EK_COMM_ENGINE_H
#define EK_COMM_ENGINE_H

#include <evenkeel.h>

enum ek_operation_kind {
    EK_ALL_REDUCE,
    EK_REDUCE_SCATTER,
    EK_ALL_GATHER,
    EK_ALL_TO_ALL,
    EK_BROADCAST,
    EK_BARRIER,
    EK_EXCHANGE,
};

/* One operation of a lane, arguments checked. Arrays belong to the caller: an engine that keeps the operation copies
 * them. */
struct ek_operation {
    enum ek_operation_kind kind;
    ek_group *group;            /* NULL: exchange */
    const void *input;          /* all-reduce, broadcast: the buffer, as output */
    void *output;               /* NULL: barrier */
    size_t size;                /* all-reduce: floats; broadcast: bytes */
    const size_t *input_sizes;  /* [members] reduce-scatter: floats; all-to-all: bytes */
    const size_t *output_sizes; /* [members] all-gather, all-to-all: bytes */
    ek_reduction reduction;
    uint32_t root; /* broadcast: index of the member */
    const ek_message *sends, *receives;
    size_t send_count, receive_count;
};

struct ek_engine_operations {
    const char *name;
    void (*place)(ek_place *place);
    ek_status (*launch)(const ek_launch_options *options);
    ek_status (*alloc)(ek_engine *engine, size_t bytes, void **memory);
    void (*free)(ek_engine *engine, void *memory);
    /* members[index] is the caller; it stays as long as the group. The engine fills in an ek_group that it allocates.
     */
    ek_status (*group_create)(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag, uint32_t *members,
                              uint32_t count, uint32_t index);
    void (*group_destroy)(ek_group *group);
    /* Runs (request == NULL) or starts an operation. */
    ek_status (*submit)(ek_engine *engine, ek_lane lane, const struct ek_operation *operation, ek_request *request);
    ek_status (*wait)(ek_engine *engine, ek_lane lane, ek_request request);
    ek_status (*vote)(ek_engine *engine, uint64_t step, const double *values, double *sums, uint32_t count);
    ek_status (*agree)(ek_engine *engine, ek_agreement_kind kind, bool ok, ek_agreement *agreement);
    void (*beat)(ek_engine *engine, uint64_t note);
    ek_status (*report)(ek_engine *engine, const void *record, size_t bytes);
    uint64_t (*asked)(const ek_engine *engine);
    ek_status (*inject)(ek_engine *engine, ek_fault fault);
    ek_status (*revive)(ek_launcher *launcher, uint32_t rank);
    ek_status (*kill)(ek_launcher *launcher, uint32_t rank);
    void (*ask)(ek_launcher *launcher, uint64_t wish);
};

/* First member of an engine's own structure. */
struct ek_engine {
    const struct ek_engine_operations *operations;
    uint32_t rank, ranks;
    bool is_new;      /* has not joined yet */
    bool joining;     /* newcomers wait: no vote before the next agreement */
    const bool *live; /* [ranks] in the job since the last agreement */
};

/* First member of an engine's own structure. */
struct ek_group {
    ek_engine *engine;
    ek_lane lane;
    uint32_t count, index;
    uint32_t *members; /* [count] ranks */
};

/* First member of an engine's own structure. */
struct ek_launcher {
    const struct ek_engine_operations *operations;
    uint32_t ranks;
};

extern const struct ek_engine_operations ek_engine_shm;
#ifdef EK_MPI
extern const struct ek_engine_operations ek_engine_mpi;
#endif

#endif
