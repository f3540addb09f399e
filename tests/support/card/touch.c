/* Each access to the card's memory, judged: bounds, alignment, what was written, races. card.h has the rules. */
#include "runtime.h"

/* Whether a word that is written changes; with CARD_CLOSE, floats that are 2 ** -20 of them apart are the same. */
static inline int changes(Thread *t, const u8 *old, const u8 *new_, u32 n) {
  float a, b;
  if (!__builtin_memcmp(old, new_, n)) return 0;
  if (!t->close || n != 4) return 1;
  __builtin_memcpy(&a, old, 4), __builtin_memcpy(&b, new_, 4);
  return !(__builtin_fabsf(a - b) <= 0x1p-20f * __builtin_fabsf(a));
}

/*
Where n bytes are, once it is known that this thread may touch them now: read them, or write `value` there.
*/
u8 *touch(Thread *t, u64 address, u32 n, u32 site, const u8 *value) {
  u64 at = address - DEVICE;
  if (address & (n - 1)) t->fault(t, MISALIGNED, address, n, site);
  if (at > ARENA - n) { t->fault(t, OUTSIDE, address, n, site); return t->arena; }
  int shared = at < SHARED_ROOM;
  if (shared && at + n > t->shared_size) t->fault(t, SHARED_OVERRUN, at, n, site);
  u32 bytes = n < 4 ? ((1u << n) - 1) << (at & 3) : 15;
  u64 me = t->stamp | bytes;
  Shadow *s = t->shadow + at / 4;
  for (u32 i = 0; i < n; i += 4, s++) {
    u64 w = s->written, r = s->read;
    int now = LAUNCH(w) == LAUNCH(me), other_block = BLOCK(w) != BLOCK(me);
    if (shared ? !now || other_block : w <= FRESH) {   /* nothing of this block, or of anybody, is here */
      if (!shared && w == NONE) t->fault(t, OUTSIDE, address, n, site);
      else if (!value) t->fault(t, UNWRITTEN, address, n, site);
      now = 0;
    }
    int other_thread = PHASE(w) == PHASE(me) && THREAD(w) != THREAD(me);
    int several = n < 4 && (BLOCK(w) == 1048575 || THREAD(w) == 2047);
    int changed = !value || changes(t, t->arena + at + i, value + i, n < 4 ? n : 4);
    if (now && (other_block || other_thread) && BYTES(w) & bytes && !several && changed)
      t->fault(t, other_block ? RACE_BLOCKS : RACE_THREADS, address, n, site);
    int read = LAUNCH(r) == LAUNCH(me) && (!shared || BLOCK(r) == BLOCK(me)), read_block = BLOCK(r) != BLOCK(me);
    int read_thread = PHASE(r) == PHASE(me) && THREAD(r) != THREAD(me);
    if (value) {
      several = n < 4 && (BLOCK(r) == 1048575 || THREAD(r) == 2047);
      if (read && (read_block || read_thread) && BYTES(r) & bytes && !several && changed)
        t->fault(t, read_block ? RACE_BLOCKS : RACE_THREADS, address, n, site);
      int part = now && n < 4;
      s->written = me | (part ? BYTES(w) | (other_block ? SEVERAL_BLOCKS : other_thread ? SEVERAL_THREADS : 0) : 0);
    } else {
      s->read = !read ? me : me | BYTES(r) | (read_block ? SEVERAL_BLOCKS : read_thread ? SEVERAL_THREADS : 0);
    }
  }
  return t->arena + at;
}
