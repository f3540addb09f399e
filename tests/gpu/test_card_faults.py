"""
Planted faults: the simulated GPU finds each small edit of a kernel's PTX, and each misuse by the host.

A fault shows in a report that names it, or ("numbers") in a wrong result, since the simulator does everything at the
worst time that a GPU allows. Each kernel also runs without a fault: no report, and right results.
"""
import contextlib
import ctypes
import functools
import os
import re
import signal
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from tests.support.card import build
from tests.support.card.driver import Card, CardError, KernelNode, nvrtc

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing())
N, BLOCKS = 64, 2  # threads of a block, blocks; a kernel gets out, in and n = 128
rng = np.random.default_rng(9)
IN = rng.standard_normal(N * BLOCKS).astype(np.float32)
NUMBERS = "numbers"

REVERSED = """
  __shared__ float s[64];
  for (int k = 0; k < 2; k++) {
    s[t] = in[i] + k;
    __syncthreads();
    out[i] = s[63 - t];
    __syncthreads();
  }"""
SUM = """
  float v = in[i];
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  out[i] = v;"""
COPY = "out[i] = in[i] * 2;"
IN_PLACE = "out[i] += in[i] * 2;"
TAIL = "if (i < n - 3) out[i] = in[i] * 2; else out[i] = 0;"
FOURS = "if (t < 16) { float4 v = ((const float4*)in)[i / 64 * 16 + t]; ((float4*)out)[i / 64 * 16 + t] = v; }"
OWN = """
  float a[8];
  for (int k = 0; k < 8; k++) a[k] = in[(i / 8 * 8 + k) % 128];
  int k = in[i] > 0 ? 7 - i % 8 : i % 8;
  out[i] = a[k];"""
DOTS = "out[i] = __dp4a(__float_as_int(in[i]), 0x01ff80fe, 5);"
PRODUCT = """
  unsigned a[4], b[2]; float c[4] = {0, 0, 0, 0};
  for (int k = 0; k < 4; k++) a[k] = 0x3c003c00u + ((t % 32 * 4 + k) << 20) / 2 * 2;
  for (int k = 0; k < 2; k++) b[k] = 0x3c003c00u + (t % 32 * 2 + k);
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  out[i] = c[0] + 3 * c[1] + 5 * c[2] + 7 * c[3];"""

def product() -> np.ndarray:
  """The expected result of PRODUCT, from the manual's fragment layout."""
  def halves(words: np.ndarray) -> np.ndarray: return words.astype(np.uint32)[..., None].view(np.float16).astype(float)
  t = np.arange(32)
  a = halves(0x3c003c00 + ((t[:, None] * 4 + np.arange(4)) << 20) // 2 * 2).reshape(32, 4, 2)
  b = halves(0x3c003c00 + t[:, None] * 2 + np.arange(2)).reshape(32, 2, 2)
  A, B = np.zeros((16, 16)), np.zeros((16, 8))
  for lane in range(32):
    row, q = lane // 4, lane % 4
    for w in range(4):
      for h in range(2): A[row + 8 * (w % 2), 2 * q + h + 8 * (w // 2)] = a[lane, w, h]
    for w in range(2):
      for h in range(2): B[2 * q + h + 8 * w, row] = b[lane, w, h]
  C = A @ B
  each = [C[x // 4 + 8 * (k // 2), 2 * (x % 4) + k % 2] for x in range(32) for k in range(4)]
  return np.tile(np.array(each).reshape(32, 4) @ [1, 3, 5, 7], 4)

def dots() -> np.ndarray:
  a, b = IN.view(np.int8).reshape(-1, 4).astype(int), np.array([0x01ff80fe], np.uint32).view(np.int8).astype(int)
  return a @ b + 5

WANT: dict[str, Callable[[], np.ndarray]] = {
  REVERSED: lambda: IN.reshape(2, 64)[:, ::-1].reshape(-1) + 1,
  SUM: lambda: np.repeat(IN.reshape(4, 32).astype(np.float64).sum(1), 32),
  COPY: lambda: IN * 2, IN_PLACE: lambda: IN * 2, TAIL: lambda: IN * 2 * (np.arange(128) < 125), FOURS: lambda: IN,
  OWN: lambda: IN[[i // 8 * 8 + (7 - i % 8 if IN[i] > 0 else i % 8) for i in range(128)]],
  DOTS: dots, PRODUCT: product,
}

class Fault(NamedTuple):
  name: str
  body: str
  pattern: str          # its first match in the PTX is replaced
  by: str
  found: str            # part of the report, or NUMBERS

OWN_LOAD = r"ld\.global\.f32(\s+%\w+), \[(%\w+)\](?=[\s\S]*st\.global\.f32\s+\[\2\])"  # from a stored address
BARRIER = r"bar(?:rier)?\.sync(?:\.aligned)?\s+0;"
GLOBAL_LOAD, GLOBAL_STORE = r"ld\.global\.f32(\s+%\w+), \[(%\w+)\]", r"st\.global\.f32(\s+)\[(%\w+)\]"
FAULTS = (
  Fault("wrong index", COPY, GLOBAL_LOAD, r"xor.b64 \2, \2, 4; ld.global.f32\1, [\2]", NUMBERS),
  Fault("missing barrier after stores", REVERSED, BARRIER, "", "a race between threads"),
  Fault("missing barrier before the next stores", REVERSED, rf"(?s)({BARRIER}.*?){BARRIER}", r"\1",
        "a race between threads"),
  Fault("race between threads, global", COPY, GLOBAL_STORE, r"and.b64 \2, \2, -8; st.global.f32\1[\2]",
        "a race between threads"),
  Fault("race between blocks, two writers", COPY, GLOBAL_STORE, r"and.b64 \2, \2, -257; st.global.f32\1[\2]",
        "a race between blocks"),
  Fault("race between threads, reader and writer", IN_PLACE, OWN_LOAD, r"xor.b64 %rx, \2, 4; ld.global.f32\1, [%rx]",
        "a race between threads"),
  Fault("race between blocks, reader and writer", IN_PLACE, OWN_LOAD, r"xor.b64 %rx, \2, 256; ld.global.f32\1, [%rx]",
        "a race between blocks"),
  Fault("overrun above", COPY, GLOBAL_LOAD, r"ld.global.f32\1, [\2+4]", "outside of all buffers"),
  Fault("overrun below", COPY, GLOBAL_LOAD, r"ld.global.f32\1, [\2+-4]", "outside of all buffers"),
  Fault("store without its guard", TAIL, r"@!?%p\d+ bra\s+\$\w+;", "", NUMBERS),
  Fault("misaligned vector", FOURS, r"(ld\.global\.v4\.\w+\s+\{[^}]*\}), \[(%\w+)\]", r"\1, [\2+8]",
        "misaligned"),
  Fault("misaligned number", COPY, GLOBAL_LOAD, r"ld.global.f32\1, [\2+2]", "misaligned"),
  Fault("shared memory overrun", REVERSED, r"ld\.shared\.f32(\s+%\w+), \[(%\w+)\]",
        r"ld.shared.f32\1, [\2+256]", "outside of the block's shared memory"),
  Fault("own memory overrun", OWN, r"ld\.local\.f32(\s+%\w+), \[(%\w+)\]", r"ld.local.f32\1, [\2+32]",
        "outside of the thread's own memory"),
  Fault("divergent shuffle", SUM, r"shfl\.sync\.bfly", "@%pt shfl.sync.bfly", "without all threads of its mask"),
  Fault("shuffle by a mask without some", SUM, r"(shfl\.sync\.bfly[^;]*?), (-1|0xffffffff|%r\d+);", r"\1, 0x7fffffff;",
        "a thread that is not of its mask"),
  Fault("shuffle over a wrong distance", SUM, r"(shfl\.sync\.bfly\.b32\s+[^,]*, %\w+), [^,]*,", r"\1, 3,", NUMBERS),
  Fault("divergent barrier", REVERSED, BARRIER, r"@%pt bra $odd; bar.sync 0; bra $even; $odd: bar.sync 0; $even:",
        "different barriers"),
  Fault("threads that end before a barrier", REVERSED, BARRIER, "@%pt ret; bar.sync 0;", "not all threads"),
  Fault("barrier where others shuffle", SUM, r"shfl\.sync\.bfly", "@%pt bar.sync 0; shfl.sync.bfly",
        "without all threads of its mask"),
  Fault("wrong fragment of a matrix", PRODUCT, r"(mma\.sync[^{]*\{[^}]*\}, \{)([^,]*),([^,]*),", r"\1\3,\2,", NUMBERS),
  Fault("matrix product by a part of a warp", PRODUCT, r"mma\.sync", "@%pt mma.sync",
        "without all threads of its warp"),
  Fault("unsigned bytes for signed ones", DOTS, r"dp4a\.s32\.s32", "dp4a.u32.s32", NUMBERS),
  Fault("a pointer of the host", COPY, r"cvta\.to\.global\.u64(\s+%\w+), (%\w+)", r"add.s64\1, \2, 0x7f0000000000",
        "outside of all buffers"),
  Fault("an instruction that is not known", COPY, GLOBAL_STORE, r"vadd.s32 %ra, %ra, %ra; st.global.f32\1[\2]",
        "`vadd.s32 %ra, %ra, %ra`"),
)

@functools.cache
def source(body: str) -> str:
  """PTX of a kernel k(out, in, n), with a predicate %pt (true for odd threads) that faults may use."""
  ptx = nvrtc(f'extern "C" __global__ void __launch_bounds__({N}) k(float* out, const float* in, long long n) '
              f"{{ int t = threadIdx.x, i = blockIdx.x * {N} + t; {body} }}")
  odd = ".reg .pred %pt; .reg .b32 %ra; .reg .b64 %rx; mov.u32 %ra, %tid.x; and.b32 %ra, %ra, 1; " \
        "setp.ne.s32 %pt, %ra, 0;"
  return re.sub(r"\.entry[^{]*\{", rf"\g<0>\n{odd}", ptx)

@functools.cache
def module() -> str:
  """All kernels without and with faults, k0, k1, .., in one module. Faults that cannot be translated are left out."""
  bodies = [source(body) for body in WANT] + [edited(fault) for fault in FAULTS if "`" not in fault.found]
  head = bodies[0][:bodies[0].index(".visible")]
  bodies = [ptx[ptx.index(".visible"):] for ptx in bodies]
  return head + "".join(re.sub(r"\bk(?=\(|_param)", f"k{i}", body) for i, body in enumerate(bodies))

def edited(fault: Fault) -> str:
  """The kernel's PTX with its fault."""
  ptx = source(fault.body)
  changed = re.sub(fault.pattern, fault.by, ptx, count=1)
  assert changed != ptx, (fault.name, ptx)
  return changed

def run(ptx: str, name: str, **settings: object) -> tuple[np.ndarray, str]:
  stand_in = Card(**settings)
  out, given = stand_in.buffer(np.zeros(N * BLOCKS, np.float32)), stand_in.buffer(IN)
  stand_in.launch(stand_in.kernels(ptx, [name])[0], out, given, N * BLOCKS, grid=(BLOCKS, 1, 1), block=(N, 1, 1))
  return stand_in.read(out, IN), stand_in.found

def right(body: str, got: np.ndarray) -> bool: return bool(np.abs(got - WANT[body]()).max() < 1e-3)

@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("body", WANT, ids="reversed sum copy in-place tail fours own dots product".split())
def test_correct_kernels_report_no_fault(body: str, order: int) -> None:
  got, found = run(module(), f"k{[*WANT].index(body)}", order=order, unwritten=1)
  assert right(body, got) and not found, found

@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name.replace(" ", "-"))
def test_kernel_faults_are_reported(fault: Fault) -> None:
  known = "`" not in fault.found
  ptx, name = (module(), f"k{len(WANT) + FAULTS.index(fault)}") if known else (edited(fault), "k")
  if fault.found == NUMBERS:
    got, found = run(ptx, name)
    assert not found and not right(fault.body, got)
    return
  with pytest.raises(CardError) as e: run(ptx, name)
  assert fault.found in e.value.found and f"{name}:" in e.value.found, e.value.found

# *** misuse by the host: each function plants its fault and returns how it was found

def twice(stand_in: Card) -> int:
  """A kernel that doubles its input."""
  return stand_in.kernel(source(COPY))

def launch(stand_in: Card, *args: int) -> None:
  stand_in.launch(twice(stand_in), *args, N * BLOCKS, grid=(BLOCKS, 1, 1), block=(N, 1, 1))

def refused(call: Callable[[], object]) -> str:
  with pytest.raises(CardError) as e: call()
  return f"{e.value.status} {e.value.found}"

def stale_graph_variable(stand_in: Card) -> str:
  out, a, b = (stand_in.buffer(x) for x in (np.zeros_like(IN), IN, IN * 3))
  def node(given: int) -> KernelNode:
    return stand_in.node(twice(stand_in), out, given, 128, grid=(2, 1, 1), block=(64, 1, 1))
  graph = stand_in.graph((node(a), ()))
  node(b)  # and not set_node
  stand_in.launch_graph(graph)
  assert right(COPY, stand_in.read(out, IN))  # the result with the old variable
  stand_in.set_node(graph, 1, node(b))
  stand_in.launch_graph(graph)
  return NUMBERS if np.allclose(stand_in.read(out, IN), IN * 6) else ""

def missing_edge(stand_in: Card) -> str:
  out, middle, a = (stand_in.buffer(x) for x in (np.zeros_like(IN), np.zeros_like(IN), IN))
  k = twice(stand_in)
  nodes = [stand_in.node(k, *args, 128, grid=(2, 1, 1), block=(64, 1, 1)) for args in ((middle, a), (out, middle))]
  stand_in.launch_graph(stand_in.graph((nodes[0], ()), (nodes[1], (0,))))
  good = stand_in.read(out, IN)
  stand_in.upload(middle, np.zeros_like(IN))
  stand_in.launch_graph(stand_in.graph((nodes[0], ()), (nodes[1], ())))
  return NUMBERS if np.allclose(good, IN * 4) and not np.allclose(stand_in.read(out, IN), IN * 4) else ""

def pinned(stand_in: Card, count: int) -> tuple[int, np.ndarray]:
  """Pinned host memory, which the device accesses late: its address, and an array view."""
  at = ctypes.c_void_p()
  stand_in.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(4 * count), 1)
  return at.value or 0, np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_float)), (count,))

def late_copy_read_too_early(stand_in: Card) -> str:
  out, (at, host) = stand_in.buffer(np.zeros_like(IN)), pinned(stand_in, IN.size)
  launch(stand_in, out, stand_in.buffer(IN))
  stand_in.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(at), ctypes.c_uint64(out), ctypes.c_size_t(IN.nbytes), None)
  early = host.copy()
  stand_in.synchronize()
  return NUMBERS if right(COPY, host) and (early.view(np.uint32) == 0xeeeeeeee).all() else ""

def staging_used_again_too_early(stand_in: Card) -> str:
  given, out, (at, host) = stand_in.buffer(IN), stand_in.buffer(np.zeros_like(IN)), pinned(stand_in, IN.size)
  host[:] = IN
  stand_in.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(given), ctypes.c_void_p(at), ctypes.c_size_t(IN.nbytes), None)
  host[:] = 0
  launch(stand_in, out, given)
  return NUMBERS if not right(COPY, stand_in.read(out, IN)) else ""

def lost_error(stand_in: Card) -> str:
  out = stand_in.buffer(np.zeros_like(IN))
  launch(stand_in, out, out + (1 << 40))
  stand_in.status("cuCtxSynchronize")  # the result is ignored
  return refused(lambda: stand_in.buffer(IN))

def error_that_nobody_asks_for(stand_in: Card) -> str:
  """The process ends with pending work: the work runs, and its error is reported."""
  out = stand_in.buffer(np.zeros_like(IN))
  launch(stand_in, out, out + (1 << 40))
  stand_in.lib.card_end()
  return stand_in.found

def use_after_free(stand_in: Card) -> str:
  out, given = stand_in.buffer(np.zeros_like(IN)), stand_in.buffer(IN)
  stand_in.call("cuMemFree_v2", ctypes.c_uint64(given))
  launch(stand_in, out, given)
  return refused(stand_in.synchronize)

def free_twice(stand_in: Card) -> str:
  given = stand_in.buffer(IN)
  stand_in.call("cuMemFree_v2", ctypes.c_uint64(given))
  return refused(lambda: stand_in.call("cuMemFree_v2", ctypes.c_uint64(given)))

def uninitialised_memory(stand_in: Card) -> str:
  """A kernel reads uninitialised memory: NaN by default, reported with CARD_UNWRITTEN."""
  out, given = stand_in.buffer(np.zeros_like(IN)), stand_in.buffer(IN.nbytes)
  launch(stand_in, out, given)
  assert np.isnan(stand_in.read(out, IN)).all()
  stand_in = Card(unwritten=1)
  launch(stand_in, stand_in.buffer(np.zeros_like(IN)), stand_in.buffer(IN.nbytes))
  return refused(stand_in.synchronize)

def copy_beyond_a_buffer(stand_in: Card) -> str:
  given = stand_in.buffer(IN)
  return refused(lambda: stand_in.read(given + 4, IN))

def launch_limits(stand_in: Card) -> str:
  out, k = stand_in.buffer(IN), twice(stand_in)
  def shaped(grid: tuple[int, int, int], block: tuple[int, int, int]) -> str:
    return refused(lambda: stand_in.launch(k, out, out, 1, grid=grid, block=block))
  assert "too many threads" in shaped((1, 1, 1), (1, 1, 65)) and "too many blocks" in shaped((1, 65536, 1), (1, 1, 1))
  assert "a launch of nothing" in shaped((0, 1, 1), (1, 1, 1))
  nothing = stand_in.node(k, out, out, 1, grid=(0, 1, 1))
  assert "a launch of nothing" in refused(lambda: stand_in.graph((nothing, ())))
  lenient = Card(zero_grid=1)
  assert "a launch of nothing" in refused(lambda: lenient.set_node(lenient.graph((nothing, ())), 1, nothing))
  stand_in = Card()
  out = stand_in.buffer(IN)
  return shaped((1, 1, 1), (128, 1, 1))

def wrong_arguments(stand_in: Card) -> str:
  out, k = stand_in.buffer(IN), twice(stand_in)
  return refused(lambda: stand_in.launch(k, out, out, 1, 1))

def ptx_too_new(stand_in: Card) -> str:
  return refused(lambda: Card(ptx=85).kernel(source(COPY).replace(".version 9.5", ".version 9.0")))

def ptx_of_another_card(stand_in: Card) -> str: return refused(lambda: Card(sm=75).kernel(source(COPY)))

def no_memory(stand_in: Card) -> str: return refused(lambda: Card(memory=1000).buffer(4000))

def fork(stand_in: Card) -> str:
  """A forked child uses the device that its parent opened."""
  read, write = os.pipe()
  if not (child := os.fork()):
    with contextlib.suppress(BaseException): stand_in.buffer(IN)
    os.write(write, stand_in.found.encode())
    os.kill(os.getpid(), signal.SIGKILL)
  os.waitpid(child, 0)
  os.close(write)
  with os.fdopen(read) as file: return file.read()

HOST: dict[Callable[[Card], str], str] = {
  stale_graph_variable: NUMBERS, missing_edge: NUMBERS, late_copy_read_too_early: NUMBERS,
  staging_used_again_too_early: NUMBERS, lost_error: "700 ",
  error_that_nobody_asks_for: "an error that nobody was told", use_after_free: "outside of all buffers",
  free_twice: "freed what is no buffer",
  uninitialised_memory: "memory read that nothing has written", copy_beyond_a_buffer: "not of one buffer",
  launch_limits: "the kernel allows 64 threads", wrong_arguments: "32 bytes of arguments, the kernel has 24",
  ptx_too_new: "222 ", ptx_of_another_card: "209 PTX for sm_80 on a card of sm_75", no_memory: "2 ",
  fork: "a fork of the process",
}
@pytest.mark.parametrize("misuse", HOST, ids=lambda f: f.__name__)
def test_host_faults_are_reported(misuse: Callable[[Card], str]) -> None:
  assert HOST[misuse] in misuse(Card())
