"""Other purposes of a file than answers: drafts for another model, embeddings, reranking."""
from __future__ import annotations
import re
from collections.abc import Collection

DRAFTS = ("dflash", "eagle3", "gemma4-assistant")  # architectures that only draft tokens for another model
ONLY_DRAFTS = "the file holds only a draft model for speculation"  # https://arxiv.org/abs/2211.17192
POOLINGS = ("", "mean", "first", "last", "rank")  # by pooling_type: of which positions an embedding is made

def layers_ahead(names: Collection[str]) -> set[str]:
  """Layers of multi-token prediction (https://arxiv.org/abs/2404.19737): their tensors' prefixes, such as "blk.48."."""
  return {match[1] for name in names if (match := re.match(r"(blk\.\d+\.)nextn\.", name))}

def only_drafts(names: Collection[str], ahead: int) -> bool:
  """Whether a file with tensors of these names has no layers but multi-token prediction. ahead: how many it tells."""
  prefixes = layers_ahead(names)
  if not (prefixes or ahead): return False
  return "blk.0." in prefixes or not any(name.startswith("blk.0.") for name in names)

def pooling(kind: int, names: Collection[str]) -> str:
  """How the model makes an embedding or a score of a text, see POOLINGS. kind: the file's pooling_type."""
  return POOLINGS[kind] or ("rank" if "cls.output.weight" in names else "")
