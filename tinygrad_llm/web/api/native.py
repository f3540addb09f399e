"""llama-server's own routes: /completion, /infill, /tokenize, /detokenize, /apply-template, /props, /slots."""
from __future__ import annotations
import asyncio, math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any
from starlette.responses import Response
from starlette.types import Receive
from tinygrad_llm.web.api import settings
from tinygrad_llm.web.api.answers import Answers, Whole
from tinygrad_llm.web.api.chat import LEAST, prompt_ids
from tinygrad_llm.web.api.filling import fill_ids
from tinygrad_llm.web.api.native_prompts import chosen, prompt_lists
from tinygrad_llm.web.errors import ApiError, as_api_error
from tinygrad_llm.web.replies import EventStream, Json, event, together, while_there
from tinygrad_llm.web.api.schemas import Detokenize, Infill, Native, NativeSampling, Template, Tokenize
from tinygrad_llm.web.service import Service

# settings that change nothing; the samplers of the second line are not here
USUAL = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": False,
         "mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0,
         "dynatemp_range": 0.0, "adaptive_target": -1.0, "adaptive_decay": 0.9}
TOKENISED = 1 << 20  # characters of a /tokenize: 2 s, in which other threads wait now and then
STOPPED = {"stop": "eos", "stop_string": "word", "length": "limit", "context": "limit", "cancelled": "none"}

async def completion(service: Service, asked: Native, receive: Receive) -> Response:
  """The continuation of a prompt, as llama-server's /completion gives it."""
  return await _answered(service, asked, receive, lambda llm: prompt_lists(llm, asked.prompt))

async def infill(service: Service, asked: Infill, receive: Receive) -> Response:
  """The text between two others, as llama-server's /infill gives it."""
  files = [(extra.filename, extra.text) for extra in asked.input_extra or ()]
  return await _answered(service, asked, receive, lambda llm: [fill_ids(
    llm, asked.input_prefix, asked.input_suffix, "input_suffix", _most(asked), asked.prompt or "", files)])

def _most(asked: NativeSampling) -> int | None: return asked.max_tokens if asked.n_predict is None else asked.n_predict

async def _answered(service: Service, asked: NativeSampling, receive: Receive,
                    ids_of: Callable[[Any], list[list[int]]]) -> Response:
  count = settings.count(asked)
  llm = service.check(count)
  found = settings.settings(service, asked, 1 if asked.n_predict == 0 else _most(asked))
  found |= {"logprobs": asked.n_probs or None, "sampled_logprobs": bool(asked.post_sampling_probs)}
  prompts = await asyncio.to_thread(ids_of, llm)
  service.check(count * len(prompts), "prompt")
  progress = bool(asked.stream and asked.return_progress)
  answers = [Answers(service, ids, found, count, progress=progress) for ids in prompts]
  for each in answers: await each.check()
  replies = [_Reply(service, asked, each, found, i * count) for i, each in enumerate(answers)]
  if asked.stream:
    if len(answers) > 1 or count > 1: raise ApiError(400, "stream: it gives one answer; send one prompt, and no n",
                                                     "unsupported_parameter", "stream")
    return EventStream(replies[0].events())
  wholes = await while_there(receive, together(reply.whole() for reply in replies))
  shown = [chosen(whole, asked.response_fields) for whole in wholes]
  return Json(shown[0] if len(shown) == 1 else shown)

class _Reply:
  def __init__(self, service: Service, asked: NativeSampling, answers: Answers, found: dict[str, Any], first: int):
    self._service, self._asked, self._answers, self._found, self._first = service, asked, answers, found, first
    self._reads = asked.n_predict == 0  # a token is made, but not told

  def _last(self, index: int, text: str, tokens: list[int], told: bool = False) -> dict[str, Any]:
    """The answer's end. told: its tokens were, in events before."""
    result = self._answers.results[index]
    if self._reads: result.tokens = 0
    timing = result.timing
    return {"index": self._first + index, "content": text, "id_slot": 0, "stop": True, "model": self._service.name,
            "tokens": tokens if self._asked.return_tokens and not told else [], "tokens_predicted": result.tokens,
            "tokens_evaluated": timing.prompt_tokens, "tokens_cached": timing.prompt_tokens + result.tokens,
            "truncated": timing.finish == "context", "has_new_line": "\n" in text,
            "stop_type": STOPPED.get(timing.finish, "none"),
            "stopping_word": self._word(tokens) if timing.finish == "stop_string" else "",
            "generation_settings": shown_settings(self._found, self._service.llm), "timings": self._answers.timings(),
            "prompt": self._service.llm.tokenizer.decode(self._answers.prompt)}

  def _word(self, tokens: list[int]) -> str:
    """The stop string that comes first in an answer."""
    text, stop = self._service.llm.tokenizer.decode(tokens), self._found["stop"]
    return str(min((x for x in stop if x in text), key=text.index, default=stop[0] if len(stop) == 1 else ""))

  async def whole(self) -> list[dict[str, Any]]:
    found = await self._answers.whole()
    if self._reads: found = [Whole() for _ in found]
    return [self._last(i, whole.text, whole.tokens) | self._probabilities(whole.logprobs)
            for i, whole in enumerate(found)]

  def _probabilities(self, places: list[Any]) -> dict[str, Any]:
    after = self._asked.post_sampling_probs
    def shown(x: Any) -> dict[str, Any]:
      chance = {"prob": math.exp(x.logprob)} if after else {"logprob": max(LEAST, x.logprob)}
      return {"id": x.token, "token": x.raw.decode("utf-8", "replace"), "bytes": list(x.raw), **chance}
    if not self._asked.n_probs: return {}
    top = "top_probs" if after else "top_logprobs"
    return {"completion_probabilities": [shown(p.chosen) | {top: [*map(shown, p.top)]} for p in places]}

  async def events(self) -> AsyncGenerator[bytes, None]:
    tokens = list[int]()
    try:
      async with aclosing(self._answers.deltas()) as deltas:
        async for delta in deltas:
          if self._reads and not delta.over: continue
          tokens += delta.tokens
          text = "".join(text for _, text in delta.parts)
          if text or delta.progress or delta.tokens and not delta.over:
            yield event({"index": 0, "content": text, "tokens": delta.tokens, "stop": False, "id_slot": 0,
                         "tokens_predicted": self._answers.results[0].tokens,
                         "tokens_evaluated": len(self._answers.prompt)} | self._probabilities(delta.logprobs)
                        | ({"timings": self._answers.timings(delta.progress)} if self._asked.timings_per_token else {})
                        | ({"prompt_progress": delta.progress.shown()} if delta.progress else {}))
          if delta.over: yield event(self._last(0, "", tokens, told=True))
    except Exception as e: yield event(as_api_error(e).body())

def shown_settings(found: dict[str, Any], llm: Any) -> dict[str, Any]:
  """Settings of an answer by llama-server's names."""
  most = found["max_tokens"] if found["max_tokens"] is not None else -1
  ends = dict.fromkeys(sorted(llm.tokenizer.stop_ids) if found.get("ignore_eos") else (), float("-inf"))
  given = {"stop_token_ids" if name == "stop_ids" else name: value for name, value in found.items()
           if value is not None and name not in ("logit_bias", "logprobs", "sampled_logprobs")}
  return USUAL | given | {"max_tokens": most, "n_predict": most, "n_probs": found.get("logprobs") or 0, "logit_bias": [
    {"token": token, "bias": bias} for token, bias in (found["logit_bias"] | ends).items()]}

async def tokenize(service: Service, asked: Tokenize) -> Response:
  """The token ids of a text, or of a list of texts and ids."""
  tokenizer = service.check(0).tokenizer
  content = asked.prompt if asked.content is None else asked.content
  if content is None: return Json({"tokens": []})
  if not isinstance(content, str | list):
    raise ApiError(400, "content: it is neither a text nor a list of texts and token ids", "invalid_type", "content")
  pieces = content if isinstance(content, list) else [content]
  if sum(len(piece) for piece in pieces if isinstance(piece, str)) > TOKENISED:
    raise ApiError(413, f"content: it has more than {TOKENISED} characters", "body_too_large", "content")
  ids, special = list[int](), asked.parse_special is not False
  adds = asked.add_special if asked.content is not None else asked.add_special_tokens is not False
  if adds and tokenizer.add_bos and tokenizer.bos is not None: ids.append(tokenizer.bos)
  for piece in pieces:
    if isinstance(piece, str): ids += await asyncio.to_thread(tokenizer.encode, piece, False, special)
    elif isinstance(piece, int) and 0 <= piece < tokenizer.vocab_size: ids.append(piece)
    else: raise ApiError(400, f"content: {piece!r:.40} is neither a text nor a token id", "invalid_value", "content")
  if not asked.with_pieces: return Json({"tokens": ids, "count": len(ids), "max_model_len": service.llm.max_context})
  def piece_of(i: int) -> str | list[int]:
    raw = tokenizer.shown_bytes(i)
    try: return str(raw, "utf-8")
    except UnicodeDecodeError: return list(raw)
  return Json({"tokens": [{"id": i, "piece": piece_of(i)} for i in ids]})

async def detokenize(service: Service, asked: Detokenize) -> Response:
  """The text of token ids."""
  tokenizer = service.check(0).tokenizer
  if bad := [i for i in asked.tokens if not 0 <= i < tokenizer.vocab_size]:
    raise ApiError(400, f"tokens: {bad[0]} is not a token id", "invalid_value", "tokens")
  text = b"".join(map(tokenizer.shown_bytes, asked.tokens)).decode("utf-8", "replace")
  return Json({"content": text, "prompt": text})

async def apply_template(service: Service, asked: Template) -> Response:
  """A conversation as the model reads it."""
  llm = service.check(0)
  ids = await asyncio.to_thread(prompt_ids, service, asked)
  return Json({"prompt": b"".join(map(llm.tokenizer.shown_bytes, ids)).decode("utf-8", "replace")})

async def props(service: Service) -> Response:
  """Facts about the server and its model."""
  llm = service.check(0)
  return Json({"default_generation_settings": {"n_ctx": llm.max_context, "params": settings.defaults(service)},
               "total_slots": service.parallel, "model_alias": service.name, "model_path": llm.path.name,
               "modalities": {"vision": False, "audio": False}, "build_info": f"tinygrad_llm {service.version}",
               **_tokens(llm)})

async def tokenizer_info(service: Service) -> Response:
  """The tokenizer's facts as vLLM gives them, by which evaluations find /tokenize and /detokenize."""
  return Json({"tokenizer_class": "tinygrad_llm", **_tokens(service.check(0))})

def _tokens(llm: Any) -> dict[str, str]:
  return {"chat_template": llm.template.templates.get("default", ""), "bos_token": _token(llm, llm.tokenizer.bos),
          "eos_token": _token(llm, min(llm.tokenizer.stop_ids, default=None))}

def _token(llm: Any, i: int | None) -> str:
  return "" if i is None else str(llm.tokenizer.shown_bytes(i), "utf-8", "replace")

async def slots(service: Service) -> Response:
  """The answers that run. No text of a prompt or an answer is shown."""
  llm, found = service.check(0), []
  for slot in service.slots:
    timing = slot.stream.timing if slot.stream is not None else None
    most = slot.settings.get("max_tokens")
    found.append({"id": slot.id, "id_task": slot.task, "n_ctx": llm.max_context, "is_processing": timing is not None,
                  **({"params": shown_settings(slot.settings, llm)} if slot.settings else {}),
                  "next_token": [{"n_decoded": timing.tokens if timing else 0, "has_next_token": timing is not None,
                                 "n_remain": -1 if timing is None or most is None else most - timing.tokens}],
                  "prompt_tokens": timing.prompt_tokens if timing else 0})
  return Json(found)
