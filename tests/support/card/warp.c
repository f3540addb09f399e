/*
Exchanges between threads of a warp. A thread's inputs are `in`, its results `out`. `together`: mask of arrived lanes.
*/
#include <string.h>
#include "runtime.h"

/* The source lane of a shuffle, which may be the lane itself. *inside: the shuffle's predicate. */
static int source(u32 meeting, u32 lane, u32 b, u32 c, u32 *inside) {
  u32 segment = c >> 8 & 31, clamp = c & 31, last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  b &= 31;
  int from = meeting == SHFL_UP ? (int)lane - (int)b : meeting == SHFL_DOWN ? lane + b : meeting == SHFL_BFLY ? lane ^ b
    : first | (b & ~segment & 31);
  *inside = meeting == SHFL_UP ? from >= (int)last : from <= (int)last;
  return *inside ? from : (int)lane;
}
static u32 reduced(u32 meeting, u32 a, u32 b) {
  switch (meeting) {
    case REDUX_ADD: return a + b;
    case REDUX_AND: return a & b;
    case REDUX_OR: return a | b;
    case REDUX_XOR: return a ^ b;
    case REDUX_MIN_U32: return a < b ? a : b;
    case REDUX_MAX_U32: return a > b ? a : b;
    case REDUX_MIN_S32: return (s32)a < (s32)b ? a : b;
    default: return (s32)a > (s32)b ? a : b;
  }
}

/*
D = A B + C. A is 16 x k, B is k x 8. For 16-bit A and B, lane l holds two neighbours of each 8x8 part: in row l / 4 of
A, C and D, in column l / 4 of B (figures in the PTX manual). in[0..3] is A, in[4..5] B, in[8..11] C, in[12] k.
in[13] is the type of A and B ('h' half, 'b' bfloat16, 't' tf32), in[14] the type of C and D ('f' float or 'h').
*/
static float number(u32 word, u32 part, u32 kind) {
  u16 half = word >> 16 * part;
  u32 wide = kind == 't' ? word & ~0x1fffu : kind == 'f' ? word : (u32)half << 16;
  float value;
  memcpy(&value, &wide, 4);
  if (kind == 'h') { _Float16 h; memcpy(&h, &half, 2); value = (float)h; }
  return value;
}
static void multiply(Thread *warp) {
  static float A[16][16], B[16][8], C[16][8];
  u32 k = warp->in[12], kind = warp->in[13], sums = warp->in[14], each = kind == 't' ? 1 : 2;  /* numbers in a word */
  for (u32 l = 0; l < 32; l++) {
    u32 row = l / 4, q = l % 4, *in = warp[l].in;
    for (u32 w = 0; w < k / 2 / each; w++) for (u32 i = 0; i < each; i++)
      A[row + 8 * (w % 2)][q * each + i + 4 * each * (w / 2)] = number(in[w], i, kind);
    for (u32 w = 0; w < k / 4 / each; w++) for (u32 i = 0; i < each; i++)
      B[q * each + i + 4 * each * w][row] = number(in[4 + w], i, kind);
    for (u32 i = 0; i < 4; i++)
      C[row + 8 * (i / 2)][2 * q + i % 2] = sums == 'f' ? number(in[8 + i], 0, 'f') : number(in[8 + i / 2], i % 2, 'h');
  }
  for (u32 m = 0; m < 16; m++) for (u32 n = 0; n < 8; n++) {
    double sum = C[m][n];
    for (u32 j = 0; j < k; j++) sum += (double)A[m][j] * B[j][n];
    C[m][n] = sum;
  }
  for (u32 l = 0; l < 32; l++) for (u32 i = 0; i < 4; i++) {
    float value = C[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
    _Float16 half = (_Float16)value;
    if (sums == 'f') memcpy(&warp[l].out[i], &value, 4);
    else memcpy((u16 *)&warp[l].out[i / 2] + i % 2, &half, 2);
  }
}
/* ldmatrix: in[1] matrices of 8x8 halves. Lane 8 m + r has loaded row r of matrix m to in[4..7]. */
static void matrices(Thread *warp) {
  u32 count = warp->in[1], transposed = warp->in[2];
  for (u32 m = 0; m < count; m++) for (u32 l = 0; l < 32; l++) {
    u16 pair[2];
    for (u32 i = 0; i < 2; i++) {
      u32 row = transposed ? 2 * (l % 4) + i : l / 4, column = transposed ? l / 4 : 2 * (l % 4) + i;
      pair[i] = warp[8 * m + row].in[4 + column / 2] >> 16 * (column % 2);
    }
    warp[l].out[m] = pair[0] | (u32)pair[1] << 16;
  }
}

const char *exchange(Thread *warp, u32 lanes, u32 together, u32 meeting) {
  u32 all = lanes == 32 ? ~0u : (1u << lanes) - 1, first = __builtin_ctz(together);
  u32 votes = 0, result = warp[first].in[0];
  if (meeting == MMA || meeting == LDMATRIX) {
    if (together != ~0u) return "a matrix instruction without all threads of its warp";
    if (meeting == MMA) multiply(warp); else matrices(warp);
    return NULL;
  }
  for (u32 l = 0; l < lanes; l++) if (together >> l & 1 && (warp[l].mask & all) != together)
    return warp[l].mask & ~together & all ? "an exchange without all threads of its mask"
      : "an exchange of a thread that is not of its mask";
  if (meeting == WARP_SYNC) return NULL;
  for (u32 l = 0; l < lanes; l++) if (together >> l & 1) {
    u32 *in = warp[l].in, inside;
    if (meeting <= SHFL_IDX) {
      int from = source(meeting, l, in[1], in[2], &inside);
      if (from < 0 || !(together >> from & 1)) return "a shuffle from a thread that is not there";
      warp[l].out[0] = warp[from].in[0];
      warp[l].out[1] = inside;
    } else if (meeting <= VOTE_BALLOT) votes |= (u32)!!in[0] << l;
    else if (l != first) result = reduced(meeting, result, in[0]);
  }
  if (meeting <= SHFL_IDX) return NULL;
  if (meeting <= VOTE_BALLOT) result = meeting == VOTE_ANY ? !!votes : meeting == VOTE_ALL ? votes == together : votes;
  for (u32 l = 0; l < lanes; l++) if (together >> l & 1) warp[l].out[0] = result;
  return NULL;
}
