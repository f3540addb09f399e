"""The chat from the user's side: one process in a terminal, with the bundled model."""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tinygrad_llm.terminal.wrap import width

ROOT = pathlib.Path(__file__).parents[2]
UNSEEN = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|D)|\r+(?=\n)|[^\n]*\r(?!\n|\Z)")  # escapes, and text that is overwritten
BELOW = re.compile(r"\x1b7.*?\x1b8", re.DOTALL)  # a bar that is drawn below the text and removed

class Terminal:
  """A program in a terminal of its own."""
  def __init__(self, command, columns, env):
    self.fd, inside = pty.openpty()
    self.resize(columns)
    def adopt() -> None:
      fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # makes Ctrl-C a signal,
      signal.signal(signal.SIGINT, signal.SIG_DFL)  # also if a shell started the tests in the background
    self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=inside, stdout=inside, stderr=inside,
                                    start_new_session=True, preexec_fn=adopt)
    os.close(inside)
    self.text = ""

  def resize(self, columns): fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))

  def until(self, pattern, timeout=900):
    """Waits for a match, and returns and consumes the visible text up to its end. Compiling may take minutes."""
    end = time.monotonic() + timeout
    while not (found := re.search(pattern, self.text)):
      assert "error: " not in self.text, self.text
      assert select.select([self.fd], [], [], max(0, end - time.monotonic()))[0], f"no {pattern!r} in {self.text!r}"
      try: data = os.read(self.fd, 4096)
      except OSError: data = b""
      assert data, f"it ended before {pattern!r}: {self.text!r}"
      text, *bar = BELOW.sub("", self.text + data.decode("utf-8", "replace")).partition("\x1b7")
      self.text = UNSEEN.sub("", text) + "".join(bar)
    before, self.text = self.text[:found.end()], self.text[found.end():]
    return before

  def type(self, text): os.write(self.fd, text.encode())

@pytest.fixture
def terminal(tmp_path):
  env = {**os.environ, "DEV": "CPU", "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path), "INPUTRC": os.devnull,
         "PYTHONUTF8": "1"}
  t = Terminal([sys.executable, "-m", "tinygrad_llm.run", "--system", "Be kind."], 50, env)
  yield t
  with contextlib.suppress(ProcessLookupError): os.killpg(t.process.pid, signal.SIGKILL)
  t.process.wait()
  os.close(t.fd)

def test_chat_session(terminal, tmp_path):
  readline = pytest.importorskip("readline")
  gnu = "libedit" not in (readline.__doc__ or "")
  summary, saved = r"first\s+token\s+after\s+[\d.]+\s+s\]\n", tmp_path / "chat.json"
  def messages() -> list[str]:
    terminal.type(f"/save {saved}\r")
    terminal.until(r"system\s+message\]\n")
    return [m["content"] for m in json.loads(saved.read_text())["messages"]]

  terminal.until("> ")
  terminal.type("/set temper\t0.01\r")  # Tab completes
  terminal.until(r"\[temperature 0.01\]\n> ")
  terminal.type("/nonsense\r")
  assert "no such command" in terminal.until(r"slash\n> ")

  terminal.type("Tell me a story about a fox.\r")
  shown = terminal.until(summary).split("fox.\n", 1)[1].rpartition("\n[")[0]
  story = messages()[1]
  assert len(story) > 200
  shown = re.sub(r"warning: tokenizer.chat_template: it has no system message[^\n]*\n", "", shown)
  assert shown.split() == story.split()
  assert max(map(width, shown.split("\n"))) in range(40, 51)
  assert shown.count("\n") > story.count("\n")

  terminal.type("/clear\r")
  terminal.until("forgotten")
  assert messages() == []

  terminal.resize(30)
  terminal.type('/set temperature 9\r')  # the answer does not end by itself
  terminal.until(r"\[temperature 9\]\n> ")
  for _ in range(20):
    rest = ""
    terminal.type('"""Tell me\rmore."""\r')
    terminal.until(r'\.\.\. more\."""\n(.*\n){3}')
    terminal.type("\x03")
    # the key discards output that nobody has read, and on a busy machine what follows it, too, with the prompt
    with contextlib.suppress(AssertionError): rest = terminal.until(r"\^C(.|\n)*\n> ", 20)
    if re.search(summary, rest) and "cancelled" in rest: break
    terminal.type("/clear\r")  # on a busy machine the answer ended before the key, which discards unread output
    terminal.until(r"forgotten\]\n> ")
  assert int(re.search(r"\[(\d+)\s+tokens", rest)[1]) > 3
  asked, said = messages()
  assert asked == "Tell me\nmore."
  assert said

  terminal.type("half a line\x03")
  terminal.until(r"\^C\n|\n> ")
  terminal.type("/set temperature 0\r/set count 3\r")
  terminal.until(r"\[count 3\]\n> ")
  if gnu:
    terminal.type("\x1b[200~a\nb\x1b[201~\r")  # pasted
    terminal.until(summary)
    assert messages()[2] == "a\nb"
    terminal.type("\x1b[A\x1b[A\x05c\r")  # recalls an earlier message and appends to it
    terminal.until(summary)
    assert messages()[4] == "a\nbc"
  terminal.until("> ")
  terminal.type("\x04")
  assert terminal.process.wait(30) == 0
  history = (tmp_path / "tinygrad_llm" / "history").read_text()
  assert '"/set temperature 0.01"' in history and "half a line" not in history
