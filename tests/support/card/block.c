/*
Runs a launch block by block. CARD_ORDER sets the order of blocks, warps and threads: 0 as numbered, 1 backwards,
2 random. Each thread is a fiber that runs until it must wait for others. For x86-64 Linux only.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime.h"

enum State { BEGIN, READY, WAITS, ENDED };
enum { STACK = 512 << 10, MOST = 1024 };
const Launch *running;
static Thread threads[MOST];
static u8 *stacks;
static void *scheduler;
static Thread *current;
static int status;
static long order, close;

void switch_stack(void **save, void *to);
__asm__(".text\n.globl switch_stack\n.hidden switch_stack\n.type switch_stack,@function\nswitch_stack:\n"
  " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
  " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

static void thread_main(void) {
  Thread *t = current;
  running->kernel->entry->code(t, running->arguments);
  t->state = ENDED;
  switch_stack(&t->stack, scheduler);
}
static void resume(Thread *t, u32 number) {
  if (t->state == BEGIN) {  /* threads that never wait share one stack in turn */
    void **top = (void **)(stacks + (u64)STACK * ((running->kernel->entry->meets ? number : 0) + 1)) - 1;
    *top = NULL, *--top = (void *)thread_main;
    for (int i = 0; i < 6; i++) *--top = NULL;
    t->stack = top;
  }
  t->state = READY, current = t;
  switch_stack(&scheduler, t->stack);
}
static void meet(Thread *t, u32 meeting, u32 site) {
  t->meeting = meeting, t->site = site, t->state = WAITS;
  switch_stack(&t->stack, scheduler);
}

static void found(Thread *t, const char *what, u32 site, int error) {
  const Entry *e = running->kernel->entry;
#define THREE(x) x[0], x[1], x[2]
  say("%s: %s; block %u,%u,%u of %u,%u,%u, thread %u,%u,%u of %u,%u,%u, at `%s`", e->name, what,
    THREE(t->ctaid), THREE(t->nctaid), THREE(t->tid), THREE(t->ntid), e->sites[site]);
  status = error;
}
static void fault(Thread *t, u32 kind, u64 address, u32 bytes, u32 site) {
  static const struct { const char *what; int error; } faults[] = {
    [OUTSIDE] = {"an address outside of all buffers", ILLEGAL_ADDRESS},
    [MISALIGNED] = {"a misaligned address", MISALIGNED_ADDRESS},
    [RACE_THREADS] = {"a race between threads of a block", LAUNCH_FAILED},
    [RACE_BLOCKS] = {"a race between blocks", LAUNCH_FAILED},
    [UNWRITTEN] = {"memory read that nothing has written", LAUNCH_FAILED},
    [SHARED_OVERRUN] = {"an address outside of the block's shared memory", ILLEGAL_ADDRESS},
    [LOCAL_OVERRUN] = {"an address outside of the thread's own memory", ILLEGAL_ADDRESS},
    [TRAP] = {"a trap", LAUNCH_FAILED}};
  if (kind == UNWRITTEN && !setting("UNWRITTEN", 0)) return;
  char text[160];
  snprintf(text, sizeof text, "%s: 0x%llx, %u bytes", faults[kind].what, address, bytes);
  found(t, text, site, faults[kind].error);
  t->state = ENDED;
  switch_stack(&t->stack, scheduler);
}

static void shuffle(u32 *list, u32 n) {
  for (u32 i = 0; i < n; i++) list[i] = order == 1 ? n - 1 - i : i;
  if (order == 2) for (u32 i = n; i > 1; i--) {
    u32 j = chance(i), x = list[i - 1];
    list[i - 1] = list[j], list[j] = x;
  }
}

/* Runs a warp until all its threads wait at a barrier or have ended. Returns whether any thread ran. */
static int run_warp(u32 first, u32 lanes, const u32 *turns) {
  Thread *warp = threads + first;
  int ran = 0;
  for (;;) {
    for (u32 i = 0; i < lanes; i++) if (warp[turns[i]].state <= READY) {
      resume(&warp[turns[i]], first + turns[i]), ran = 1;
      if (status) return 1;
    }
    Thread *one = NULL;
    u32 together = 0;
    for (u32 l = 0; l < lanes; l++) if (warp[l].state == WAITS && warp[l].meeting != BARRIER) {
      if (!one) one = &warp[l];
      if (warp[l].site == one->site) together |= 1u << l;
    }
    if (!one) return ran;
    const char *wrong = exchange(warp, lanes, together, one->meeting);
    if (wrong) { found(one, wrong, one->site, LAUNCH_FAILED); return 1; }
    for (u32 l = 0; l < lanes; l++) if (together >> l & 1) warp[l].state = READY;
  }
}
/* Releases a block's threads if all wait at the same barrier. Returns whether any thread was waiting at one. */
static int pass_barrier(u32 n) {
  Thread *one = NULL;
  u32 waits = 0;
  for (u32 i = 0; i < n; i++) if (threads[i].state == WAITS) {
    if (!one) one = &threads[i];
    else if (threads[i].site != one->site) {
      found(one, "threads of a block wait at different barriers", one->site, LAUNCH_FAILED);
      return 0;
    }
    waits++;
  }
  if (one && waits != n) found(one, "a barrier that not all threads of the block reach", one->site, LAUNCH_FAILED);
  for (u32 i = 0; i < n && one; i++) threads[i].state = READY, threads[i].stamp += NEXT_PHASE;
  return one != NULL;
}
static void run_block(const Launch *l, u64 launch, u32 number) {
  u32 n = l->block[0] * l->block[1] * l->block[2], warps = (n + 31) / 32, turns[32], lanes[32];
  u32 x = number % l->grid[0], y = number / l->grid[0] % l->grid[1], z = number / l->grid[0] / l->grid[1];
  const Entry *e = l->kernel->entry;
  memset(arena, 0xff, e->shared_bytes);
  shuffle(turns, warps), shuffle(lanes, 32);
  for (u32 i = 0; i < n; i++) {
    Thread *t = &threads[i];
    *t = (Thread){.tid = {i % l->block[0], i / l->block[0] % l->block[1], i / l->block[0] / l->block[1]},
      .ctaid = {x, y, z}, .lane = i % 32, .warp = i / 32,
      .stamp = launch << 50 | (u64)(number % 1048575) << 30 | (u64)i << 4, .arena = arena, .shadow = shadow,
      .shared_size = e->shared_bytes, .close = close, .touch = touch, .meet = meet, .fault = fault, .state = BEGIN};
    memcpy(t->ntid, l->block, 12), memcpy(t->nctaid, l->grid, 12);
  }
  do for (u32 w = 0; w < warps && !status; w++) {
    u32 first = 32 * turns[w], count = n - first < 32 ? n - first : 32, mine[32], k = 0;
    for (u32 i = 0; i < 32; i++) if (lanes[i] < count) mine[k++] = lanes[i];
    run_warp(first, count, mine);
  } while (!status && pass_barrier(n) && !status);
}

Launch copy_launch(const Launch *l) {
  Launch copy = *l;
  copy.arguments = malloc(l->kernel->entry->argument_bytes + 16);
  memcpy(copy.arguments, l->arguments, l->kernel->entry->argument_bytes);
  return copy;
}
int run_launch(const Launch *l) {
  if (!stacks) stacks = reserve((u64)STACK * MOST);
  u64 blocks = (u64)l->grid[0] * l->grid[1] * l->grid[2], launch = next_launch();
  order = setting("ORDER", 0), close = setting("CLOSE", 0), running = l, status = OK;
  u64 start = order == 2 ? chance(blocks) : 0, step = 1;
  if (order == 2) for (step = blocks * 5 / 8 | 1; ; step += 2) {  /* a step coprime to the count visits all blocks */
    u64 a = step, b = blocks;
    while (b) { u64 rest = a % b; a = b, b = rest; }
    if (a == 1) break;
  }
  for (u64 i = 0; i < blocks && !status; i++)
    run_block(l, launch, order == 1 ? blocks - 1 - i : (start + i * step) % blocks);
  l->kernel->launches++;
  return status;
}
