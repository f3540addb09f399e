// Executes a kernel: each thread of a threadgroup is a fiber that runs until it waits for others. See __init__.py.
//
// Scheduling is adversarial: threadgroups, simdgroups and threads run in a seeded random order, each as far as it can.
// clang calls __tsan_* before each memory access (-fsanitize=thread, without its runtime); this file defines them. Each
// byte of threadgroup memory and of written buffers has a cell: time and thread of its last write and of its last read.
// Time counts barriers. Conflicting accesses by two threads without a barrier between them are a race. So are
// conflicting accesses by two threadgroups of one launch. Several threads may write equal values to the same bytes:
// such a write is checked when the thread goes on. It is a race if it changed the bytes. The first fault ends a launch.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float8 __attribute__((ext_vector_type(8)));

enum { LANES = 32, THREADS = 1024, GAP = 256, ARRAYS = 64, LIMIT = 32768, REGION = LIMIT + GAP * (ARRAYS + 1) };
enum { READY, AT_BARRIER, TOGETHER, SHUFFLE, MULTIPLY, DONE };  // states of a thread
enum { IN_BOUNDS, OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, RACE, DIVERGENT_BARRIER, DIVERGENT_SIMDGROUP, NO_LANE,
       TOO_MUCH_MEMORY };                                      // kernel.py: FAULTS
enum { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };
enum : u16 { SEVERAL = 0xffff };                               // not one known thread

struct Cell { u32 written, read; u16 writer, reader; };        // times; thread numbers
struct Buffer { u8 *begin, *end; Cell *cells; u64 stored; };   // stored: whether this launch has written to it
struct Fault { int kind, line, thread, other, is_write, array; long offset; u32 group[3], bytes; };
struct Launch {                                                // kernel.py: Launch
  void (*entry)(void **, const u32 *, const u32 *);
  void **arguments;
  Buffer *buffers;
  u64 count;
  u8 *stacks, *memory;                                         // memory and cells of one threadgroup: REGION of each
  Cell *cells;
  u64 stack, seed;                                             // stack: bytes of one stack
  u32 grid[3], block[3];
  int fill;                                                    // memory's first bytes; -1: reads before writes fault
  Fault fault;
};

struct Fiber {
  void *sp;
  int state, line, flags;
  u32 arrays, bits, lane;
  float2 a, b, c;
};
struct Array { u8 *begin, *end; };
struct Written { u8 *at, was[16]; u32 bytes; int array, other; long offset; };  // bytes that another thread wrote, too

static Launch *launch;
static Fiber fibers[THREADS], *me;
static Array arrays[ARRAYS];
static Buffer *last;                                           // the last buffer looked up
static Written again;                                          // by the running thread; bytes is 0 if there is none
static void *scheduler;
static u32 now, launched, begun, since_barrier, since_device_barrier;  // times: start of launch, of threadgroup, ..
static u32 threads, declared, group[3];
static u64 random_state;

static u32 drawn() {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return u32(random_state >> 32);
}

// *** fibers: msl_switch saves the callee-saved registers on the stack that it leaves

extern "C" void msl_switch(void **from, void *to);
#ifdef __APPLE__
#define NAME "_msl_switch"
#else
#define NAME "msl_switch"
#endif
#if defined(__x86_64__)
enum { SAVED = 6 };
asm(".text\n.globl " NAME "\n" NAME ":\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void *prepared(u8 *top, void (*body)()) {
  void **sp = reinterpret_cast<void **>(top) - 1;              // no return address; at 8 mod 16, as after a call
  *sp = nullptr;
  *--sp = reinterpret_cast<void *>(body);
  return sp - SAVED;
}
#elif defined(__aarch64__)
enum { SAVED = 20 };
asm(".text\n.globl " NAME "\n" NAME ":\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n");
static void *prepared(u8 *top, void (*body)()) {
  void **sp = reinterpret_cast<void **>(top) - SAVED;
  sp[10] = nullptr;
  sp[11] = reinterpret_cast<void *>(body);
  return sp;
}
#endif

static u32 number() { return u32(me - fibers); }
static void leave() { msl_switch(&me->sp, scheduler); }
static void look_again();
static void wait(int state, int line) {
  look_again();
  me->state = state, me->line = line;
  leave();
}
static void body() {
  u32 t = number(), *block = launch->block, at[3] = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
  launch->entry(launch->arguments, group, at);
  look_again();
  me->state = DONE;
  leave();
}

// *** faults

static bool failed(int kind, u32 thread) {
  Fault &f = launch->fault;
  if (f.kind) return true;
  f.kind = kind, f.thread = int(thread), f.other = -1, f.array = -1;
  for (int i = 0; i < 3; i++) f.group[i] = group[i];
  return true;
}
static void stop(int kind, bool is_write, int array, long offset, u32 bytes, int other = -1) {
  failed(kind, number());
  Fault &f = launch->fault;
  f.is_write = is_write, f.array = array, f.offset = offset, f.bytes = bytes, f.other = other;
  again.bytes = 0;
  leave();                                                     // never resumed
}
static void look_again() {
  for (u32 i = 0; i < again.bytes; i++) if (again.at[i] != again.was[i])
    return stop(RACE, true, again.array, again.offset, again.bytes, again.other);
  again.bytes = 0;
}
static void write_again(u8 *p, u32 n, int array, long offset, int other) {
  again.at = p, again.bytes = n, again.array = array, again.offset = offset, again.other = other;
  for (u32 i = 0; i < n; i++) again.was[i] = p[i];
}

// *** memory: a threadgroup's arrays have the numbers -2, -3, .., arguments 0, 1, ..

static bool other_than(u32 time, u16 by, u32 first, u32 since, u16 thread) {
  return time >= first && (time < begun || (time >= since && by != thread));
}
static int named(u32 time, u16 by) { return time < begun ? SEVERAL : by; }
static void note(Cell &c, bool is_write, u32 first, u32 since, u16 thread) {
  if (is_write) c.written = now, c.writer = thread;
  else if (c.read < first || (c.read >= begun && (c.read < since || c.reader == thread)))
    c.read = now, c.reader = thread;
  else if (c.read >= begun) c.reader = SEVERAL;                // a read by another threadgroup is kept
}
static void look(Cell *cells, u8 *p, u32 n, bool is_write, int array, long offset, u32 first, u32 since) {
  u16 thread = u16(number());
  int other = -1;
  for (u32 k = 0; k < n; k++) {
    Cell &c = cells[k];
    if (other_than(c.written, c.writer, first, since, thread)) {
      if (!is_write) return stop(RACE, false, array, offset + k, n, named(c.written, c.writer));
      other = named(c.written, c.writer);
    }
    if (is_write && other_than(c.read, c.reader, first, since, thread))
      return stop(RACE, true, array, offset + k, n, named(c.read, c.reader));
    note(c, is_write, first, since, thread);
  }
  if (other >= 0) write_again(p, n, array, offset, other);
}

static void of_threadgroup(u8 *p, u32 n, bool is_write) {
  u32 i = 0;
  while (i < declared && !(p >= arrays[i].begin && p + n <= arrays[i].end)) i++;
  if (i == declared) {                                         // reported relative to the array before it
    u32 near = 0;
    while (near + 1 < declared && p >= arrays[near + 1].begin - GAP / 2) near++;
    return stop(OUT_OF_BOUNDS, is_write, -2 - int(near), p - arrays[near].begin, n);
  }
  Cell *cells = launch->cells + (p - launch->memory);
  long offset = p - arrays[i].begin;
  for (u32 k = 0; launch->fill < 0 && !is_write && k < n; k++)
    if (cells[k].written < begun) return stop(UNINITIALISED, false, -2 - int(i), offset + k, n);
  look(cells, p, n, is_write, -2 - int(i), offset, begun, since_barrier);
}
static void out_of_bounds(u8 *p, u32 n, bool is_write) {       // reported relative to the nearest buffer
  u64 nearest = ~0ul;
  int found = -1;
  long offset = 0;
  for (u64 i = 0; i < launch->count; i++) {
    Buffer &b = launch->buffers[i];
    u64 away = p < b.begin ? u64(b.begin - p) : p >= b.end ? u64(p - b.end) : 0;
    if (away < nearest) nearest = away, found = int(i), offset = p - b.begin;
  }
  stop(OUT_OF_BOUNDS, is_write, found, offset, n);
}
static Buffer *buffer_at(u8 *p, u32 n) {
  for (u64 i = 0; i < launch->count; i++)
    if (p >= launch->buffers[i].begin && p + n <= launch->buffers[i].end) return last = launch->buffers + i;
  return nullptr;
}
template <u32 n, bool is_write, bool aligned> static inline void access(void *address) {
  u8 *p = static_cast<u8 *>(address);
  if (again.bytes) look_again();
  if (u64(p - launch->memory) < REGION) {
    if (aligned && u64(p) % n) return stop(MISALIGNED, is_write, -2, p - launch->memory, n);
    return of_threadgroup(p, n, is_write);
  }
  Buffer *b = last;
  if (!(p >= b->begin && p + n <= b->end)) {
    if (u64(p - (launch->stacks + number() * launch->stack)) < launch->stack) return;
    if (!(b = buffer_at(p, n))) return out_of_bounds(p, n, is_write);
  }
  if (aligned && u64(p) % n) return stop(MISALIGNED, is_write, int(b - launch->buffers), p - b->begin, n);
  if (is_write) b->stored = 1;
  long offset = p - b->begin;
  if (b->stored)
    look(b->cells + offset, p, n, is_write, int(b - launch->buffers), offset, launched, since_device_barrier);
}
#define ACCESS(n) \
  void __tsan_read##n(void *p) { access<n, false, true>(p); } \
  void __tsan_write##n(void *p) { access<n, true, true>(p); } \
  void __tsan_unaligned_read##n(void *p) { access<n, false, false>(p); } \
  void __tsan_unaligned_write##n(void *p) { access<n, true, false>(p); }
extern "C" {
void __tsan_init() {}
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
}

// *** functions that kernels call, by way of metal_stdlib

extern "C" {
void *msl_threadgroup(u64 bytes) {
  u32 i = me->arrays++;
  if (i < declared) return arrays[i].begin;
  u8 *begin = i ? arrays[i - 1].end : launch->memory;
  begin = launch->memory + (begin - launch->memory + GAP + 15) / 16 * 16;
  u64 used = bytes;
  for (u32 k = 0; k < i; k++) used += u64(arrays[k].end - arrays[k].begin);
  if (i == ARRAYS || used > LIMIT) stop(TOO_MUCH_MEMORY, false, -2 - int(i), 0, u32(used));
  arrays[i] = {begin, begin + bytes}, declared = i + 1;
  return begin;
}
void msl_barrier(int line, int flags) {
  me->flags = flags;
  wait(AT_BARRIER, line);
}
void msl_together(int line) { wait(TOGETHER, line); }
u32 msl_shuffle(int line, u32 bits, u32 lane) {
  me->bits = bits, me->lane = lane;
  wait(SHUFFLE, line);
  return me->bits;
}
float2 msl_multiply_accumulate(int line, float2 a, float2 b, float2 c) {
  me->a = a, me->b = b, me->c = c;
  wait(MULTIPLY, line);
  return me->c;
}
u32 msl_lane() { return number() % LANES; }
}

// *** rounds a float to a bfloat, ties to even: clang calls it where the processor has no such instruction

// A bfloat is returned in the low half of a float register. The return type is float, because clang would call this
// function to return a bfloat.
extern "C" float __truncsfbf2(float x) {
  u32 bits = __builtin_bit_cast(u32, x);
  return __builtin_bit_cast(float, x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// *** simdgroups

static u32 row(u32 lane) { return lane / 2 % 4 + lane / 16 * 4; }
static u32 column(u32 lane) { return lane % 2 * 2 + lane / 8 % 2 * 4; }

static bool multiplied(Fiber *lanes, u32 count) {
  float a[8][8];
  float8 b[8], c[8];
  if (count < LANES) return !failed(NO_LANE, u32(lanes - fibers));
  for (u32 i = 0; i < LANES; i++) for (u32 k = 0; k < 2; k++) {
    u32 r = row(i), n = column(i) + k;
    a[r][n] = lanes[i].a[k], b[r][n] = lanes[i].b[k], c[r][n] = lanes[i].c[k];
  }
  for (u32 r = 0; r < 8; r++) for (u32 k = 0; k < 8; k++) c[r] += a[r][k] * b[k];
  for (u32 i = 0; i < LANES; i++) for (u32 k = 0; k < 2; k++) lanes[i].c[k] = c[row(i)][column(i) + k];
  return true;
}
static bool shuffled(Fiber *lanes, u32 count) {
  u32 given[LANES];
  for (u32 i = 0; i < count; i++) given[i] = lanes[i].bits;
  for (u32 i = 0; i < count; i++) {
    if (lanes[i].lane >= count) return !failed(NO_LANE, u32(lanes + i - fibers));
    lanes[i].bits = given[lanes[i].lane];
  }
  return true;
}

// Runs a simdgroup until each thread has ended or waits at a barrier. False if there is a fault
static bool advanced(Fiber *lanes, u32 count) {
  for (;;) {
    u32 start = drawn(), step = drawn() | 1, together = 0;
    for (u32 i = 0; i < LANES; i++) {
      Fiber *f = lanes + (start + i * step) % LANES;
      if (f >= lanes + count || f->state != READY) continue;
      me = f;
      msl_switch(&scheduler, f->sp);
      if (launch->fault.kind) return false;
    }
    for (u32 i = 0; i < count; i++) together += lanes[i].state >= TOGETHER && lanes[i].state < DONE;
    if (!together) return true;
    for (u32 i = 0; i < count; i++) if (lanes[i].state != lanes[0].state || lanes[i].line != lanes[0].line) {
      failed(DIVERGENT_SIMDGROUP, u32(lanes + i - fibers));
      launch->fault.line = lanes[i].line, launch->fault.other = int(lanes - fibers);
      return false;
    }
    if (lanes->state == SHUFFLE && !shuffled(lanes, count)) return false;
    if (lanes->state == MULTIPLY && !multiplied(lanes, count)) return false;
    for (u32 i = 0; i < count; i++) lanes[i].state = READY;
  }
}

// *** threadgroups

static bool executed() {
  begun = since_barrier = since_device_barrier = ++now, declared = 0;
  if (launch->fill >= 0) __builtin_memset(launch->memory, launch->fill, REGION);
  for (u32 t = 0; t < threads; t++) {
    Fiber &f = fibers[t];
    f.state = READY, f.arrays = 0;
    f.sp = prepared(launch->stacks + (t + 1) * launch->stack, body);
  }
  u32 simdgroups = (threads + LANES - 1) / LANES;
  for (;;) {
    u32 start = drawn();
    for (u32 i = 0; i < simdgroups; i++) {
      u32 first = (start + i) % simdgroups * LANES;
      if (!advanced(fibers + first, threads - first < LANES ? threads - first : LANES)) return false;
    }
    for (u32 t = 0; t < threads; t++) if (fibers[t].state != fibers->state || (fibers->state == AT_BARRIER && (
        fibers[t].line != fibers->line || fibers[t].flags != fibers->flags))) {
      failed(DIVERGENT_BARRIER, t);
      launch->fault.line = fibers[t].state == AT_BARRIER ? fibers[t].line : fibers->line, launch->fault.other = 0;
      return false;
    }
    if (fibers->state == DONE) return true;
    ++now;
    if (fibers->flags & MEM_THREADGROUP) since_barrier = now;
    if (fibers->flags & MEM_DEVICE) since_device_barrier = now;
    for (u32 t = 0; t < threads; t++) fibers[t].state = READY;
  }
}

// *** numbers: Apple's GPUs flush denormal floats to 0

#if defined(__x86_64__)
static u32 flushing(u32 control) {                             // returns the previous control word
  u32 was = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(control);
  return was;
}
enum { FLUSH = 0x9fc0 };                                       // no traps, round to nearest, flush denormals to 0
#else
static u64 flushing(u64 control) {
  u64 was;
  asm volatile("mrs %0, fpcr\nmsr fpcr, %1" : "=&r"(was) : "r"(control));
  return was;
}
enum { FLUSH = 1 << 24 };
#endif

static u64 common_divisor(u64 a, u64 b) {
  while (b) { u64 rest = a % b; a = b, b = rest; }
  return a;
}

// Returns 0, the kind of the fault that ended the launch, or -1 if the clock has reached 2^31
extern "C" int msl_launch(Launch *of) {
  if (now >> 31) return -1;
  launch = of, last = of->buffers, launched = ++now, of->fault.kind = 0, again.bytes = 0;
  random_state = of->seed * 0x9e3779b97f4a7c15ul | 1;
  for (int i = 0; i < 8; i++) drawn();
  threads = of->block[0] * of->block[1] * of->block[2];
  for (u64 i = 0; i < of->count; i++) of->buffers[i].stored = 0;
  u64 groups = u64(of->grid[0]) * of->grid[1] * of->grid[2], start = drawn() % groups, step = 1 + drawn() % groups;
  while (common_divisor(step, groups) != 1) step++;
  auto was = flushing(FLUSH);
  for (u64 i = 0; i < groups; i++) {
    u64 g = (start + i * step) % groups;
    group[0] = u32(g % of->grid[0]), group[1] = u32(g / of->grid[0] % of->grid[1]);
    group[2] = u32(g / of->grid[0] / of->grid[1]);
    if (!executed()) break;
  }
  flushing(was);
  return of->fault.kind;
}
