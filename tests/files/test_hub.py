"""Model names: aliases, paths and a hub, which a small HTTP server stands in for."""
import contextlib
import errno
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tinygrad_llm.errors import InputError
from tinygrad_llm.nn.keys import check_architecture
from tinygrad_llm.files.hub import ALIASES, DEFAULT_MODEL, Reference, cached, choose, listing, locate, resolve

ROOT = pathlib.Path(__file__).parents[2]
RESOLVE = ("import sys; from tinygrad_llm.command import guarded; from tinygrad_llm.files.hub import resolve;"
           "guarded(lambda: print(resolve(sys.argv[1])))")

def commit(text: str) -> str: return hashlib.sha1(text.encode()).hexdigest()

class Handler(http.server.BaseHTTPRequestHandler):
  """Serves the two routes in use: a repository's list of files, and a file, whole or a range of bytes."""
  def log_message(self, *args): pass
  def do_HEAD(self): self.answer()
  def do_GET(self): self.answer()

  def send(self, status: int, body: bytes = b"", size: int | None = None, **headers: str) -> None:
    self.send_response(status)
    headers["Content_Length"] = str(len(body) if size is None else size)
    for name, value in headers.items(): self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    if self.command == "HEAD": return
    try:
      for at in range(0, len(body), 1 << 16): self.server.hub.sent += self.wfile.write(body[at:at + (1 << 16)])
    except OSError: self.close_connection = True  # the client has gone

  def answer(self) -> None:
    hub, path = self.server.hub, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
    moved, path = path.startswith("/moved/"), path.removeprefix("/moved")
    if path.startswith("/api/") and not path.startswith("/api/models/"): return self.send(404)
    hub.seen.append(SimpleNamespace(method=self.command, path=path, token=self.headers.get("Authorization"),
                                    range=self.headers.get("Range"), host=self.headers.get("Host")))
    api = path.startswith("/api/models/")
    owner, name, _, revision, *rest = path.removeprefix("/api/models").strip("/").split("/")
    repo = hub.repos.get(f"{owner}/{name}")
    if repo is None: return self.send(401, X_Error_Code="RepoNotFound")
    if repo.status: return self.send(repo.status, X_Error_Message="no")
    if revision not in repo.revisions: return self.send(404, X_Error_Code="RevisionNotFound")
    sha, files = repo.revisions[revision]
    if api:
      siblings = [{"rfilename": file, "size": len(data), "blobId": commit(file)} for file, data in files.items()]
      return self.send(200, json.dumps({"id": f"{owner}/{name}", "sha": sha, "private": False, "tags": [],
                                        "siblings": siblings}).encode())
    if repo.token and not moved and self.headers.get("Authorization") != f"Bearer {repo.token}":
      return self.send(403 if self.headers.get("Authorization") else 401, X_Error_Code="GatedRepo")
    file = "/".join(rest)
    if file in hub.forbidden: return self.send(403, X_Error_Message="no")
    if file not in files or file in hub.gone: return self.send(404, X_Error_Code="EntryNotFound")
    data, start = files[file], 0
    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
    if repo.moved and not moved:
      return self.send(302, Location=f"{repo.moved}/moved{urllib.parse.urlsplit(self.path).path}", **headers,
                       X_Linked_Size=str(len(files[file])))
    end, status = len(data), 200
    if (wanted := self.headers.get("Range")) and repo.ranges:
      first, last = wanted.removeprefix("bytes=").split("-")
      start, end, status = int(first), min(len(data), int(last or len(data)) + 1), 206
      headers["Content_Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    body = data[start:end]
    if self.command == "GET" and (cut := hub.cuts.pop(file, None)): body = body[:cut]  # then the connection ends
    self.send(status, body, size=end - start, **headers)

class Hub:
  def __init__(self):
    self.repos, self.seen, self.cuts, self.gone, self.forbidden, self.sent = {}, [], {}, set(), set(), 0
    self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.server.hub, self.server.daemon_threads = self, True
    self.url = f"http://127.0.0.1:{self.server.server_port}"
    threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

  def add(self, repo: str, *files: str, revision: str = "main", token: str = "", status: int = 0, data: bytes = b"",
          ranges: bool = True, moved: str = "") -> dict[str, bytes]:
    """
    Adds a repository of these files. Each has different bytes, or `data`.

    ranges: False answers a request for a range with the whole file. moved: the server to which the files are
    redirected.
    """
    contents = {file: data or f"GGUF {repo} {file}".encode() * 50 for file in files}
    sha = commit(repo + revision)
    self.repos[repo] = SimpleNamespace(token=token, status=status, ranges=ranges, moved=moved,
                                       revisions={revision: (sha, contents), sha: (sha, contents)})
    return contents

def forget() -> None:
  """Unloads huggingface_hub, which reads its environment when it is imported."""
  for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]: del sys.modules[name]

@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
  hub = Hub()
  with pytest.MonkeyPatch.context() as patch:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE_", "HUGGINGFACE_"))]:
      patch.delenv(name)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"): patch.delenv(name, raising=False)
    patch.setenv("HF_ENDPOINT", hub.url)
    patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
    forget()
    yield hub
    forget()
  hub.server.shutdown()
  hub.server.server_close()

@pytest.fixture
def hub(server: Hub) -> Hub:
  server.seen.clear()
  server.sent = 0
  return server

def refusal(model: str, check: Callable[[Mapping[str, Any]], None] | None = None) -> str:
  with pytest.raises(InputError) as e: resolve(model, check)
  assert "\n" not in str(e.value)
  assert str(e.value).startswith(model[:200] or "the model")
  return str(e.value)

# Names, without network access

def test_local_paths(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  assert resolve(None) == DEFAULT_MODEL
  (path := tmp_path / "qwen3:8b").touch()
  assert resolve(str(path)) == resolve(path) == path
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path))
  assert resolve("qwen3:8b") == pathlib.Path("qwen3:8b")  # a file comes before an alias
  assert resolve("~/qwen3:8b") == path

def test_alias_targets():
  for name, target in ALIASES.items():
    found = locate(name.upper())
    assert isinstance(found, Reference)
    assert target == f"{found.repo}{'' if found.revision == 'main' else '@' + found.revision}:{found.wanted}"
    assert choose([found.wanted], found.wanted) == [found.wanted]
  assert {"llama3.2:1b", "olmoe", "deepseek-v2-lite", "youtu-llm:2b"} <= {*ALIASES}

@pytest.mark.parametrize(("model", "words"), [
  ("qwen3", "did you mean qwen3:0.6b, qwen3:1.7b, qwen3:8b, qwen3:30b-a3b?"), ("OLMO", "did you mean olmoe"),
  ("lama3.2:1b", "did you mean llama3.2:1b,"), ("owner/repo", "write hf:owner/repo"),
  ("owner/repo:Q8_0", "write hf:owner/repo:Q8_0"), ("/none/model.gguf", "no such file"),
  ("none/model.gguf", "give the path"), ("zzz", "no such model"), ("~nobody-at-all/x.gguf", "no such file"),
  ("a\0b", "no such file"), ("x" * 5000, "no such file"), ("", "is empty"),
  ("hf:repo", "not a repository; write hf:owner/repo"), ("hf:", "not a repository"), ("hf:a/b:", "not a repository"),
  ("hf:a/b/c.gguf", "not a repository"), ("hf:a b/c", "not a repository"),
  ("hf:../..", "cannot be a repository's name")])
def test_unknown_names(server: Hub, model: str, words: str): assert words in refusal(model)

def test_names_import_nothing():
  code = ("import os, sys; os.environ['NO_PATCHES'] = '1';"
          "sys.modules['huggingface_hub'] = sys.modules['tinygrad'] = sys.modules['numpy'] = None;"
          "from tinygrad_llm.files.hub import locate, resolve; locate('olmoe'); locate('hf:a/b'); resolve('quen3:8b')")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30)
  assert done.stderr.splitlines()[-1].startswith("tinygrad_llm.errors.InputError: quen3:8b: no such file")

# Choosing among a repository's files

QUANTS = ["README.md", "mmproj-F16.gguf", "imatrix.gguf", "M.imatrix.gguf", "imatrix-Q4_K_M.gguf", "imatrix.gguf_file",
          "M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-UD-Q4_K_M.gguf", "M-UD-Q2_K_XL.gguf", "M-Q4_K_S.gguf", "M-IQ4_XS.gguf",
          "M-BF16.gguf"]

@pytest.mark.parametrize(("wanted", "file"), [
  ("Q8_0", "M-Q8_0.gguf"), ("q8_0", "M-Q8_0.gguf"), ("Q4_K_M", "M-Q4_K_M.gguf"), ("UD-Q4_K_M", "M-UD-Q4_K_M.gguf"),
  ("q2_k_xl", "M-UD-Q2_K_XL.gguf"), ("iq4_xs", "M-IQ4_XS.gguf"), ("bf16", "M-BF16.gguf"),
  ("M-Q8_0.gguf", "M-Q8_0.gguf"), ("m-q8_0", "M-Q8_0.gguf"), ("m-q4_k_m.GGUF", "M-Q4_K_M.gguf"), ("", "M-Q4_K_M.gguf")])
def test_file_choice(wanted: str, file: str): assert choose(QUANTS, wanted) == [file]

@pytest.mark.parametrize(("files", "wanted", "file"), [
  (["m.Q4_K_S.gguf", "m.Q8_0.gguf", "m.f16.gguf"], "", "m.Q8_0.gguf"),
  (["m.f16.gguf", "m.Q6_K.gguf"], "", "m.Q6_K.gguf"), (["m.f16.gguf", "m.f32.gguf"], "f32", "m.f32.gguf"),
  (["any.gguf", "mmproj-any.gguf"], "", "any.gguf"), (["m.i1-Q4_K_M.gguf", "x"], "q4_k_m", "m.i1-Q4_K_M.gguf"),
  (["m-UD-Q4_K_XL.gguf", "m-BF16.gguf"], "", "m-UD-Q4_K_XL.gguf"),
  (["m-imatrix-Q4_K_M.gguf", "m-Q8_0.gguf"], "q4_k_m", "m-imatrix-Q4_K_M.gguf"),
  (["Q8_0/m.gguf", "Q4_0/m.gguf"], "q4_0", "Q4_0/m.gguf"), (["Q8_0/m.gguf", "Q4_0/m.gguf"], "Q8_0/m", "Q8_0/m.gguf"),
  (["gpt-mxfp4.gguf", "gpt-F16.gguf"], "", "gpt-mxfp4.gguf"),
  (["F16-to-Q8_0.gguf", "m-F16.gguf"], "F16", "m-F16.gguf"),
  (["m-q4_0-it.gguf", "m-it-q8_0.gguf"], "Q4_0", "m-q4_0-it.gguf")])
def test_choice_unusual_names(files: list[str], wanted: str, file: str): assert choose(files, wanted) == [file]

@pytest.mark.parametrize(("files", "wanted", "words"), [
  (QUANTS, "Q3_K", "has no Q3_K; it has BF16, IQ4_XS, Q4_K_M, Q4_K_S, Q8_0, UD-Q2_K_XL, UD-Q4_K_M"),
  (QUANTS, "Q4_K", "has no Q4_K; "), (QUANTS, "mmproj-F16.gguf", "has no mmproj-F16.gguf"),
  (QUANTS, "F16", "has no F16"), (QUANTS, "imatrix", "has no imatrix"), (QUANTS, "none.gguf", "has no none.gguf"),
  (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "that fit; name one, hf:owner/repo:FILE: a-Q8_0.gguf, b-Q8_0.gguf"),
  (["a-Q8_0.gguf", "b-Q8_0.gguf"], "", "several files"), (["a.gguf", "b.gguf"], "", "several files"),
  (["x/m.gguf", "y/m.gguf"], "m.gguf", "x/m.gguf, y/m.gguf"), ([f"m{i}.gguf" for i in range(99)], "", "and 75 more"),
  (["model.safetensors", "mmproj.gguf"], "", "no GGUF model"), (["m\x1b[31m.gguf"], "", "no GGUF model"),
  ([], "", "no GGUF model")])
def test_no_matching_file(files: list[str], wanted: str, words: str):
  with pytest.raises(InputError) as e: choose(files, wanted)
  assert words in str(e.value)

def test_file_choice_of_split_models():
  big, small = ([f"{name}-{i:05d}-of-00003.gguf" for i in (1, 2, 3)] for name in ("Q8_0/m-Q8_0", "m-Q4_K_M"))
  files = ["m-F16.gguf", *big, *small[::-1]]
  assert choose(files, "") == choose(files, "m-q4_k_m") == choose(files, small[0]) == choose(files, small[1]) == small
  assert choose(files, "q8_0") == choose(files, big[0]) == big
  with pytest.raises(InputError, match=r"has 2 of the 3 parts of m-Q4_K_M-00001-of-00003.gguf, and m-Q4_K_M-00002"):
    choose([file for file in files if file != small[1]], "")
  with pytest.raises(InputError, match="has 2 of the 3"): choose(big[1:], "q8_0")
  assert choose(["m-00000-of-00000.gguf"], "") == ["m-00000-of-00000.gguf"]

# The hub

def test_fetch_and_cache(hub: Hub, capfd):
  data = hub.add("o/fetch", "README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf")
  path = resolve("hf:o/fetch")
  assert (path.name, path.read_bytes()) == ("m-Q4_K_M.gguf", data["m-Q4_K_M.gguf"])
  assert [path.name for path in cached(Reference("", "o/fetch")).values()] == ["m-Q4_K_M.gguf"]
  assert not any(file in seen.path for seen in hub.seen for file in ("Q8_0", "README", "mmproj"))
  hub.seen.clear()
  assert resolve("hf:o/fetch:M-q4_k_m.gguf").samefile(path)
  assert hub.seen == []  # asked for by name, and cached
  assert resolve("hf:o/fetch:q8_0").read_bytes() == data["m-Q8_0.gguf"]
  assert resolve("hf:o/fetch:q4_k_m").samefile(path)
  assert [seen.path for seen in hub.seen if seen.method == "GET" and "resolve" in seen.path] == \
    ["/o/fetch/resolve/main/m-Q8_0.gguf"]
  assert "has no Q5_K; it has Q4_K_M, Q8_0" in refusal("hf:o/fetch:Q5_K")
  assert capfd.readouterr() == ("", "")

def test_progress_on_stderr(hub: Hub, capfd, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv("TQDM_POSITION", "-1")  # shows the bar although stderr is no terminal
  hub.add("o/progress", "progress-Q8_0.gguf")
  resolve("hf:o/progress")
  out, err = capfd.readouterr()
  assert out == ""
  assert "progress-Q8_0.gguf: 100%" in err

def test_download_by_alias(hub: Hub):
  data = hub.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q4_K_M.gguf")["Qwen3-0.6B-Q8_0.gguf"]
  assert {row[0]: row[3] for row in listing()} == dict.fromkeys(ALIASES, 0)
  assert resolve("Qwen3:0.6b").read_bytes() == data
  assert {row[0]: row[3] for row in listing() if row[3]} == {"qwen3:0.6b": len(data)}
  revision, file = ALIASES["qwen3.8:27b"].partition("@")[2].split(":")
  hub.add("unsloth/Qwen3.8-27B-GGUF", "Qwen3.8-27B-UD-IQ4_XS.gguf")
  repo = hub.repos["unsloth/Qwen3.8-27B-GGUF"]
  repo.revisions[revision] = (revision, {file: b"GGUF of that revision"})
  assert resolve("qwen3.8:27b").read_bytes() == b"GGUF of that revision"
  hub.seen.clear()
  assert resolve("qwen3.8:27b").read_bytes() == b"GGUF of that revision"
  assert hub.seen == []

def test_download_split_model(hub: Hub):
  names = [f"Q8_0/m-Q8_0-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
  data = hub.add("o/parts", *names, "m-F16.gguf")
  path = resolve("hf:o/parts:q8_0")
  assert path.name == "m-Q8_0-00001-of-00003.gguf"
  assert [path.with_name(name[5:]).read_bytes() for name in names] == [data[name] for name in names]
  path.with_name(names[1][5:]).unlink()  # only the lost part is fetched
  hub.seen.clear()
  assert resolve(f"hf:o/parts:{names[0]}").samefile(path)
  assert path.with_name(names[1][5:]).read_bytes() == data[names[1]]
  assert {seen.path for seen in hub.seen if seen.method == "GET"} <= \
    {"/api/models/o/parts/revision/main", f"/o/parts/resolve/main/{names[1]}"}

def test_split_model_changes_during_download(hub: Hub, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  hub.add("o/changes", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
  with monkeypatch.context() as patch:
    patch.setattr("huggingface_hub.hf_hub_download", lambda repo, file, revision: tmp_path / file / file)
    assert "changed while its parts were fetched; run it again" in refusal("hf:o/changes")
  hub.gone.add("m-00002-of-00002.gguf")
  assert "a file of o/changes has gone; run it again" in refusal("hf:o/changes")
  hub.gone.clear()
  assert resolve("hf:o/changes").with_name("m-00002-of-00002.gguf").exists()

def test_resumed_download(hub: Hub, monkeypatch: pytest.MonkeyPatch):
  data = hub.add("o/resume", "m.gguf")["m.gguf"]
  monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100)
  hub.cuts["m.gguf"] = 300
  with contextlib.suppress(InputError): resolve("hf:o/resume")  # huggingface_hub 1.0 resumes at the next call
  assert resolve("hf:o/resume").read_bytes() == data
  assert [seen.range for seen in hub.seen if seen.method == "GET" and "resolve" in seen.path] == [None, "bytes=300-"]

def test_new_revision_of_repository(hub: Hub):
  """A quant type gives the repository's current file; a file name gives the cached file."""
  hub.add("o/new", "m-Q8_0.gguf")
  old = resolve("hf:o/new:q8_0")
  sha = commit("new")
  hub.repos["o/new"].revisions["main"] = hub.repos["o/new"].revisions[sha] = (sha, {"m-Q8_0.gguf": b"GGUF new"})
  assert resolve("hf:o/new:m-Q8_0.gguf").samefile(old)
  assert resolve("hf:o/new:q8_0").read_bytes() == b"GGUF new"
  hub.repos["o/new"].revisions["v1"] = (commit("v1"), {"m-Q8_0.gguf": b"GGUF one"})
  assert resolve("hf:o/new@v1:q8_0").read_bytes() == b"GGUF one"

def test_gated_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch):
  data = hub.add("o/gated", "m.gguf", token="secret")["m.gguf"]
  assert "o/gated is gated; accept its terms on its page, then set HF_TOKEN" in refusal("hf:o/gated")
  monkeypatch.setenv("HF_TOKEN", "other")
  assert "is gated, and the account of this token has no access" in refusal("hf:o/gated")
  monkeypatch.setenv("HF_TOKEN", "secret")
  assert resolve("hf:o/gated").read_bytes() == data
  hub.add("o/files", "forbidden.gguf")
  hub.forbidden.add("forbidden.gguf")
  assert "the hub refuses access to o/files; check what the token in HF_TOKEN may read" in refusal("hf:o/files")
  assert {seen.token for seen in hub.seen} == {None, "Bearer other", "Bearer secret"}

@pytest.mark.parametrize(("status", "words"), [
  (401, "refuses the token; set HF_TOKEN"), (403, "refuses access to o/refuses"), (429, "wait some minutes"),
  (500, "an error of its own (500); try again later"), (503, "(503)"), (418, "cannot fetch it from http://127.0.0.1")])
def test_http_errors(hub: Hub, status: int, words: str):
  hub.add("o/refuses", "m.gguf", status=status)
  assert words in refusal("hf:o/refuses")

def test_unknown_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch):
  assert "o/none does not exist, or is private; check its name, and" in (words := refusal("hf:o/none"))
  assert "set HF_TOKEN" in words
  monkeypatch.setenv("HF_TOKEN", "x")
  assert "the access of your token" in refusal("hf:o/none")
  hub.add("o/there", "m.gguf", "config.json")
  assert "o/there has no revision v9" in refusal("hf:o/there@v9")
  hub.add("o/weights", "model.safetensors")
  assert "o/weights has no GGUF model" in refusal("hf:o/weights")

def test_offline_mode(hub: Hub, monkeypatch: pytest.MonkeyPatch):
  hub.add("o/offline", "m-Q8_0.gguf", "m-Q4_K_M.gguf")
  hub.add("o/part", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
  path, parts = resolve("hf:o/offline:q8_0"), resolve("hf:o/part")
  hub.seen.clear()
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  assert all(resolve(f"hf:o/offline{suffix}").samefile(path) for suffix in (":q8_0", ":m-Q8_0.gguf", ""))
  assert resolve("hf:o/part").samefile(parts)
  parts.with_name("m-00002-of-00002.gguf").unlink()
  assert "in the cache, o/part has 1 of the 2 parts" in refusal("hf:o/part")
  assert "unset it to fetch the model; in the cache, o/offline has no Q4_K_M; it has Q8_0" in \
    refusal("hf:o/offline:Q4_K_M")
  assert refusal("hf:o/never").endswith("not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model")
  assert hub.seen == []

def test_unreachable_hub_uses_cache(hub: Hub):
  hub.add("o/reach", "m-Q8_0.gguf", "m-F16.gguf")
  path = resolve("hf:o/reach:q8_0")
  hub.repos["o/reach"].status = 503
  assert resolve("hf:o/reach:q8_0").samefile(path)
  assert "(503); try again later; in the cache, o/reach has no F16; it has Q8_0" in refusal("hf:o/reach:F16")

def test_not_enough_disk_space(hub: Hub, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  data = hub.add("o/disk", "m.gguf")["m.gguf"]
  with monkeypatch.context() as patch:
    patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=len(data) - 1))
    assert "make room, choose a smaller quant type, or set HF_HOME" in refusal("hf:o/disk")
  with monkeypatch.context() as patch:
    for error in (OSError(errno.ENOSPC, "x"), OSError(errno.EDQUOT, "x"), RuntimeError("I/O: No space left on device")):
      def full(*args, error=error, **kwargs): raise error
      patch.setattr("huggingface_hub.hf_hub_download", full)
      assert "is full; make room, or set HF_HOME" in refusal("hf:o/disk")
  with monkeypatch.context() as patch:
    (tmp_path / "file").touch()
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    assert "cannot be used (Not a directory); set HF_HOME" in refusal("hf:o/disk")
  assert not [seen for seen in hub.seen if seen.method == "GET" and "resolve" in seen.path]
  assert resolve("hf:o/disk").read_bytes() == data
  monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
  assert resolve("hf:o/disk").read_bytes() == data  # it is cached already

# Checking a file before it is fetched

def model(arch: str, size: int, pairs: int = 0) -> bytes:
  """A model's file of `size` bytes: its header, then zeros. `pairs` pairs of 64 KiB come before its architecture."""
  def text(x: str) -> bytes: return struct.pack("<Q", len(x)) + x.encode()
  def pair(key: str, value: str) -> bytes: return text(key) + struct.pack("<I", 8) + text(value)
  head = b"".join([pair(f"general.note{i}", "x" * (1 << 16)) for i in range(pairs)] +
                  [pair("general.architecture", arch), pair("tokenizer.ggml.model", "gpt2")])
  return (b"GGUF" + struct.pack("<IQQ", 3, 0, pairs + 9) + head + pair("general.name", "x")).ljust(size, b"\0")

BIG = 64 << 20

def files_asked(hub: Hub) -> list[SimpleNamespace]:
  return [seen for seen in hub.seen if seen.method == "GET" and "/resolve/" in seen.path]

@pytest.mark.parametrize("pairs", [0, 3])
def test_architecture_is_checked_from_first_bytes(hub: Hub, pairs: int):
  hub.add("unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf", data=model("qwen99", BIG, pairs))
  says = refusal("qwen3.5:4b", check_architecture)
  assert says.startswith("qwen3.5:4b: unsloth/Qwen3.5-4B-GGUF: general.architecture: 'qwen99' is not supported; supp")
  assert {"llama", "qwen3moe"} <= {*says.partition("supported: ")[2].split(", ")}
  asked, = files_asked(hub)
  assert asked.range == "bytes=0-4194303" and hub.sent < 5 << 20
  assert cached(locate("qwen3.5:4b")) == {}

def test_server_without_range_support(hub: Hub):
  hub.add("o/whole", "m.gguf", data=model("qwen99", BIG), ranges=False)
  assert "'qwen99' is not supported" in refusal("hf:o/whole", check_architecture)
  assert len(files_asked(hub)) == 1 and hub.sent < BIG // 4

def test_architecture_not_in_first_bytes(hub: Hub):
  """The file is fetched, and its architecture is checked when it is opened."""
  for name, data in (("late", model("qwen99", 5 << 20, 70)), ("none", b"<html>" * 10), ("short", b"GGUF")):
    hub.add(f"o/{name}", "m.gguf", data=data)
    assert resolve(f"hf:o/{name}", check_architecture).read_bytes() == data

def test_cached_file_is_not_probed(hub: Hub):
  data = hub.add("o/looked", "m-Q8_0.gguf", data=model("llama", 1 << 20))["m-Q8_0.gguf"]
  path = resolve("hf:o/looked", check_architecture)
  assert path.read_bytes() == data and [seen.range for seen in files_asked(hub)] == ["bytes=0-4194303", None]
  hub.seen.clear()
  def never(kv: Mapping[str, Any]) -> None: raise InputError("asked")
  assert resolve("hf:o/looked:q8_0", never).samefile(path) and files_asked(hub) == []
  hub.repos["o/looked"].status = 503
  assert resolve("hf:o/looked:q8_0", never).samefile(path)

def test_redirect_to_another_host(hub: Hub, monkeypatch: pytest.MonkeyPatch):
  other = Hub()
  try:
    data = hub.add("o/moved", "m.gguf", data=model("qwen99", 1 << 20), moved=other.url, token="secret")
    other.repos = hub.repos
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "'qwen99' is not supported" in refusal("hf:o/moved", check_architecture)
    there, = files_asked(other)
    assert there.range == "bytes=0-4194303" and there.token is None  # the token is only for the hub
    assert files_asked(hub)[0].token == "Bearer secret"
    assert resolve("hf:o/moved").read_bytes() == data["m.gguf"]
  finally:
    other.server.shutdown()
    other.server.server_close()

def test_probe_errors_are_download_errors(hub: Hub):
  hub.add("o/gate", "m.gguf", data=model("qwen99", 1 << 10), token="secret")
  assert "o/gate is gated; accept its terms" in refusal("hf:o/gate", check_architecture)
  hub.add("o/lost", "m.gguf")
  hub.gone.add("m.gguf")
  assert "a file of o/lost has gone" in refusal("hf:o/lost", check_architecture)
  hub.gone.clear()

def test_run_refuses_before_the_download(hub: Hub):
  """The command refuses an architecture, or a tokenizer in the first bytes, before it fetches the file."""
  hub.add("o/run", "m.gguf", data=model("qwen99", BIG))
  kinds = b"".join(struct.pack("<Q", len(x)) + x for x in (b"tokenizer.ggml.pre", b"martian"))
  kinds = kinds.replace(b"pre", b"pre" + struct.pack("<I", 8))
  head = model("llama", 0)
  at = head.index(b"\x0c" + bytes(7) + b"general.name")
  hub.add("o/cut", "m.gguf", data=(head[:at] + kinds).ljust(BIG, b"\0"))
  code = "import sys; sys.argv[0] = 'run'; from tinygrad_llm.run import main; main()"
  for name, words in (("run", "general.architecture: 'qwen99'"), ("cut", "tokenizer.ggml.pre: 'martian'")):
    done = process(code, "--model", f"hf:o/{name}", "--prompt", "hi")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"error: hf:o/{name}: o/{name}: {words} is not supported; supported: ")
  assert hub.sent < BIG // 4

# In a process: the environment, the exit code, the command

def process(code: str, *args: str, **env: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=ROOT, timeout=60,
                        env={**os.environ, **env})

def test_no_network(server: Hub, tmp_path: pathlib.Path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))  # nothing listens there
    url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = process(RESOLVE, "olmoe", HF_ENDPOINT=url, HF_HOME=str(tmp_path))
  assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
  assert done.stderr.startswith(f"error: olmoe: cannot fetch it from {url} (ConnectError: ")
  assert "check the network" in done.stderr

def test_offline_variable(hub: Hub):
  hub.add("o/variable", "m.gguf")
  path = resolve("hf:o/variable")
  hub.seen.clear()
  done = process(RESOLVE, "hf:o/variable", HF_HUB_OFFLINE="1")
  assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", "")
  assert hub.seen == []

def test_list_command(server: Hub, tmp_path):
  """With an empty cache there is no model to look at, and neither numpy nor tinygrad is imported."""
  code = ("import os, sys; os.environ['NO_PATCHES'] = '1'; sys.argv = ['run', '--list'];"
          "from tinygrad_llm.run import main; main();"
          "assert not {'tinygrad', 'numpy'} & {name.split('.')[0] for name in sys.modules}")
  done = process(code, HF_HOME=str(tmp_path))
  assert (done.returncode, done.stderr) == (0, "")
  head, *rows = done.stdout.splitlines()
  assert head.split() == ["name", "repository", "file", "cached", "fits"]
  assert [row.split()[0] for row in rows] == list(ALIASES)
  assert rows[0].split()[1:] == ["bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q6_K.gguf", "-", "-"]

def test_without_a_home_folder(monkeypatch):
  """Without a home folder, huggingface_hub would use a folder named `~`."""
  from huggingface_hub import constants
  monkeypatch.setattr(constants, "HF_HUB_CACHE", "~/.cache/huggingface/hub")
  with pytest.raises(InputError, match="no home folder to keep it in; set HF_HOME"): resolve("qwen3:0.6b")
  assert all(size == 0 for *_, size in listing())
