"""
The simulated GPU (tests/support/card): synchronisation of threads, the stream and its graphs, tensor cores, and models,
on tinygrad's CUDA and NV devices.

`make extended` also runs whole answers of several families (prompts in chunks, sampling, turns, a full context) on all
compilers and compute capabilities. They are compared with float64, and token for token with the CPU.
"""
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import child
import numpy as np
import pytest
import tinygrad_llm
from tests.support.card import answers, build
from tests.support.card.driver import Card, CardError, nvrtc
from tests.support.extended import extended, sample
from tests.support.model_cases import MODELS, VOCAB
from tests.support.reference import Reference, clear_choices
from tests.support.synthetic import MoE

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing())
BUNDLED = pathlib.Path(tinygrad_llm.__file__).parent / "models/stories.gguf"
EXACT, HALF = 2e-3, 0.03  # errors in standard deviations of the logits: with float weights, with half weights
NARROW = 0.06             # with halves, either of two best logits nearer than this is right

def on_card(dev: str = "CUDA", **settings: object) -> dict[str, str]:
  """The environment of a child process with the simulated GPU. settings: see the package `card`."""
  extra = {f"CARD_{k.upper()}": str(int(v)) if isinstance(v, bool) else str(v) for k, v in settings.items()}
  return build.nv_settings() | extra if dev == "NV" else build.settings() | extra | {"DEV": dev}

def kernel(body: str, threads: int = 64) -> str:
  """PTX of a CUDA kernel k(float* out, const float* in, long long n)."""
  return nvrtc(f'extern "C" __global__ void __launch_bounds__({threads}) k(float* out, const float* in, long long n) '
               f"{{ int t = threadIdx.x; {body} }}")

@pytest.mark.parametrize("order", [0, 1, 2])
def test_block_reduction_and_vote(order: int) -> None:
  """A block's sum by shuffles, then through shared memory; a vote selects the first warp."""
  stand_in = Card(order=order, seed=order)
  x = np.random.default_rng(order).standard_normal(1000).astype(np.float32)
  out = stand_in.buffer(np.zeros(4, np.float32))
  stand_in.launch(stand_in.kernel(kernel("""
    __shared__ float sums[8];
    int i = blockIdx.x * 256 + t;
    float v = i < n ? in[i] : 0;
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (t % 32 == 0) sums[t / 32] = v;
    __syncthreads();
    if (__any_sync(0xffffffffu, t == 0)) {
      v = t < 8 ? sums[t] : 0;
      for (int d = 4; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
      if (t == 0) out[blockIdx.x] = v;
    }""", 256)), out, stand_in.buffer(x), 1000, grid=(4, 1, 1), block=(256, 1, 1))
  want = np.pad(x.astype(np.float64), (0, 24)).reshape(4, 256).sum(1)
  assert np.abs(stand_in.read(out, np.zeros(4, np.float32)) - want).max() < 1e-4
  assert not stand_in.found

def test_warp_shuffles_votes_and_reductions() -> None:
  """All shuffles in parts of a warp, votes and reductions, lane by lane as the manual defines them."""
  stand_in = Card()
  out = stand_in.buffer(np.zeros((7, 32), np.float32))
  stand_in.launch(stand_in.kernel(kernel("""
    out[t] = __shfl_up_sync(0xffffffffu, (float)t, 3, 8);
    out[32 + t] = __shfl_down_sync(0xffffffffu, (float)t, 3, 16);
    out[64 + t] = __shfl_sync(0xffffffffu, (float)t, 5, 8);
    out[96 + t] = __shfl_xor_sync(0xffffffffu, (float)t, 9);
    out[128 + t] = __popc(__ballot_sync(0xffffffffu, t % 3 == 0));
    out[160 + t] = __reduce_max_sync(0xffffffffu, (t * 7) % 32 - 40);
    if (t < 10) out[192 + t] = __all_sync(0x3ffu, t < 10);
    else out[192 + t] = __reduce_add_sync(0xfffffc00u, (unsigned)t);
    """)), out, out, 0)
  t = np.arange(32)
  want = [np.where(t % 8 >= 3, t - 3, t), np.where(t % 16 < 13, t + 3, t), t // 8 * 8 + 5, t ^ 9, 11 + 0 * t,
          -9 + 0 * t, np.where(t < 10, 1, sum(range(10, 32)))]
  assert (stand_in.read(out, np.zeros((7, 32), np.float32)) == np.stack(want)).all()

@pytest.mark.parametrize("count,trans", [(1, ""), (4, ""), (2, ".trans")])
def test_ldmatrix(count: int, trans: str) -> None:
  """ldmatrix: lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, or of column l / 4 if transposed."""
  stand_in = Card()
  names = ", ".join(f"%{i}" for i in range(count))
  outs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
  ptx = kernel(f"""
    __shared__ __align__(16) unsigned short m[256];
    for (int i = t; i < 256; i += 32) m[i] = i;
    __syncthreads();
    unsigned r[4] = {{0, 0, 0, 0}}, at = (unsigned)__cvta_generic_to_shared(m + 8 * t);
    asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%{count}];" : {outs} : "r"(at));
    for (int i = 0; i < 4; i++) ((unsigned*)out)[32 * i + t] = r[i];""", 32)
  out = stand_in.buffer(np.zeros((4, 32), np.uint32))
  stand_in.launch(stand_in.kernel(ptx), out, out, 0)
  got = stand_in.read(out, np.zeros((4, 32), np.uint32)).view(np.uint16).reshape(4, 8, 8)
  m = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
  assert (got[:count] == (m.transpose(0, 2, 1) if trans else m)[:count]).all()

@pytest.mark.parametrize("mode", [0, 1, 2])
def test_graph_launches(mode: int) -> None:
  """Nodes run in any order that their edges allow. New arguments apply to the next launch, not to a pending one."""
  stand_in = Card(graph=mode, seed=7)
  step = stand_in.kernel(kernel("out[t] = in[t] * 2 + n;"))
  a, b, c, d = (stand_in.buffer(np.zeros(32, np.float32)) for _ in range(4))
  stand_in.upload(a, np.ones(32, np.float32))
  add = stand_in.kernel(kernel("out[t] += in[t];"))
  graph = stand_in.graph((stand_in.node(step, b, a, 1), ()), (stand_in.node(step, c, a, 10), ()),
                         (stand_in.node(step, d, b, 0), (0,)), (stand_in.node(add, d, c, 0), (1, 2)))
  stand_in.launch_graph(graph)
  stand_in.set_node(graph, 2, stand_in.node(step, c, a, 100))
  got = stand_in.read(d, np.zeros(32, np.float32))
  assert (got == 2 * (2 * 1 + 1) + (2 * 1 + 10)).all()
  stand_in.launch_graph(graph)
  assert (stand_in.read(d, got) == 6 + 102).all()

@extended
def test_launch_stamp_wraps() -> None:
  """A stamp has 14 bits for the launch number: it wraps after 16,383 launches, and races are still found."""
  stand_in = Card()
  step = stand_in.kernel(kernel("out[blockIdx.x * n + t] += in[t];"))
  out, ones = stand_in.buffer(np.zeros(64, np.float32)), stand_in.buffer(np.ones(32, np.float32))
  for _ in range(16400): stand_in.launch(step, out, ones, 32, grid=(2, 1, 1))
  assert (stand_in.read(out, np.zeros(64, np.float32)) == 16400).all() and not stand_in.found
  stand_in.launch(step, out, ones, 0, grid=(2, 1, 1))
  with pytest.raises(CardError, match="a race between blocks"): stand_in.synchronize()

@pytest.mark.parametrize("dev,types,sm", [
  ("CUDA", ["half", "float"], 80), ("CUDA", ["half"], 75), ("CUDA", ["half", "bfloat16", "float"], 90),
  ("CUDA:PTX", ["half", "float"], 89)])
@extended
def test_tensor_cores(dev: str, types: list[str], sm: int) -> None:
  """tinygrad's own tensor-core matmuls: its fragment layouts agree with the simulator's. tf32 has 10 bits."""
  env = on_card(dev, sm=sm) | {"NO_PATCHES": "1", "ALLOW_TF32": "1"}
  errors = child.call(answers.products, [(64, 64, 64)], types, **env).value
  for t, e in zip(types, errors): assert 1e-5 < e < 1e-2 if t == "float" else e < 1e-5, (t, e)

@pytest.mark.parametrize(("dev", "in_bytes"), [
  ("CUDA", "0"), pytest.param("CUDA", "1", marks=extended), pytest.param("CUDA:PTX", "1", marks=extended),
  pytest.param("NV", "0", marks=extended)])
def test_bundled_model(dev: str, in_bytes: str) -> None:
  """An answer by decode steps in graphs matches float64's logits and ids, also with activations of two bytes."""
  prompt, count = [4092, 4093, 554, 358, 257, 337, 343, 257, 1651, 13, 4095, 4094, 507, 284, 257], 6
  call = (answers.by_queues, "by_steps") if dev == "NV" else (answers.by_steps,)
  env = on_card(dev, close=dev == "CUDA:PTX") | {"Q8_ACTIVATIONS": in_bytes}
  logits = np.array(child.call(*call, "", prompt, count, **env).value)
  ids = [int(x) for x in logits.argmax(-1)]
  want = Reference(BUNDLED).logits(prompt + ids[:-1])[len(prompt) - 1:]
  assert ids == list(want.argmax(-1))
  assert np.abs(logits - want).max() <= EXACT * want.std()
  assert len(set(ids)) > 2

@pytest.mark.parametrize("dev", ["CUDA", "NV"])
def test_kernel_with_many_arguments(dev: str) -> None:
  """A kernel with more buffers than the constant buffer of tinygrad's NV mock holds."""
  call = (answers.by_queues, "many_arguments") if dev == "NV" else (answers.many_arguments,)
  assert child.call(*call, 29, **on_card(dev)).value == [812.0 * n for n in range(1, 6)]

@extended
@pytest.mark.parametrize(("processes", "count"), [(1, 300), (2, 24)])
def test_sampled_answer_matches_cpu(processes: int, count: int) -> None:
  """An answer sampled on the simulated GPU equals the CPU's, also with several processes at once."""
  prompt = [4092, 4093, 554, 358, 257, 337, 343, 257, 1651, 13, 4095, 4094, 507, 284, 257]
  env = on_card(sm=90, order=2)
  with ThreadPoolExecutor(processes) as pool:
    found = [*pool.map(lambda _: child.call(answers.sampled, prompt, count, **env).value, range(processes))]
  assert found == [child.call(answers.sampled, prompt, count, DEV="CPU", NO_Q8_ACTIVATIONS="1").value] * processes

# *** models

FAMILIES = MODELS | {"many-experts": MODELS["qwen3moe"] | {"moe": MoE(experts=64, used=4)}}
Model = tuple[str, list[int], np.ndarray, float]  # file, ids with clear expert routing, float64's logits, error limit

@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, model_file: Callable[..., pathlib.Path]) -> Model:
  """A small model of a family, with float32 weights, or halves ("llama F16")."""
  name, _, types = request.param.partition(" ")
  path = model_file(vocab=VOCAB, types=types or "F32", **FAMILIES[name])
  reference = Reference(path)
  ids = clear_choices(reference, np.random.default_rng(5).integers(0, VOCAB, 90).tolist(), 0.01)
  return str(path), ids, reference.logits(ids), HALF if types else EXACT

def compare(model: Model, tmp_path: pathlib.Path, env: dict[str, str]) -> None:
  """A user's session on the simulated GPU has float64's logits; with float weights also the CPU's ids."""
  path, ids, want, limit = model
  out = tmp_path / "logits.npy"
  call = (answers.by_queues, "everything") if "NV" in env["DEV"] else (answers.everything,)
  found = child.call(*call, path, ids, 32, str(out), **env).value
  logits = np.load(out)
  assert np.abs(logits - want).max() <= limit * want.std()
  best = np.sort(want, -1)
  clear = best[:, -1] - best[:, -2] > NARROW * want.std()
  assert (logits.argmax(-1) == want.argmax(-1))[clear].all()
  if limit == EXACT:
    cpu = child.call(answers.everything, path, ids, 32, str(tmp_path / "cpu.npy"), NO_Q8_ACTIVATIONS="1").value
    assert found == cpu

@extended
@pytest.mark.parametrize("model", ("qwen3moe", "many-experts", "deepseek2",
                                   "llama", "gemma3", "gpt-oss", "lfm2", "qwen35", "gemma4-e"), indirect=True)
def test_architecture_families(model: Model, tmp_path: pathlib.Path) -> None:
  compare(model, tmp_path, on_card(order=2, graph=2, seed=11))

# with PTX, lanes that store one sum differ in its last bit, as the first product is contracted into it (CARD_CLOSE)
WAYS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
  ("CUDA", {"sm": 75, "order": 1}, {}), ("CUDA", {"sm": 90, "graph": 0}, {}),
  ("CUDA", {"sm": 100, "order": 1}, {}), ("CUDA", {"sm": 120, "order": 2}, {"Q8_ACTIVATIONS": "1"}),
  ("CUDA", {"sm": 86, "order": 2}, {"NO_MMA_TILES": "1"}),
  ("NV", {"sm": 80}, {}), ("NV", {"sm": 90, "order": 1}, {}),
  ("CUDA:PTX", {"sm": 80, "close": 1}, {}), ("CUDA:PTX", {"sm": 89, "order": 2, "close": 1}, {})]

@extended
@pytest.mark.parametrize("dev,settings,switches", WAYS)
@pytest.mark.parametrize("model", ("llama", "llama F16"), indirect=True)
def test_compilers_and_capabilities(model: Model, dev: str, settings: dict[str, Any], switches: dict[str, str],
                                    tmp_path: pathlib.Path) -> None:
  compare(model, tmp_path, on_card(dev, **settings) | switches)

@pytest.mark.parametrize("types", sample(("Q4_K", "Q6_K", "MXFP4", "Q8_0", "Q2_K", "F16"), ("Q8_0",)))
def test_rows_of_a_step_are_a_row_alone(model_file: Callable[..., pathlib.Path], types: str) -> None:
  """2, 4 and 8 rows of x share a matrix's weights, in a thread or in a block."""
  path = str(model_file(types=types, vocab=VOCAB, layers=1, blocks=True, dim=256, ffn=256))
  found = child.call(answers.rows, path, **on_card(order=2, seed=7)).value
  assert max(found) < EXACT, found
