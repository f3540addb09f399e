"""The command line: answers, JSON, the chat, and bad input that ends in one line and exit code 2."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import pytest
from tests.support.extended import extended, some

ROOT = pathlib.Path(__file__).parents[2]
RUN = [sys.executable, "-m", "tinygrad_llm.run"]

@pytest.fixture(scope="module")
def model(model_file): return str(model_file(types="Q8_0", vocab=381, context=96))

def run(*args: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
  given = {"text": True, **({} if "input" in options else {"stdin": subprocess.DEVNULL}), **options}
  return subprocess.run([*RUN, *args], capture_output=True, cwd=ROOT, timeout=300,
                        env={**os.environ, "DEV": "CPU", **(env or {})}, **given)

def refused(*args: str, env: dict[str, str] | None = None) -> str:
  done = run(*args, env=env)
  assert done.returncode == 2, done.stderr
  assert done.stdout == ""
  assert done.stderr.startswith("error: ")
  assert done.stderr.count("\n") == 1
  return done.stderr

def test_json_output(model):
  done = run("--model", model, "--tokens", "1,2,3", "--count", "5", "--benchmark", "8", "--json")
  report = json.loads(done.stdout)
  assert list(report)[:11] == ["model", "device", "prompt_tokens", "tokens", "text", "load_s", "ttft_s",
                               "prefill_tok_s", "decode_tok_s", "kernels_per_token", "bytes_per_token"]
  assert (report["model"], report["device"], report["prompt_tokens"], report["tokens"]) == (model, "CPU", 3, 8)
  assert len(report["token_ids"]) == 8
  assert all(report[key] > 0 for key in ("load_s", "ttft_s", "prefill_tok_s", "decode_tok_s", "bytes_per_token"))
  assert list(report)[11:] == ["token_ids", "peak_memory_bytes", "device_memory_bytes", "compile_s", "renderer",
                               "finish", "seed", "memory"]
  assert report["memory"].keys() == {"weights", "kv_pool", "row_states"}
  assert report["memory"]["weights"] > report["memory"]["row_states"] == 0 < report["memory"]["kv_pool"]
  assert report["renderer"] == "CLANG"
  assert os.path.getsize(model) < 2 * report["device_memory_bytes"] < 2 * report["peak_memory_bytes"] < 8 << 30

def test_prompt_option(model):
  done = run("--model", model, "--prompt", "hi", "--count", "4", "--system", "be brief")
  assert done.returncode == 0
  assert "tokens, " in done.stderr
  assert "first token after" in done.stderr

def test_piped_input_is_the_prompt(model):
  """A message gives the same tokens, whether it comes through a pipe or with --prompt."""
  alone, after = (run("--model", model, "--count", "4", "--json", *args, input=piped)
                  for args, piped in (((), "one\n\ntwo\n"), (("--prompt", "one"), "two\n")))
  alone, after = (json.loads(done.stdout) for done in (alone, after))
  assert alone["prompt_tokens"] == after["prompt_tokens"] > 10
  assert alone["token_ids"] == after["token_ids"]
  bad = run("--model", model, input=b"\xff", text=False)
  assert (bad.returncode, bad.stdout) == (2, b"")
  assert bad.stderr.startswith(b"error: standard input: byte 0 is not UTF-8") and bad.stderr.count(b"\n") == 1

def test_bad_model(tmp_path: pathlib.Path, model):
  assert "no such file" in refused("--model", str(tmp_path / "none.gguf"), "--prompt", "hi")
  (tmp_path / "text.gguf").write_text("this is not a model, but it is long enough to hold a header")
  assert "text.gguf" in refused("--model", str(tmp_path / "text.gguf"), "--prompt", "hi")
  (tmp_path / "cut.gguf").write_bytes(pathlib.Path(model).read_bytes()[:-4096])
  assert "cut.gguf" in refused("--model", str(tmp_path / "cut.gguf"), "--prompt", "hi")

@pytest.mark.parametrize(("args", "words"), some([
  (["--prompt", " "], "--prompt: it is empty"), (["--tokens", "1,x"], "--tokens '1,x'"),
  (["--tokens", "999"], "token 999"), (["--prompt", "hi", "--count", "0"], "--count 0"),
  (["--prompt", "hi", "--max-context", "0"], "max_context: 0"),
  (["--prompt", "hi", "--temperature", "-1"], "temperature"), (["--prompt", "hi", "--nonsense"], "--nonsense"),
  (["--prompt", "a" * 500], "do not fit the context of 96"), (["--json"], "standard input: it is empty"),
  (["--prompt", "-"], "standard input: it is empty")], 1, 5, 7))
def test_bad_arguments(model, args, words): assert words in refused("--model", model, *args)

@pytest.mark.parametrize(("env", "words"), some([
  ({"DEV": "FOO"}, "DEV=FOO: no such device"), ({"DEV": "null"}, "DEV=null: it compiles and computes nothing; use one"),
  ({"DEV": "DISK"}, "DEV=DISK: it holds data and computes nothing; use one of"), ({"DEV": "CPU:FOO"}, "DEV=CPU:FOO"),
  ({"BEAM": "x"}, "BEAM=x: it must be an integer"),
  ({"CUDA": "1"}, "write DEV=CUDA"), ({"CC": "/none/clang"}, "CC=/none/clang: no such program"),
  ({"CC": "false"}, "CC=false: it is not clang")], 0, 3, 6))
def test_bad_environment(model, env, words): assert words in refused("--model", model, "--prompt", "hi", env=env)

def test_no_compiler(model, tmp_path: pathlib.Path):
  """The message if there is neither a clang on PATH nor the ziglang wheel."""
  code = ("import sys; sys.modules['ziglang'] = None; sys.argv = ['run', '--model', sys.argv[1], '--prompt', 'hi'];"
          "from tinygrad_llm.run import main; main()")
  env = {**{k: v for k, v in os.environ.items() if k != "CC"}, "PATH": str(tmp_path), "DEV": "CPU"}
  done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, cwd=ROOT, env=env)
  assert done.returncode == 2
  assert "no clang on PATH" in done.stderr
  assert done.stderr.count("\n") == 1

@extended
@pytest.mark.skipif(shutil.which("zig") is None and not any(pathlib.Path(p, "ziglang").exists() for p in sys.path),
                    reason="the ziglang wheel is not installed")
def test_zig_wrapper(model_file, tmp_path: pathlib.Path):
  """With an empty PATH and an empty cache, the wrapper is created and used."""
  env = {"PATH": "/usr/bin:/bin" if shutil.which("clang", path="/usr/bin:/bin") is None else str(tmp_path),
         "XDG_CACHE_HOME": str(tmp_path / "cache"), "CACHEDB": str(tmp_path / "cache.db")}
  model = str(model_file(types="F32", layers=1, context=96))
  done = run("--model", model, "--tokens", "1,2", "--count", "2", "--json", env={**env, "CC": ""})
  assert done.returncode == 0, done.stderr
  wrappers = list((tmp_path / "cache" / "tinygrad_llm").iterdir())
  assert [wrapper.stat().st_mode & 0o777 for wrapper in wrappers] == [0o755]
