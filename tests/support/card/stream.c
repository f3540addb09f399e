/*
The stream: work is deferred until the host waits for its result, so data that is used too early is missing.
CARD_GRAPH sets the order of a graph's ready nodes: 0 as added, 1 the last first, 2 random. With CARD_EAGER=1 work runs
immediately.
*/
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "runtime.h"

typedef struct { int kind; Launch launch; u64 to, from, bytes; u8 *staged; Graph *graph; Event *event; } Item;
enum { ROOM = 1024 };  /* queue capacity; when it is full, the older half runs */
static Item items[ROOM];
static u64 first, last, losses;  /* items done and enqueued; launches counted for CARD_LOSE */
int failed, told;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void fail(int status) { if (!failed) failed = status, told = 0; }
static void run(const Launch *launch) {
  u64 lose = setting("LOSE", 0);
  if (failed) return;
  int status = lose && ++losses >= lose ? setting("LOSE_AS", LAUNCH_FAILED) : run_launch(launch);
  if (status) note("the card fails: %d", status), fail(status);
}
static void copy(u8 *to, const u8 *from, u64 bytes) { if (!failed) memcpy(to, from, bytes); }
static void copy_in(u64 to, const u8 *from, u64 bytes) { copy(on_host(to), from, bytes), written_by_host(to, bytes); }
static void run_graph(const Graph *g) {
  u32 *left = calloc(g->count + 1, 4), ran = 0;  /* predecessors that have not run, by node; ~0: it ran */
  for (u32 i = 0; i < g->count; i++) left[i] = g->nodes[i].after_count;
  long order = setting("GRAPH", 1);
  for (;;) {
    u32 ready = 0, next = ~0u;
    for (u32 i = 0; i < g->count; i++)
      if (!left[i] && (ready++ == 0 || order == 1 || (order == 2 && !chance(ready)))) next = i;
    if (!ready) break;
    const Node *node = &g->nodes[next];
    if (node->copy) copy_in(node->to, on_host(node->from), node->bytes);
    else run(&node->launch);
    left[next] = ~0u, ran++;
    for (u32 i = 0; i < g->count; i++)
      for (u32 j = 0; j < g->nodes[i].after_count; j++) left[i] -= g->nodes[i].after[j] == next;
  }
  if (ran != g->count) say("a graph in which %u of %u nodes wait for one another", g->count - ran, g->count);
  free(left);
}
static void execute(Item *x) {
  if (x->kind == RUN) run(&x->launch), free(x->launch.arguments);
  else if (x->kind == TO_CARD) copy_in(x->to, x->staged ? x->staged : (u8 *)x->from, x->bytes), free(x->staged);
  else if (x->kind == TO_HOST) copy((u8 *)x->to, on_host(x->from), x->bytes);
  else if (x->kind == ON_CARD) copy_in(x->to, on_host(x->from), x->bytes);
  else if (x->kind == EVENT) x->event->at = now(), x->event->done = 1;
  else run_graph(x->graph), free_graph(x->graph);
}
u64 enqueued(void) { return last; }
void finish(u64 number) { while (first < last && first < number) execute(&items[first++ % ROOM]); }

int enqueue(int kind, const void *what, u64 to, u64 from, u64 bytes) {
  if (last - first == ROOM) finish(last - ROOM / 2);
  Item x = {.kind = kind, .to = to, .from = from, .bytes = bytes};
  if (kind == RUN) x.launch = copy_launch(what);
  if (kind == TO_CARD && !pinned((void *)from, bytes))  /* pageable memory: copied before the call returns */
    x.staged = memcpy(malloc(bytes), (void *)from, bytes);
  if (kind == GRAPH) x.graph = copy_graph(what);
  if (kind == EVENT) x.event = (Event *)what;
  items[last++ % ROOM] = x;
  if (setting("EAGER", 0)) finish(last);
  if (failed) told = 1;
  return failed;
}

Graph *copy_graph(const Graph *graph) {
  Graph *copy = malloc(sizeof *copy);
  *copy = (Graph){malloc((graph->count + 1) * sizeof *copy->nodes), graph->count};
  for (u32 i = 0; i < graph->count; i++) {
    const Node *node = &graph->nodes[i];
    copy->nodes[i] = *node;
    if (!node->copy) copy->nodes[i].launch = copy_launch(&node->launch);
    copy->nodes[i].after = memcpy(malloc(4 * node->after_count + 4), node->after, 4 * node->after_count);
  }
  return copy;
}
void free_graph(Graph *graph) {
  for (u32 i = 0; i < graph->count; i++) free(graph->nodes[i].launch.arguments), free(graph->nodes[i].after);
  free(graph->nodes);
  free(graph);
}
void forget_work(void) { finish(last); failed = 0, told = 0, losses = 0; }
