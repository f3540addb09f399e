/* Checks each access to device memory: bounds, alignment, uninitialised reads, races. card.h documents the rules. */
#include "runtime.h"

/* Whether a write changes a word. With CARD_CLOSE, floats within a relative difference of 2 ** -20 are equal. */
static inline int changes(Thread *t, const u8 *old, const u8 *new_, u32 n) {
  float a, b;
  if (!__builtin_memcmp(old, new_, n)) return 0;
  if (!t->close || n != 4) return 1;
  __builtin_memcpy(&a, old, 4), __builtin_memcpy(&b, new_, 4);
  return !(__builtin_fabsf(a - b) <= 0x1p-20f * __builtin_fabsf(a));
}

/* Whether an earlier access and mine are unordered: by different blocks, or by threads with no barrier between. */
enum { ORDERED, OTHER_THREAD, OTHER_BLOCK };
static int apart(u64 stamp, u64 me) {
  if (LAUNCH(stamp) != LAUNCH(me)) return ORDERED;
  if (BLOCK(stamp) != BLOCK(me)) return OTHER_BLOCK;
  return PHASE(stamp) == PHASE(me) && THREAD(stamp) != THREAD(me) ? OTHER_THREAD : ORDERED;
}
/* Whether both access the same bytes. 0 if I access part of a word that several threads or blocks accessed. */
static int meets(u64 stamp, u64 me) {
  int several = BLOCK(stamp) == BLOCK(SEVERAL_BLOCKS) || THREAD(stamp) == THREAD(SEVERAL_THREADS);
  return BYTES(stamp) & BYTES(me) && (BYTES(me) == 15 || !several);
}
/* A stamp that stands for both accesses. */
static u64 joined(u64 stamp, u64 me, int how) {
  if (LAUNCH(stamp) != LAUNCH(me)) return me;
  return me | BYTES(stamp) | (how == OTHER_BLOCK ? SEVERAL_BLOCKS : how == OTHER_THREAD ? SEVERAL_THREADS : 0);
}
static u64 of_this_block(u64 stamp, u64 me) {
  return LAUNCH(stamp) == LAUNCH(me) && BLOCK(stamp) == BLOCK(me) ? stamp : FRESH;
}

u8 *touch(Thread *t, u64 address, u32 n, u32 site, const u8 *value) {
  static const int race[] = {[OTHER_THREAD] = RACE_THREADS, [OTHER_BLOCK] = RACE_BLOCKS};
  u64 at = address - DEVICE;
  if (address & (n - 1)) t->fault(t, MISALIGNED, address, n, site);
  if (at > ARENA - n) t->fault(t, OUTSIDE, address, n, site);
  int shared = at < SHARED_ROOM;
  if (shared && at + n > t->shared_size) t->fault(t, SHARED_OVERRUN, at, n, site);
  u32 bytes = n < 4 ? ((1u << n) - 1) << (at & 3) : 15;
  u64 me = t->stamp | bytes;
  Shadow *s = t->shadow + at / 4;
  for (u32 i = 0; i < n; i += 4, s++) {
    u64 written = s->written, read = s->read;
    if (shared) written = of_this_block(written, me), read = of_this_block(read, me);
    if (written == NONE) t->fault(t, OUTSIDE, address, n, site);
    if (written == FRESH && !value) t->fault(t, UNWRITTEN, address, n, site);
    int writer = apart(written, me), reader = apart(read, me);
    int changed = !value || changes(t, t->arena + at + i, value + i, n < 4 ? n : 4);
    if (writer && changed && meets(written, me)) t->fault(t, race[writer], address, n, site);
    if (reader && changed && meets(read, me) && value) t->fault(t, race[reader], address, n, site);
    if (value) s->written = n < 4 ? joined(written, me, writer) : me;
    else s->read = joined(read, me, reader);
  }
  return t->arena + at;
}
