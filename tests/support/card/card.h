/*
Definitions that kernels and the runtime share: a thread, device memory, and the shadow that records who accessed it.

The header is freestanding: a translated kernel includes this file and kernel.h, and no system header.

Device memory is one arena. A device address is DEVICE + offset, which is never a host address. Each 4-byte word has a
shadow with two stamps: its last write and its last read. A stamp has these bit fields, highest first:

  launch 14 | block 20 | phase 15 (barriers passed) | thread 11 | bytes 4 (a mask of the word's bytes accessed)

Two accesses to the same bytes, at least one of them a write, race in two cases. They belong to one launch and different
blocks; or to one block and phase and different threads. A field of all ones means "several". If several threads or
blocks accessed a word, accesses to parts of it are not checked. The lowest values are not stamps: NONE, FRESH and HOST.
*/
#ifndef CARD_H
#define CARD_H
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

#define DEVICE 0x8000000000ull     /* device address of the arena: NV needs 40 bits */
#define ARENA (1ull << 36)         /* bytes of the arena; pages are allocated when they are first touched */
#define SHARED_ROOM (256ull << 10) /* the arena's first bytes: shared memory of the running block */
#define LOCAL 0x400000000000ull    /* generic address of a thread's local memory */

#define NONE 0ull                  /* not allocated, or freed */
#define FRESH 1ull                 /* allocated, never written */
#define HOST 2ull                  /* written by a copy, not by a kernel */
#define BYTES(x) ((x) & 15)
#define THREAD(x) ((x) >> 4 & 2047)
#define PHASE(x) ((x) >> 15 & 32767)
#define BLOCK(x) ((x) >> 30 & 1048575)
#define LAUNCH(x) ((x) >> 50)
#define SEVERAL_THREADS (2047ull << 4)
#define SEVERAL_BLOCKS (1048575ull << 30)
#define NEXT_PHASE (1ull << 15)
#define LAST_LAUNCH 16383

typedef struct { u64 written, read; } Shadow;

enum Fault { OUTSIDE, MISALIGNED, RACE_THREADS, RACE_BLOCKS, UNWRITTEN, SHARED_OVERRUN, LOCAL_OVERRUN, TRAP };

enum Meeting { BARRIER, WARP_SYNC, SHFL_BFLY, SHFL_UP, SHFL_DOWN, SHFL_IDX, VOTE_ANY, VOTE_ALL, VOTE_BALLOT,
  REDUX_ADD, REDUX_AND, REDUX_OR, REDUX_XOR, REDUX_MIN_S32, REDUX_MAX_S32, REDUX_MIN_U32, REDUX_MAX_U32,
  MMA, LDMATRIX };

typedef struct Thread Thread;
struct Thread {
  u32 tid[3], ntid[3], ctaid[3], nctaid[3], lane, warp;
  u64 stamp;                       /* launch, block, phase and thread; bytes is 0 */
  u8 *arena;
  Shadow *shadow;
  u32 shared_size, close;          /* close: CARD_CLOSE, see changes() in touch.c */
  u8 *(*touch)(Thread *, u64 address, u32 bytes, u32 site, const u8 *value);  /* value NULL: a read */
  void (*meet)(Thread *, u32 meeting, u32 site);                          /* returns when all others have arrived */
  void (*fault)(Thread *, u32 kind, u64 address, u32 bytes, u32 site);    /* returns at most for UNWRITTEN */
  u32 meeting, site;
  u32 in[16], out[8], mask;        /* inputs, results and member mask of a meeting */
  int state;
  void *stack;
};

typedef struct {
  const char *name;
  void (*code)(Thread *, const u8 *arguments);
  u32 argument_bytes, meets, shared_bytes, most_threads;
  u32 arguments;
  const u32 *places;               /* offset and bytes of each argument */
  const char *const *sites;        /* the PTX text of each instruction, for reports */
} Entry;
#endif
