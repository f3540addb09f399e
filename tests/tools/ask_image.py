"""
The image of the server: built by docker, started without rights, asked, and ended by a signal.

  python tests/tools/ask_image.py [--name tinygrad_llm]
"""
from __future__ import annotations
import argparse, json, pathlib, subprocess, sys, time, urllib.request
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 600  # seconds until the model answers

def docker(*args: str) -> str:
  """Runs docker; its stdout. CalledProcessError if it fails."""
  return subprocess.run(["docker", *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

def ask(url: str, body: Any = None) -> Any:
  """The JSON of a path's answer. body: asks by POST."""
  data = None if body is None else json.dumps(body).encode()
  request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {})
  with urllib.request.urlopen(request, timeout=60) as answer: return json.load(answer)

def check(url: str) -> None:
  """AssertionError if the server at an address is not well, or does not answer."""
  assert ask(f"{url}/health")["status"] == "ok"
  found = ask(f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me about a fox."}],
                                             "max_tokens": 8, "temperature": 0, "ignore_eos": True})
  assert found["usage"]["completion_tokens"] == 8 and found["choices"][0]["message"]["content"].strip(), found
  print(f"it answers: {found['choices'][0]['message']['content']!r}")

def wait(container: str) -> float:
  """Waits for the image's own check of its health; the seconds. AssertionError if it does not come to be well."""
  begun, state = time.monotonic(), ""
  while state != "healthy":
    state = docker("inspect", "--format", "{{.State.Health.Status}}", container)
    running = docker("inspect", "--format", "{{.State.Running}}", container)
    assert running == "true" and time.monotonic() - begun < PATIENCE, f"{state}\n{docker('logs', container)}"
    time.sleep(1)
  return time.monotonic() - begun

def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--name", default="tinygrad_llm", help="of the image (default tinygrad_llm)")
  name = parser.parse_args().name
  docker("build", "--tag", name, str(ROOT))
  print(f"{int(docker('image', 'inspect', '--format', '{{.Size}}', name)) / 1e6:.0f} MB")
  container = docker("run", "--detach", "--publish", "127.0.0.1::8080", "--cap-drop", "ALL", name)
  try:
    print(f"healthy after {wait(container):.0f} s")
    assert docker("exec", container, "id", "-u") != "0", "it runs as root"
    check(f"http://{docker('port', container, '8080/tcp').splitlines()[0]}")
    docker("stop", "--time", "40", container)
    assert docker("inspect", "--format", "{{.State.ExitCode}}", container) == "0", docker("logs", container)
  finally:
    print(docker("logs", container), file=sys.stderr)
    docker("rm", "--force", container)

if __name__ == "__main__": main()
