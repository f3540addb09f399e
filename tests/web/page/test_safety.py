"""Nothing that a model, a user or a file writes runs as code, loads something or leaves the page."""
import pytest

from tests.support.extended import extended
from tests.support.page_server import Answer

pytestmark = extended

ATTACKS = """<img src=x onerror="ran.push('img')">
<script>ran.push('script')</script>
<svg/onload=ran.push('svg')><iframe srcdoc="<script>parent.ran.push(1)</script>"></iframe>
<style>body { display: none }</style><base href="https://evil.example/"><form action="https://evil.example/"><button>x</form>

[click](javascript:ran.push('link')) [click](JaVaScRiPt:ran.push('case')) [click](java&#115;cript:alert(1))
[click](data:text/html,<script>alert(1)</script>) [click](vbscript:x) [click]( javascript:alert(1) )
<javascript:alert(1)>
[t](https://ok.example/"onmouseover="ran.push(1)) [t](https://ok.example/ "x\\" onclick=ran.push(2)")
![x](javascript:ran.push('image')) ![track](https://evil.example/pixel.png) ![x](x"onerror="ran.push(3))

| <img src=x onerror=ran.push('cell')> | b |
|---|---|
| <script>ran.push('cell')</script> | [a](javascript:ran.push('cell')) |

```<img src=x onerror=ran.push('language')>
<img src=x onerror=ran.push('code')></code></pre><script>ran.push('code')</script>
```
`<img src=x onerror=ran.push('inline')>`

> <img src=x onerror=ran.push('quote')>

- <details open ontoggle=ran.push('toggle')>
"""

@pytest.mark.parametrize("step", [1, 7, 100000])
def test_markup_of_a_model_is_text(tab, server, step):
  requests = []
  tab.page.on("request", lambda r: requests.append(r.url))
  texts = [ATTACKS[i:i + step] for i in range(0, len(ATTACKS), step)]
  server.answers = [Answer(texts, thoughts=texts)]
  tab.ask(ATTACKS)
  tab.page.wait_for_selector("article.reply", timeout=60_000)
  tab.answered()
  tab.click("summary")
  text = tab.text("article.reply .prose")
  for seen in ("<script>ran.push('script')</script>", "onerror=\"ran.push('img')\"", "javascript:ran.push('link')",
               "<details open ontoggle="): assert seen in text
  inside = "#thread :is(img, script, iframe, style, base, form, object, embed, link, meta, svg:not(button svg))"
  assert tab.count(inside) == 0
  links = tab.run("""[...document.querySelectorAll('#thread a')]
    .map(a => [a.protocol, a.rel, a.getAttributeNames().sort().join()])""")
  assert links and all(link == ["https:", "noopener noreferrer", "href,rel,target,title"] for link in links)
  handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
  assert tab.run(handlers) == []
  tab.page.wait_for_timeout(300)
  assert tab.run("ran") == [] and all(url.startswith(tab.url) for url in requests)
  tab.page.fill("#search", "<img src=x onerror")
  tab.wait("document.querySelector('#conversations mark')")
  tab.page.reload()
  tab.page.wait_for_selector("article.reply")
  assert tab.run("ran") == [] and tab.run("violations") == []

def test_policy_would_stop_markup_that_got_in(tab):
  """Even code of the page itself cannot turn text into markup, add scripts or ask other servers."""
  tried = tab.run("""async () => {
    const found = []
    const attempt = async (name, act) => { try { await act(); found.push(name) } catch { /* stopped */ } }
    await attempt("markup", () => { document.body.insertAdjacentHTML("beforeend", "<img src=x>") })
    await attempt("fetch", () => fetch("https://evil.example/"))
    await attempt("code", () => { (0, eval)("1") })
    return found
  }""")
  # the debugger's own world may run code; markup and requests are refused to everybody
  assert "markup" not in tried and "fetch" not in tried
  violations = tab.run("violations.splice(0)")
  assert any("connect-src" in v for v in violations) and any("trusted-types" in v for v in violations)
  tab.errors.clear()

def test_names_from_the_server_are_text(tab, server):
  server.answers = [Answer(status=400, error={"message": "<img src=x onerror=ran.push(1)>"})]
  tab.ask("Hi")
  tab.page.wait_for_selector(".problem")
  assert "<img src=x" in tab.text(".problem") and tab.count("img") == 0
