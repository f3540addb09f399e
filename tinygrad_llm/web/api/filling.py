"""Prompts that ask for the text between two others: `suffix` of /v1/completions, and llama-server's /infill."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.fill_marks import fill_prompt
from tinygrad_llm.web.api.schemas import Prompt, prompts
from tinygrad_llm.web.errors import ApiError

def fill_ids(llm: Any, before: str, after: str, field: str, most: int | None, begun: str = "",
             files: Sequence[tuple[str, str]] = ()) -> list[int]:
  """
  The token ids that ask for the text between two others. most: tokens of the answer; None or -1: it has no bound.

  ApiError that names the field if the model does not fill in.
  """
  context = llm.max_context
  answer = context // 4 if most is None or most < 0 else min(most, context // 2) + 1
  try: return fill_prompt(llm.tokenizer, before, after, context - answer, begun, files)
  except InputError as e: raise ApiError(400, f"{field}: {e}", "unsupported_parameter", field) from e

def fill_lists(llm: Any, given: Prompt, suffix: str, most: int) -> list[list[int]]:
  """The token ids of each prompt of /v1/completions, which is what comes before the suffix: a text."""
  found = list[list[int]]()
  for text in prompts(given, "prompt"):
    if not isinstance(text, str): raise ApiError(400, "prompt: with a suffix, it has to be a text, not token ids",
                                                 "invalid_type", "prompt")
    found.append(fill_ids(llm, text, suffix, "suffix", most))
  return found
