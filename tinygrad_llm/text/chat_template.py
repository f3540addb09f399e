"""
Chat templates: from messages to the text of a prompt.

A GGUF file carries its template as jinja2 source (`tokenizer.chat_template`, more as `tokenizer.chat_template.<name>`,
see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). It is not to be trusted, so it runs in a process of its
own (template_worker.py) that is stopped when it takes too long or too much memory. That holds in every thread and for
every template, which no check inside this process could promise. The process starts with the first rendering and ends
with the ChatTemplate. Variables, filters and settings are those of transformers' `apply_chat_template`
(https://huggingface.co/docs/transformers/chat_templating).
"""
from __future__ import annotations
import json, pathlib, signal, subprocess, sys, threading, weakref
from collections.abc import Mapping, Sequence
from typing import Any
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.tokenizer import Tokenizer

WORKER = pathlib.Path(__file__).with_name("template_worker.py")
KEY = "tokenizer.chat_template"

# templates for files without one; content may be a text or a list of parts
_CONTENT = ("{% set text = m.content or '' if m.content is not iterable or m.content is string"
            " else m.content | selectattr('text', 'defined') | map(attribute='text') | join %}")
CHATML = ("{% for m in messages %}" + _CONTENT +
          "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}" + _CONTENT +
          "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + text | trim + '<|eot_id|>' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
PLAIN = ("{% for m in messages %}" + _CONTENT + "{{ m.role | capitalize + ': ' + text | trim + '\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")

def _one_line(text: str) -> str:
  """For a terminal: one line of printable characters of a text from anywhere."""
  line = "".join(c if c.isprintable() else " " for c in text[:500])
  return " ".join(line.split())

def _stop(process: subprocess.Popen[str]) -> None:
  process.kill()
  process.communicate()

class ChatTemplate:
  """
  The chat templates of a model. Make one with `ChatTemplate.from_gguf(kv)`. Threads may share it.

  templates: jinja2 sources by name. "default" is a must; "tool_use", if there, is for messages with tools.
  stop: texts that end the assistant's turn, for templates whose turns end in plain text.
  """
  def __init__(self, templates: Mapping[str, str], bos_token: str = "", eos_token: str = "", stop: Sequence[str] = ()):
    self.templates, self.stop = dict(templates), tuple(stop)
    self._setup = {"templates": self.templates, "variables": {"bos_token": bos_token, "eos_token": eos_token}}
    self._lock = threading.Lock()
    self._process: subprocess.Popen[str] | None = None
    self._finalizer: weakref.finalize[..., ChatTemplate] | None = None

  @classmethod
  def from_gguf(cls, kv: Mapping[str, Any]) -> ChatTemplate:
    """
    The templates of a file's metadata. Without any: ChatML if the vocabulary has <|im_start|>, Llama 3's if it has
    <|start_header_id|>, else "User: ..\\nAssistant:", where `stop` is the beginning of the user's next turn.
    """
    found = {key[len(KEY) + 1:] or "default": kv[key] for key in kv if key == KEY or key.startswith(KEY + ".")}
    if bad := [name for name, value in found.items() if not isinstance(value, str)]:
      raise InputError(f"{KEY}: {bad[0]!r} is not a text; correct the file's metadata")
    if found: found.setdefault("default", next(iter(found.values())))

    tokens = kv.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []

    def text(name: str) -> str:
      i = kv.get(f"tokenizer.ggml.{name}_token_id")
      return tokens[i] if isinstance(i, int) and 0 <= i < len(tokens) else ""

    stop: tuple[str, ...] = ()
    if not found:
      if "<|im_start|>" in tokens: found = {"default": CHATML}
      elif "<|start_header_id|>" in tokens: found = {"default": LLAMA3}
      else: found, stop = {"default": PLAIN}, ("\nUser:",)
    return cls(found, text("bos"), text("eos"), stop)

  def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
             tools: Sequence[Any] | None = None, **variables: Any) -> str:
    """
    The prompt for messages such as {"role": "user", "content": "hi"}. What they hold must fit into JSON.

    add_generation_prompt: end with the beginning of the assistant's turn.
    variables: more for the template, such as `enable_thinking=False`.
    InputError when the template rejects the messages (with what it says), is broken, or takes too much time or memory.
    """
    for i, message in enumerate(messages):
      if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f'messages[{i}]: has no role; write {{"role": "user", "content": ".."}}')
    try:
      request = json.dumps({"name": "tool_use" if tools and "tool_use" in self.templates else "default", "variables": {
        "documents": None, **variables, "messages": [dict(m) for m in messages], "tools": tools,
        "add_generation_prompt": add_generation_prompt}})
    except (TypeError, ValueError, RecursionError) as e:
      raise InputError(f"messages: {_one_line(str(e))}; use texts, numbers, lists and dictionaries only") from e
    with self._lock: reply = json.loads(self._ask(request))
    if "error" in reply: raise InputError(f"{KEY}: {_one_line(reply['error'])}")
    return reply["text"]

  def encode(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
             tools: Sequence[Any] | None = None, **variables: Any) -> list[int]:
    """
    `render`, then token ids. The template's control tokens count; what looks like one in a message is mere text.
    One bos token begins the prompt if the model wants it, whether the template writes one or not.
    """
    def quoted(x: Any) -> Any:
      if isinstance(x, str): return tokenizer.quote(x)
      if isinstance(x, Mapping): return {k: quoted(v) for k, v in x.items()}
      return [quoted(v) for v in x] if isinstance(x, (list, tuple)) else x

    try:
      messages, tools = quoted(messages), quoted(tools)
    except RecursionError as e:
      raise InputError("messages: nested too deeply; use flatter lists and dictionaries") from e
    text = self.render(messages, add_generation_prompt, tools, **variables)
    ids, bos = tokenizer.encode(text, parse_special=True), tokenizer.bos
    return [bos, *ids] if tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids

  def _ask(self, request: str) -> str:
    try:
      process = self._process if self._process and self._process.poll() is None else self._start()
      if reply := self._exchange(process, request): return reply
    except BaseException:   # Ctrl-C too: what is left in the pipe would be the answer to the next request
      self._end()
      raise
    self._end()
    reason = "takes too long" if process.returncode == -signal.SIGALRM else f"ends with code {process.returncode}"
    raise InputError(f"{KEY}: rendering it {reason}; the template of this file is broken or hostile")

  def _start(self) -> subprocess.Popen[str]:
    try:
      process = subprocess.Popen([sys.executable, "-P", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, encoding="ascii")
    except OSError as e:
      raise InputError(f"{KEY}: {sys.executable!r} does not start ({e.strerror}); run with a Python that does") from e
    self._process, self._finalizer = process, weakref.finalize(self, _stop, process)
    if not self._exchange(process, json.dumps(self._setup)):
      raise InputError(f"{KEY}: the process that renders it ends at once; `{sys.executable} {WORKER}` says why")
    return process

  def _end(self) -> None:
    if self._finalizer: self._finalizer()
    self._process = self._finalizer = None

  @staticmethod
  def _exchange(process: subprocess.Popen[str], request: str) -> str:
    """The answer, or "" when the process has ended."""
    assert process.stdin and process.stdout
    try:
      print(request, file=process.stdin, flush=True)
      return process.stdout.readline()
    except OSError:
      return ""
