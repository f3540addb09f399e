"""A request's messages as chat templates read them."""
from __future__ import annotations
from typing import Any
from tinygrad_llm.web.errors import ApiError

ROLES = {"developer": "system"}

def messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Texts instead of parts of texts, and roles that templates know. ApiError names the message that cannot be read."""
  if not given: raise ApiError(400, "messages: there are none; give at least one", "invalid_value", "messages")
  return [_message(message, f"messages[{i}]") for i, message in enumerate(given)]

def _message(given: dict[str, Any], where: str) -> dict[str, Any]:
  role = given.get("role")
  if not isinstance(role, str): raise ApiError(400, f"{where}.role: it is missing, or no text", "invalid_type",
                                               f"{where}.role")
  kept = {name: value for name, value in given.items() if value is not None and name not in ("role", "content")}
  thought = kept.pop("reasoning", None)
  if isinstance(thought, str): kept.setdefault("reasoning_content", thought)
  if given.get("content") is None and role not in ("assistant", "tool"):
    raise ApiError(400, f"{where}.content: it is missing", "missing_required_parameter", f"{where}.content")
  return {"role": ROLES.get(role, role), "content": _text(given.get("content"), f"{where}.content"), **kept}

def _text(content: Any, where: str) -> str:
  if content is None: return ""
  if isinstance(content, str): return content
  if not isinstance(content, list): raise ApiError(400, f"{where}: it is neither a text nor a list of parts",
                                                   "invalid_type", where)
  return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))  # as llama-server and vLLM have it

def _part(part: Any, where: str) -> str:
  if isinstance(part, str): return part
  kind = part.get("type") if isinstance(part, dict) else None
  if kind in ("text", "input_text", "output_text", "refusal"):
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, str): return text
    raise ApiError(400, f"{where}.text: it is missing, or no text", "invalid_type", f"{where}.text")
  what = {"image_url": "images", "input_audio": "audio", "file": "files"}.get(str(kind), f"parts of type {kind!r:.40}")
  raise ApiError(400, f"{where}: {what} are not supported by this server", "unsupported_content", where)
