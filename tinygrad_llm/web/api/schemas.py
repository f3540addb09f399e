"""The bodies of requests. None is like absence, unknown fields are ignored, a wrong type is an error of its field."""
from __future__ import annotations
import gc, re
from typing import Any, Literal, TypeVar
import msgspec
from msgspec import Struct
from tinygrad_llm.web.errors import ApiError

MOST = 1 << 20  # values of a body, about: its commas

T = TypeVar("T")
Number = int | float
Prompt = str | list[Any]  # a text, token ids, or a list of either: see prompts()

class StreamOptions(Struct, kw_only=True):
  include_usage: bool | None = None

class JsonSchema(Struct, kw_only=True):
  name: str | None = None
  schema: dict[str, Any] | bool | None = None
  strict: bool | None = None

class ResponseFormat(Struct, kw_only=True):
  """type: text, json_object, or json_schema. schema: llama-server's place for one."""
  type: Literal["text", "json_object", "json_schema"]
  json_schema: JsonSchema | None = None
  schema: dict[str, Any] | None = None

class Sampling(Struct, kw_only=True):
  """The settings that all requests for an answer share, by the names of OpenAI, llama-server and vLLM."""
  model: str | None = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  temperature: Number | None = None
  top_k: int | None = None
  top_p: Number | None = None
  min_p: Number | None = None
  seed: int | None = None
  repeat_penalty: Number | None = None
  repetition_penalty: Number | None = None
  presence_penalty: Number | None = None
  frequency_penalty: Number | None = None
  logit_bias: dict[str, Number] | list[tuple[int | str, Number | bool]] | None = None
  stop: str | list[str] | None = None
  stop_token_ids: list[int] | None = None
  ignore_eos: bool | None = None
  min_tokens: int | None = None
  max_tokens: int | None = None
  n: int | None = None
  json_schema: dict[str, Any] | None = None
  regex: str | None = None
  lark: str | None = None
  grammar: str | None = None  # llama.cpp's GBNF
  exact_prefix: bool | None = None
  timings_per_token: bool | None = None
  return_progress: bool | None = None
  cache_prompt: bool | None = None  # false: the answer is the same, to the bit, as from a fresh read of the prompt

  @property
  def wants_usage(self) -> bool:
    """Whether a stream ends with its usage."""
    return self.stream_options is not None and bool(self.stream_options.include_usage)

class Chat(Sampling, kw_only=True):
  """OpenAI's chat. The fields for the chat template are Template's."""
  messages: list[dict[str, Any]]
  chat_template_kwargs: dict[str, Any] | None = None
  add_generation_prompt: bool | None = None
  continue_final_message: bool | None = None
  max_completion_tokens: int | None = None
  logprobs: bool | None = None
  top_logprobs: int | None = None
  response_format: ResponseFormat | None = None
  verbose: bool | None = None  # the answer tells the prompt's text
  reasoning_effort: str | None = None
  tools: list[Any] | None = None
  tool_choice: Any = None
  functions: list[Any] | None = None

class Completion(Sampling, kw_only=True):
  prompt: Prompt
  logprobs: int | bool | None = None
  echo: bool | None = None
  suffix: str | None = None  # the text between the prompt and it is asked for
  best_of: int | None = None
  response_format: ResponseFormat | None = None

class NativeSampling(Sampling, kw_only=True):
  """Fields of llama-server alone. n_predict 0 only reads the prompt."""
  n_predict: int | None = None
  n_probs: int | None = None
  post_sampling_probs: bool | None = None
  return_tokens: bool | None = None
  response_fields: list[str] | None = None

class Native(NativeSampling, kw_only=True):
  """llama-server's /completion. prompt: also a list of texts and ids, which is one prompt; see native_prompts."""
  prompt: Prompt | dict[str, Any]

class Extra(Struct, kw_only=True):
  """Another file, which may help to fill in."""
  text: str = ""
  filename: str = "tmp"

class Infill(NativeSampling, kw_only=True):
  """llama-server's /infill: the text between two others. prompt: its begin."""
  input_prefix: str
  input_suffix: str
  input_extra: list[Extra] | None = None
  prompt: str | None = None

class Embeddings(Struct, kw_only=True):
  """input: of more kinds than OpenAI's, as llama-server has them; see embedding_inputs."""
  input: Prompt | dict[str, Any]
  model: str | None = None
  encoding_format: Literal["float", "base64"] | None = None
  dimensions: int | None = None

class NativeEmbedding(Struct, kw_only=True):
  content: Prompt | dict[str, Any] | None = None
  input: Prompt | dict[str, Any] | None = None

class Tokenize(Struct, kw_only=True):
  """content, add_special: llama-server's names; prompt, add_special_tokens: vLLM's, where specials are the default."""
  content: Any = None
  prompt: str | None = None
  add_special: bool | None = None
  add_special_tokens: bool | None = None
  parse_special: bool | None = None
  with_pieces: bool | None = None

class Detokenize(Struct, kw_only=True):
  tokens: list[int] = []

class Template(Struct, kw_only=True):
  """
  A conversation for the model's chat template.

  continue_final_message: go on with the assistant's message at the end, as is usual. add_generation_prompt: true begins
  a new turn after it; false ends the text without one.
  """
  messages: list[dict[str, Any]]
  chat_template_kwargs: dict[str, Any] | None = None
  add_generation_prompt: bool | None = None
  continue_final_message: bool | None = None

def prompts(given: Prompt, field: str) -> list[str | list[int]]:
  """Each of the texts or lists of token ids. ApiError that names the field if it is neither."""
  def is_ids(x: Any) -> bool: return isinstance(x, list) and all(type(i) is int for i in x)
  if isinstance(given, str): return [given]
  if not given: raise ApiError(400, f"{field}: it is empty; give at least one token", "invalid_value", field)
  if is_ids(given): return [given]
  for i, x in enumerate(given):
    if not isinstance(x, str) and not is_ids(x):
      raise ApiError(400, f"{field}[{i}]: {x!r:.40} is neither a text nor a list of token ids", "invalid_type",
                     f"{field}[{i}]")
  return given

WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$?(?:\.)?(?P<where>.*)`)?$", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(\w+)`")
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}

def decoded(body: bytes, kind: type[T]) -> T:
  """A request's body. ApiError 400 that names the field."""
  if kind not in _decoders: _decoders[kind] = msgspec.json.Decoder(kind)
  if body.count(b",") > MOST: raise ApiError(413, f"body: it has more than {MOST} values", "body_too_large")
  collects = gc.isenabled()
  gc.disable()  # a million lists else take seconds, in which nobody is answered
  try:
    found: T = _decoders[kind].decode(body)
    return found
  except msgspec.ValidationError as e:
    if missing := MISSING.match(str(e)):
      raise ApiError(400, f"{missing[1]}: it is missing", "missing_required_parameter", missing[1]) from None
    match = WHERE.match(str(e))
    where = match["where"] if match and match["where"] else None
    raise ApiError(400, f"{where or 'body'}: {match['what'] if match else e}", "invalid_type", where) from None
  except (msgspec.DecodeError, UnicodeDecodeError) as e:
    raise ApiError(400, f"body: it is not valid JSON ({e})", "invalid_json") from None
  except RecursionError:
    raise ApiError(400, "body: it is nested too deeply", "invalid_json") from None
  finally:
    if collects: gc.enable()
