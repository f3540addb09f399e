/*
The part of libcuda's C interface that tinygrad calls, and card_* functions: for tests, nv.py and the process's exit.
There is one device, one context and one stream. As with a real context, errors are sticky: after a failure each call
returns the same error until card_reset().
*/
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "runtime.h"

typedef u64 Address;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t opened_by;

static int enter(void) {
  pthread_mutex_lock(&mutex);
  if (opened_by && opened_by != getpid()) {
    say("the card is used in a fork of the process that opened it");
    return NOT_INITIALIZED;
  }
  return failed ? told = 1, failed : OK;
}
/* Runs all work up to `number`, and returns the device's error, if any; it counts as told. */
static int finished(u64 number) {
  finish(number);
  return failed ? told = 1, failed : OK;
}
static void leave(int *status) { (void)status; pthread_mutex_unlock(&mutex); }
#define API __attribute__((visibility("default")))
/* A call holds the lock until it returns. If `error` is not OK, it must do nothing but return it. */
#define CALL __attribute__((cleanup(leave))) int error = enter()
#define REFUSE(status, ...) do { say(__VA_ARGS__); return status; } while (0)

static const char *name_of(int status) {
  switch (status) {
    case OK: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case NOT_INITIALIZED: return "initialization error";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case NO_BINARY_FOR_GPU: return "no kernel image is available for execution on the device";
    case INVALID_PTX: return "a PTX JIT compilation failed";
    case UNSUPPORTED_PTX_VERSION: return "the provided PTX was compiled with an unsupported toolchain.";
    case INVALID_HANDLE: return "invalid resource handle";
    case NOT_FOUND: return "named symbol not found";
    case NOT_READY: return "device not ready";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    case OUT_OF_RESOURCES: return "too many resources requested for launch";
    case MISALIGNED_ADDRESS: return "misaligned address";
    case LAUNCH_FAILED: return "unspecified launch failure";
    default: return "unknown error";
  }
}

/* *** for tests */
API const char *card_findings(void) { return findings(); }
API void card_reset(void) { forget_work(), forget_memory(), forget_findings(); }
/* Runs pending work when the process exits, so that its errors are reported. */
API void card_end(void) {
  if (opened_by != getpid()) return;
  finish(~0ull), note_memory();
  if (failed && !told) say("an error that nobody was told: %d, %s", failed, name_of(failed));
}

/* *** the device */
API int cuInit(unsigned flags) {
  if (setting("ABSENT", 0)) return NO_DEVICE;
  if (!opened_by) opened_by = getpid(), atexit(card_end);
  CALL;
  return error ? error : open_memory() ? OK : OUT_OF_MEMORY;
}
API int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
API int cuDeviceGetCount(int *count) { *count = 1; return OK; }
API int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? INVALID_DEVICE : OK; }
API int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "NVIDIA Stand-in"); return OK; }
API int cuDeviceComputeCapability(int *major, int *minor, int device) {
  int sm = setting("SM", 80);
  *major = sm / 10, *minor = sm % 10;
  return OK;
}
API int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return OK; }
API int cuCtxCreate_v2(void **context, unsigned flags, int device) { CALL; *context = &mutex; return error; }
API int cuCtxSetCurrent(void *context) { return OK; }
API int cuCtxSynchronize(void) { CALL; return error ? error : finished(~0ull); }
API int cuGetErrorString(int status, const char **text) { *text = name_of(status); return OK; }

/* *** memory */
API int cuMemAlloc_v2(Address *at, size_t bytes) {
  CALL;
  if (error) return error;
  if (!bytes) return INVALID_VALUE;
  return (*at = allocate(bytes)) ? OK : OUT_OF_MEMORY;
}
API int cuMemFree_v2(Address at) {
  CALL;
  finish(~0ull);
  if (!release(at)) REFUSE(INVALID_VALUE, "freed what is no buffer: 0x%llx", at);
  return error;
}
API int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
  CALL;
  if (error) return error;
  if (!bytes) return INVALID_VALUE;
  return (*at = pin(bytes)) ? OK : OUT_OF_MEMORY;
}
API int cuMemFreeHost(void *at) {
  CALL;
  finish(~0ull);
  if (!unpin(at)) REFUSE(INVALID_VALUE, "freed what is no pinned memory: %p", at);
  return error;
}
static int outside(Address at, size_t bytes) {
  if (of_one_buffer(at, bytes)) return 0;
  say("a copy of %zu bytes at 0x%llx, which are not of one buffer", bytes, at);
  return 1;
}
API int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
  CALL;
  return error ? error : outside(to, bytes) ? INVALID_VALUE : enqueue(TO_CARD, NULL, to, (u64)from, bytes);
}
static int to_host(void *to, Address from, size_t bytes, int late) {
  if (outside(from, bytes)) return INVALID_VALUE;
  int status = enqueue(TO_HOST, NULL, (u64)to, from, bytes);
  if (late) return status;
  return finished(~0ull);
}
API int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
  CALL;
  return error ? error : to_host(to, from, bytes, pinned(to, bytes));
}
API int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
  CALL;
  return error ? error : to_host(to, from, bytes, 0);
}
API int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
  CALL;
  if (error) return error;
  return outside(to, bytes) || outside(from, bytes) ? INVALID_VALUE : enqueue(ON_CARD, NULL, to, from, bytes);
}

/* *** events; a destroyed event is not freed, because pending work may still set it */
API int cuEventCreate(Event **event, unsigned flags) { CALL; *event = calloc(1, sizeof(Event)); return error; }
API int cuEventDestroy_v2(Event *event) { return OK; }
API int cuEventRecord(Event *event, void *stream) {
  CALL;
  if (error) return error;
  event->done = 0, event->number = enqueued() + 1;
  return enqueue(EVENT, event, 0, 0, 0);
}
API int cuEventSynchronize(Event *event) { CALL; return error ? error : finished(event->number); }
API int cuEventElapsedTime(float *ms, Event *from, Event *to) {
  CALL;
  if (!from->done || !to->done) return NOT_READY;
  *ms = (to->at - from->at) * 1e3;
  return error;
}
API int cuStreamWaitEvent(void *stream, Event *event, unsigned flags) { return OK; }

/* *** kernels */
API int cuModuleLoadData(Module **module, const void *image) {
  CALL;
  return error ? error : load_module(image, module);
}
API int cuModuleUnload(Module *module) { return failed; }
API int cuModuleGetFunction(Kernel **kernel, Module *module, const char *name) {
  CALL;
  return error ? error : (*kernel = find_kernel(module, name)) ? OK : NOT_FOUND;
}
API int cuFuncSetAttribute(Kernel *kernel, int attribute, int value) { return OK; }

/* Checks a launch as the driver does and copies its arguments. `extra`: 1, their address, 2, their size's address. */
static int prepare(Launch *l, Kernel *kernel, const u32 *grid, const u32 *block, u32 dynamic, void **extra,
    int adding) {
  const Entry *e = kernel->entry;
  u64 threads = (u64)block[0] * block[1] * block[2];
  size_t size = 0;
  u8 *arguments = NULL;
#define ABOUT "%s: grid %u,%u,%u, block %u,%u,%u: "
#define SHAPE e->name, grid[0], grid[1], grid[2], block[0], block[1], block[2]
  if ((!threads || !grid[0] || !grid[1] || !grid[2]) && !(adding && setting("ZERO_GRID", 0)))
    REFUSE(INVALID_VALUE, ABOUT "a launch of nothing", SHAPE);
  if (grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535) REFUSE(INVALID_VALUE, ABOUT "too many blocks", SHAPE);
  if (threads > 1024 || block[0] > 1024 || block[1] > 1024 || block[2] > 64)
    REFUSE(INVALID_VALUE, ABOUT "too many threads", SHAPE);
  if (threads > e->most_threads) REFUSE(OUT_OF_RESOURCES, ABOUT "the kernel allows %u threads", SHAPE, e->most_threads);
  if (dynamic) REFUSE(INVALID_VALUE, ABOUT "dynamic shared memory, which the stand-in has not", SHAPE);
  for (; extra && *extra; extra += 2)
    if ((u64)extra[0] == 1) arguments = extra[1];
    else if ((u64)extra[0] == 2) size = *(size_t *)extra[1];
  if ((size + 7) / 8 != (e->argument_bytes + 7) / 8)
    REFUSE(INVALID_VALUE, ABOUT "%zu bytes of arguments, the kernel has %u", SHAPE, size, e->argument_bytes);
  *l = (Launch){kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, calloc(1, e->argument_bytes + 16)};
  memcpy(l->arguments, arguments, size < e->argument_bytes ? size : e->argument_bytes);
  return OK;
}
API int cuLaunchKernel(Kernel *kernel, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 dynamic, void *stream,
    void **each, void **extra) {
  CALL;
  Launch l;
  if (error || (error = prepare(&l, kernel, (u32[]){gx, gy, gz}, (u32[]){bx, by, bz}, dynamic, extra, 0))) return error;
  int status = enqueue(RUN, &l, 0, 0, 0);
  free(l.arguments);
  return status;
}

/* *** for nv.py, which has its own queues: memory, copies, and immediate launches with arguments of 8 bytes each */
API u64 card_allocate(u64 bytes) { CALL; return error ? 0 : allocate(bytes); }
API int card_release(u64 address) { CALL; return release(address) ? error : INVALID_VALUE; }
API void *card_host(u64 address) { return on_host(address); }
API void *card_reserve(u64 bytes) { return reserve(bytes); }
API int card_copy(u64 to, u64 from, u64 bytes) {  /* either may be a host address */
  CALL;
  int in = to - DEVICE < ARENA, out = from - DEVICE < ARENA;
  if (error) return error;
  if ((in && outside(to, bytes)) || (out && outside(from, bytes))) return ILLEGAL_ADDRESS;
  memcpy(in ? on_host(to) : (u8 *)to, out ? on_host(from) : (u8 *)from, bytes);
  if (in) written_by_host(to, bytes);
  return OK;
}
API int card_launch(Kernel *kernel, u32 *grid, u32 *block, u64 *values, u32 count) {
  CALL;
  const Entry *e = kernel->entry;
  u8 *arguments = calloc(1, e->argument_bytes + 16);
  size_t size = e->argument_bytes;
  Launch l;
  if (error) return error;
  if (count != e->arguments) REFUSE(INVALID_VALUE, "%s: %u arguments, the kernel has %u", e->name, count, e->arguments);
  for (u32 i = 0; i < count; i++) memcpy(arguments + e->places[2 * i], values + i, e->places[2 * i + 1]);
  error = prepare(&l, kernel, grid, block, 0, (void *[]){(void *)1, arguments, (void *)2, &size, NULL}, 0);
  free(arguments);
  if (error || (error = run_launch(&l))) return failed = error;
  free(l.arguments);
  return OK;
}

/* *** graphs: a node's handle is its number, counted from 1 */
typedef struct { Kernel *kernel; u32 grid[3], block[3], dynamic; void **each, **extra; } KernelNode;
typedef struct {
  size_t from_x, from_y, from_z, from_level;
  int from_kind;
  const void *from_host;
  Address from;
  void *from_array, *rest;
  size_t from_pitch, from_height, to_x, to_y, to_z, to_level;
  int to_kind;
  void *to_host;
  Address to;
  void *to_array, *rest2;
  size_t to_pitch, to_height, bytes, height, depth;
} CopyNode;
_Static_assert(sizeof(CopyNode) == 200, "CUDA_MEMCPY3D_v2");

static int add(u64 *handle, Graph *g, u64 *after, size_t count, Node node) {
  node.after = malloc(4 * count + 4), node.after_count = count;
  for (size_t i = 0; i < count; i++) {
    if (!after[i] || after[i] > g->count) REFUSE(INVALID_VALUE, "a graph's node after one that is not there");
    for (size_t j = 0; j < i; j++) if (after[i] == after[j]) REFUSE(INVALID_VALUE, "a graph's edge twice");
    node.after[i] = after[i] - 1;
  }
  g->nodes = grown(g->nodes, g->count, sizeof node);
  g->nodes[g->count++] = node;
  *handle = g->count;
  return OK;
}
API int cuGraphCreate(Graph **graph, unsigned flags) { CALL; *graph = calloc(1, sizeof(Graph)); return error; }
API int cuGraphAddKernelNode(u64 *handle, Graph *graph, u64 *after, size_t count, const KernelNode *k) {
  CALL;
  Node node = {0};
  if (error || (error = prepare(&node.launch, k->kernel, k->grid, k->block, k->dynamic, k->extra, 1))) return error;
  return add(handle, graph, after, count, node);
}
API int cuGraphAddMemcpyNode(u64 *handle, Graph *graph, u64 *after, size_t count, const CopyNode *c, void *context) {
  CALL;
  if (error) return error;
  if (outside(c->from, c->bytes) || outside(c->to, c->bytes)) return INVALID_VALUE;
  return add(handle, graph, after, count, (Node){.copy = 1, .to = c->to, .from = c->from, .bytes = c->bytes});
}
API int cuGraphInstantiate_v2(Graph **made, const Graph *graph, void *node, char *log, size_t size) {
  CALL;
  u32 edges = 0;
  for (u32 i = 0; i < graph->count; i++) edges += graph->nodes[i].after_count;
  note("a graph of %u nodes and %u edges", graph->count, edges);
  *made = copy_graph(graph);
  return error;
}
API int cuGraphExecKernelNodeSetParams(Graph *made, u64 handle, const KernelNode *k) {
  CALL;
  Launch l;
  if (!handle || handle > made->count) return INVALID_VALUE;
  if (error || (error = prepare(&l, k->kernel, k->grid, k->block, k->dynamic, k->extra, 0))) return error;
  free(made->nodes[handle - 1].launch.arguments);
  made->nodes[handle - 1].launch = l;
  return OK;
}
API int cuGraphExecMemcpyNodeSetParams(Graph *made, u64 handle, const CopyNode *c, void *context) {
  CALL;
  if (error) return error;
  if (!handle || handle > made->count || outside(c->from, c->bytes) || outside(c->to, c->bytes)) return INVALID_VALUE;
  Node *node = &made->nodes[handle - 1];
  node->to = c->to, node->from = c->from, node->bytes = c->bytes;
  return OK;
}
API int cuGraphLaunch(Graph *made, void *stream) { CALL; return error ? error : enqueue(GRAPH, made, 0, 0, 0); }
API int cuGraphDestroy(Graph *graph) { CALL; free_graph(graph); return OK; }
API int cuGraphExecDestroy(Graph *made) { CALL; free_graph(made); return OK; }
