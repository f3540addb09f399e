"""The page's document and headers, without a browser."""
import base64
import hashlib
import re

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
from starlette.applications import Starlette  # noqa: E402
from starlette.routing import Route  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from tinygrad_llm.web.api import page  # noqa: E402

SCRIPTS = sorted((page.FOLDER / "scripts").rglob("*.js"))
FILES = [path for path in page.FOLDER.rglob("*") if path.is_file()]
# ways by which text becomes markup or code
SINKS = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
                   r"|createContextualFragment|DOMParser|setHTML|srcdoc|import\(|\sstyle=|\son\w+=")

@pytest.fixture
def client(): return TestClient(Starlette(routes=[Route("/", page.page)]))

def hashed(text: str) -> str: return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

def test_policy_allows_this_script_and_this_style_alone(client):
  done = client.get("/")
  policy = dict(part.split(" ", 1) for part in done.headers["content-security-policy"].split("; "))
  scripts = re.findall(r"<script[^>]*>(.*?)</script>", done.text, re.S)
  styles = re.findall(r"<style>(.*?)</style>", done.text, re.S)
  assert [hashed(text) for text in scripts] == [policy.pop("script-src")]
  assert [hashed(text) for text in styles] == [policy.pop("style-src")]
  assert policy == {"default-src": "'none'", "connect-src": "'self'", "img-src": "'self' data:",
                    "form-action": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'",
                    "require-trusted-types-for": "'script'", "trusted-types": "'none'"}
  assert len(scripts[0]) > 20_000 and len(styles[0]) > 5_000

def test_headers(client):
  headers = client.get("/").headers
  assert headers["content-type"] == "text/html; charset=utf-8"
  assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
  assert headers["cache-control"] == "no-cache" and headers["x-frame-options"] == "DENY"

@pytest.mark.parametrize("known, status", [("{}", 304), ("W/{}", 304), ('"other", {}', 304), ("*", 304),
                                           ('"other"', 200), ("", 200)])
def test_etag(client, known, status):
  tag = client.get("/").headers["etag"]
  done = client.get("/", headers={"if-none-match": known.format(tag)})
  assert done.status_code == status and done.headers["etag"] == tag and bool(done.content) == (status == 200)

def test_head_has_no_body(client):
  done = client.head("/")
  assert done.status_code == 200 and not done.content and int(done.headers["content-length"]) > 20_000

def test_text_never_becomes_markup():
  assert len(SCRIPTS) > 10
  found = [(path.name, match[0]) for path in FILES for match in SINKS.finditer(path.read_text())]
  assert found == []
  bad = ("x.innerHTML = y", "eval(x)", '<p style="">', '<a onclick="x">', "import('x')")
  assert all(SINKS.search(each) for each in bad)

def test_nothing_comes_from_elsewhere():
  """The only address in the files is the name of the SVG namespace."""
  found = {match for path in FILES for match in re.findall(r"\b(?:https?|wss?):/{2}[\w.]+", path.read_text())}
  assert found == {"http://www.w3.org"}
  assert not any(re.search(r"@import|url\(", path.read_text()) for path in FILES)

def test_every_module_is_joined_once():
  script = page.joined_scripts(page.FOLDER / "scripts" / "main.js")
  assert re.findall(r"^const module_(\w+) =", script, re.M).__len__() == len(SCRIPTS)
  assert not re.search(r"^(import|export) ", script, re.M) and "</script" not in script.lower()
  for path in SCRIPTS: assert script.count(f"const module_{path.stem} =") == 1

def test_modules_come_after_what_they_import(tmp_path):
  (tmp_path / "inner").mkdir()
  main = 'import {twice} from "./inner/b.js"\nimport * as c from "./c.js"\nc.say(twice(2))\n'
  (tmp_path / "main.js").write_text(main)
  inner = 'import {two} from "../c.js"\nconst say = 1\nexport const twice = x => two * x\n'
  (tmp_path / "inner" / "b.js").write_text(inner)
  last = "export const two = 2\nexport async function say(x) { return x }\nfunction hidden() {}\n"
  (tmp_path / "c.js").write_text(last)
  assert page.joined_scripts(tmp_path / "main.js") == """
const module_c = (() => {
const two = 2
async function say(x) { return x }
function hidden() {}
return {two, say}
})()
const module_b = (() => {
const {two} = module_c
const say = 1
const twice = x => two * x
return {twice}
})()
const module_main = (() => {
const {twice} = module_b
const c = module_c
c.say(twice(2))
return {}
})()
"""

def test_page_is_public_and_there_while_the_model_loads():
  pytest.importorskip("msgspec")
  pytest.importorskip("prometheus_client")
  from tinygrad_llm.web.api.app import app
  from tinygrad_llm.web.service import Service
  client = TestClient(app(Service("m", 1, 1), keys=["secret"]), base_url="http://localhost")
  assert client.get("/").status_code == 200 and client.get("/health").status_code == 503
  assert client.get("/props").status_code == 401
  assert client.get("/", headers={"host": "evil.example"}).status_code == 403
