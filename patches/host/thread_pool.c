/*
The native code of thread_pool.py. One entry point serves the caller, which runs a table (number 0), and the workers.

The code is freestanding C: `pool` holds the addresses of the system functions that it calls. The CPU device's compiler
compiles it; thread_pool.py prepends the definitions of ABI, ARGS and the words' indices (HEAD, FUNCTION, ..). The entry
point must be the first function in the file.
*/
typedef unsigned long long word;

typedef struct {                     /* one per thread; 128 bytes, the longest cache line of any CPU */
  word order;                        /* address of a command whose slot has not begun; 0 if there is none */
  word asleep;                       /* 1: the thread waits in read(), or is about to; who sets it to 0 wakes it */
  word read_fd, write_fd, read_to;
  word rest[11];
} line;

typedef struct {
  word size;                         /* threads, including the caller; a command has at most this many slots */
  word limit;                        /* most threads that may work now: the process's cores */
  word active;                       /* number of threads that work */
  word since;                        /* tick at which the table began */
  word time, lost;                   /* table ticks since `active` changed; how many were wasted, see judge() */
  word until, pause;                 /* tick before which no more threads are tried; length of that pause in ticks */
  word clock, ticks_then, ns_then;   /* clockid_t; time of the pool's first table, in ticks and ns */
  word us;                           /* ticks per microsecond, estimated */
  int (*yield)(void);
  long (*read)(int, void *, unsigned long);
  long (*write)(int, const void *, unsigned long);
  int (*gettime)(int, void *);
  word left, others[15];             /* unfinished slots of the command, without the caller's; own cache line */
  line lines[];
} pool_t;

#define LOOKS 1024      /* polls before a thread yields between polls: some tens of microseconds */
#define IDLE 2000       /* microseconds before a worker without an order sleeps */
#define PATIENCE 200    /* microseconds: the caller's wait before it sleeps; a worker sleeps if a yield takes longer */
#define LEAST 2000      /* microseconds of table time before a thread count is judged */
#define WINDOW 50000    /* microseconds of table time after which the earlier statistics count half */
#define PAUSE_MIN 8000  /* microseconds before more threads are tried again: first and longest (PAUSE_MAX) pause */
#define PAUSE_MAX 1000000

#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, x) __atomic_store_n(p, x, __ATOMIC_RELEASE)
#define SWAP(p, x) __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST)
#define FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static void work(pool_t *pool, word number);
static void walk(pool_t *pool, word *table, word *stamps);

ABI void thread_pool(pool_t *pool, word number, word *table, word *stamps) {
  if (number) work(pool, number);
  else walk(pool, table, stamps);
}

static word nanoseconds(pool_t *pool) {
  long long at[2];
  pool->gettime((int)pool->clock, at);
  return (word)at[0] * 1000000000 + (word)at[1];
}

#if defined(__x86_64__)
static void rest(void) { __builtin_ia32_pause(); }
static word ticks(pool_t *pool) { return __builtin_ia32_rdtsc(); }
#elif defined(__aarch64__)
static void rest(void) { __asm__ volatile("isb"); }
static word ticks(pool_t *pool) {
  word now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
}
#else
static void rest(void) {}
static word ticks(pool_t *pool) { return nanoseconds(pool); }
#endif

/* *** shares */

/* Runs the shares of a slot: slot, slot + pool size, slot + 2 * pool size, .. */
static void run(pool_t *pool, const word *command, word slot) {
  word a[ARGS + 1], n = command[WORDS] - HEAD, passed = n <= 8 ? 8 : n <= 16 ? 16 : ARGS;
  for (word i = 0; i < passed; i++) a[i] = command[HEAD + i];
  a[ARGS] = 0;
  for (word share = slot; share < command[THREADS]; share += pool->size) {
    a[command[SLOT]] = share;
#define A8(i) a[i], a[i + 1], a[i + 2], a[i + 3], a[i + 4], a[i + 5], a[i + 6], a[i + 7]
#define W8 word, word, word, word, word, word, word, word
    if (passed == 8) ((ABI void (*)(W8))command[FUNCTION])(A8(0));
    else if (passed == 16) ((ABI void (*)(W8, W8))command[FUNCTION])(A8(0), A8(8));
    else ((ABI void (*)(W8, W8, W8, W8, W8, W8, W8, W8))command[FUNCTION])(
      A8(0), A8(8), A8(16), A8(24), A8(32), A8(40), A8(48), A8(56));
  }
}

static void wake(pool_t *pool, line *of) {
  word one = 1;
  if (__atomic_load_n(&of->asleep, __ATOMIC_SEQ_CST) && SWAP(&of->asleep, 0)) pool->write((int)of->write_fd, &one, 8);
}

/* Runs a slot if no thread has begun it. The command in `order` is valid: it ends after all its slots. */
static void take(pool_t *pool, word slot) {
  word *order = &pool->lines[slot].order, command;
  if (!LOAD(order) || !(command = SWAP(order, 0))) return;
  run(pool, (const word *)command, slot);
  if (__atomic_fetch_sub(&pool->left, 1, __ATOMIC_SEQ_CST) == 1) wake(pool, pool->lines);
}

static void sleep(pool_t *pool, line *mine, word *on, word value) {
  SWAP(&mine->asleep, 1);
  if (__atomic_load_n(on, __ATOMIC_SEQ_CST) == value) pool->read((int)mine->read_fd, &mine->read_to, 8);
  SWAP(&mine->asleep, 0);
}

/* *** a worker: polls for an order, first spinning, then yielding between polls, and then sleeps */

static void await(pool_t *pool, line *mine) {
  for (word looks = 0; looks < LOOKS; looks++) {
    if (LOAD(&mine->order)) return;
    rest();
  }
  for (word start = ticks(pool), then = start, now; !LOAD(&mine->order); then = now) {
    pool->yield();
    now = ticks(pool);
    if (now - start > IDLE * pool->us || now - then > PATIENCE * pool->us) return sleep(pool, mine, &mine->order, 0);
  }
}

static void work(pool_t *pool, word number) {
  line *mine = &pool->lines[number];
  for (;;) {
    await(pool, mine);
    word command = LOAD(&mine->order);
    if (!command) continue;
    take(pool, number);
    for (word slot = LOAD(&pool->active); slot < pool->size && LOAD(&pool->left); slot++) take(pool, slot);
  }
}

/* *** the caller */

/*
Reduces the active threads if fewer would be faster. If another process takes the core of a thread that has begun a
share, all other threads wait. `lost` counts this time, as far as it exceeds the caller's time for its own part.
*/
static void judge(pool_t *pool, word own, word waited) {
  word us = pool->us, active = pool->active, now = ticks(pool);
  if (waited > own + PATIENCE * us) pool->lost += waited - own;
  word time = pool->time + now - pool->since, good = time > pool->lost ? time - pool->lost : 0;
  if (good < LEAST * us) good = LEAST * us;
  if (pool->lost * (active < 5 ? active - 1 : 4) <= good) return;
  pool->active = active * 3 / 4;
  pool->pause = pool->pause * 2 < PAUSE_MIN * us ? PAUSE_MIN * us : pool->pause * 2;
  if (pool->pause > PAUSE_MAX * us) pool->pause = PAUSE_MAX * us;
  pool->until = now + pool->pause;
  pool->since = now, pool->time = pool->lost = 0;
}

/* Before a table: limits `active` to the number of cores. After a pause it tries more threads than before. */
static void choose(pool_t *pool) {
  word active = pool->active, limit = pool->limit, ns = nanoseconds(pool), now = pool->since = ticks(pool);
  if (!pool->ns_then || now < pool->ticks_then) pool->ticks_then = now, pool->ns_then = ns;  /* reset on resume */
  if (ns - pool->ns_then > 100000) pool->us = (now - pool->ticks_then) / ((ns - pool->ns_then) / 1000);
  if (!pool->us) pool->us = 1000;
  int due = pool->until - now - 1 >= PAUSE_MAX * pool->us;  /* `until` has passed, or dates from before a restart */
  if (active < limit && due && pool->time > LEAST * pool->us) {
    active += active < 8 ? 1 : active / 4;
    pool->time = pool->lost = 0;
  }
  STORE(&pool->active, active < limit ? active : limit);
  if (pool->time > WINDOW * pool->us) {
    pool->time /= 2, pool->lost /= 2;
    if (active >= limit) pool->pause /= 2;
  }
}

/* Waits for all slots that other threads have begun. own: ticks that the caller spent on its part. */
static void await_others(pool_t *pool, word own) {
  word start = ticks(pool), patience = PATIENCE * pool->us + own / 4;
  for (word looks = 0; looks < LOOKS; looks++) {
    if (!LOAD(&pool->left)) return;
    rest();
  }
  for (word left; (left = LOAD(&pool->left));) {
    if (ticks(pool) - start < patience) pool->yield();
    else sleep(pool, pool->lines, &pool->left, left);
  }
  judge(pool, own, ticks(pool) - start);
}

static void launch(pool_t *pool, const word *command) {
  word slots = command[THREADS] < pool->size ? command[THREADS] : pool->size;
  word active = pool->active < slots ? pool->active : slots;
  if (active <= 1) {
    for (word slot = 0; slot < slots; slot++) run(pool, command, slot);
    return;
  }
  word begun = ticks(pool);
  pool->left = slots - 1;
  for (word slot = 1; slot < slots; slot++) STORE(&pool->lines[slot].order, (word)command);
  FENCE();
  for (word slot = 1; slot < active; slot++) wake(pool, &pool->lines[slot]);
  run(pool, command, 0);
  for (word slot = active; slot < slots; slot++) take(pool, slot);  /* slots without an active thread */
  for (word slot = 1; slot < active; slot++) take(pool, slot);
  if (LOAD(&pool->left)) await_others(pool, ticks(pool) - begun);
}

static void walk(pool_t *pool, word *table, word *stamps) {
  const word *command = table + TABLE_HEAD, *values = (const word *)table[VALUES], *pair = (const word *)table[PAIRS];
  for (word i = 0; i < table[PAIRED]; i++, pair += 2) table[pair[0]] = values[pair[1]];
  if (pool->size > 1) choose(pool);
  for (word slot = 1; slot < pool->active && slot < table[WAKE]; slot++) wake(pool, &pool->lines[slot]);
  if (stamps) pool->gettime((int)pool->clock, stamps), stamps += STAMP;
  for (word i = 0; i < table[COUNT]; i++, command += command[WORDS]) {
    launch(pool, command);
    if (stamps) pool->gettime((int)pool->clock, stamps), stamps += STAMP;
  }
  if (pool->size > 1) pool->time += ticks(pool) - pool->since;
}
