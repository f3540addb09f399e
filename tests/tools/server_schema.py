"""
Requests that schemathesis draws from the server's own /openapi.json, right and wrong ones (make server-schema).

  python tests/tools/server_schema.py [-n EXAMPLES] [--seed SEED] [--model FILE]

The bundled model answers, with a context of 128 tokens. No answer may be a 5xx or last longer than 20 s, and each must
have a status, a content type and a body that the document tells. The exit code is 1 otherwise, or if the server is not
idle and ready afterwards.
"""
from __future__ import annotations
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.served import served
from tinygrad_llm.web.api import app

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth")
SECONDS = 20  # of one answer; longer ones hang
KEY = "a key of this test"

def main() -> int:
  parser = argparse.ArgumentParser(description="Requests that schemathesis draws from the server's document.")
  parser.add_argument("-n", "--examples", type=int, default=5000, help="requests, about (default 5,000)")
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--model", help="path of a .gguf file (default: the bundled model)")
  args = parser.parse_args()
  statuses = Counter[int]()
  app.writer = lambda form: lambda fields: statuses.update([fields["status"]])  # type: ignore[assignment]
  with served(args.model, parallel=4, context=128, keys=[KEY]) as server:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "-H",
               f"Authorization: Bearer {KEY}", "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS),
               "-n", str(max(1, args.examples // len(app.described()))), "--seed", str(args.seed), "--request-timeout",
               str(SECONDS), "--continue-on-failure", "--no-color", "--suppress-health-check", "all"]
    env = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.tools.schema_hooks", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder: done = subprocess.run(command, env=env, cwd=folder)
    fine = server.idle() and server.service.health() == "ok" and not server.service.llm.pool_counts().referenced
  print(f"{sum(statuses.values())} requests: " + ", ".join(f"{n} x {status}" for status, n in sorted(statuses.items())))
  if not fine: print("the server is not as before: health, slots or blocks")
  return int(done.returncode != 0 or not fine or any(status >= 500 for status in statuses))

if __name__ == "__main__": sys.exit(main())
