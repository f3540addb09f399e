"""A model on a running server, as the chat of a terminal uses one: the model stays loaded between two chats."""
from __future__ import annotations
import http.client, json, pathlib, time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.errors import ContextError, InputError
from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.fit_context import fitted
from tinygrad_llm.text.thinking import ANSWER, THINKING, Part

Message = Mapping[str, Any]
OVERFLOW = "context_length_exceeded"
TIMEOUT = 600.0  # seconds without a byte; a server sends comments while a prompt is read

class Asked(NamedTuple):
  """A conversation, and the variables of its template."""
  messages: list[dict[str, Any]]
  variables: dict[str, Any]

class Remote:
  """
  A server's model: what terminal.repl.Chat calls of an LLM.

  url: as http://127.0.0.1:8080, with or without /v1. InputError if nothing answers there, or it refuses.
  """
  def __init__(self, url: str, key: str | None = None):
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
      raise InputError(f"--server {url!r:.100}: write it as http://HOST:PORT")
    self.url, self._path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/").removesuffix("/v1")
    self._host, self._headers = parts.netloc, {"Content-Type": "application/json"}
    self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    if key: self._headers["Authorization"] = f"Bearer {key}"
    props = self._json("GET", "/props")
    try:
      self.path, self.device = pathlib.Path(str(props["model_alias"])), self.url
      self.max_context = int(props["default_generation_settings"]["n_ctx"])
      self.suggested: dict[str, Any] = {}
      self.template = ChatTemplate({"default": str(props["chat_template"])}, str(props.get("bos_token", "")),
                                   str(props.get("eos_token", "")))
    except (KeyError, TypeError, ValueError) as e:
      raise InputError(f"--server {self.url}: its /props has no {e}; is it a server of this project?") from e
    self.timing = Timing()

  def fit(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """See LLM.fit()."""
    def too_long(count: int, name: str) -> ContextError: return ContextError(
      f"{name}: {count} tokens do not fit the context of {self.max_context}", count, self.max_context)
    return fitted([dict(m) for m in messages], self.max_context, lambda kept: self._length(kept, variables), too_long)

  def prompt(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> Asked:
    return Asked([dict(m) for m in messages], dict(variables or {}))

  def generate(self, asked: Asked, count: int | None, **settings: Any) -> dict[str, Any]:
    """The request for an answer, which parts() sends. settings: as for LLM.generate()."""
    body = {"messages": asked.messages, "stream": True, **settings}
    if count is not None: body["max_tokens"] = count
    if asked.variables: body["chat_template_kwargs"] = asked.variables
    return body

  def parts(self, body: dict[str, Any], stop: Sequence[str] = (), prompt: Any = None) -> Iterator[Part]:
    """The answer's pieces, as LLM.parts() has them. Closing the iterator ends the answer on the server."""
    self.timing, start = Timing(), time.perf_counter()
    response = self._send("POST", "/v1/chat/completions", {**body, "stop": [*stop]})
    try:
      for line in response:
        if not line.startswith(b"data: {"): continue
        event = json.loads(line[6:])
        if "error" in event: raise InputError(f"{self.url}: {event['error'].get('message')}")
        self._note(event, time.perf_counter() - start)
        for choice in event["choices"]:
          if text := choice["delta"].get("reasoning_content"): yield THINKING, text
          if text := choice["delta"].get("content"): yield ANSWER, text
    except (OSError, http.client.HTTPException, ValueError) as e:
      raise InputError(f"{self.url}: the connection ended ({e})") from e
    finally: response.close()

  def _note(self, event: dict[str, Any], seconds: float) -> None:
    timing, choice = self.timing, (event["choices"] or [{}])[0]
    if not timing.first_token and any(choice.get("delta", {}).get(k) for k in ("content", "reasoning_content")):
      timing.first_token = seconds
    if choice.get("finish_reason"): timing.finish = choice["finish_reason"]
    if told := event.get("timings"): timing.tokens, timing.decode = told["predicted_n"], told["predicted_ms"] / 1e3

  def _length(self, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None) -> int:
    asked = {"messages": messages, "chat_template_kwargs": dict(variables or {})}
    try: text = self._json("POST", "/apply-template", asked)["prompt"]
    except ContextError as e: return e.count
    return len(self._json("POST", "/tokenize", {"content": text})["tokens"])

  def _json(self, method: str, path: str, body: Any = None) -> Any:
    with self._send(method, path, body) as response:
      try: return json.loads(response.read())
      except (OSError, http.client.HTTPException, ValueError) as e:
        raise InputError(f"{self.url}: its answer is no JSON; is it a server of this project?") from e

  def _send(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
    connection = self._connect(self._host, timeout=TIMEOUT)
    try:
      connection.request(method, self._path + path, None if body is None else json.dumps(body), self._headers)
      response = connection.getresponse()
      if response.status == 200: return response
      raw = response.read()
    except (OSError, http.client.HTTPException) as e:
      raise InputError(f"--server {self.url}: {getattr(e, 'strerror', None) or e}; python -m tinygrad_llm.serve starts "
                       "one") from e
    try:
      error = json.loads(raw)["error"]
      text = str(error["message"])
      if error["code"] == OVERFLOW: raise ContextError(text, error["n_prompt_tokens"], error["n_ctx"])
    except (ValueError, KeyError, TypeError): text = raw[:200].decode("utf-8", "replace")
    hint = "; --api-key gives a key" if response.status == 401 else ""
    raise InputError(f"{self.url}{path}: {text}{hint}")
