"""tiles/pack_operands: prefill GEMMs unpack a quantised matrix once, for any number of tokens and rows."""
import functools
import itertools
import pathlib
import re

from tests.support import child
import numpy as np
import pytest
from tests.support import search_kernel
from tests.support import symbolic
from tests.support.extended import extended, sample, some
from tests.patches.test_codegen import STREAMS, error, vector, weight
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.codegen.opt import KernelOptError, Opt
from tinygrad.engine import realize
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches.ir import byte_groups
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.schedule import gemv_cpu, register_tiles
from tinygrad_llm.patches.search import known_schedules, space
from tinygrad_llm.patches.tiles import pack_operands
from tinygrad_llm.patches.vector import ordered_loads
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.numerics import GROUP, PROMPT_GROUP

OF_7_BITS = ("Q1_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4")
SCALES_OF_16 = ("Q2_K", "Q3_K", "Q6_K", "NVFP4")  # types with a scale for 16 weights
FEW = ("Q4_K", "Q6_K", "Q8_0", "MXFP4", "NVFP4")  # types of random sizes
SOME = ("Q4_K",)  # types that `make test` tries
MOST = 1e-5  # error, as a fraction of the root mean square

def cpu_features() -> list[str]:
  return info.read_text().split() if (info := pathlib.Path("/proc/cpuinfo")).exists() else []

# *** in the child

def prompt(name: str, rows: int, n: int, tokens: int, most: int, group: int = PROMPT_GROUP
           ) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T for `tokens` of at most `most` tokens, in a kernel for any number, and its expected value."""
  gemv_cpu.LEAST = 0
  lazy_w, w = weight(name, rows, n, True)
  x = numerics.pack(Tensor(vector(most, n)), group).contiguous().realize()
  of = Variable("tokens", 1, most).bind(tokens)
  wanted = numerics.unpacked(x).numpy().astype(np.float64) @ w.T
  return numerics.unpacked(x[:of]) @ lazy_w().transpose(-1, -2), wanted[:tokens]

def source(lazy: Tensor) -> tuple[str, str]:
  """The source of a kernel, and its opts."""
  program = to_program(*realize._get_call_to_compile(lazy.linear_with_vars()[0].src[-1]))
  return program.src[2].arg, str(program.src[0].arg.applied_opts)

def few(name: str, rows: int, n: int, tokens: int) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T for a fixed number of tokens, and its expected value."""
  gemv_cpu.LEAST = 0
  lazy_w, w = weight(name, rows, n, True)
  x = numerics.pack(Tensor(vector(tokens, n))).contiguous().realize()
  return numerics.unpacked(x) @ lazy_w().transpose(-1, -2), numerics.unpacked(x).numpy().astype(np.float64) @ w.T

def packed(most: int, n: int, tokens: int, group: int) -> dict:
  """Quantises the activations of `tokens` of at most `most` tokens to int8."""
  x = vector(most, n)
  def lazy() -> Tensor: return numerics.pack(Tensor(x).realize()[:Variable("tokens", 1, most).bind(tokens)], group)
  text, opts = source(lazy())
  found = symbolic.values(lazy(), (tokens, n // 16, 6)).view(np.uint32)  # the same bits
  wanted = numerics.pack(Tensor(x), group).numpy()[:tokens].reshape(found.shape)
  return {"source": text, "opts": opts, "same": np.array_equal(found, wanted)}

def block(name: str) -> int:
  """The number of weights whose multiples are row lengths."""
  return max(64, next(qt.block for qt in QUANT_TYPES.values() if qt.name == name))

def drawn(name: str, seed: int, group: int = PROMPT_GROUP) -> dict:
  """A GEMM of random sizes."""
  rng = np.random.default_rng(seed)
  sizes = 16 * int(rng.integers(1, 30)), int(rng.integers(1, 7)) * block(name), int(rng.integers(1, 80)), 80
  text, opts = source(prompt(name, *sizes, group)[0])
  lazy, wanted = prompt(name, *sizes, group)
  x = Tensor(symbolic.values(lazy, wanted.shape))
  return {"sizes": sizes, "error": error(x, wanted), "source": text, "opts": opts}

def fixed(name: str, tokens: int) -> dict:
  return {"source": source(few(name, 64, 512, tokens)[0])[0], "error": error(*few(name, 64, 512, tokens))}

def large(name: str, tokens: int) -> dict:
  """A GEMM with a matrix larger than the caches."""
  text, opts = source(few(name, 1024, 2048, tokens)[0])
  return {"source": text, "opts": opts, "error": error(*few(name, 1024, 2048, tokens)),
          "in_registers": {n: gemv_cpu.in_registers(Device["CPU"].renderer, tokens, n) for n in (32, 64, 256)}}

def drawn_few(name: str, seed: int) -> dict:
  """A GEMM of few tokens and rows of random length."""
  rng = np.random.default_rng(seed)
  sizes = 16 * int(rng.integers(1, 20)), int(rng.integers(1, 24)) * block(name), int(rng.integers(2, 9))
  return {"sizes": sizes, "error": error(*few(name, *sizes))}

def with_amounts(listed: list[list[list]]) -> list[tuple[float, str]]:
  """(error, source) of a GEMM with each list of (action, amount)s in place of the heuristic's amounts."""
  found, (lazy, wanted) = list[tuple[float, str]](), prompt("Q4_K", 240, 512, 21, 32)
  linear, variables = lazy.linear_with_vars()
  chosen = to_program(ast := linear.src[-1].src[0], Device["CPU"].renderer).src[0].arg.applied_opts
  for amounts in listed:
    of = {ScheduleOps[name]: n for name, n in amounts}
    opts = tuple(Opt(opt.op, opt.axis, of.get(opt.op, opt.arg)) for opt in chosen)
    assert of.items() <= {(opt.op, opt.arg) for opt in opts}
    values, program = search_kernel.computed(linear, variables, ast, opts)
    found.append((error(Tensor(values[:wanted.size].reshape(wanted.shape).copy()), wanted), program.src[2].arg))
  return found

def within(name: str, tokens: int) -> list[float]:
  """Errors of a GEMM with a residual, and of one that gates another."""
  gemv_cpu.LEAST = 0
  found, rows, n = list[float](), 80, 512
  lazy_w, w = weight(name, 2 * rows, n, True)
  x, before = numerics.pack(Tensor(vector(48, n)), PROMPT_GROUP).contiguous().realize(), vector(48, rows, seed=5)
  of = Variable("tokens", 1, 48).bind(tokens)
  both = numerics.unpacked(x).numpy().astype(np.float64) @ w.T
  kept, halves = Tensor(before).realize(), (lazy_w()[:rows], lazy_w()[rows:])
  up, gate = (numerics.unpacked(x[:of]) @ half.transpose(-1, -2) for half in halves)
  gated = both[:, :rows] * np.maximum(both[:, rows:], 0)
  for lazy, wanted in ((kept[:of] + up, before + both[:, :rows]), (up * gate.relu(), gated)):
    found.append(error(Tensor(symbolic.values(lazy, (tokens, rows))), wanted[:tokens]))
  return found

def refusals(name: str, tokens: int, listed: list[list]) -> list[str]:
  """The error message for each list of an action's amounts, applied one after the other; "" if there is none."""
  found, ren = list[str](), Device["CPU"].renderer
  ast = space.before_opts(prompt("Q4_K", 64, 512, 1, tokens)[0].linear_with_vars()[0].src[-1].src[0], ren)
  for amounts in listed:
    k, said = space.Loops(ast, ren).start(), ""
    try:
      for n in amounts: k.apply_opt(Opt(ScheduleOps[name], None, n))
    except KernelOptError as e: said = str(e)
    found.append(said)
  return found

def known(name: str) -> dict[str, list[list]]:
  """Amounts of tokens and tiles of other projects' schedules, each reached by actions that are offered on the way."""
  ren, found = Device["CPU"].renderer, dict[str, list[list]]()
  k = space.Loops(space.before_opts(prompt(name, 512, 512, 21, 64)[0].linear_with_vars()[0].src[-1].src[0], ren), ren)
  for peer, opts in known_schedules.known(k.start()).items():
    steps, at = k.steps(opts), k.start()
    for step in steps:
      assert step in list(k.actions(at)), (peer, step)
      at.apply_opt(k.placed(at, step))
    assert k.opts(steps) is not None
    found[peer] = sorted([step.op.name, step.amount] for step in steps if step.op in known_schedules.PROMPTS[peer])
  return found

# *** here

@functools.cache
def found(name: str, seed: int, off: str = "", group: int = PROMPT_GROUP) -> dict:
  return child.call(drawn, name, seed, group, **({f"NO_{off.upper()}": "1"} if off else {})).value

@functools.cache
def of_few(name: str, tokens: int) -> dict: return child.call(fixed, name, tokens).value

def kernel(text: str) -> str: return text[text.index("void r_"):]

@pytest.mark.parametrize("name", sample(STREAMS, SOME))
def test_results_match_reference(name):
  row = found(name, len(name))
  assert row["error"] < MOST, row["sizes"]
  assert "TOKENS" in row["opts"] and "TILES" in row["opts"]

@extended
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", FEW)
def test_results_of_random_sizes(name, seed):
  row = found(name, seed)
  assert row["error"] < MOST, row["sizes"]

@pytest.mark.parametrize("name", sample(STREAMS, ("Q6_K",)))
def test_activation_groups_of_16(name):
  """Activation groups of 16, as in decode, for an x whose length is no multiple of 32."""
  row = found(name, len(name), group=GROUP)
  assert row["error"] < MOST and "TILES" in row["opts"] and "sum_of_bytes" not in kernel(row["source"])

@pytest.mark.parametrize("name", sample(STREAMS, ("Q4_K",)))
def test_activation_groups_of_32(name):
  """Activation groups of 32 give one scale for 32 products, if the weights' scales are as coarse."""
  text = kernel(found(name, len(name))["source"])
  longest = max(map(len, re.findall(r"convertvector\(((?:add_dots_of_\w+\()+)", text)))
  dots = re.match(r"add_dots_of_\w+?\(", text[text.index("add_dots_of_"):])
  assert dots is not None and longest // len(dots[0]) == (4 if name in SCALES_OF_16 else 8)

@pytest.mark.parametrize("name", sample(STREAMS, SOME))
def test_weights_are_unpacked_once(name):
  """The loop over tokens reads bytes from an array that is filled before it; it does not read the matrix."""
  text = kernel(found(name, len(name))["source"])
  before, inside = re.split(r"for \(int \w+ = 0; \w+ < \(\(data\d_\+7\)>>3\); \w+\+\+\)", text)
  matrix = re.compile(r"\(unsigned_int16\*\)\(\(data")
  assert re.search(r"unsigned int \w+\[\d+\];", before) and matrix.search(before) and not matrix.search(inside)
  assert inside.count("add_dots_of_") >= 8 and "signed char" not in inside

@pytest.mark.parametrize("name", sample(STREAMS, ("Q4_K",)))
def test_activation_sums_are_read(name):
  """Activation sums are read, as they are stored beside the bytes; they are not recomputed for each block of tokens."""
  text = kernel(found(name, len(name))["source"])
  assert "sum_of_bytes" not in text and len(re.findall(r"convertvector\(add_dots_of_", text)) == 8

@pytest.mark.parametrize("group", some([GROUP, PROMPT_GROUP], 1))
def test_prefill_activations_are_packed_in_vectors(group):
  """All threads share the packing of a prompt's activations, although the number of tokens is symbolic."""
  row = child.call(packed, 512, 32 * group, 301, group).value
  assert row["same"] and "THREAD" in row["opts"]
  assert "(float16){" in row["source"] and "_m2" not in row["source"]  # the loop over lanes was kept

AVX2 = "CPU:CLANG:x86_64,x86-64-v3"
WITH_AVX2 = pytest.mark.skipif("avx2" not in cpu_features(), reason="the processor has no AVX2")

@WITH_AVX2
@pytest.mark.parametrize("name, kind", sample([(name, "pairs" if name in OF_7_BITS else "signed") for name in STREAMS],
                                              [("Q6_K", "pairs"), ("NVFP4", "pairs")]))
def test_results_without_vnni(name, kind):
  """AVX2's byte product instruction saturates for unsigned 8-bit factors, so types beyond 7 bits use signed ones."""
  row, few_ = (child.call(f, name, len(name), DEV=AVX2).value for f in (drawn, drawn_few))
  assert max(row["error"], few_["error"]) < MOST, (row["sizes"], few_["sizes"])
  assert re.findall(r"convertvector\(+add_dots_of_(\w+?)\(", row["source"])[:1] == [kind]

def changed_groups() -> list[str]:
  """The cases in which byte_groups recognises activation groups; only the stored layouts should match."""
  buf, loops = UOp.placeholder((64,), dtypes.uint32, 0), [UOp.range(n, i) for i, n in enumerate((4, 4, 4, 2))]
  group, word, byte, half = loops
  def factors(first: int = 0, words: int = 6, by: int = 8, scale: int = 4, halves: int = 0) -> list[UOp]:
    place = group * words + word + first + (half * halves if halves else 0)
    q = (buf.index(place) >> (byte * by).cast(dtypes.uint32)) & 255
    return [q.cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float),
            buf.index(group * words + scale).bitcast(dtypes.float)]
  cases = {"as stored": factors(), "from the second word": factors(first=1), "of 7 words": factors(words=7),
           "of 4 bits": factors(by=4), "another scale": factors(scale=5),
           "of 32": factors(words=12, scale=8, halves=4), "halves apart": factors(words=12, scale=8, halves=5),
           "32 of 6 words": factors(scale=8, halves=4)}
  return [name for name, of in cases.items() if byte_groups.find(of, loops) is not None]

def test_weight_groups_are_recognised(): assert changed_groups() == ["as stored", "of 32"]

def halves() -> list[list[str]]:
  """The index of the stored sum for reductions over a whole group of 32, over one half, and over less."""
  buf, loops = UOp.placeholder((64,), dtypes.uint32, 0), [UOp.range(n, i) for i, n in enumerate((5, 2, 4, 4))]
  group, half, word, byte = loops
  q = (buf.index(group * 12 + half * 4 + word) >> (byte * 8).cast(dtypes.uint32)) & 255
  factors = [q.cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float),
             buf.index(group * 12 + 8).bitcast(dtypes.float)]
  made = [byte_groups.find(factors, over) for over in (loops[1:], loops[2:], loops[3:])]
  return [[] if g is None else [str(evaluate(g.total.src[0].src[1].get_idx(), {group: 1, half: i})) for i in range(2)]
          for g in made]

def test_sums_of_halves(): assert halves() == [["23", "23"], ["21", "22"], []]

@pytest.mark.parametrize("off, packed", sample(
  [("pack_operands", False), ("register_tiles", True), ("dot_int8_cpu", False)], [("register_tiles", True)]))
def test_results_without_pass(off, packed):
  row = found("Q4_K", 4, off)
  assert row["error"] < MOST, row["sizes"]
  assert bool(re.search(r"unsigned int \w+\[\d+\];", row["source"])) == packed

@pytest.mark.parametrize("tokens", sample([3, 40], [40]))
def test_residual_and_gate_epilogues(tokens): assert max(child.call(within, "Q4_K", tokens).value) < MOST

@pytest.mark.parametrize("tokens", sample([2, 3, 8], [3]))
def test_few_tokens_share_weight_loads(tokens):
  one, many = of_few("Q4_K", 1), of_few("Q4_K", tokens)
  assert many["error"] < MOST
  loads = [len(re.findall(r"val\d+ = .*data2_", kernel(row["source"]))) for row in (one, many)]
  assert loads[1] <= loads[0] + 2  # scales and minima are unpacked separately, and both read their block's factors

@WITH_AVX2
@pytest.mark.parametrize("name, stored", sample([("IQ4_NL", True), ("IQ4_XS", True), ("Q8_0", True), ("Q4_0", False),
                                                 ("Q5_0", False), ("MXFP4", False)], [("IQ4_NL", True)]))
def test_weights_of_8_bits_are_stored_without_vnni(name, stored):
  """AVX2 multiplies bytes of 8 bits in two parts, signed bytes of an array in one, smaller ones as they are."""
  row = child.call(large, name, 4, DEV=AVX2).value
  assert row["error"] < MOST and ("TILES" in row["opts"]) == stored
  assert ("add_dots_of_signed(" in kernel(row["source"])) == stored
  assert "add_dots_of_bytes(" not in kernel(row["source"])

@pytest.mark.parametrize("name", sample(["Q4_K", "Q6_K", "Q8_0"], ["Q4_K"]))
def test_steps_of_any_rows_look_as_far_ahead(name):
  """The software prefetch reaches as far for one row as for several: 2 rows once took longer than 4."""
  distances = {n: set(re.findall(r"__builtin_prefetch\(.*?\+(\d+),0,\d\),", child.call(large, name, n).value["source"]))
               for n in (1, 2, 4)}
  assert set(map(frozenset, distances.values())) == {frozenset((str(ordered_loads.AHEAD),))}

@extended
@pytest.mark.parametrize("dev", ["CPU", AVX2])
def test_few_tokens_keep_weights_in_registers(dev):
  """For few tokens unpacked weights stay in registers unless they are too many; activation sums are read once."""
  for name, weights, tokens in ("Q4_0", 32, 4), ("Q4_K", 64, 4), ("Q4_K", 64, 8), ("Q6_K", 256, 4), ("Q6_K", 256, 8):
    row = child.call(large, name, tokens, DEV=dev).value
    stored = not row["in_registers"][str(weights)]
    assert row["error"] < MOST, (name, tokens)
    assert ("TILES" in row["opts"]) == stored == bool(re.search(r"unsigned int \w+\[\d+\];", row["source"]))
    assert "sum_of_bytes(" not in kernel(row["source"]), (name, tokens)

@pytest.mark.parametrize("tokens, words", some([(1, 1), (4, 4)], 1))
def test_activations_are_loaded_after_weights(tokens, words):
  """One token's activations are loaded after the weight word that they multiply; for several, after a sum's words."""
  text = kernel(child.call(large, "Q4_K", tokens).value["source"])
  inner = next(part for part in text.split("for (")[::-1] if "volatile" in part)
  assert inner[:inner.index("(*(data1_")].count("volatile") == words
  assert re.search(r"volatile[^;]*;[^;]*$", inner) is None  # not all activations come last

@extended
def test_products_accumulate_before_the_next_loads():
  """A Q6_K block's products are accumulated as soon as their weight bits are loaded, in the order of the loads."""
  text = kernel(child.call(large, "Q6_K", 1).value["source"])
  inner = next(part for part in text.split("for (")[::-1] if "volatile" in part)
  kinds = [re.search("volatile|add_dots_of_", line) for line in inner.splitlines()]
  lines = ["W" if kind[0] == "volatile" else "S" for kind in kinds if kind is not None]
  runs = ["".join(run) for _, run in itertools.groupby(lines)]
  assert [len(run) for run in runs if run[0] == "W"] == [16, 4, 4, 4, 12, 4, 4, 4, 1]  # 8 are high bits, the last d
  assert [run for run in runs if run[0] == "S"] == ["SS"] * 8

@pytest.mark.parametrize("name", sample(STREAMS, SOME))
def test_results_of_few_tokens(name):
  row = child.call(drawn_few, name, len(name)).value
  assert row["error"] < MOST, row["sizes"]

@extended
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", FEW)
def test_results_of_few_tokens_of_random_sizes(name, seed):
  row = child.call(drawn_few, name, seed).value
  assert row["error"] < MOST, row["sizes"]

@pytest.mark.parametrize("amounts, tiles", some([
  ([("TOKENS", 3)], 15), ([("TOKENS", 16), ("TILES", 1)], 1), ([("TILES", 4)], 4), ([("TILES", 64)], 15)], 2), ids=str)
def test_token_and_tile_amounts(amounts, tiles):
  """Tokens and tiles are as the schedule says; 15 tiles with 4 at a time are 4, 4, 4 and 3."""
  (off, text), = child.call(with_amounts, [amounts]).value
  assert off < MOST
  assert re.search(rf"unsigned int \w+\[{tiles * 128 * 16}\];", text)
  assert re.search(rf"\(data\d_\+{dict(amounts).get('TOKENS', 8) - 1}\)", text)

@pytest.mark.parametrize("name", sample(STREAMS, ("Q4_K",)))
def test_peer_schedules_are_reached(name):
  wanted = {peer: sorted([op.name, n] for op, n in of.items()) for peer, of in known_schedules.PROMPTS.items()}
  assert child.call(known, name).value == wanted

@pytest.mark.parametrize("name, least, most", some([
  ("PREFETCH", 0, ordered_loads.FARTHEST), ("TOKENS", 1, register_tiles.MOST), ("TILES", 1, pack_operands.MOST)], 1))
def test_actions_reject_bad_amounts(name, least, most):
  """Refused: amounts out of range, non-integers, and a second choice."""
  wrong, twice = f"{name} must be {least} to {most}", f"{name} may be applied only once"
  said = {wrong: [[least - 1], [most + 1], [float(most)], [str(most)], [None]], twice: [[least, most], [most, most]],
          "": [[least], [most]]}
  listed = [amounts for rows in said.values() for amounts in rows]
  wanted = [text for text, rows in said.items() for _ in rows]
  assert child.call(refusals, name, register_tiles.MOST, listed).value == wanted

@extended
def test_tokens_action_limited_by_token_count():
  assert child.call(refusals, "TOKENS", 5, [[5], [6]]).value == ["", "there are fewer tokens"]
