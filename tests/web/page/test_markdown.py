"""The page's Markdown: its nodes, the same from pieces as from the whole, and no text that makes it slow."""
import random

import pytest

from tests.support.extended import extended

pytestmark = extended

@pytest.fixture
def blank(tabs, server):
  tab = tabs(url=server.url + "blank")
  tab.page.goto(tab.url)
  tab.run("""async () => {
    const {MarkdownStream, markdown} = await import("/scripts/markdown/stream.js")
    window.whole = text => markdown(document.createElement("div"), text)
    window.pieces = texts => {
      const element = document.createElement("div"), stream = new MarkdownStream(element)
      for (const text of texts) stream.push(text)
      stream.end()
      return element
    }
    window.plain = element => {  // without code's buttons
      for (const button of element.querySelectorAll("button")) button.remove()
      element.normalize()
      return element.innerHTML.replace(/ (dir|title|target|rel|tabindex|role|aria-label|class)="[^"]*"/g, "")
    }
  }""")
  return tab

CODE = "<div><div><span>{}</span></div><pre><code>{}</code></pre></div>"
CASES = [
  ("a *b* **c** ***d*** ~~e~~ `f*g*`", "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> "
   "<code>f*g*</code></p>"),
  ("snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>"),
  ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
  ("# A\n## B #\n#C", "<h3>A</h3><h4>B</h4><p>#C</p>"),
  ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
  ("3. a\n4. b\n\n   c", '<ol start="3"><li><p>a</p></li><li><p>b</p><p>c</p></li></ol>'),
  ("1. a\n   ```\n   x\n     y\n   ```\n2. b", "<ol><li>a" + CODE.format("code", "x\n  y\n") + "</li><li>b</li></ol>"),
  ("- [ ] a\n- [x] b", "<ul><li>☐ a</li><li>☑ b</li></ul>"),
  ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
  ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
  ("t:\n| a | b |\n|---|:-:|\n| 1 | x \\| y |\n| 2 |\nend",
   "<p>t:</p><div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
   "<tbody><tr><td>1</td><td>x | y</td></tr><tr><td>2</td><td></td></tr></tbody></table></div><p>end</p>"),
  ("```py\n\tif a < b:\n```\nafter", CODE.format("py", "\tif a &lt; b:\n") + "<p>after</p>"),
  ("~~~\n```\n~~~", CODE.format("code", "```\n")),
  ("```\nopen\n\n- no list", CODE.format("code", "open\n\n- no list\n")),
  ("[a *b*](https://x.y/z \"t\") <https://x.y/> https://x.y/(a).", '<p><a href="https://x.y/z">a <em>b</em></a> '
   '<a href="https://x.y/">https://x.y/</a> <a href="https://x.y/(a)">https://x.y/(a)</a>.</p>'),
  ("[https://a.b](https://c.d)", '<p><a href="https://c.d/">https://a.b</a></p>'),
  ("[a](javascript:alert(1)) [b](data:text/html,x) [c](/local) [d](//x.y)",
   "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](/local) [d](//x.y)</p>"),
  ("![alt](https://x.y/p.png)", '<p><a href="https://x.y/p.png">Image: alt</a></p>'),
  ("<b onclick=x>a</b> &lt;i&gt; &copy; a<br>b", "<p>&lt;b onclick=x&gt;a&lt;/b&gt; &lt;i&gt; &amp;copy; a<br>b</p>"),
  ("\\*a\\* \\d", "<p>*a* \\d</p>"), ("``a`b`` `c", "<p><code>a`b</code> `c</p>"),
  ("**bold `code` and [x](http://a.b)**", '<p><strong>bold <code>code</code> and <a href="http://a.b/">x</a></strong></p>'),
]

@pytest.mark.parametrize("text, drawn", CASES, ids=range(len(CASES)))
def test_markdown(blank, text, drawn): assert blank.run("text => plain(whole(text))", text) == drawn

LINES = [*(text for text, _ in CASES), "", "", "plain text", "  - deep", "    indented", "```", "```js", "| a | b |",
         "|---|---|", "> quote", "1. one", "2) two", "***", "****", "# ", "* ", "a  ", "\r", "a\\", "~~~~", "``"]

@pytest.mark.parametrize("seed", range(4))
def test_pieces_give_what_the_whole_gives(blank, seed):
  draw = random.Random(seed)
  cases = []
  for _ in range(150):
    text = "\n".join(draw.choice(LINES) for _ in range(draw.randrange(1, 14))) + draw.choice(["", "\n"])
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(0, 30)))
    cases.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])])
  wrong = blank.run("""cases => cases.map(texts => [texts, plain(pieces(texts)), plain(pieces([texts.join("")]))])
    .filter(([, one, other]) => one !== other)[0] ?? null""", cases)
  assert wrong is None

NASTY = ["*a " * 40000, "*" * 40000, "_a*" * 40000, "[" * 40000, "[a](" * 20000, "![" * 20000, "`a``" * 20000,
         ">" * 40000, "> " * 20000, "- " * 20000, "1. " * 20000, "| " * 20000 + "\n" + "|-" * 20000, "#" * 40000,
         "<" * 40000, "&" * 40000,
         "https://" * 20000, "**a " * 20000 + "b** " * 20000, "~~" * 20000, "\\" * 40000, " " * 40000 + "x",
         "```\n" * 20000,
         "- a\n" * 10000, "> a\n" * 10000, "\n" * 40000, "((" * 20000, "[a](<" * 20000, "# " + "#" * 40000 + " x",
         "-" + " -" * 20000 + " x", "".join("  " * i + "- a\n" for i in range(200)), "[[a](http://b.c)" * 10000]

@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_text_is_slow_or_deep(blank, text):
  """A quadratic reader would need minutes for some of them. Elements lie at most some hundred deep."""
  seconds, depth = blank.run("""text => {
    const begun = performance.now(), element = whole(text)
    let depth = 0
    for (let nodes = [element]; nodes.length; depth++) nodes = nodes.flatMap(node => [...node.children])
    return [(performance.now() - begun) / 1000, depth]
  }""", text)
  assert seconds < 20 and depth < 100

def test_work_grows_with_the_length_and_not_with_its_square(blank):
  """Twice the answer makes twice the elements: only the last block is drawn again."""
  made = blank.run("""counts => {
    const create = document.createElement.bind(document)
    return counts.map(count => {
      let made = 0
      document.createElement = tag => { made++; return create(tag) }
      const block = "Some *words* here.\\n\\n- an item\\n\\n```js\\nlet a = 1\\nlet b = 2\\n```\\n\\n"
      const text = block.repeat(count), texts = []
      for (let i = 0; i < text.length; i += 7) texts.push(text.slice(i, i + 7))
      pieces(texts)
      document.createElement = create
      return made
    })
  }""", [50, 100])
  assert 1.8 < made[1] / made[0] < 2.2

def test_code_that_is_written_is_only_added_to(blank):
  """A long code block keeps its nodes: their number does not grow with its lines."""
  nodes = blank.run("""() => {
    const element = pieces(["```js\\n", ...Array.from({length: 5000}, (_, i) => `let a${i} = ${i}\\n`)])
    const code = element.querySelector("code")
    return [code.childNodes.length, code.textContent.split("\\n").length]
  }""")
  assert nodes == [2, 5001]
