"""
Switching a patch off makes the kernel suite fail in the expected rows, or in no row if the patch touches no kernel. The
suite's cases also stand for deeper and wider models. Most of these tests take minutes: make kernel-suite.
"""
import fnmatch
import json
import os
from typing import NamedTuple

import pytest
from tests.tools.kernel_cases import STEPS, missing
from tests.tools.kernel_golden import Report, fields, is_product, moved_rows, pinned
from tests.tools.kernel_suite import measure
from tinygrad_llm import patches
from tinygrad_llm.patches.pipeline import PASSES, Phase

class Moves(NamedTuple):
  """
  The expected effect of switching a patch off: which figures move.

  In the decode step of `case` on `target`, rows of `role` (* for any letters) change at least in `fields`.

  setting: the name of a variable that is 1 in the environment, with and without the patch.
  """
  target: str
  case: str
  role: str
  fields: str
  setting: str = ""

CPU, CUDA, PTX = "CPU:x86-64-v3", "CUDA:sm_90", "NV:PTX:sm_90"
MIX, HALF, BYTES = "llama-1b-Q4_K_M", "llama-1b-F16", "llama-1b-Q8_0"
OLMOE, DEEPSEEK = "olmoe-1b-7b-Q4_K_M", "deepseek-v2-lite-Q4_K_M"
PRODUCT, GATED = "blk.*.attn_output", "blk.*.ffn_norm+ffn_gate+ffn_up"
SWITCHES = {
  "hooks": Moves(CPU, HALF, "*", "schedule load_bytes nodes"),
  "gathers": Moves(CUDA, HALF, "token_embd", "bytes ops name global_size"),
  "clamps": Moves(CUDA, OLMOE, "blk.*.ffn_down_exps", "schedule opts load_bytes"),
  "merge_sums": Moves(CUDA, OLMOE, "blk.*.ffn_down_exps", "schedule opts load_bytes"),
  "split_products": Moves(CUDA, DEEPSEEK, "blk.*.ffn_down_exps+ffn_down_shexp", "role count name"),
  "join_products": Moves(CUDA, HALF, GATED, "bytes ops name"),
  "norm_fusion": Moves(CUDA, MIX, "act", "count role"),
  "flash_decoding": Moves(CUDA, MIX, "kv", "count name schedule"),
  "online_softmax": Moves(CUDA, MIX, "kv", "schedule global_size local_size"),
  "block_reductions": Moves(CUDA, MIX, "act", "schedule global_size local_size"),
  "horizontal_fusion": Moves(CPU, MIX, "blk.*.attn_q+attn_k", "role count name"),
  "normal_form": Moves(CPU, MIX, "kv", "bytes nodes"),
  "merge_fields": Moves(CUDA, MIX, PRODUCT, "ops nodes"),
  "hoist_sums": Moves(CPU, MIX, PRODUCT, "ops nodes"),
  "hoist_factors": Moves(CPU, HALF, "blk.*.attn_norm+attn_q+attn_k+attn_v", "ops load_bytes nodes"),
  "vectorizer": Moves(CPU, HALF, "token_embd", "load_bytes nodes"),
  "lanes": Moves(CPU, HALF, "blk.*.attn_norm+attn_q+attn_k+attn_v", "schedule opts load_bytes"),
  "factor_sums": Moves(CUDA, MIX, PRODUCT, "ops nodes"),
  "int_to_float": Moves(CUDA, MIX, PRODUCT, "ops nodes"),
  "table_lookup_gpu": Moves(CUDA, "gpt-oss-20b-MXFP4_MOE", "blk.*.ffn_down_exps", "ops nodes"),
  "fields_in_place": Moves(CUDA, MIX, PRODUCT, "ops nodes"),
  "dot_int8_cpu": Moves(CPU, BYTES, PRODUCT, "bytes ops name opts"),
  "choose": Moves(CUDA, HALF, PRODUCT, "schedule opts global_size local_size load_bytes"),
  "gemv": Moves(CUDA, HALF, PRODUCT, "schedule opts global_size local_size load_bytes"),
  "reductions": Moves(CUDA, MIX, "act", "schedule opts global_size local_size"),
  "elementwise": Moves(CPU, HALF, "token_embd", "schedule opts load_bytes"),
  "reroll": Moves(CPU, MIX, "act", "opts serial nodes"),
  "kernel_chains": Moves(CUDA, OLMOE, "act", "count name schedule"),
  "ordered_loads": Moves(CPU, HALF, "kv", "nodes"),
  "shuffle_reduce": Moves(CUDA, HALF, PRODUCT, "ops nodes"),
  "half8_loads": Moves(CUDA, HALF, PRODUCT, "load_bytes nodes"),
  "shared_operands": Moves(CUDA, MIX, PRODUCT, "lines nodes"),
  "ptx": Moves(PTX, HALF, PRODUCT, "ops nodes"),
  "dot_int8_gpu": Moves(CUDA, BYTES, PRODUCT, "ops nodes", "Q8_ACTIVATIONS"),
}
# patches without effect on kernels: they concern the compiler's speed, caches and running
KEEP = {p.name for p in PASSES if p.phase in (Phase.SEARCH, Phase.LOWERING, Phase.CACHE, Phase.RUNTIME)}
# patches that the suite does not see; tests/patches and tests/gpu check that they work
UNSEEN = {
  "reciprocal": "another spelling of the same operation",
  "launch_bounds": "registers are up to the version of a compiler; test_nothing_spills has their bound",
  "table_lookup": "no figure of MXFP4's kernels moves",
  "clang_combine": "an option of clang's, after 20 seconds",
  "reshapes": "no case has such a reshape",
  "store_factors": "decode steps have no such factor, prompts do",
  "hoist_scales": "no case has such a product",
  "narrow": "no case has such a product",
  "register_tiles": "a decode step has one token",
  "epilogues": "the same",
  "pack_operands": "a decode step has one token",
  "mma_tiles": "the same",
  "skip_steps": "the same",
  "clang_width": "an option of clang's",
  "dot_bf16": "a decode step has one token",
  "amx_tiles": "the same",
}
all_of_it = pytest.mark.kernel_suite

def of_decode(target: str, case: str, **env: str) -> dict[str, Report]:
  if why := missing(target): pytest.skip(why)
  return measure(target, ((case, "decode"),), os.cpu_count() or 1, **env)[case, "decode"]

def marked(names) -> list: return [pytest.param(name, marks=all_of_it) for name in sorted(names)]

def test_every_patch_is_covered(): assert sorted([*SWITCHES, *KEEP, *UNSEEN]) == sorted(patches.PATCHES)

@pytest.mark.parametrize("patch", marked(SWITCHES))
def test_disabling_a_patch_changes_its_kernels(patch):
  target, case, role, wanted, setting = SWITCHES[patch]
  env = {setting: "1"} if setting else {}
  found, without = of_decode(target, case, **env), of_decode(target, case, **env, **{f"NO_{patch.upper()}": "1"})
  for step in STEPS["decode"]:
    rows = moved_rows(pinned(found[step]), pinned(without[step]))
    moved = {field for old, new in rows if fnmatch.fnmatchcase((old or new or {})["role"], role)
             for field in fields(old, new)}
    assert {*wanted.split()} <= moved, (step, moved)

@pytest.mark.parametrize("patch", marked({*KEEP, *UNSEEN}))
def test_other_patches_change_no_kernels(patch):
  for target, case in (CPU, HALF), (CUDA, HALF):
    found, without = of_decode(target, case), of_decode(target, case, **{f"NO_{patch.upper()}": "1"})
    if patch == "launch_bounds": found, without = ({k: pinned(r) for k, r in x.items()} for x in (found, without))
    assert found == without

# *** deeper and wider

def rows_of_one(found: Report) -> dict[str, int]:
  """{a row, with the figures of one of its kernels: the number of its kernels}."""
  def one(row: dict) -> str:
    rest = {key: value for key, value in row.items() if key not in ("count", "nodes", "live")}
    return json.dumps(rest | {key: row[key] // row["count"] for key in ("bytes", "ops")})
  return {one(row): row["count"] for row in found["roles"]}

@all_of_it
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("target", [CPU, CUDA])
def test_two_layers_represent_sixteen(target, kind):
  """A model of 16 layers has the same kernels as one of two layers, more often."""
  if why := missing(target): pytest.skip(why)
  units = tuple((case, kind) for case in (MIX, "llama-1b-16L-Q4_K_M"))
  two, sixteen = measure(target, units, os.cpu_count() or 1).values()
  for step in STEPS[kind]:
    few, many = rows_of_one(pinned(two[step])), rows_of_one(pinned(sixteen[step]))
    assert few.keys() == many.keys()
    assert all(few[row] <= many[row] for row in few)
    assert sum(many.values()) > 6 * sum(few.values())

@all_of_it
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("target", [CPU, CUDA])
def test_small_model_represents_wider_one(target, kind):
  """
  The 8B model's matmuls have the 1B model's roles, types and schedules, in the same order. Our schedules also have the
  same load widths and kinds of opts; tinygrad's own depend on the lengths of loops.
  """
  if why := missing(target): pytest.skip(why)
  units = tuple((case, kind) for case in (MIX, "llama-8b-Q4_K_M"))
  small, wide = measure(target, units, os.cpu_count() or 1).values()
  def products(found: Report) -> list[tuple]:
    return [(row["role"], row["types"], row["count"], row["schedule"], *(() if row["schedule"] == "stock" else
             (row["load_bytes"], *sorted({opt.split(":")[0] for opt in row["opts"]}))))
            for row in found["roles"] if is_product(row)]
  for step in STEPS[kind]: assert products(small[step]) == products(wide[step])
