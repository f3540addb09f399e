/*
Device memory: buffers in one arena, and their shadow. No address is reused. A new buffer is filled with 0xff, new
pinned host memory with 0xee.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "runtime.h"

enum { PAGE = 4096, GAP = 1 << 20 };  /* GAP: unused addresses between two buffers */
typedef struct { u64 at, bytes; } Buffer;
u8 *arena;
Shadow *shadow;
static Buffer *buffers, *pins;
static u32 buffer_count, pin_count;
static u64 next = SHARED_ROOM + GAP, used, most_used, pinned_bytes, most_pinned, launches;

void *reserve(u64 bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}
int open_memory(void) {
  if (!arena) arena = reserve(ARENA);
  if (!shadow) shadow = reserve(ARENA / 4 * sizeof(Shadow));
  return arena && shadow;
}
/* Zeroes a range; its whole pages are returned to the system. */
static void clear(u8 *at, u64 bytes) {
  u8 *first = (u8 *)(((u64)at + PAGE - 1) / PAGE * PAGE), *last = (u8 *)(((u64)at + bytes) / PAGE * PAGE);
  if (first >= last) { memset(at, 0, bytes); return; }
  memset(at, 0, first - at);
  madvise(first, last - first, MADV_DONTNEED);
  memset(last, 0, at + bytes - last);
}
static void mark(u64 at, u64 bytes, u64 written) {
  for (u64 i = at / 4; i < (at + bytes + 3) / 4; i++) shadow[i] = (Shadow){written, NONE};
}
static u64 rounded(u64 bytes) { return (bytes + 511) / 512 * 512; }

u64 allocate(u64 bytes) {
  if (used + rounded(bytes) > (u64)setting("MEMORY", 32l << 30) || next + bytes + 2 * GAP > ARENA) return 0;
  buffers = grown(buffers, buffer_count, sizeof *buffers);
  buffers[buffer_count++] = (Buffer){next, bytes};
  memset(arena + next, 0xff, bytes);
  mark(next, bytes, FRESH);
  if ((used += rounded(bytes)) > most_used) most_used = used;
  u64 at = next;
  next = (next + bytes + GAP + 511) / 512 * 512;
  return DEVICE + at;
}
static Buffer *holds(u64 address, u64 bytes) {  /* binary search: buffers are sorted by address */
  u32 low = 0, high = buffer_count;
  u64 at = address - DEVICE;
  while (low < high) {
    u32 middle = (low + high) / 2;
    if (buffers[middle].at <= at) low = middle + 1; else high = middle;
  }
  return low && at + bytes <= buffers[low - 1].at + buffers[low - 1].bytes ? &buffers[low - 1] : NULL;
}
int release(u64 address) {
  Buffer *b = holds(address, 1);
  if (!b || b->at != address - DEVICE) return 0;
  used -= rounded(b->bytes);
  clear(arena + b->at, b->bytes);
  clear((u8 *)(shadow + b->at / 4), (b->bytes + 3) / 4 * sizeof(Shadow));
  memmove(b, b + 1, (u8 *)(buffers + --buffer_count) - (u8 *)b);
  return 1;
}
int of_one_buffer(u64 address, u64 bytes) { return holds(address, bytes) != NULL; }
u8 *on_host(u64 address) { return arena + (address - DEVICE); }
void written_by_host(u64 address, u64 bytes) { mark(address - DEVICE, bytes, HOST); }

void *pin(u64 bytes) {
  if (pinned_bytes + bytes > (u64)setting("PINNED", 32l << 30)) return NULL;
  u8 *at = reserve((bytes + PAGE - 1) / PAGE * PAGE);
  if (!at) return NULL;
  memset(at, 0xee, bytes);
  pins = grown(pins, pin_count, sizeof *pins);
  pins[pin_count++] = (Buffer){(u64)at, bytes};
  if ((pinned_bytes += bytes) > most_pinned) most_pinned = pinned_bytes;
  return at;
}
static Buffer *pin_of(const void *at, u64 bytes) {
  for (Buffer *p = pins; p < pins + pin_count; p++)
    if ((u64)at - p->at < p->bytes && (u64)at + bytes <= p->at + p->bytes) return p;
  return NULL;
}
int pinned(const void *at, u64 bytes) { return pin_of(at, bytes) != NULL; }
int unpin(void *at) {
  Buffer *p = pin_of(at, 1);
  if (!p || p->at != (u64)at) return 0;
  pinned_bytes -= p->bytes;
  munmap(at, (p->bytes + PAGE - 1) / PAGE * PAGE);
  *p = (Buffer){0, 0};  /* entries are never removed from the list */
  return 1;
}

u64 next_launch(void) {
  if (launches == LAST_LAUNCH) {  /* numbers start again: old stamps are replaced, else they would look new */
    for (Buffer *b = buffers; b < buffers + buffer_count; b++)
      for (u64 w = b->at / 4; w < (b->at + b->bytes + 3) / 4; w++)
        if (shadow[w].written != FRESH) shadow[w] = (Shadow){HOST, NONE};
    clear((u8 *)shadow, SHARED_ROOM / 4 * sizeof(Shadow));
    launches = 0;
  }
  return ++launches;
}
void forget_memory(void) {
  while (buffer_count) release(DEVICE + buffers[buffer_count - 1].at);
  for (u32 i = 0; i < pin_count; i++) if (pins[i].bytes) unpin((void *)pins[i].at);
  pin_count = 0, free(pins), pins = NULL;
}
void note_memory(void) { note("at most %llu bytes of the card, %llu pinned of the host", most_used, most_pinned); }
