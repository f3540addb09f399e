"""
Turns a model's name into the path of its file, and fetches missing models from a hub.

A model is fetched into the cache that all programs on huggingface_hub share: models--OWNER--REPO/snapshots/COMMIT/FILE.
models--OWNER--REPO/refs/ holds the commit of a branch.

ALIASES are the models of tinygrad 0.14.0 (tinygrad/llm/cli.py) and two with multi-head latent attention.
"""
from __future__ import annotations
import contextlib, dataclasses, difflib, errno, os, pathlib, re, shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from tinygrad_llm.errors import InputError

DEFAULT_MODEL = pathlib.Path(__file__).parent.parent / "models" / "stories.gguf"

ALIASES = {  # name: owner/repo[@revision]:file
  "llama3.2:1b": "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q6_K.gguf",
  "llama3.2:1b-q4": "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf",
  "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q6_K.gguf",
  "llama3.2:3b-f16": "bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-f16.gguf",
  "llama3.1:8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Meta-Llama-3.1-8B-Instruct-Q8_0.gguf",
  "qwen3:0.6b": "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
  "qwen3:1.7b": "unsloth/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q4_K_M.gguf",
  "qwen3:8b": "Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf",
  "qwen3:30b-a3b": "Qwen/Qwen3-30B-A3B-GGUF:Qwen3-30B-A3B-Q4_K_M.gguf",
  "qwen3.5:0.8b": "unsloth/Qwen3.5-0.8B-GGUF:Qwen3.5-0.8B-Q8_0.gguf",
  "qwen3.5:4b": "unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q4_K_M.gguf",
  "qwen3.5:9b": "unsloth/Qwen3.5-9B-GGUF:Qwen3.5-9B-Q4_K_M.gguf",
  "qwen3.6:27b": "unsloth/Qwen3.6-27B-GGUF:Qwen3.6-27B-Q4_K_M.gguf",
  "qwen3.6:35b-a3b": "unsloth/Qwen3.6-35B-A3B-GGUF:Qwen3.6-35B-A3B-UD-Q4_K_M.gguf",
  "qwen3.8:27b": "unsloth/Qwen3.8-27B-GGUF@b62a80264f8b0c1bb849ee1c9c487415ebeca194:Qwen3.8-27B-IQ4_XS.gguf",
  "olmoe": "allenai/OLMoE-1B-7B-0924-Instruct-GGUF:olmoe-1b-7b-0924-instruct-q4_k_m.gguf",
  "moonlight": "gabriellarson/Moonlight-16B-A3B-Instruct-GGUF:Moonlight-16B-A3B-Instruct-Q4_K_M.gguf",
  "glm-4.7-flash": "unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-Q4_K_M.gguf",
  "deepseek-v2-lite": "mradermacher/DeepSeek-V2-Lite-Chat-GGUF:DeepSeek-V2-Lite-Chat.Q4_K_M.gguf",
  "youtu-llm:2b": "tencent/Youtu-LLM-2B-GGUF:Youtu-LLM-2B-Q8_0.gguf",
}

# The default for a repository with several models: the first of these quant types that it has.
PREFERRED = (
  "Q4_K_M", "Q8_0", "Q4_K_XL", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_K_L", "Q5_K_L", "Q6_K_L", "Q4_0", "Q4_1",
  "Q5_0", "Q5_1", "MXFP4", "MXFP4_MOE", "IQ4_XS", "IQ4_NL", "Q3_K_M", "Q3_K_L", "Q3_K_XL", "Q3_K_S", "IQ3_M", "IQ3_S",
  "IQ3_XS", "IQ3_XXS", "Q2_K", "Q2_K_XL", "BF16", "F16", "F32")

# bytes read to check a file's metadata before it is fetched: per read (all pairs before the vocabulary), and in all
FIRST_PIECE, FIRST_BYTES = 1 << 16, 1 << 22

_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<wanted>.+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = re.compile(r"-(\d{5})-of-((?!00000)\d{5})(?=\.gguf$)", re.IGNORECASE)
_QUANT = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_(?:K|NL|XXS|XS|S|M|L|XL|\d))*|TQ[12]_0|MXFP4(?:_MOE)?"
                    r"|BF16|FP?16|FP?32))(?=[-._/]|$)", re.IGNORECASE)
_AUXILIARY = re.compile(r"mmproj|^imatrix|imatrix$", re.IGNORECASE)  # image encoders, importance matrices
_HOW = "hf:owner/repo[:file or quant type]"

@dataclasses.dataclass(frozen=True)
class Reference:
  """A model on the hub. wanted: a file's name or a quant type; "" for the repository's default, see PREFERRED."""
  name: str  # as the user wrote it
  repo: str
  revision: str = "main"
  wanted: str = ""

def _parse(name: str, text: str) -> Reference:
  if (found := _REFERENCE.fullmatch(text)) is None: raise InputError(f"{name:.200}: not a repository; write {_HOW}")
  return Reference(name, found["repo"], found["revision"] or "main", found["wanted"] or "")

def _file(model: str) -> pathlib.Path | None:
  try: return path if (path := pathlib.Path(model).expanduser()).exists() else None
  except (OSError, ValueError, RuntimeError): return None  # a path too long, a zero byte, an unknown user's home

def locate(model: str | os.PathLike[str] | None) -> pathlib.Path | Reference:
  """
  Looks up a model's name, without network access: a path on disk, or a reference to the hub.

  None is the bundled default model. A name may be an existing path, a name of ALIASES in upper or lower case, or
  hf:owner/repo[@revision][:file or quant type]; they are tried in this order. InputError for anything else, with the
  names that are close to it.
  """
  if model is None: return DEFAULT_MODEL
  if not (model := os.fspath(model)): raise InputError("the model's name is empty; leave it out for the bundled model")
  if path := _file(model): return path
  if target := ALIASES.get(model.lower()): return _parse(model, target)
  if model.lower().startswith("hf:"): return _parse(model, model[3:])
  what = f"{model:.200}: no such file and no such model"
  close = [name for name in ALIASES if name.startswith(f"{model.lower()}:")]
  if close := close or difflib.get_close_matches(model.lower(), ALIASES, n=4, cutoff=0.55):
    raise InputError(f"{what}; did you mean {', '.join(close)}?")
  if _REFERENCE.fullmatch(model) and not model.lower().endswith(".gguf"):
    raise InputError(f"{what}; if it is a repository, write hf:{model:.200}")
  raise InputError(f"{what}; give the path of a .gguf file, a name that run --list shows, or {_HOW}")

def resolve(model: str | os.PathLike[str] | None,
            check: Callable[[Mapping[str, Any]], None] | None = None) -> pathlib.Path:
  """
  The path of a model (see locate). For a split model it is the path of the first part, with all parts beside it.

  A cached file that is asked for by name needs no network access. For a quant type, the hub is asked which files there
  are; if it cannot be reached, the cache decides. HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and the other variables of
  huggingface_hub apply. Progress goes to stderr if that is a terminal. A broken connection is resumed; a download that
  was stopped starts again (huggingface_hub from 1.18 on).

  check: called with a file's first metadata before it is fetched; its InputError prevents the download.

  InputError if the model cannot be found or fetched.
  """
  if isinstance(found := locate(model), pathlib.Path): return found
  try: from huggingface_hub import HfApi, constants, hf_hub_download
  except ImportError: raise InputError(f"{found.name}: it needs a package; pip install huggingface_hub") from None
  if not _has_cache(): raise InputError(f"{found.name}: there is no home folder to keep it in; set HF_HOME to a folder")
  have = cached(found)
  if found.wanted.lower().endswith(".gguf"):
    with contextlib.suppress(InputError): return have[choose(have, found.wanted)[0]]
  try:
    info = HfApi().model_info(found.repo, revision=found.revision, files_metadata=True,
                              timeout=constants.HF_HUB_ETAG_TIMEOUT)
  except Exception as e:  # errors of the library and of its transports
    if not have: raise InputError(f"{found.name}: {_why(e, found)}") from e
    try: return have[choose(have, found.wanted)[0]]
    except InputError as miss:
      raise InputError(f"{found.name}: {_why(e, found)}; in the cache, {found.repo} {miss}") from e
  sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
  try: parts = choose(sizes, found.wanted)
  except InputError as e: raise InputError(f"{found.name}: {found.repo} {e}") from None
  if check and parts[0] not in have:
    try: check(_first_metadata(found, parts[0]))
    except InputError as e: raise InputError(f"{found.name}: {found.repo}: {e}") from None
  _check_space(found, sum(sizes[part] for part in parts if part not in have))
  try: paths = [pathlib.Path(hf_hub_download(found.repo, part, revision=found.revision)) for part in parts]
  except Exception as e: raise InputError(f"{found.name}: {_why(e, found)}") from e
  if len({path.parent for path in paths}) > 1:
    raise InputError(f"{found.name}: {found.repo} changed while its parts were fetched; run it again")
  return paths[0]

def _first_metadata(model: Reference, file: str) -> dict[str, Any]:
  """
  The metadata at the beginning of a file on the hub; {} if the request fails, as the download will then say why.

  The file is read in pieces until the metadata includes the architecture. At most FIRST_BYTES bytes are read, even if
  the server sends more.
  """
  from huggingface_hub import constants, hf_hub_url
  from huggingface_hub.utils import build_hf_headers, get_session
  from tinygrad_llm.files.gguf import first_metadata
  raw, kv = b"", dict[str, Any]()
  url, headers = hf_hub_url(model.repo, file, revision=model.revision), build_hf_headers()
  with contextlib.suppress(Exception), get_session().stream(
      "GET", url, headers={**headers, "Range": f"bytes=0-{FIRST_BYTES - 1}", "Accept-Encoding": "identity"},
      follow_redirects=True, timeout=constants.HF_HUB_ETAG_TIMEOUT) as reply:
    reply.raise_for_status()
    for piece in reply.iter_bytes(FIRST_PIECE):
      raw += piece
      if "general.architecture" in (kv := first_metadata(raw)) or len(raw) >= FIRST_BYTES: break
  return kv

def _has_cache() -> bool:
  """Whether huggingface_hub has a folder for its cache; without a home folder it would create one named `~`."""
  from huggingface_hub import constants
  return not constants.HF_HUB_CACHE.startswith("~")

def cached(model: Reference) -> dict[str, pathlib.Path]:
  """The cached GGUF files of a model's repository and revision: {name in the repository: path}."""
  from huggingface_hub import constants
  if not _has_cache(): return {}
  repo = pathlib.Path(constants.HF_HUB_CACHE) / f"models--{model.repo.replace('/', '--')}"
  try:
    commit = model.revision
    if not _COMMIT.fullmatch(commit): commit = (repo / "refs" / commit).read_text().strip()
    if not _COMMIT.fullmatch(commit): return {}
    folder = repo / "snapshots" / commit
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")
            if path.suffix.lower() == ".gguf" and path.is_file()}
  except (OSError, ValueError): return {}

def cached_path(alias: str) -> pathlib.Path:
  """The path of an alias's first file in the cache. InputError if it is not there."""
  have = cached(reference := _parse(alias, ALIASES[alias]))
  return have[choose(have, reference.wanted)[0]]

def listing() -> list[tuple[str, str, str, int]]:
  """A row for every alias: name, repository, file, bytes in the cache (0: not there). Needs no network."""
  def row(name: str) -> tuple[str, str, str, int]:
    reference = _parse(name, ALIASES[name])
    have = cached(reference)
    try: size = sum(have[part].stat().st_size for part in choose(have, reference.wanted))
    except (InputError, OSError): size = 0
    return name, reference.repo, reference.wanted, size
  return [row(name) for name in ALIASES]

def _models(files: Iterable[str]) -> dict[str, list[str]]:
  """The models among a repository's files: {first part: all parts that are there}."""
  models: dict[str, list[str]] = {}
  for file in sorted(files):
    name = file.rpartition("/")[2]
    if name.lower().endswith(".gguf") and file.isprintable() and not _AUXILIARY.search(_stem(name)):
      models.setdefault(_PART.sub(r"-00001-of-\2", file), []).append(file)
  return models

def _stem(file: str) -> str: return _PART.sub("", file)[:-5].lower()

def _quant(file: str) -> str:
  """The quant type in a file's name, or else in its folder's name, in lower case; "" if there is none."""
  folder, _, base = _stem(file).rpartition("/")
  return next((found[-1] for text in (base, folder) if (found := _QUANT.findall(text))), "")

def _some(names: Iterable[str], limit: int = 24) -> str:
  first = sorted(set(names))
  return ", ".join(first[:limit]) + (f" and {len(first) - limit} more" if len(first) > limit else "")

def _matching(models: Iterable[str], wanted: str) -> list[str]:
  """Models that match by path, else by file name, else by quant type, else by quant type without UD- (a mixture)."""
  wanted = _stem(wanted if wanted.lower().endswith(".gguf") else f"{wanted}.gguf")
  keys = (_stem, lambda file: _stem(file).rpartition("/")[2], _quant, lambda file: _quant(file).removeprefix("ud-"))
  return next((found for key in keys if (found := [file for file in models if key(file) == wanted])), [])

def choose(files: Iterable[str], wanted: str) -> list[str]:
  """
  Chooses the wanted model among a repository's files: its one file, or all of its parts in order.

  InputError if there is none, several fit, or a part is missing. Its message lists the choices, and is worded to follow
  the repository's name.
  """
  if not (models := _models(files)): raise InputError("has no GGUF model; look for a repository of its GGUF files")
  if wanted: found = _matching(models, wanted)
  else: found = next((match for quant in PREFERRED if (match := _matching(models, quant))), list(models))
  if not found: raise InputError(f"has no {wanted}; it has {_some(_quant(file).upper() or file for file in models)}")
  if len(found) > 1: raise InputError(f"has several files that fit; name one, hf:owner/repo:FILE: {_some(found)}")
  if (split := _PART.search(found[0])) is None: return found
  parts = [_PART.sub(f"-{i:05d}-of-{split[2]}", found[0]) for i in range(1, int(split[2]) + 1)]
  if missing := sorted({*parts} - {*models[found[0]]}):
    raise InputError(f"has {len(parts) - len(missing)} of the {len(parts)} parts of {found[0]}, and {missing[0]} is "
                     "missing; choose another file")
  return parts

def in_bytes(size: float) -> str:
  """A size as text: in GB, or in MB below 0.1 GB."""
  return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"

def _check_space(model: Reference, size: int) -> None:
  from huggingface_hub import constants
  cache = pathlib.Path(constants.HF_HUB_CACHE).absolute()
  try: free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
  except OSError: return
  if size > free:
    raise InputError(f"{model.name}: it takes {in_bytes(size)}, and {cache} has {in_bytes(free)} left; make room, "
                     "choose a smaller quant type, or set HF_HOME to a folder on a larger disk")

def _why(e: BaseException, model: Reference) -> str:
  """The cause of a failed request and the fix, as the end of a one-line message."""
  from huggingface_hub import constants, errors, get_token
  if isinstance(e, errors.LocalEntryNotFoundError) and e.__cause__: e = e.__cause__
  text = " ".join(str(e).split())
  status = e.response.status_code if isinstance(e, errors.HfHubHTTPError) else 0
  number = getattr(e, "errno", None)
  if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
    return f"the disk of {constants.HF_HUB_CACHE} is full; make room, or set HF_HOME to a folder on a larger disk"
  if isinstance(e, OSError) and number is not None and not isinstance(e, (ConnectionError, TimeoutError)):
    return f"{constants.HF_HUB_CACHE} cannot be used ({os.strerror(number)}); set HF_HOME to a folder of yours"
  if isinstance(e, errors.GatedRepoError):
    if get_token(): return f"{model.repo} is gated, and the account of this token has no access; ask for it on its page"
    return f"{model.repo} is gated; accept its terms on its page, then set HF_TOKEN to a token of your account"
  if isinstance(e, errors.OfflineModeIsEnabled):
    return "not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model"
  if isinstance(e, errors.RepositoryNotFoundError):
    return (f"{model.repo} does not exist, or is private; check its name, and for a private one "
            f"{'the access of your token' if get_token() else 'set HF_TOKEN'}")
  if isinstance(e, errors.HFValidationError): return f"{model.repo} cannot be a repository's name; write {_HOW}"
  if isinstance(e, errors.RevisionNotFoundError): return f"{model.repo} has no revision {model.revision}; check it"
  if isinstance(e, errors.EntryNotFoundError): return f"a file of {model.repo} has gone; run it again"
  if status == 401: return "the hub refuses the token; set HF_TOKEN to a valid one, or unset it"
  if status == 403: return f"the hub refuses access to {model.repo}; check what the token in HF_TOKEN may read"
  if status == 429: return "the hub refuses more requests for now; wait some minutes, or set HF_TOKEN"
  if status >= 500: return f"{constants.ENDPOINT} has an error of its own ({status}); try again later"
  return (f"cannot fetch it from {constants.ENDPOINT} ({type(e).__name__}: {text[:160]}); check the network, the proxy "
          "and HF_ENDPOINT")
