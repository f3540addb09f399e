"""The prompts of llama-server's /completion, which are of more kinds than OpenAI's, and chosen fields of its answer."""
from __future__ import annotations
from typing import Any
from tinygrad_llm.web.api import completions
from tinygrad_llm.web.errors import ApiError

def prompt_lists(llm: Any, given: Any) -> list[list[int]]:
  """
  The token ids of each prompt: as completions has them, or {"prompt_string": text}.

  A list of texts and ids mixed is one prompt.
  """
  def pieces(x: Any) -> Any:
    if not isinstance(x, dict): return x
    if x.get("multimodal_data"):
      raise ApiError(400, "prompt: images and audio are not supported by this server", "unsupported_content", "prompt")
    if not isinstance(text := x.get("prompt_string"), str):
      raise ApiError(400, "prompt.prompt_string: it is missing, or no text", "invalid_type", "prompt.prompt_string")
    return text
  def is_mixed(x: Any) -> bool: return isinstance(x, list) and any(type(y) is int for y in x)
  if is_mixed(given): return [mixed_ids(llm, given, "prompt")]
  if not isinstance(given, list): return completions.prompt_lists(llm, pieces(given))
  lists = [mixed_ids(llm, x, "prompt") if is_mixed(x) else pieces(x) for x in given]
  return completions.prompt_lists(llm, lists)

def mixed_ids(llm: Any, given: list[Any], field: str) -> list[int]:
  """Ids as they are, and texts as ids; a text at the begin has the model's first token. ApiError names the field."""
  ids = list[int]()
  llm.check_size([x for x in given if isinstance(x, str)])
  for i, x in enumerate(given):
    if type(x) is int: ids.append(x)
    elif isinstance(x, str): ids += llm.tokenizer.encode(x, parse_special=True) if i else completions.text_ids(llm, x)
    else:
      where = f"{field}[{i}]"
      raise ApiError(400, f"{where}: {x!r:.40} is neither a text nor a token id", "invalid_type", where)
  return ids

def chosen(whole: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
  """Only these keys, where a/b is b in a; all if none is named."""
  found = dict[str, Any]()
  for name in names or ():
    value: Any = whole
    for part in name.split("/"): value = value.get(part) if isinstance(value, dict) else None
    if value is not None: found[name] = value
  return found if names else whole
