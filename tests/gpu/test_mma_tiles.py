"""Tiled prefill GEMMs on tensor cores: fragment layouts, numerics and code, without a GPU."""
import itertools

from tests.support import child
from tests.gpu import gpu_matmuls
from tests.gpu import gpu_schedules
import numpy as np
import pytest
from tests.support.extended import extended, sample
from tests.gpu.gpu_matmuls import Case, Code, Found
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad import Tensor
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps, heuristic, tc
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp
from tinygrad_llm.device import metal
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.banks import BANK, BANKS, wavefronts
from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.tiles import fragments
from tinygrad_llm.patches.tiles.fragments import A, B, C, WARP, Core, Layout
from tinygrad_llm.weights import numerics

cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

# *** layouts

TABLES = {"sm_75": tc.cuda_sm75, "sm_80": tc.cuda_sm80, "sm_89": tc.cuda_sm89, "Metal": tc.metal,
          "RDNA3": tc.amd_rdna3, "RDNA4": tc.amd_rdna4}
CORES: dict[str, Core] = {"none": fragments.without(), **{
  name: fragments.of_tensor_core(next(t for t in table if (t.dtype_in, t.dtype_out) == (dtypes.half, dtypes.float)))
  for name, table in TABLES.items()}}
LINES, KS = 32, (16, 64)  # shapes of a block's tile

def fragment(core: Core, of: int, lane: int, element: int) -> dict[str, int]:
  """{physical bit: value} of an element of a lane's fragment."""
  names = {name for carriers in core.carriers for name in carriers.values()}
  own = {name: element >> i & 1 for i, name in enumerate(core.elements[of])}
  return {name: lane >> int(name[1:]) & 1 if name[0] == "l" else own.get(name, 0) for name in names}

def number(carriers: dict[str, str], dim: str, bits: dict[str, int]) -> int:
  return sum(bits[name] << int(bit[1:]) for bit, name in carriers.items() if bit[0] == dim)

def layouts(core: Core) -> list[Layout]:
  return [Layout(core, of, LINES, k) for of in (A, B) for k in KS if k % core.k == 0]

def written(lay: Layout) -> dict[tuple[int, int], int]:
  """{(line, k): place} at which the block stores an operand's tile."""
  line, k = UOp.variable("line", 0, lay.lines - 1), UOp.variable("k", 0, lay.k - 1)
  at = lay.written(line, k)
  return {(i, j): int(evaluate(at, {line: i, k: j})) for i in range(lay.lines) for j in range(lay.k)}

def read(lay: Layout) -> dict[tuple[int, int, int, int], int]:
  """{(tile, instruction, lane, element): place} from which each lane loads its fragments."""
  core = lay.core
  physical = {name: UOp.variable(name, 0, 1) for carriers in core.carriers for name in carriers.values()}
  counts = lay.lines // lay.tile, lay.k // core.k, WARP, 1 << len(core.elements[lay.operand])
  tile, step = UOp.variable("tile", 0, counts[0]), UOp.variable("step", 0, counts[1])
  at, found = lay.read(tile, step, physical), dict[tuple[int, int, int, int], int]()
  for t, k, lane, element in itertools.product(*map(range, counts)):
    bits = {physical[name]: bit for name, bit in fragment(core, lay.operand, lane, element).items()}
    found[t, k, lane, element] = int(evaluate(at, {tile: t, step: k, **bits}))
  return found

@pytest.mark.parametrize("name", CORES)
def test_fragments_read_what_was_written(name):
  """Each place is written once, and each lane reads its fragment's line and k. A and B order k alike."""
  core = CORES[name]
  assert len({tuple(Layout(core, of, LINES, 64).bits) for of in (A, B)}) == 1
  for lay in layouts(core):
    places = written(lay)
    assert sorted(places.values()) == list(range(lay.lines * lay.k))
    carriers = core.carriers[lay.operand]
    for (tile, step, lane, element), place in read(lay).items():
      bits = fragment(core, lay.operand, lane, element)
      line = tile * lay.tile + number(carriers, lay.dim, bits)
      logical = [step >> int(bit[1:]) & 1 if bit[0] == "s" else bits[carriers[bit]] for bit in lay.bits]
      k = sum(bit << i for i, bit in enumerate(logical)) + (step // lay.steps << len(logical))
      assert places[line, k] == place

@pytest.mark.parametrize("name", CORES)
def test_vectorised_shared_stores(name):
  for lay in layouts(CORES[name]):
    group, own = UOp.variable("group", 0, lay.lines), UOp.variable("own", 0, lay.together)
    line = lay.line(group, own)
    found = [int(evaluate(line, {group: g, own: i})) for g in range(lay.lines // lay.together)
             for i in range(lay.together)]
    assert sorted(found) == list(range(lay.lines))

@pytest.mark.parametrize("name", CORES)
def test_each_accumulator_belongs_to_one_thread(name):
  core, numbers = CORES[name], set[tuple[int, int]]()
  for lane, element in itertools.product(range(WARP), range(1 << len(core.elements[C]))):
    bits = fragment(core, C, lane, element)
    numbers.add((number(core.carriers[C], "m", bits), number(core.carriers[C], "n", bits)))
  assert numbers == {*itertools.product(range(core.tokens), range(core.rows))}

@pytest.mark.parametrize("name", CORES)
def test_no_bank_conflicts(name):
  """A warp's fragment loads, 16 bytes a lane for an instruction and the next ones, have no bank conflicts."""
  for lay in layouts(core := CORES[name]):
    together = next(i for i, bit in enumerate([*lay.order, "l"]) if bit in core.carriers[lay.operand]
                    and core.carriers[lay.operand][bit][0] == "l" or bit == "l")
    width, found = (item := core.dtype.itemsize) << together, read(lay)
    assert width >= 16 or lay.k < 64
    assert all(found[key[:3] + (0,)] + key[3] == place for key, place in found.items())  # adjacent
    for t, step in {key[:2] for key in found}:
      first = [found[t, step, lane, 0] * item // width * width for lane in range(WARP)]
      assert wavefronts(first, width) <= max(1, width * WARP // (BANKS * BANK))

# *** numbers

MOST = {"halves": 2e-3, "gate": 6e-3, "floats": 2e-5}  # error, as a fraction of the root mean square of the results
TARGETS = ("CUDA", "CUDA sm_75", "Metal", "OpenCL", "AMD gfx1100", "AMD gfx1201")
PARTS = 18
X = ("", "half", "large", "half large")
MADE = ("gate half", "gate", "bias", "residual half", "heads", "several half", "bias residual", "several joined half")

def cases(target: str) -> list[Case]:
  """Random cases of all types and all epilogues, with a constant and with a symbolic number of tokens."""
  rng, found = np.random.default_rng(list(target.encode())), list[Case]()
  least = 32 if target.startswith("AMD") else 16  # tokens; fewer do not fill a block
  def drawn(name: str, options: str, rows: int, most: bool) -> Case:
    block, tokens = max(gpu_schedules.quant_named(name).block, 16), int(rng.integers(least, 81))
    n = block * (2 * int(rng.integers(0, max(1, 640 // block))) + 1)
    return Case(name, tokens, rows, n, tokens + int(rng.integers(0, 60)) if most else 0, options)
  for i, name in enumerate(gpu_schedules.TYPES):
    rows = int(rng.integers(17, 150))
    found.append(drawn(name, X[i // 2 % len(X)], rows + (rows % 16 == 0), bool(i % 2)))
  for options in MADE:
    rows = 6 * int(rng.integers(6, 20))  # for three heads; half of them is no multiple of 16
    found += [drawn(str(rng.choice(["Q4_K", "Q6_K", "Q8_0", "MXFP4"])), options, rows + 6 * (rows % 16 == 0), most)
              for most in (False, True)]
  return found

@pytest.mark.parametrize(("target", "part"), sample(
  itertools.product(TARGETS, range(PARTS)),
  [("CUDA", 10)]))
def test_results_match_reference(target, part):
  drawn = cases(target)[part::PARTS]
  found = [Found(*row) for row in child.call(gpu_matmuls.all_computed, target, drawn).value]
  kind = "floats" if target == "OpenCL" else "halves"
  def most(case: Case) -> float: return MOST["gate" if "gate" in case.options and kind == "halves" else kind]
  assert [(*pair,) for pair in zip(drawn, found) if not pair[1].error < most(pair[0])] == []
  assert [(*pair,) for pair in zip(drawn, found) if not pair[1].block or (kind == "halves") != bool(pair[1].wmma)] == []
  # a half x is materialised before; everything else is one kernel, also with gate and up
  assert [f.kernels - ("half" in c.options or "several" in c.options) for c, f in zip(drawn, found)] == [1] * len(drawn)
  assert [f.arrays for f in found] == [3 if "gate" in c.options else 2 for c in drawn]
  assert {dtype for f in found for dtype in f.kinds} == {f"dtypes.{'float' if target == 'OpenCL' else 'half'}"}

SEVERAL = Case("Q4_K", 40, 40, 512, 60)

@pytest.mark.parametrize("target", sample(["CUDA", "OpenCL"], ["CUDA"]))
def test_disabled_by_switch(target):
  found = Found(*child.call(gpu_matmuls.all_computed, target, [SEVERAL._replace(tokens=16, rows=16, n=256)],
                            NO_MMA_TILES="1").value[0])
  assert found.error < MOST["floats"] and (found.block, found.wmma) == ([], 0)

@pytest.mark.parametrize("target", sample(["CUDA", "Metal", "OpenCL"], ["CUDA"]))
def test_float32_uses_no_tensor_cores(target):
  """A float32 matrix is multiplied in blocks without tensor cores."""
  found = Found(*child.call(gpu_matmuls.all_computed, target, [SEVERAL._replace(type="F32", n=96)]).value[0])
  assert found.error < MOST["floats"] and found.block and (found.wmma, found.kinds) == (0, ["dtypes.float"] * 2)

FEW = [{"tokens": 15, "most": 0}, {"tokens": 9, "most": 15}, {"rows": 15, "tokens": 16, "most": 0}]

@pytest.mark.parametrize("few", sample(FEW, FEW[1:2]), ids=str)
def test_fewer_tokens_or_rows_than_a_tile(few):
  """Fewer tokens or rows than a tile's get a kernel without blocks and tensor cores."""
  found = Found(*child.call(gpu_matmuls.all_computed, "CUDA", [SEVERAL._replace(n=256, **few)]).value[0])
  assert found.error < MOST["floats"] and (found.block, found.wmma) == ([], 0)

def test_values_beyond_fp16_are_clamped():
  x = numerics.halves(Tensor([1e6, -1e6, float("inf"), 65520.0, -3.0]))
  assert x.dtype is dtypes.half and x.tolist() == [65504.0, -65504.0, 65504.0, 65504.0, -3.0]

def test_targets_with_half_products(monkeypatch):
  assert [gpu_matmuls.multiplies_halves(target) for target in TARGETS] == [True, True, True, False, True, True]
  assert [gpu_matmuls.slots_of_blocks(target) for target in TARGETS] == [32, 32, 32, 0, 32, 32]
  monkeypatch.setenv("NO_MMA_TILES", "1")
  assert not gpu_matmuls.multiplies_halves("CUDA") and gpu_matmuls.slots_of_blocks("CUDA") == 0

# *** schedules

def test_kernel_analysis():
  """Several matrices with joined results get a range of their own; the epilogue's loads are counted."""
  options = ["", "bias", "bias residual", "several", "several joined"]
  found = child.call(gpu_matmuls.after, options).value
  assert found == [[2, 2, 0], [2, 2, 1], [2, 2, 2], [3, 3, 0], [2, 3, 0]]

@extended
@pytest.mark.parametrize("target", ["CUDA", "OpenCL"])
def test_matrices_with_joined_results(target):
  case = SEVERAL._replace(rows=96, n=256, options="several joined")
  found = Found(*child.call(gpu_matmuls.all_computed, target, [case]).value[0])
  assert found.error < MOST["floats" if target == "OpenCL" else "halves"] and found.block and found.kernels == 1

def test_block_opts():
  """A BLOCK that fits the GEMM is accepted; invalid ones are refused."""
  right = (64, 64, 32, 32, 32)
  wrong = [(0, 64, 32, 32, 32), (64, 64, 0, 32, 32), (64, 64, 32, 0, 32), (-64, 64, 32, -32, 32), (64, 64, 32, 32),
           (65, 64, 32, 32, 32), (64, 60, 32, 32, 20), (64, 64, 32, 24, 32), (64, 64, 32, 32, 12), (64, 64, 24, 32, 32),
           (64, 64, 48, 32, 32), (64, 64, 1024, 32, 32), (256, 256, 128, 64, 64), (1024, 64, 32, 16, 16),
           (64, 64, 32, 16, 8), 64]
  k = gpu_matmuls.loops("CUDA", SEVERAL).start()
  assert [arg for arg in (right, *wrong) if not gpu_matmuls.is_refused(k, arg)] == [right]

def test_block_excludes_other_opts():
  block, start = Opt(ScheduleOps.BLOCK, None, (64, 64, 32, 32, 32)), gpu_matmuls.loops("CUDA", SEVERAL).start()
  for other in (block, Opt(OptOps.UPCAST, 1, 2), Opt(OptOps.LOCAL, 1, 2), Opt(OptOps.UNROLL, 0, 2)):
    for first, then in ((block, other), (other, block)):
      (k := start.copy()).apply_opt(first)
      with pytest.raises(KernelOptError): k.apply_opt(then)

def test_search_space():
  """The search space contains the heuristic's BLOCK and its neighbours, and schedules survive JSON."""
  space = gpu_matmuls.loops("CUDA", SEVERAL)
  chosen = tuple(heuristic.hand_coded_optimizations(space.start()).applied_opts)
  steps = space.steps(chosen)
  assert [opt.op for opt in chosen] == [ScheduleOps.BLOCK] and chosen == space.opts(steps)
  found = {space.opts(neighbour) for neighbour in space.neighbours(steps)} - {(), None}
  assert len(found) > 4 and all(opts is not None and opts[0].op is ScheduleOps.BLOCK for opts in found)
  assert schedules.from_json(schedules.to_json(chosen)) == chosen

def test_metal_source_is_valid():
  source = gpu_matmuls.source("Metal", SEVERAL)
  assert metal.errors(source) == "" and "__WMMA_8_8_8_half_float(" in source and "threadgroup_barrier(" in source

# *** compiled: registers and stack as NVRTC reports them
SHAPES = ((16384, 2048), (2048, 8192))  # rows, n
# bytes of stack, spilled in the loop. On sm_90 they are 8 and 0 without fields_in_place and table_lookup_gpu, whose
# constants take registers; with these passes an H100 prefills Q4_K_M 1.16 times as fast
SPILLED = {("CUDA:sm_90", "Q8_0", *SHAPES[0]): 16, ("CUDA:sm_90", "MXFP4", *SHAPES[0]): 16}

@cuda
@pytest.mark.parametrize(("target", "name"), sample(
  itertools.product(("CUDA:sm_80", "CUDA:sm_90"), ("Q4_K", "Q6_K", "Q8_0", "F16", "MXFP4")),
  [("CUDA:sm_80", "Q4_K")]))
def test_generated_code(target, name):
  """Weights are read once for each 128 tokens; each warp reads a shared scale itself."""
  for shape, row in zip(SHAPES, child.call(gpu_matmuls.codes, target, [(name, *shape) for shape in SHAPES]).value):
    code = Code(*row)
    assert code.block[0] == 128 and code.hmma >= code.block[2] // 16 * 8, code
    assert code.registers <= 128 and code.stack <= SPILLED.get((target, name, *shape), 0), code
    assert gpu_matmuls.TOKENS // 128 <= code.read < gpu_matmuls.TOKENS // 128 * 1.05, code

@extended
@cuda
def test_compile_workers_make_the_same_kernel():
  here, worker = child.call(gpu_matmuls.by_worker, PARALLEL="1", CACHELEVEL="0").value
  assert here == worker and "__WMMA_8_16_16_half_float(" in here
