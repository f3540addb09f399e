"""Line editing: readline where Python has it, completion, and a history in a file."""
from __future__ import annotations
import contextlib, json, os, pathlib, stat, sys
from collections.abc import Callable
from tinygrad_llm.terminal.screen import is_terminal
with contextlib.suppress(ImportError): import readline

LINES, BYTES = 1000, 1 << 20

def history_file() -> pathlib.Path | None:
  """The path of the history file; None without a home folder."""
  state = os.environ.get("XDG_STATE_HOME", "")
  if not os.path.isabs(state): state = os.path.expanduser("~/.local/state")
  return pathlib.Path(state, "tinygrad_llm", "history") if os.path.isabs(state) else None

class History:
  """
  The last lines that were typed, in a private file. Each line is stored as a JSON string, because pasted text may hold
  line ends.

  Several chats may append to it. A file that cannot be read or written means no history; it is no error.
  """
  def __init__(self, path: pathlib.Path | None):
    self._path, self._last = path, ""
    self._start = ""  # prefix of the next line: "\n" if the last line has no end, as after a full disk

  def load(self) -> list[str]:
    """The lines of the file, the oldest first. A file that has grown too long is cut to its last LINES lines."""
    found: list[str] = []
    with contextlib.suppress(OSError):
      if self._path is None or not stat.S_ISREG(self._path.stat().st_mode): return []
      with self._path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - BYTES))
        rows = (data := file.read(BYTES)).splitlines()[1 if size > BYTES else 0:]
        self._start = "" if data.endswith(b"\n") or not data else "\n"
      for row in rows:
        with contextlib.suppress(ValueError, RecursionError):
          if isinstance(line := json.loads(row), str): found.append(line)
      if len(found) > LINES or size > BYTES: self._rewrite(found := found[-LINES:])
    self._last = found[-1] if found else ""
    return found

  def add(self, line: str) -> None:
    """Appends a line, unless it is blank or repeats the one before."""
    if not line.strip() or line == self._last or self._path is None: return
    self._last = line
    with contextlib.suppress(OSError):
      self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
      text, self._start = f"{self._start}{json.dumps(line)}\n", "\n"
      with open(self._open(self._path, os.O_APPEND), "a", encoding="ascii") as file: file.write(text)
      self._start = ""

  @staticmethod
  def _open(path: pathlib.Path, flag: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | flag, 0o600)

  def _rewrite(self, lines: list[str]) -> None:
    assert self._path
    new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
    try:
      with open(self._open(new, os.O_EXCL), "w", encoding="ascii") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
      os.replace(new, self._path)
    except OSError:
      with contextlib.suppress(OSError): new.unlink()

class Editor:
  """
  Asks the user for lines.

  In a terminal, if Python has readline (GNU's, or libedit as on macOS), lines can be edited and recalled, and Tab
  completes. GNU's readline returns several pasted lines as one.

  complete(line, word): the possible replacements of the word that ends the line.
  """
  def __init__(self, complete: Callable[[str, str], list[str]]):
    self._history, self._complete = History(history_file()), complete
    self._edits = "readline" in sys.modules and is_terminal(sys.stdin) and is_terminal(sys.stdout)
    if not self._edits: return
    readline.set_completer_delims(" \t\n")
    readline.set_completer(self._completion)
    if "libedit" in (readline.__doc__ or ""): readline.parse_and_bind("bind ^I rl_complete")
    else:
      readline.parse_and_bind("tab: complete")
      readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
    for line in self._history.load(): readline.add_history(line)

  def ask(self, prompt: str) -> str:
    """
    One line, or several that were pasted, without the last line end. EOFError at the end of input, UnicodeDecodeError
    for bytes that are not in the input's encoding.
    """
    if is_terminal(sys.stdout): line = input(prompt)  # readline knows its width
    else:
      print(prompt, end="", file=sys.stderr, flush=True)  # stdout is for answers
      line = input()
    line = line.encode("utf-8", "replace").decode()  # lone surrogates: bytes that are not UTF-8
    if self._edits: self._history.add(line)
    return line

  def _completion(self, text: str, state: int) -> str | None:
    found = self._complete(readline.get_line_buffer()[:readline.get_endidx()], text)
    return found[state] if state < len(found) else None
