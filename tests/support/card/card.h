/*
What kernels and the runtime share: a thread, the memory of the card, and the shadow that says who touched it.

Freestanding: a translated kernel includes this and kernel.h, nothing of the system.

Memory is one arena. An address on the card is DEVICE + offset, which no host address is. Each word of 4 bytes has a
shadow: who wrote it last, who read it last. Such a stamp has these fields, from the top:

  launch 14 | block 20 | phase 15 (barriers passed) | thread 11 | bytes 4 (of the word, that were touched)

Two accesses to the same bytes, one of them a write, race if they are of one launch and of different blocks, or of one
phase and of different threads. A field that is all ones says "several": where bytes of a word have several owners, an
access to part of the word is not judged. The first numbers are no stamps but NONE, FRESH and HOST.
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

#define DEVICE 0x8000000000ull     /* where the arena begins for kernels: NV wants 40 bits */
#define ARENA (1ull << 36)         /* its size, of which pages come into being when they are touched */
#define SHARED_ROOM (256ull << 10) /* shared memory of the block that runs: the first bytes of the arena */
#define LOCAL 0x400000000000ull    /* generic addresses of a thread's own memory */

#define NONE 0ull                  /* no memory: not allocated, or freed */
#define FRESH 1ull                 /* allocated, never written */
#define HOST 2ull                  /* written by a copy */
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
  u64 stamp;                       /* launch, block, phase and thread; no bytes */
  u8 *arena;
  Shadow *shadow;
  u32 shared_size, close;          /* close: floats that differ little are the same, for races */
  u8 *(*touch)(Thread *, u64 address, u32 bytes, u32 site, const u8 *value);  /* value 0: a read */
  void (*meet)(Thread *, u32 meeting, u32 site);                          /* returns when the others are there */
  void (*fault)(Thread *, u32 kind, u64 address, u32 bytes, u32 site);    /* returns for UNWRITTEN alone, if at all */
  u32 meeting, site;
  u32 in[16], out[8], mask;        /* what a thread brings to a meeting, and takes; the lanes that must be there */
  int state;
  void *stack;
};

typedef struct {
  const char *name;
  void (*code)(Thread *, const u8 *arguments);
  u32 argument_bytes, meets, shared_bytes, most_threads;
  u32 arguments;
  const u32 *places;               /* offset and size of each argument */
  const char *const *sites;        /* the instructions, as they were written */
} Entry;
#endif
