"""
mkdocs hook: links that leave docs/ lead to the repository's files, and pictures from there are copied into the site.

A link to a file that is not in the repository is a warning, which ends a strict build. Without `repo_url`, links that
leave docs/ become plain text.
"""
from __future__ import annotations
import logging, posixpath, re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = (".png", ".svg")
# code, which stays as it is, or a link
LINK = re.compile(r"^```.*?^```|`[^`\n]*`|(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", re.M | re.S)
log = logging.getLogger("mkdocs.hooks.repository_links")

def outside(page: str, target: str) -> str:
  """The path in the repository of a link in `page` (a path below docs/) that leaves docs/; "" for any other link."""
  if re.match(r"[a-z]+:|#|/", target): return ""
  path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
  return "" if path.startswith("docs/") else path

def rewritten(markdown: str, page: str, repo: str) -> tuple[str, list[str], list[str]]:
  """A page with its outer links rewritten; the pictures among them, and links to files that are missing."""
  pictures, missing = list[str](), list[str]()
  def link(m: re.Match[str]) -> str:
    mark, text, target = m.groups()
    if target is None or not (path := outside(page, target)): return m[0]
    if not (ROOT / path).exists(): missing.append(target)
    if mark and path.endswith(PICTURES):
      pictures.append(path)
      return f"![{text}]({posixpath.relpath(path, posixpath.dirname(page) or '.')})"
    if not repo: return text
    kind, anchor = "tree" if (ROOT / path).is_dir() else "blob", target.partition("#")[2]
    return f"[{text}]({repo.rstrip('/')}/{kind}/main/{path}{'#' * bool(anchor)}{anchor})"
  return LINK.sub(link, markdown), pictures, missing

def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
  from mkdocs.structure.files import File
  made, pictures, missing = rewritten(markdown, page.file.src_uri, config.repo_url or "")
  for path in pictures:
    if files.get_file_from_path(path) is None:
      files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
  for target in missing: log.warning("%s: %s: no such file in the repository", page.file.src_uri, target)
  return made
