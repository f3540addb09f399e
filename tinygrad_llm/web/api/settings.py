"""The settings of LLM.stream that a request asks for, and their defaults."""
from __future__ import annotations
import json, re, secrets
from typing import Any
from tinygrad_llm.web.choices import DEFAULTS
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.api.schemas import Chat, Completion, ResponseFormat, Sampling
from tinygrad_llm.web.service import Service

BIASED = 8192  # characters of logit_bias, which the event loop tokenises
MOST = 128  # answers to one prompt
SCHEMA = "response_format.json_schema.schema"

def defaults(service: Service) -> dict[str, Any]:
  """The settings of a request that gives none: the command's options, else the file's suggestions, else DEFAULTS."""
  found: dict[str, Any] = DEFAULTS | service.llm.suggested | service.defaults
  return found

def settings(service: Service, asked: Sampling, most: int | None) -> dict[str, Any]:
  """
  most: tokens of the answer; None: as many as the command says; below 0: until it ends.

  ApiError names a field that cannot be.
  """
  llm, found = service.llm, defaults(service)
  for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos",
               "min_tokens", "exact_prefix", "json_schema", "regex", "lark"):
    if (value := getattr(asked, name)) is not None: found[name] = value
  penalty = asked.repeat_penalty if asked.repeat_penalty is not None else asked.repetition_penalty
  if penalty is not None: found["repeat_penalty"] = penalty
  if found["top_k"] == -1: found["top_k"] = 0
  seed = asked.seed if asked.seed is not None else found.get("seed", -1)
  if seed < 0: seed = secrets.randbelow(1 << 31)
  if asked.cache_prompt is False: found["exact_prefix"] = True
  if asked.grammar: found["lark"] = _lark(asked)
  if most is None: most = service.most
  if most is not None and most < 0: most = None
  found |= {"max_tokens": most, "seed": seed % (1 << 63), "stop_ids": asked.stop_token_ids or []}
  stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
  found |= {"stop": [text for text in stop if text], "logit_bias": _bias(llm, asked)}
  return found

def _lark(asked: Sampling) -> str:
  """The request's grammar in llguidance's own form. ApiError if it is wrong, or not the only one."""
  from llguidance.gbnf_to_lark import gbnf_to_lark
  def wrong(why: str) -> ApiError: return ApiError(400, f"grammar: {why}", "invalid_value", "grammar")
  if asked.lark is not None: raise wrong("lark is given, too; give one of them")
  try: return str(gbnf_to_lark(asked.grammar or ""))
  except Exception as e: raise wrong(" ".join(str(e).split())[:200]) from None  # plain Exception is what it raises

def count(asked: Sampling) -> int:
  """How many answers are asked for."""
  if (n := asked.n if asked.n is not None else 1) < 1 or n > MOST:
    raise ApiError(400, f"n: {n} is not a number from 1 to {MOST}", "invalid_value", "n")
  return n

def _bias(llm: Any, asked: Sampling) -> dict[int, float]:
  """OpenAI: {"id": bias}; llama-server: [[id or text, bias or false]], and texts in the former; false rules out."""
  if not asked.logit_bias: return {}
  pairs = [*asked.logit_bias.items()] if isinstance(asked.logit_bias, dict) else asked.logit_bias
  found = dict[int, float]()
  if pairs is asked.logit_bias and sum(len(x) for x, _ in pairs if isinstance(x, str)) > BIASED:
    raise ApiError(400, f"logit_bias: its texts have more than {BIASED} characters", "invalid_value", "logit_bias")
  for token, bias in pairs:
    value = float("-inf") if bias is False else float(bias)
    is_id = isinstance(token, int) or pairs is not asked.logit_bias and re.fullmatch(r"-?\d+", token)
    found |= dict.fromkeys([int(token)] if is_id else llm.tokenizer.encode(token), value)
  return found

def add_format(found: dict[str, Any], form: ResponseFormat | None) -> None:
  """response_format as a grammar: any JSON object, or one by a schema."""
  if form is None or form.type == "text": return
  schema: Any = form.schema
  if form.type == "json_schema":
    schema = form.json_schema.schema if form.json_schema is not None else schema
    if schema is None: raise ApiError(400, f"{SCHEMA}: it is missing", "missing_required_parameter", SCHEMA)
  found["json_schema"] = {"type": "object"} if schema is None else {} if schema is True else closed(schema)

def closed(schema: Any) -> Any:
  """
  A schema whose objects have the named properties alone, unless it says otherwise; llama-server has it so, too.

  Small models else go on with properties of their own. A schema with allOf stays: its parts add properties.
  """
  return schema if '"allOf"' in json.dumps(schema) else _closed(schema)

def _closed(schema: Any) -> Any:
  if not isinstance(schema, dict): return schema
  found = dict[str, Any](schema)
  for name, value in schema.items():
    if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
      found[name] = {key: _closed(each) for key, each in value.items()}
    elif name in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list): found[name] = [*map(_closed, value)]
    elif name == "items": found[name] = _closed(value)
  if "properties" in schema and not {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf",
                                     "oneOf", "$ref", "if", "not"} & {*schema}: found["additionalProperties"] = False
  return found

def chat_logprobs(asked: Chat) -> int | None:
  """How many alternatives a chat lists; None: no log-probabilities."""
  if asked.top_logprobs is not None and not asked.logprobs:
    raise ApiError(400, "top_logprobs: it needs logprobs: true", "invalid_value", "top_logprobs")
  return (asked.top_logprobs or 0) if asked.logprobs else None

def completion_logprobs(asked: Completion) -> int | None:
  """How many alternatives a completion lists; None: no log-probabilities."""
  if asked.logprobs is None or asked.logprobs is False: return None
  if asked.logprobs not in range(21):
    raise ApiError(400, f"logprobs: {asked.logprobs} is not a number from 0 to 20", "invalid_value", "logprobs")
  return int(asked.logprobs)
