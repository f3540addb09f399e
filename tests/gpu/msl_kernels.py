"""Metal kernels in tinygrad's style, for tests of the executor in tests/support/msl."""
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
POSITIONS = "uint3 gid [[threadgroup_position_in_grid]], uint3 lid [[thread_position_in_threadgroup]]"

def kernel(arguments: str, *lines: str) -> str:
  """A kernel named `test`, with gidx0 = gid.x and lidx0 = lid.x."""
  body = "\n".join(("  int gidx0 = gid.x;", "  int lidx0 = lid.x;", *(f"  {line}" for line in lines)))
  return f"{HEAD}kernel void test({arguments}, {POSITIONS}) {{\n{body}\n}}"

ROWS, N = 12, 256  # shape of SUMS
# a threadgroup of two simdgroups sums a row: with shuffles, then through threadgroup memory
SUMS = kernel(
  "device float* data0_12, device float* data1_3072",
  "threadgroup __attribute__((aligned(16))) float buf0[2];",
  "float4 val0 = (*((device float4*)((data1_3072+((gidx0<<8)+(lidx0<<2))))));",
  "float sum0 = (val0.x+val0[1]+val0.z+val0.w);",
  *(f"sum0 = (sum0+simd_shuffle_xor(sum0, {bit}));" for bit in (16, 8, 4, 2, 1)),
  "if (((lidx0&31)==0)) {", "  *(buf0+(lidx0>>5)) = sum0;", "}",
  "threadgroup_barrier(mem_flags::mem_threadgroup);",
  "float val1 = ((*(buf0+0))+(*(buf0+1)));",
  "*(data0_12+gidx0) = val1;")

K = 32  # PRODUCT multiplies 8 x K by K x 8
# threads share their loads; all iterations use the same two arrays, and A's elements are loaded one by one
PRODUCT = kernel(
  "device float* data0_64, device half* data1_256, device half* data2_256, constant int& steps",
  "threadgroup __attribute__((aligned(16))) half buf0[64];",
  "threadgroup __attribute__((aligned(16))) half buf1[64];",
  "int row = (((lidx0>>1)&3)+((lidx0>>4)<<2));",
  "int column = (((lidx0&1)<<1)+(((lidx0>>3)&1)<<2));",
  "simdgroup_half8x8 mat_a, mat_b; simdgroup_float8x8 mat_c;",
  "mat_c.thread_elements()[0] = 0.0f; mat_c.thread_elements()[1] = 0.0f;",
  "for (int step = 0; step < steps; step++) {",
  "  half2 val0 = (*((device half2*)((data1_256+(((lidx0>>2)<<5)+(step<<3)+((lidx0&3)<<1))))));",
  "  half2 val1 = (*((device half2*)((data2_256+((step<<6)+(lidx0<<1))))));",
  "  *((threadgroup half2*)((buf0+(lidx0<<1)))) = val0;",
  "  *((threadgroup half2*)((buf1+(lidx0<<1)))) = val1;",
  "  threadgroup_barrier(mem_flags::mem_threadgroup);",
  "  mat_a.thread_elements()[0] = (*(buf0+((row<<3)+column)));",
  "  mat_a.thread_elements()[1] = (*(buf0+((row<<3)+column+1)));",
  "  simdgroup_load(mat_b, buf1, 8);",
  "  simdgroup_multiply_accumulate(mat_c, mat_a, mat_b, mat_c);",
  "  threadgroup_barrier(mem_flags::mem_threadgroup);",
  "}",
  "simdgroup_store(mat_c, data0_64, 8);")

# data0: functions of two float32 a, b; the other results in the order of `elements`
ELEMENTS = kernel(
  "device float* data0_640, device half* data1_384, device uint* data2_256, device float* data3_128, constant int& n",
  "float a = (*(data3_128+lidx0)), b = (*(data3_128+(lidx0+64)));",
  "half2 h = half2(((half)(a)),((half)(b)));",
  "float4 f = float4(a,b,((float)(h.x)),((float)(h.y)));",
  "uchar4 bytes = as_type<uchar4>(a);",
  "*(data0_640+lidx0) = exp2(a);",
  "*(data0_640+(lidx0+64)) = log2(((a<0)?(-a):a));",
  "*(data0_640+(lidx0+128)) = sqrt(((a<0)?(-a):a));",
  "*(data0_640+(lidx0+192)) = trunc((a*n));",
  "*(data0_640+(lidx0+256)) = precise::sin(a);",
  "*(data0_640+(lidx0+320)) = (1/b);",
  "*(data0_640+(lidx0+384)) = f.wzyx.x;",
  "*(data0_640+(lidx0+448)) = ((float)(as_type<bfloat>((ushort)((as_type<uint>(a)>>16u)))));",
  "*(data0_640+(lidx0+512)) = (f.xy*f[2]).y;",
  "*(data0_640+(lidx0+576)) = ((float)(((bfloat)(a))));",
  "*(data1_384+lidx0) = (h.x+h.y);",
  "*(data1_384+(lidx0+64)) = (h.x*h.y+h.x);",
  "*(data1_384+(lidx0+128)) = exp2(h.x);",
  "*(data1_384+(lidx0+192)) = sqrt((h.x*h.x));",
  "*((device half2*)((data1_384+(256+(lidx0<<1))))) = h;",
  "*(data2_256+lidx0) = ((uint)(bytes.w))+(((uint)(bytes.x))<<8u);",
  "*(data2_256+(lidx0+64)) = ((uint)(((int)((a*100.0f)))));",
  "*(data2_256+(lidx0+128)) = simd_shuffle(as_type<uint>(a), ((lidx0*5+n)&31));",
  "*(data2_256+(lidx0+192)) = ((uint)(as_type<ushort>(simd_shuffle_xor(h.x, 7))));")
