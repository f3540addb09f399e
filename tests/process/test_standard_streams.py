"""Standard streams that are closed, full or unread: the answer still comes, and no message is mixed into it."""
import os
import pathlib
import pty
import subprocess
import sys

from tests.support import child
import pytest
from tests.support.extended import some

DEAD = ["2>&-", "2>/dev/full", "2> >(exec true)", "2</dev/null"]  # closed, full, without a reader, read-only

def shell(code: str, streams: str, io: str = "utf-8", **options) -> subprocess.CompletedProcess[str]:
  """Runs `code` in Python with the standard streams that a shell redirects."""
  return subprocess.run(["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, code], capture_output=True,
                        text=True, cwd=child.ROOT, timeout=120, env=child.environment(PYTHONIOENCODING=io), **options)

def command(main: str) -> str: return f"from tinygrad_llm.command import guarded\n{main}\nguarded(main)"

TALKS = command("""
def main():
  import sys, logging, warnings, os
  from tqdm import tqdm
  from tinygrad_llm.errors import InputError, warn
  for _ in range(3): print("a message", file=sys.stderr, flush=True)
  warn("a warning")
  warnings.warn("a warning of Python's")
  logging.getLogger("x").warning("a warning of a library's")
  for _ in tqdm(range(2), disable=False): pass
  os.system("echo a compiler >&2")
  print("the answer", sys.stderr.isatty(), sys.stderr.fileno())
""")

@pytest.mark.parametrize("dead", some(DEAD, 0))
def test_answer_without_stderr(dead):
  done = shell(TALKS, dead)
  assert (done.returncode, done.stdout) == (0, "the answer False 2\n")

@pytest.mark.parametrize("dead", DEAD[:3])
def test_errors_never_go_to_stdout(dead):
  done = shell(command("def main(): raise __import__('tinygrad_llm').InputError('it is wrong')"), dead)
  assert (done.returncode, done.stdout) == (2, "")

def test_closed_stream_descriptors_are_not_reused():
  code = "import tinygrad_llm, os; fd = os.open(os.devnull, 0); os.write(9, f'{fd}'.encode() * os.get_inheritable(2))"
  done = shell(code, "<&- 9>&1 >&- 2>&-")
  assert int(done.stdout) > 2

def test_python_without_stderr():
  """In another program, too, messages never go to stdout."""
  done = shell("import tinygrad_llm; from tinygrad_llm import errors; errors.warn('x'); print('mine')", "2>&-")
  assert (done.returncode, done.stdout) == (0, "mine\n")
  done = shell("from tinygrad_llm import errors; errors.warn('x'); print('mine')", "2>/dev/full")
  assert (done.returncode, done.stdout) == (0, "mine\n")

def test_unwritable_stdout_sets_exit_code():
  """
  Stdout decides the exit code: 2 and one line if an answer cannot be written, 141 without a line if nobody reads it.
  """
  prints = command("def main(): print('x' * 100000)")
  assert shell(prints, ">/dev/full").returncode == 2
  assert shell(prints, ">/dev/full 2>&1").returncode == 2
  done = shell(prints, "> >(exec true)")
  assert (done.returncode, done.stderr) == (141, "")
  closed = shell(command("def main(): open('/none/x')"), ">&-")
  assert (closed.returncode, closed.stderr) == (2, "error: /none/x: No such file or directory; check the disk and the "
                                                "permissions\n")

def test_unencodable_characters_are_replaced():
  """Characters that stdout's encoding lacks are replaced, as with LANG=C, or file names that are not Unicode."""
  for encoding, wanted in (("ascii", "1.0 ? 0.1 ?\n"), ("utf-8", "1.0 ± 0.1 ?\n")):
    done = shell(command("def main(): print('1.0 ± 0.1 \\udcff')"), "", encoding="utf-8", io=encoding)
    assert (done.returncode, done.stdout) == (0, wanted)

def test_exit_codes():
  assert shell(command("def main(): return 3"), "").returncode == 3
  patches = subprocess.run([sys.executable, "-m", "tinygrad_llm.patches", "--nonsense"], capture_output=True, text=True,
                           cwd=child.ROOT, env=child.environment())
  assert (patches.returncode, patches.stdout, patches.stderr.count("\n")) == (2, "", 1)

def test_chat_without_stderr(model_file, tmp_path: pathlib.Path):
  main, other = pty.openpty()
  path = model_file(types="Q8_0", vocab=384, context=96)
  os.write(main, b"hello\n/set seed 5\n/nonsense\n/bye\n")
  run = f"exec {sys.executable} -m tinygrad_llm.run --count 3 --model {path} 2>&-"
  done = subprocess.run(["bash", "-c", run], stdin=other, stdout=subprocess.PIPE, cwd=child.ROOT, timeout=120,
                        start_new_session=True, env=child.environment(XDG_STATE_HOME=str(tmp_path)))
  assert done.returncode == 0
  assert done.stdout.endswith(b"\n")
  assert b"tokens, " not in done.stdout and b"/nonsense" not in done.stdout and b"seed" not in done.stdout
  os.close(main)
  os.close(other)
