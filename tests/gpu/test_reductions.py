"""Long reductions on GPUs, alone and fused with the products that they scale: kernels and numerics, without a GPU."""
import functools

from tests.support import child
from tests.gpu import gpu_numbers
from tests.gpu import gpu_reductions
import pytest
from tests.gpu.gpu_reductions import MOST
from tinygrad_llm.device import metal

VOCABULARIES = [32003, 49152, 128256, 151936, 201088]
# an odd number of threads, gate and bias, halves, several loops over weights, a norm after the product
NORMS = [["Q4_K", 8, 512], ["Q6_K", 8, 768, 1, "gate bias"], ["Q8_0", 12, 416], ["F16", 12, 512, 1, "gate"],
         ["MXFP4", 8, 512, 1, "bias residual"], ["Q4_K", 512, 256, 1, "post"], ["Q8_0", 8, 256, 1, "twice"]]
ROWS = [["sum", 32768], ["max", 20000], ["max", 1111], ["sum", 1000], ["sum", 1024, "int64"], ["max", 2880, "int32", 3]]

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

def kernels(names: list[list], env: dict[str, str], *off: str) -> list[int]:
  return child.call(gpu_reductions.counts, names, **env, **without("kernel_chains", *off)).value

# *** norms fused with products

@functools.cache
def run(*off: str) -> list[tuple[float, list[list]]]:
  """The norms and rows for CUDA, run by numpy, with the patches `off` switched off."""
  env = gpu_numbers.opencl()
  assert env is not None
  return child.call(gpu_reductions.lockstep, "CUDA", cases(*off), **env, **without(*off)).value

def cases(*off: str) -> list[list]: return [*NORMS[:4], *ROWS[:3]] if off else NORMS + ROWS

def without(*off: str) -> dict[str, str]: return {f"NO_{name.upper()}": "1" for name in off}

@pytest.mark.parametrize("off", [(), *[(name,) for name in (
  "norm_fusion", "reductions", "shuffle_reduce", "factor_sums", "gemv", "kernel_chains")]], ids=str)
def test_results_on_cuda(opencl, off):
  assert [case for case, (error, _) in zip(cases(*off), run(*off), strict=True) if not error < MOST] == []

def test_norm_is_fused_with_product(opencl):
  """A norm is fused with its product, except for several tokens, or if x is stored (others use it, or many inputs)."""
  norms = [*NORMS[:5], ["Q4_K", 8, 512, 2], ["Q4_K", 8, 512, 1, "both"]]
  assert kernels(norms, opencl) == [1, 1, 1, 1, 3, 2, 3]
  assert kernels(norms, opencl, "norm_fusion") == [2, 2, 2, 2, 3, 2, 3]

def test_fusion_keeps_product_schedule(opencl):
  """The fused kernel has the product's schedule. Shuffles reduce the product's sums and the norm's (20 + 5)."""
  fused, alone = (found[3][1][-1] for found in (run("kernel_chains"), run("norm_fusion", "kernel_chains")))
  assert fused[:3] == alone[:3] and (alone[3], fused[3]) == (20, 25)
  assert "__shared__" not in fused[5]

def test_norm_shares_loads_of_x(opencl):
  """The norm's sum shares the product's loads of x and its loop."""
  fused, alone = (found[1][1][-1] for found in (run("kernel_chains"), run("norm_fusion", "kernel_chains")))
  assert fused[5].count("float4*)((data1") == alone[5].count("float4*)((data1") > 0
  assert fused[5].count("for (") <= alone[5].count("for (") + 1

def test_random_norm_results(opencl):
  errors = child.call(gpu_reductions.errors, [7, 24], **opencl).value
  assert [i for i, error in enumerate(errors) if not error < MOST] == []

# *** alone

@functools.cache
def keys(target: str, *off: str) -> dict[int, list[list]]:
  """{vocabulary size: argmax kernels}; all sizes for CUDA, fewer for other targets."""
  sizes = VOCABULARIES if target == "CUDA" else VOCABULARIES[:1] + VOCABULARIES[2:3]
  env = gpu_numbers.opencl()
  assert env is not None
  return dict(zip(sizes, child.call(gpu_reductions.keys, target, sizes, **env, **without(*off)).value))

@pytest.mark.parametrize("target", ["CUDA", "Metal", "PTX", "OpenCL"])
def test_argmax_is_two_short_kernels(opencl, target):
  """Argmax is two kernels with short loops; the first has thousands of threads with coalesced loads."""
  for size, found in keys(target).items():
    assert len(found) == 2, size
    (opts, blocks, threads, *_), _ = found
    assert blocks * threads >= 2048 and threads >= (256 if target != "OpenCL" else 64), size
    assert opts.startswith("GROUP:0:32 "), size  # a warp reads 32 adjacent numbers
    assert max(steps for *_, steps, _ in found) <= 64, size
    assert min(exchanges for *_, exchanges, _, _ in found) == (0 if target == "OpenCL" else 10), size  # 64-bit shuffles

def test_stock_argmax_has_long_loops(opencl):
  """tinygrad's own argmax has long loops, with one thread if the vocabulary size has no suitable divisor."""
  assert [max(steps for *_, steps, _ in found) > 64 for found in keys("CUDA", "reductions").values()].count(True) >= 2

def test_argmax_metal_source_is_valid(opencl):
  for size, found in keys("Metal").items():
    assert [metal.errors(source) for *_, source in found] == ["", ""], size

@pytest.mark.parametrize("off", [(), ("reductions",)], ids=str)
def test_argmax_results(opencl, off):
  sizes = [*VOCABULARIES, 7, 1000, 1111, 16385]
  assert all(child.call(gpu_reductions.argmaxima, sizes, **opencl, **without(*off)).value)

def test_row_reductions_on_opencl(opencl):
  errors = child.call(gpu_reductions.errors, [*ROWS, ["max", 50257], ["sum", 40000, "float32", 3]], **opencl).value
  assert [i for i, error in enumerate(errors) if not error < MOST] == []

def test_expert_bias_sums_over_part_of_a_group(opencl):
  """Experts' biases are summed over a part of the threads that share the products."""
  sums = [[2, 32, 128], [4, 32, 256], [2, 48, 64], [8, 16, 512]]
  assert max(child.call(gpu_reductions.errors_of_weighted, sums, **opencl).value) < MOST

# *** workers

def test_workers_make_the_same_kernels(opencl):
  here, there = (child.call(gpu_reductions.sources, [NORMS[0], ["max", 20000]], PARALLEL=n, **opencl).value
                 for n in ("0", "1"))
  assert here == there and len(here) == 3
