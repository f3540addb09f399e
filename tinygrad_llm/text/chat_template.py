"""
Chat templates: from messages to the text of a prompt.

A GGUF file carries its template as jinja2 source (`tokenizer.chat_template`, more as `tokenizer.chat_template.<name>`,
see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The template is untrusted. It runs in a worker process
(template_worker.py) that is stopped when it takes too long or too much memory. That works in every thread and for every
template; no check inside this process could promise it. The worker starts with the first rendering and ends with the
ChatTemplate. Templates get the variables, filters and settings of transformers' `apply_chat_template`
(https://huggingface.co/docs/transformers/chat_templating).
"""
from __future__ import annotations
import contextlib, ctypes, errno, json, os, pathlib, re, signal, subprocess, sys, threading, time, weakref
from collections.abc import Mapping, Sequence
from typing import Any
from tinygrad_llm.errors import InputError, is_shortage, warn
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.text.builtin_templates import BUILTIN, CHATML, LLAMA3, OTHERS, PLAIN
from tinygrad_llm.text.template_probe import (
  STEPS, Message, Way, calls_with_needles, cut_short, find_way, lost, shape, text_of, tools_with_needles, typed,
  with_needles)
from tinygrad_llm.text.thinking import TAGS
from tinygrad_llm.text.tokenizer import MARK, QUOTE, Tokenizer, special_id

WORKER = pathlib.Path(__file__).with_name("template_worker.py")
KEY = "tokenizer.chat_template"
PROBE_SECONDS = 20  # for all attempts at rewriting a conversation that a template loses words of
# variables that switch thinking: (value for off, value for on); None: the template's own default
SWITCHES: dict[str, tuple[Any, Any]] = {"enable_thinking": (False, True), "thinking": (False, True),
                                        "thinking_budget": (0, None), "reasoning_effort": ("low", None),
                                        "thinking_mode": ("disabled", "enabled")}
NO_EFFORT = ("none", "no_think")  # instead of "low", where a template names one of these
OFF = tuple(name for name, values in SWITCHES.items() if values[0] is False)
NEEDLES = {"user": "wqxuzkv", "assistant": "wqxazkv", "next": "wqxvzkv", "thought": "wqxtzkv"}
EXCHANGE: list[dict[str, Any]] = [{"role": "user", "content": NEEDLES["user"]},
                                  {"role": "assistant", "content": NEEDLES["assistant"]},
                                  {"role": "user", "content": NEEDLES["next"]}]
SECONDS = 60  # of wall-clock time for an answer; the worker limits its processor time itself, but may be starved
HOSTILE = "the template of this file is broken or hostile"

OWN = ("messages", "tools", "add_generation_prompt", "self")  # variables that `render` takes as arguments
PLAIN_STOP = ("\nUser:",)

def _one_line(text: str) -> str:
  """An untrusted text made safe for a terminal: one line of printable characters."""
  line = "".join(c if c.isprintable() else " " for c in text[:500])
  return " ".join(line.split())

def _source(source: str, fallback: str) -> str:
  """The jinja2 source for a file's template: the text itself, the built-in that it names, or else the fallback."""
  if (name := source.strip()) in BUILTIN: return BUILTIN[name]
  if name and name not in OTHERS: return source
  what = f"the template {name:.40} is not built in ({', '.join(BUILTIN)} are)" if name else "it is blank"
  warn(f"{KEY}: {what}; { {CHATML: 'ChatML', LLAMA3: 'that of Llama 3'}.get(fallback, '`User: ..`') } is taken")
  return fallback

def _squeezed(text: str) -> str: return "".join(filter(str.isalnum, text.lower()))

def _stop(process: subprocess.Popen[str]) -> None:
  process.kill()
  process.communicate()

def _request(name: str, messages: Sequence[Message], variables: Mapping[str, Any], options: Mapping[str, Any]) -> str:
  try:
    return json.dumps({"name": name, "variables": {"documents": None, **variables,
                                                   "messages": [dict(m) for m in messages], **options}})
  except (TypeError, ValueError, RecursionError) as e:
    raise InputError(f"messages: {_one_line(str(e))}; use texts, numbers, lists and dictionaries only") from e

def checked(variables: Any) -> dict[str, Any]:
  """A caller's variables for a template. InputError unless they are a dictionary of names that `render` leaves free."""
  if not isinstance(variables, Mapping): raise InputError(f"template: {variables!r:.60} is no dictionary of variables")
  for name in variables:
    if not isinstance(name, str) or not name.isidentifier() or name in OWN:
      raise InputError(f"template: {name!r:.60} cannot be set; give other names, that the template reads")
  return dict(variables)

def user_texts(messages: Sequence[Any]) -> list[str]:
  """
  The text of each user message, stripped: a template may trim space around a text, but writes the rest. A content that
  is not one text is "".
  """
  def text(content: Any) -> str:
    if isinstance(content, (list, tuple)) and len(content) == 1 and isinstance(content[0], Mapping):
      content = content[0].get("text")
    return content.strip() if isinstance(content, str) else ""
  return [text(m.get("content")) for m in messages if isinstance(m, Mapping) and m.get("role") == "user"]

class ChatTemplate:
  """
  The chat templates of a model. Make one with `ChatTemplate.from_gguf(kv)`. Threads may share it.

  templates: jinja2 sources by name, or names of built-in templates (`BUILTIN`). "default" is required; "tool_use", if
  present, is used for messages with tools.

  stop: texts that end the assistant's turn, for templates whose turns end in plain text.

  fallback: the source that replaces a blank template.
  """
  def __init__(self, templates: Mapping[str, str], bos_token: str = "", eos_token: str = "", stop: Sequence[str] = (),
               fallback: str = PLAIN):
    self.templates = {name: _source(source, fallback) for name, source in templates.items()
                      if source.strip() or name == "default"}
    self.stop = tuple(stop) or (PLAIN_STOP if self.templates.get("default") == PLAIN else ())
    self._special = {"bos_token": bos_token, "eos_token": eos_token}
    self._setup = {"templates": self.templates, "variables": self._special}
    self._lock = threading.Lock()
    self._process: subprocess.Popen[str] | None = None
    self._has_templates = False  # whether they were sent to the process
    self._finalizer: weakref.finalize[..., ChatTemplate] | None = None
    self._ways: dict[tuple[str, ...], Way] = {}
    self._reads: dict[str, frozenset[str]] = {}
    self._after: str | None = None
    in_children(self, ChatTemplate._leave)

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
    fallback = CHATML if "<|im_start|>" in tokens else LLAMA3 if "<|start_header_id|>" in tokens else PLAIN
    bos, eos = (special_id(kv, name, tokens) for name in ("bos", "eos"))
    return cls(found or {"default": fallback}, "" if bos is None else tokens[bos], "" if eos is None else tokens[eos],
               fallback=fallback)

  def replaced(self, source: str) -> ChatTemplate:
    """Another template, by its source or a built-in's name, with this one's texts of special tokens."""
    return ChatTemplate({"default": source}, **self._special)

  def prepare(self) -> None:
    """Starts the worker early (about 2 ms) for a rendering that follows soon, which will report any error."""
    with contextlib.suppress(InputError, OSError), self._lock:
      if self._process is None: self._start()

  def render(self, messages: Sequence[Message], add_generation_prompt: bool = True,
             tools: Sequence[Any] | None = None, **variables: Any) -> str:
    """
    The prompt for messages such as {"role": "user", "content": "hi"}. Messages must be representable in JSON.

    Every text of the messages is in the prompt. If the template leaves one out, or refuses a role, the messages are
    rearranged (template_probe.py), with a warning if that changes the roles.

    add_generation_prompt: end with the beginning of the assistant's turn.

    variables: more variables for the template. `enable_thinking=False` also closes thinking that the template opens at
    the end of the prompt.

    InputError if the template rejects the messages (with its message), loses a text however they are arranged, is
    broken, or takes too much time or memory.
    """
    for i, message in enumerate(messages):
      if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f'messages[{i}]: has no role; write {{"role": "user", "content": ".."}}')
    messages = typed(messages)
    name = "tool_use" if tools and "tool_use" in self.templates else "default"
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    _request(name, messages, variables, options)   # an InputError comes before the worker starts
    reads = "messages" in self._read(name)
    way = self._way(name, messages, variables, options) if reads else Way()
    if way is None: text = self._as_given(name, messages, variables, options)
    else:
      reply = self._rendered(name, way.of(messages) if way.steps or way.flips else messages, variables, options)
      if "error" in reply: raise InputError(f"{KEY}: {_one_line(reply['error'])}")
      text = reply["text"]
      if reads and (cut := cut_short(text, messages)) is not None:
        warn(f"{KEY}: it leaves out some of what messages[{cut}], role {messages[cut]['role']!r:.40}, says")
    off = add_generation_prompt and any(variables.get(name) is False for name in OFF)
    close = next((close for tag, close in TAGS.items() if off and text.rstrip().endswith(tag)), "")
    return f"{text.rstrip()}\n\n{close}\n\n" if close else text

  def _way(self, name: str, messages: Sequence[Message], variables: Mapping[str, Any],
           options: Mapping[str, Any]) -> Way | None:
    """How to arrange messages of this shape so that the template loses no word; None if no way works. Cached."""
    key = name, shape(messages), *(json.dumps(x, sort_keys=True, default=str) for x in (variables, options))
    if (way := self._ways.get(key)) is not None: return way
    tools, needles = tools_with_needles(options["tools"])
    end, text = time.monotonic() + PROBE_SECONDS, ""
    def render(messages: Sequence[Message]) -> str | None:
      nonlocal text
      reply = self._rendered(name, messages, variables, {**options, "tools": tools})
      if reply.get("failed") == "source": raise InputError(f"{KEY}: {_one_line(reply['error'])}")
      if time.monotonic() > end: raise InputError(f"{KEY}: rendering it takes too long; {HOSTILE}")
      text = reply.get("text", "")
      return reply.get("text")
    marked, calls = calls_with_needles(messages)
    if (way := find_way(marked, render)) is None: return None
    for step in way.steps:
      if STEPS[step]: warn(f"{KEY}: {STEPS[step]}")
    for what, of in (("tools", needles), ("tool calls", calls)):
      if gone := [x for x in of if x not in text.lower()]:
        warn(f"{KEY}: it leaves out {len(gone)} of {len(of)} {what}; the model does not see them")
    if len(self._ways) > 1000: self._ways.clear()
    self._ways[key] = way
    return way

  def _as_given(self, name: str, messages: Sequence[Message], variables: Mapping[str, Any],
                options: Mapping[str, Any]) -> str:
    """
    Renders messages for which no way was found. InputError that names the message that is refused or lost, unless the
    template works with exactly these texts.
    """
    reply = self._rendered(name, messages, variables, options)
    if reply.get("failed") == "messages":   # find the first message that it refuses
      refused = (i for i in range(len(messages)) if self._rendered(
        name, messages[:i + 1], variables, options).get("failed") == "messages")
      if len(messages) > (i := next(refused, len(messages))):
        raise InputError(f"{KEY}: it refuses messages[{i}], role {messages[i]['role']!r}: {_one_line(reply['error'])}; "
                         "leave it out, or use a model whose template takes it")
    if "error" in reply: raise InputError(f"{KEY}: {_one_line(reply['error'])}")
    given, needles = with_needles(messages)
    probe = self._rendered(name, given, variables, options)
    text = _squeezed(reply["text"])
    gone = lost(probe["text"], needles) if "text" in probe else [
      i for i, m in enumerate(messages) if _squeezed(text_of(m.get("content"))) not in text]
    if not gone: return reply["text"]
    role = messages[gone[0]]["role"]
    raise InputError(f"{KEY}: it leaves out what messages[{gone[0]}], role {role!r:.40}, says; leave that message out, "
                     "or use a model whose template has a place for it")

  def variables(self) -> frozenset[str]:
    """The names of the variables that the templates read: `messages`, and others that may be given to `render`."""
    return frozenset().union(*map(self._read, self.templates))

  def _read(self, template: str) -> frozenset[str]:
    if template not in self._reads:
      reply = self._reply(json.dumps({"name": template}))
      if "error" in reply: raise InputError(f"{KEY}: {_one_line(reply['error'])}")
      self._reads[template] = frozenset(reply["text"].split())
      if "messages" not in self._reads[template]: warn(f"{KEY}: it has no place for messages; the model sees none")
    return self._reads[template]

  def thinking(self, on: bool) -> dict[str, Any]:
    """
    The variables for `render` that switch a model's thinking on or off; empty if its template has no switch.

    Some models can only be told to think little. If the template has no switch but ends the prompt with a mark that
    opens thinking, `enable_thinking=False` closes it.
    """
    switches = {name: values[on] for name, values in SWITCHES.items() if name in self.variables()}
    found = {name: value for name, value in switches.items() if value is not None}
    if found.get("reasoning_effort"):
      sources = "\n".join(self.templates.values())
      named = (x for x in NO_EFFORT if re.search(f"""['"]{x}['"]""", sources))
      found["reasoning_effort"] = next(named, found["reasoning_effort"])
    if found or on: return found
    try: prompt = self.render(EXCHANGE[:1])
    except InputError: return {}   # rendering the conversation will report it
    return {"enable_thinking": False} if prompt.rstrip().endswith((*TAGS,)) else {}

  def after_answer(self) -> str:
    """
    The text that the template writes after an assistant's words, up to the next message. "" if it cannot be found out,
    or if it begins with a mark that also stands between thinking and answer: such a mark does not end an answer.
    """
    if self._after is None:
      self._after = self._between("assistant", EXCHANGE) or self._between("assistant", EXCHANGE[:2])
      mark = MARK.match(self._after.lstrip())
      thought = EXCHANGE[1] | dict.fromkeys(("reasoning_content", "reasoning", "thinking"), NEEDLES["thought"])
      if mark and mark[0] in self._between("thought", [EXCHANGE[0], thought]): self._after = ""
    return self._after

  def _between(self, needle: str, messages: Sequence[Message]) -> str:
    """The rendered text between a needle and the next one; "" if the needle is not there."""
    try: text = self.render(messages, add_generation_prompt=False)
    except InputError: return ""
    at = text.lower().find(NEEDLES[needle])
    if at < 0: return ""
    return re.split("|".join(NEEDLES.values()), text[at + len(NEEDLES[needle]):], flags=re.IGNORECASE)[0]

  def encode(self, tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True,
             tools: Sequence[Any] | None = None, **variables: Any) -> list[int]:
    """
    Renders messages (see `render`) and encodes the prompt into token ids.

    The template's control tokens are parsed; in messages they are plain text. One bos token begins the prompt if the
    model wants it, whether or not the template writes one.
    """
    def quoted(x: Any, name: bool = False) -> Any:
      if isinstance(x, str):   # a role or key that only ends like the beginning of a mark stays as templates expect it
        text = tokenizer.quote(x)
        return x if name and x.isidentifier() and text == x + QUOTE else text
      if isinstance(x, Mapping): return {quoted(k, True): quoted(v, k in ("role", "type")) for k, v in x.items()}
      return [quoted(v) for v in x] if isinstance(x, (list, tuple)) else x

    try:
      messages, tools = quoted(messages), quoted(tools)
    except RecursionError as e:
      raise InputError("messages: nested too deeply; use flatter lists and dictionaries") from e
    text = self.render(messages, add_generation_prompt, tools, **variables)
    tokenizer.end_with(self.after_answer())
    ids, bos = tokenizer.encode(text, parse_special=True), tokenizer.bos
    return [bos, *ids] if tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids

  def _rendered(self, name: str, messages: Sequence[Message], variables: Mapping[str, Any],
                options: Mapping[str, Any]) -> dict[str, str]:
    """
    The worker's answer for messages. Some templates need tools, documents, `functions` (tools as JSON) or `datetime`.
    If one fails, it is tried once more with values for those that it reads and that were not given.
    """
    reply = self._reply(_request(name, messages, variables, options))
    if reply.get("failed") != "": return reply
    tools, needed = options["tools"], {"tools": [], "documents": [], "functions": json.dumps(options["tools"] or []),
                                       "datetime": time.strftime("%Y-%m-%d")}
    lacking: dict[str, Any] = {key: value for key, value in needed.items()
                               if key in self._read(name) and {**variables, **options}.get(key) is None}
    if not lacking: return reply
    tools = lacking.pop("tools", tools)
    again = self._reply(_request(name, messages, {**variables, **lacking}, {**options, "tools": tools}))
    return reply if again.get("failed") == "" else again

  def _reply(self, request: str) -> dict[str, str]:
    with self._lock: reply: dict[str, str] = json.loads(self._ask(request))
    return reply

  def _ask(self, request: str) -> str:
    try:
      process = self._process if self._process and self._process.poll() is None else self._start()
      if not self._has_templates: self._send_templates(process)
      if reply := self._exchange(process, request): return reply
    except BaseException:   # also Ctrl-C: an answer left in the pipe would be taken for the next request's
      self._end()
      raise
    self._end()
    reason = "takes too long" if process.returncode == -signal.SIGPROF else f"ends with code {process.returncode}"
    raise InputError(f"{KEY}: rendering it {reason}; {HOSTILE}")

  def _start(self) -> subprocess.Popen[str]:
    try:
      process = subprocess.Popen([sys.executable, "-P", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, encoding="ascii")
    except OSError as e:
      if is_shortage(e) or e.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN): raise  # not Python's fault
      raise InputError(f"{KEY}: {sys.executable!r} does not start ({e.strerror}); run with a Python that does") from e
    self._process, self._finalizer, self._has_templates = process, weakref.finalize(self, _stop, process), False
    return process

  def _send_templates(self, process: subprocess.Popen[str]) -> None:
    if not self._exchange(process, json.dumps(self._setup)):
      raise InputError(f"{KEY}: the process that renders it ends at once; `{sys.executable} {WORKER}` says why")
    self._has_templates = True

  def close(self) -> None:
    """Ends the worker process; the next rendering starts it again."""
    with self._lock: self._end()

  def _leave(self) -> None:
    """
    Forgets the worker in a forked child: it renders for the parent. Bytes in its pipes and their buffers are the
    parent's, and threads that held the locks do not exist in the child.
    """
    self._lock = threading.Lock()
    process, self._process = self._process, None
    if process is None: return
    if self._finalizer: self._finalizer.detach()
    self._finalizer, process.returncode = None, 0  # only the parent can wait for its child
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(process))  # never freed: closing its streams would wait for locks
    with open(os.devnull, "r+b", buffering=0) as nowhere, contextlib.suppress(OSError, ValueError):
      for stream in filter(None, (process.stdin, process.stdout)): os.dup2(nowhere.fileno(), stream.fileno(), False)

  def _end(self) -> None:
    if self._finalizer: self._finalizer()
    self._process = self._finalizer = None

  @staticmethod
  def _exchange(process: subprocess.Popen[str], request: str) -> str:
    """The worker's answer to a request; "" if it has ended. InputError if no answer comes in SECONDS."""
    assert process.stdin and process.stdout
    late = threading.Event()
    def stop() -> None:
      late.set()
      process.kill()
    timer = threading.Timer(SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
      print(request, file=process.stdin, flush=True)
      if answer := process.stdout.readline(): return answer
    except OSError: pass
    finally: timer.cancel()
    if late.is_set(): raise InputError(f"{KEY}: rendering it takes longer than {SECONDS} s; {HOSTILE}")
    return ""
