"""
The page at /: one document of the files in web/page, with headers under which nothing but those files can run.

How: page.html has an empty <style> and an empty <script>. Styles are joined by name. Scripts are modules; each comes
after the modules that it imports, and its `import` lines and the word `export` go. The policy names the hashes of both,
so markup that a model writes could run nothing even if the page showed it as markup
(https://www.w3.org/TR/CSP3/, https://www.w3.org/TR/trusted-types/).
"""
from __future__ import annotations
import base64, hashlib, pathlib, re
from functools import cache
from starlette.requests import Request
from starlette.responses import Response

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "page"
IMPORT = re.compile(r'^import (?:\* as (?P<whole>\w+)|\{[^}]*\}) from "(?P<path>[./\w-]+)"\n', re.M)
EXPORT = re.compile(r"^export (?=async |function|const|class|let)", re.M)
NAMED = re.compile(r"^export (?:async )?(?:function\*?|const|class|let) ([\w$]+)", re.M)

def joined_scripts(entry: pathlib.Path) -> str:
  """
  A module and all that it imports as one module.

  Each keeps a scope of its own, so that names that are not exported may be the same in two of them. Exports are the
  properties of an object that has the module's name.
  """
  done = dict[pathlib.Path, str]()
  def name(path: pathlib.Path) -> str: return "module_" + path.stem
  def add(path: pathlib.Path) -> None:
    if path in done: return
    done[path] = ""
    source = path.read_text(encoding="utf-8")
    def imported(match: re.Match[str]) -> str:
      other = (path.parent / match["path"]).resolve()
      add(other)
      return f"const {match['whole'] or match[0][7:].partition(' from')[0]} = {name(other)}\n"
    body = EXPORT.sub("", IMPORT.sub(imported, source))
    done[path] = f"const {name(path)} = (() => {{\n{body}return {{{', '.join(NAMED.findall(source))}}}\n}})()\n"
    order.append(path)
  order = list[pathlib.Path]()
  add(entry.resolve())
  return "\n" + "".join(done[path] for path in order)

def joined_styles(folder: pathlib.Path) -> str:
  return "\n" + "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.css")))

def _hash(text: str) -> str: return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

@cache
def document() -> tuple[bytes, dict[str, str]]:
  """The page's bytes, and its headers."""
  script, style = joined_scripts(FOLDER / "scripts" / "main.js"), joined_styles(FOLDER / "styles")
  page = (FOLDER / "page.html").read_text(encoding="utf-8")
  page = page.replace("<style></style>", f"<style>{style}</style>")
  page = page.replace('<script type="module"></script>', f'<script type="module">{script}</script>')
  policy = {"default-src": "'none'", "script-src": f"'sha256-{_hash(script)}'", "style-src": f"'sha256-{_hash(style)}'",
            "connect-src": "'self'", "img-src": "'self' data:", "form-action": "'none'", "base-uri": "'none'",
            "frame-ancestors": "'none'", "require-trusted-types-for": "'script'", "trusted-types": "'none'"}
  content = page.encode()
  return content, {"content-security-policy": "; ".join(f"{k} {v}" for k, v in policy.items()),
                   "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "cache-control": "no-cache",
                   "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY",
                   "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin"}

async def page(request: Request) -> Response:
  """The page; 304 without it if the browser has it already."""
  content, headers = document()
  known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
  if headers["etag"] in known or known == ["*"]: return Response(status_code=304, headers=headers)
  return Response(content, headers=headers, media_type="text/html")
