/*
PTX instructions that are not a single C operator, for translated kernels. Freestanding C for clang.
*/
#include "card.h"
#define NAN_ __builtin_nanf("")
float exp2f(float), log2f(float), sqrtf(float), sinf(float), cosf(float), tanhf(float);
double sqrt(double);

/* *** conversions between numbers and their bits */
static inline float f32_of(u32 x) { float f; __builtin_memcpy(&f, &x, 4); return f; }
static inline u32 bits_f32(float f) { u32 x; __builtin_memcpy(&x, &f, 4); return x; }
static inline double f64_of(u64 x) { double f; __builtin_memcpy(&f, &x, 8); return f; }
static inline u64 bits_f64(double f) { u64 x; __builtin_memcpy(&x, &f, 8); return x; }
static inline float f16_of(u16 x) { _Float16 h; __builtin_memcpy(&h, &x, 2); return (float)h; }
/* Rounds x to odd: an inexact result has an odd last bit. Rounding it again to 16 bits is then correctly rounded. */
static inline u32 odd_f32(double x) {
  float f = (float)x;
  u32 b = bits_f32(f);
  if ((double)f == x || x != x || __builtin_isinf(f)) return b;
  return (b - (__builtin_fabs((double)f) > __builtin_fabs(x))) | 1;
}
static inline u16 bits_f16(double x) {
  _Float16 h = (_Float16)f32_of(odd_f32(x));
  u16 y;
  __builtin_memcpy(&y, &h, 2);
  return y;
}
static inline float bf16_of(u16 x) { return f32_of((u32)x << 16); }
static inline u16 bits_bf16(double x) {
  u32 b = odd_f32(x);
  return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
static inline float flush(float f) { return __builtin_fabsf(f) < 0x1p-126f ? __builtin_copysignf(0, f) : f; }
static inline double saturate(double x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline double least(double a, double b) {
  return a != a ? b : b != b ? a : a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
static inline double most(double a, double b) {
  return a != a ? b : b != b ? a : a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}
static inline float divide_fast(float a, float b) {
  if (__builtin_fabsf(b) <= 0x1p126f) return a / b;
  return __builtin_isinf(a) ? NAN_ : a * 0 * __builtin_copysignf(1, b);
}
static inline s64 to_signed(double x, int bits) {
  double top = bits == 64 ? 0x1p63 : (double)(1ll << (bits - 1));
  return x != x ? 0 : x >= top ? (s64)((1ull << (bits - 1)) - 1) : x < -top ? (s64)(~0ull << (bits - 1)) : (s64)x;
}
static inline u64 to_unsigned(double x, int bits) {
  double top = bits == 64 ? 0x1p64 : (double)(1ull << bits);
  return !(x > 0) ? 0 : x >= top ? ~0ull >> (64 - bits) : (u64)x;
}

/* *** integers */
static inline u32 shift_left(u32 low, u32 high, u32 n) {
  return !n ? high : n > 31 ? low : high << n | low >> (32 - n);
}
static inline u32 shift_right(u32 low, u32 high, u32 n) {
  return !n ? low : n > 31 ? high : high << (32 - n) | low >> n;
}
static inline u32 permute(u32 a, u32 b, u32 selectors) {
  u64 bytes = (u64)b << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = selectors >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 255;
    result |= (s & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return result;
}
static inline u32 logic(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 i = 0; i < 8; i++) if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return result;
}
static inline u64 field_mask(u32 length, u32 bits) {
  return length >= bits ? ~0ull >> (64 - bits) : (1ull << length) - 1;
}
static inline u64 extract(u64 a, u32 start, u32 length, u32 bits) {
  start &= 255;
  return start < bits ? a >> start & field_mask(length & 255, bits) : 0;
}
static inline u64 extract_signed(u64 a, u32 start, u32 length, u32 bits) {
  start &= 255, length &= 255;
  if (!length) return 0;
  u32 last = start + length - 1 < bits - 1 ? start + length - 1 : bits - 1;
  u64 found = extract(a, start, length, bits), taken = start < bits ? last - start + 1 : 0;
  return a >> last & 1 ? found | (taken < 64 ? ~0ull << taken : 0) : found;
}
static inline u64 insert(u64 a, u64 b, u32 start, u32 length, u32 bits) {
  start &= 255;
  u64 mask = start < bits ? field_mask(length & 255, bits) << start : 0;
  return (b & ~mask) | (start < bits ? a << start & mask : 0);
}
static inline u32 reverse(u32 x) { u32 r = 0; for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i); return r; }
#define BYTE_PRODUCT(A, B, a, b, i) (A)((a) >> 8 * i) * (B)((b) >> 8 * i)
#define DOT(A, B, a, b, c) ((c) + BYTE_PRODUCT(A, B, a, b, 0) + BYTE_PRODUCT(A, B, a, b, 1) + \
  BYTE_PRODUCT(A, B, a, b, 2) + BYTE_PRODUCT(A, B, a, b, 3))

/* *** memory: checks an access of n bytes and gives their host address; touch() is in touch.c */
/* Local memory of a thread. Its addresses start at 0. */
static inline u8 *own(Thread *t, u8 *frame, u32 size, u64 at, u32 n, u32 site) {
  if (at & (n - 1)) t->fault(t, MISALIGNED, at, n, site);
  if (at + n > size || at + n < n) { t->fault(t, LOCAL_OVERRUN, at, n, site); return frame; }
  return frame + at;
}
#define COPY(to, from, n) __builtin_memcpy(to, from, n)
#define GLOBAL_AT(at, n, site, value) t->touch(t, at, n, site, value)
#define SHARED_AT(at, n, site, value) t->touch(t, DEVICE + (u32)(at), n, site, value)
#define LOCAL_AT(at, n, site, value) own(t, frame, sizeof frame, at, n, site)
#define GENERIC_AT(at, n, site, value) \
  ((at) - LOCAL < sizeof frame ? LOCAL_AT((at) - LOCAL, n, site, value) : t->touch(t, at, n, site, value))
