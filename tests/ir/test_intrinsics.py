"""ir/intrinsics.py: an intrinsic has one name, one execution pipe, and a text for each language that supports it."""
import pytest
from tests.gpu import gpu_renderers
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

from tinygrad_llm.patches.ir import intrinsics
from tinygrad_llm.patches.ir.intrinsics import Intrinsic, Language
from tinygrad_llm.patches.isa.dot_int8_gpu import DOT4
from tinygrad_llm.patches.isa.fields_in_place import LOP3
from tinygrad_llm.patches.isa.shuffle_reduce import EXCHANGES
from tinygrad_llm.patches.isa.table_lookup import LOOK_UP
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE
from tinygrad_llm.patches.search.cost import instructions

ALL = {DOT4: "dot", LOP3: "int", PERMUTE: "int", LOOK_UP: "shuffle"} | dict.fromkeys(EXCHANGES.values(), "shuffle")

def custom(text: str) -> UOp: return UOp(Ops.CUSTOM, dtypes.int, (), text)

@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_pipe_of_each_intrinsic(of: Intrinsic) -> None:
  for text in of.texts.values():
    assert intrinsics.named(text) is of and instructions.pipe(custom(text)) == ALL[of]

def test_pipe_of_unknown_c_text() -> None:
  assert instructions.pipe(custom("fold_shuffled_flags({0})")) == "int"
  assert intrinsics.called("fold_shuffled_flags({0})") == "fold_shuffled_flags"
  assert intrinsics.called(EXCHANGES[2].texts[Language.PTX]) == "exchange_2"

def test_duplicate_text_is_rejected() -> None:
  text = {Language.CUDA: DOT4.texts[Language.CUDA]}
  with pytest.raises(ValueError, match="dot of four bytes, and another"): Intrinsic("another", "dot", text)

def test_language_of_each_renderer() -> None:
  spoken = {name: intrinsics.language(ren) for name, ren in gpu_renderers.RENDERERS.items()}
  assert spoken["CUDA"] is Language.CUDA and spoken["Metal"] is Language.METAL and spoken["PTX"] is Language.PTX
  for name, ren in gpu_renderers.RENDERERS.items():
    assert DOT4.text(ren) == DOT4.texts.get(spoken[name]) if spoken[name] is not None else DOT4.text(ren) is None

def test_unsupported_on_old_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
  """sm_60 has no byte dot product; sm_53 has warp shuffles."""
  ren = gpu_renderers.RENDERERS["CUDA"]
  for arch, has in (("sm_53", False), ("sm_60", False), ("sm_61", True), ("sm_120", True)):
    monkeypatch.setattr(ren, "target", ren.target.__class__(**(vars(ren.target) | {"arch": arch})))
    assert (DOT4.text(ren) is not None) == has and EXCHANGES[1].text(ren) is not None
