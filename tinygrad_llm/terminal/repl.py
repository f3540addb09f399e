"""The chat loop: messages, commands that begin with a slash, answers."""
from __future__ import annotations
import difflib, glob, os, pathlib, sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from tinygrad_llm.device.device import with_renderer
from tinygrad_llm.errors import DeviceError, InputError, warn
from tinygrad_llm.terminal.history import Editor
from tinygrad_llm.terminal.screen import Screen, summary
from tinygrad_llm.terminal.session import RANDOM, THINK, Session, Settings, load, save
from tinygrad_llm.terminal.stdin import unix_lines
from tinygrad_llm.text.thinking import ANSWER
if TYPE_CHECKING: from tinygrad_llm.engine.llm import LLM

PROMPT, MORE, QUOTES = "> ", "... ", '"""'
COMMANDS = {  # name: arguments, what it does
  "/help": ("", "this list"),
  "/clear": ("", "forget the conversation; the system message stays"),
  "/system": ("[TEXT]", 'set the system message; "" removes it, nothing shows it'),
  "/set": ("[NAME VALUE]", "change a setting; nothing shows them"),
  "/save": ("FILE", "write the conversation, the system message and the settings, as JSON"),
  "/load": ("FILE", "go on with what /save wrote"),
  "/bye": ("", "leave; so do /exit and Ctrl-D"),
}
LEAVE = ("/bye", "/exit", "/quit")
HELP = "\n".join(f"{f'{name} {args}':<20} {what}" for name, (args, what) in COMMANDS.items()) + f"""
{QUOTES}                  begin and end a message of several lines, or one that begins with a slash
Ctrl-C               stop an answer; at the prompt, clear the line"""

def say(text: str = "") -> None:
  """Shows the user a line on stderr."""
  screen = Screen(sys.stderr)
  screen.write(ANSWER, text)
  screen.end()

def completions(line: str, word: str) -> list[str]:
  """The completions that Tab offers for the word at the end of a line: commands, names of settings, files."""
  before = line[:len(line) - len(word)].split()
  if not before: return [f"{name} " for name in (*COMMANDS, "/exit") if word and name.startswith(word)]
  if before == ["/set"]: return [f"{f.name} " for f in fields(Settings) if f.name.startswith(word)]
  if before == ["/set", "think"]: return [x for x in THINK if x.startswith(word)]
  if before not in (["/save"], ["/load"]): return []
  paths = sorted(glob.glob(glob.escape(os.path.expanduser(word)) + "*"))
  return [path + os.sep if os.path.isdir(path) else path for path in paths]

class Chat:
  """
  A conversation in a terminal. Answers go to stdout, everything else to stderr.

  stop: texts that end an answer, besides the template's own. template: variables for the chat template.
  """
  def __init__(self, llm: LLM, session: Session, stop: Sequence[str] = (), template: Mapping[str, Any] | None = None):
    self.llm, self.session, self._stop = llm, session, (*stop, *llm.template.stop)
    self._template, self._unsent = template or {}, 0  # how many messages no longer fit the context
    self._commands: dict[str, Callable[[str], None]] = {
      "/help": lambda _: say(HELP), "/?": lambda _: say(HELP), "/clear": self._clear, "/system": self._system,
      "/set": self._set, "/save": self._save, "/load": self._load}

  def run(self) -> None:
    """Reads and answers until the user leaves."""
    editor = Editor(completions)
    say(f"{self.llm.path.stem} on {with_renderer(self.llm.device)}. /help lists the commands, Ctrl-C stops an answer, "
        "Ctrl-D leaves.")
    while True:
      try:
        if not self.handle(*read_message(editor.ask)): return
      except EOFError: return say()
      except KeyboardInterrupt: say()
      except UnicodeDecodeError: say(f"error: input: it is not {sys.stdin.encoding}; set the terminal or LANG to UTF-8")
      except InputError as e: say(f"error: {e}")

  def handle(self, text: str, quoted: bool = False) -> bool:
    """
    Obeys a command or answers a message. False if the user leaves.

    quoted: the text is a message even if it begins with a slash. InputError if a command or the answer fails.
    """
    text = unix_lines(text)
    name, _, argument = text.strip().partition(" ")
    if quoted or not name.startswith("/"):
      if text.strip(): self._answer(text)
      return True
    if name in LEAVE: return False
    if command := self._commands.get(name): command(argument.strip())
    else:
      close = difflib.get_close_matches(name, [*COMMANDS, *LEAVE], n=1)
      say(f"{name.splitlines()[0]:.60}: no such command; {f'did you mean {close[0]}? ' if close else ''}"
          f"/help lists them, {QUOTES} begins a message with a slash")
    return True

  def _answer(self, text: str) -> None:
    session, llm, said, sampling = self.session, self.llm, list[str](), self.session.settings.sampling()
    asked, variables = {"role": "user", "content": text}, template_of(llm, session.settings, self._template)
    messages = [*session.messages(), asked]
    sent = llm.fit(messages, variables) if variables else llm.fit(messages)
    ids = llm.prompt(sent, variables) if variables else llm.prompt(sent)
    tokens = llm.generate(ids, session.settings.count, **sampling, min_tokens=session.settings.min_tokens)
    self._tell(len(messages) - len(sent))
    screen, failed = Screen(sys.stdout, session.settings.think in ("hide", "off")), None
    try:
      for kind, piece in llm.parts(tokens, self._stop, ids):
        if kind == ANSWER: said.append(piece)
        screen.write(kind, piece)
    except KeyboardInterrupt: pass
    except DeviceError as e: failed = e  # ends the answer, not the chat
    finally: screen.end()
    drawn = session.settings.seed == RANDOM and session.settings.samples
    if failed is None: say(summary(llm.timing, sampling["seed"] if drawn else None))
    if said: session.turns = [*session.turns, asked, {"role": "assistant", "content": "".join(said)}]
    else: say("[no answer: the message is not kept]")
    if failed is not None: raise InputError(f"{failed}; /save FILE keeps the conversation") from failed

  def _tell(self, unsent: int) -> None:
    """Tells the user how many messages the model does not see, when that changes. All turns are kept and saved."""
    if unsent != self._unsent and unsent: say(
      f"[the first {unsent} messages no longer fit the context and are not sent; they are kept]")
    if not unsent and self._unsent: say("[all messages are sent again]")
    self._unsent = unsent

  def _clear(self, _: str) -> None:
    self.session.turns, self._unsent = [], 0
    say("[forgotten]")

  def _system(self, text: str) -> None:
    if text: self.session.system = "" if text in ('""', QUOTES * 2) else text
    say(f"[system message: {self.session.system}]" if self.session.system else "[no system message]")

  def _set(self, text: str) -> None:
    settings = self.session.settings
    if not text: return say("\n".join(f"{name:<15} {value}" for name, value in settings.shown().items()))
    name, _, value = text.partition(" ")
    name = name.replace("-", "_")
    if value.strip():
      self.session.settings = settings = settings.parsed(name, value.strip())
      if name == "think": template_of(self.llm, settings, self._template)  # warns if the model has no such switch
    elif name not in settings.shown(): settings.changed(name, None)
    say(f"[{name} {settings.shown()[name]}]")

  def _save(self, name: str) -> None:
    save(self.session, path := _path("/save", name))
    say(f"[{path}: {_messages(self.session)}]")

  def _load(self, name: str) -> None:
    self.session, self._unsent = load(path := _path("/load", name)), 0
    say(f"[{path}: {_messages(self.session)}]")

def template_of(llm: LLM, settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
  """
  The variables for a model's chat template: the given ones, and the switch for thinking. Warns once if thinking is to
  be off and the template has no switch.
  """
  if not settings.think: return dict(given)
  switch = llm.template.thinking(settings.think != "off")
  if settings.think == "off" and not switch:
    warn("think off: the model's template has no switch for it; what the model thinks is hidden")
  return {**switch, **given}

def read_message(ask: Callable[[str], str]) -> tuple[str, bool]:
  '''
  Reads a message or command: (text, whether it is a message even if it begins with a slash).

  A text that begins with """ is such a message. It goes on to the next """ at the end of a line. `/system """` takes
  several lines, too.
  '''
  def line(prompt: str) -> str: return ask(prompt).removesuffix("\r")
  head, quotes, text = line(PROMPT).partition(QUOTES)
  if not quotes or head.strip() not in ("", "/system"): return head + quotes + text, False
  while not text.rstrip().endswith(QUOTES): text += "\n" + line(MORE)
  text = text.rstrip().removesuffix(QUOTES).strip("\n")
  return (f"/system {text or QUOTES * 2}", False) if head.strip() else (text, True)

def _path(command: str, name: str) -> pathlib.Path:
  if not name: raise InputError(f"{command}: it needs the name of a file; write {command} FILE")
  return pathlib.Path(os.path.expanduser(name))

def _messages(session: Session) -> str:
  return f"{len(session.turns)} messages, {'a' if session.system else 'no'} system message"
