"""The inputs of embeddings, which are of more kinds than OpenAI's: texts, token ids, both mixed, and objects."""
from __future__ import annotations
from typing import Any
from tinygrad_llm.web.api.native_prompts import mixed_ids
from tinygrad_llm.web.api.schemas import prompts
from tinygrad_llm.web.errors import ApiError

FIELD = "input"

def inputs(given: Any) -> list[str | list[Any]]:
  """
  Each text, or list of token ids and texts. ApiError that names the field if it is neither.

  {"prompt_string": text} is a text, and so is {"content": [{"type": "text", "text": text}, ..]}.
  """
  if isinstance(given, dict): return [_text(given, FIELD)]
  if not isinstance(given, list) or not given: return prompts(given, FIELD)
  if _is_mixed(given): return [given]
  found = list[str | list[Any]]()
  for i, x in enumerate(given):
    if isinstance(x, dict): found.append(_text(x, f"{FIELD}[{i}]"))
    elif isinstance(x, list) and _is_mixed(x): found.append(x)
    else: found += prompts([x], FIELD)
  return found

def input_ids(llm: Any, given: str | list[Any]) -> list[int]:
  """The token ids of one input. A text has the marks of begin and end that the file asks for."""
  if isinstance(given, list) and not all(type(x) is int for x in given): return mixed_ids(llm, given, FIELD)
  ids: list[int] = llm.pooling.ids(given)
  return ids

def _is_mixed(given: list[Any]) -> bool: return any(type(x) is int for x in given)

def _text(given: dict[str, Any], where: str) -> str:
  if isinstance(text := given.get("prompt_string"), str) and not given.get("multimodal_data"): return text
  if not isinstance(parts := given.get("content"), list) or not parts:
    raise ApiError(400, f"{where}: it has neither a prompt_string nor a content of parts", "invalid_type", where)
  for i, part in enumerate(parts):
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
      raise ApiError(400, f"{where}.content[{i}]: only parts of type text are supported by this server",
                     "unsupported_content", where)
  return "".join(part["text"] for part in parts)
