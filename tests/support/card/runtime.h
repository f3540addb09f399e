/* The simulator's runtime: the functions that each source file exports to the others. */
#ifndef RUNTIME_H
#define RUNTIME_H
#include <stddef.h>
#include "card.h"

/* CUresult: the values that the simulator returns. */
enum Status { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
  NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222, INVALID_HANDLE = 400, NOT_FOUND = 500,
  NOT_READY = 600, ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719 };

/* report.c: settings and findings */
long setting(const char *name, long otherwise);          /* the environment variable CARD_<name> */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));    /* a finding: kept, and to stderr */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));   /* to CARD_LOG only */
const char *findings(void);
void forget_findings(void);
u32 chance(u32 below);                                   /* a random number < below; seed: CARD_SEED */
void *grown(void *list, size_t count, size_t size);      /* realloc with room for one more element */

/* memory.c: the arena and its shadow; pinned host memory */
extern u8 *arena;
extern Shadow *shadow;
int open_memory(void);
void *reserve(u64 bytes);                                /* zeroed host memory; NULL: out of memory */
u64 allocate(u64 bytes);                                 /* 0: out of memory */
int release(u64 address);                                /* 0: not allocated */
int of_one_buffer(u64 address, u64 bytes);
u8 *on_host(u64 address);
void written_by_host(u64 address, u64 bytes);
void *pin(u64 bytes);
int unpin(void *);
int pinned(const void *, u64 bytes);
u64 next_launch(void);                                   /* the next launch number, for stamps */
void forget_memory(void);
void note_memory(void);

/* module.c: kernels */
typedef struct Module Module;
typedef struct { const Entry *entry; u64 launches; } Kernel;
int load_module(const char *ptx, Module **module);
Kernel *find_kernel(Module *module, const char *name);

/* block.c: a launch */
typedef struct { Kernel *kernel; u32 grid[3], block[3]; u8 *arguments; } Launch;
Launch copy_launch(const Launch *launch);
int run_launch(const Launch *launch);                    /* a CUresult */
extern const Launch *running;

/* touch.c: checks a thread's read, or its write of `value`; returns the bytes' host address */
u8 *touch(Thread *t, u64 address, u32 bytes, u32 site, const u8 *value);

/* warp.c: the exchanges between threads of a warp. Returns NULL, or an error message */
const char *exchange(Thread *warp, u32 lanes, u32 together, u32 meeting);

/* stream.c: deferred work, and graphs */
typedef struct { int copy; Launch launch; u64 to, from, bytes; u32 *after, after_count; } Node;
typedef struct { Node *nodes; u32 count; } Graph;
enum Work { RUN, TO_CARD, TO_HOST, ON_CARD, EVENT, GRAPH };
int enqueue(int kind, const void *what, u64 to, u64 from, u64 bytes);
void finish(u64 number);                                 /* runs all work up to this number */
u64 enqueued(void);
extern int failed;                                       /* sticky error of a failed device; OK: it works */
extern int told;                                         /* whether a call has returned that error */
Graph *copy_graph(const Graph *graph);
void free_graph(Graph *graph);
void forget_work(void);
typedef struct { u64 number; double at; int done; } Event;
#endif
