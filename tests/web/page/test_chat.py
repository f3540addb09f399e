"""Questions and answers on the page: streaming, stop, branches, thinking, settings, errors."""
import random

import pytest

from tests.support.extended import extended
from tests.support.page_server import Answer

pytestmark = extended
ANSWER = "article.reply:last-child"

def words(count: int, seed: int = 0) -> list[str]:
  draw = random.Random(seed)
  return [f"{draw.choice(['fox', 'lamp', 'sea', 'keeper', 'night'])}{i} " for i in range(count)]

def test_answer_has_text_model_tokens_speed_and_context(tab, server):
  server.answers = [Answer(["**Hello**", " the", "re."])]
  tab.ask("Who is there?")
  assert tab.answered() == "Hello there." and tab.text(f"{ANSWER} strong") == "Hello"
  facts = tab.text(f"{ANSWER} .facts")
  assert "scripted-1B" in facts and "3 tokens" in facts and "41.7 tok/s" in facts
  assert "45 of 4,096 tokens" in tab.text("#context-text")
  assert server.asked[0]["messages"] == [{"role": "user", "content": "Who is there?"}] and server.asked[0]["stream"]
  assert not {"temperature", "seed", "max_tokens", "chat_template_kwargs"} & set(server.asked[0])
  tab.ask("And now?")
  tab.answered()
  assert [m["role"] for m in server.asked[1]["messages"]] == ["user", "assistant", "user"]
  assert server.asked[1]["messages"][1]["content"] == "**Hello** there."

def test_text_shows_while_it_is_written(tab, server):
  server.answers = [Answer(words(60), pause=0.03)]
  tab.ask("Go")
  tab.wait("document.querySelector('article.reply .prose')?.textContent.includes('2 ')")
  assert tab.count("body.busy #thread[aria-busy=true]") == 1
  tab.wait("document.querySelector('article.reply .facts').textContent.includes('tokens a second')")
  assert tab.answered() == "".join(words(60)).strip()
  assert tab.count("#thread[aria-busy=false]") == 1

@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop_ends_the_request_and_keeps_the_text(tab, server, how):
  server.answers = [Answer(words(2000), pause=0.01), Answer(["and the rest."])]
  tab.ask("Go")
  tab.wait("document.querySelector('article.reply .prose')?.textContent.length > 20")
  tab.click("#send") if how == "button" else tab.page.keyboard.press("Escape")
  text = tab.answered()
  assert "".join(words(2000)).startswith(text) and "stopped" in tab.text(f"{ANSWER} .facts")
  for _ in range(100):
    if server.gone: break
    tab.page.wait_for_timeout(50)
  assert server.gone == 1
  tab.click(f"{ANSWER} [aria-label='Go on with the answer']")
  tab.wait("document.querySelector('article.reply .prose').textContent.endsWith('rest.')")
  tab.answered()
  assert [m["role"] for m in server.asked[1]["messages"]] == ["user", "assistant"]
  assert server.asked[1]["messages"][1]["content"].strip() == text and tab.count("article") == 2

def test_answering_again_and_editing_make_branches(tab, server):
  server.answers = [Answer([text]) for text in ("first", "second", "third", "to the edited", "after")]
  tab.ask("One")
  tab.answered()
  for text in ("second", "third"):
    tab.click(f"{ANSWER} [aria-label='Answer again']")
    tab.wait(f"document.querySelector('article.reply .prose').textContent === {text!r}")
    tab.answered()
  assert tab.text(f"{ANSWER} .versions span") == "3 / 3"
  tab.click(f"{ANSWER} [aria-label='The version before']")
  assert tab.text(f"{ANSWER} .prose") == "second" and tab.text(f"{ANSWER} .versions span") == "2 / 3"
  tab.click("article.question [aria-label='Edit the question']")
  assert tab.page.input_value(".editor textarea") == "One"
  tab.page.fill(".editor textarea", "Two")
  tab.page.keyboard.press("Enter")
  tab.wait("document.querySelector('article.reply .prose').textContent === 'to the edited'")
  tab.answered()
  assert tab.text("article.question .bubble") == "Two" and tab.text("article.question .versions span") == "2 / 2"
  assert server.asked[3]["messages"] == [{"role": "user", "content": "Two"}]
  tab.click("article.question [aria-label='The version before']")
  assert tab.text("article.question .bubble") == "One" and tab.text(f"{ANSWER} .prose") == "second"
  tab.ask("More")
  tab.wait("document.querySelectorAll('article').length === 4")
  tab.answered()
  assert [m["content"] for m in server.asked[4]["messages"]] == ["One", "second", "More"]
  tab.page.reload()
  tab.wait("document.querySelectorAll('article').length === 4")
  assert tab.text("article.question .versions span") == "1 / 2"

def test_editing_is_left_by_escape(tab):
  tab.ask("One")
  tab.answered()
  tab.click("article.question [aria-label='Edit the question']")
  tab.page.fill(".editor textarea", "Two")
  tab.page.keyboard.press("Escape")
  assert tab.count(".editor") == 0 and tab.text("article.question .bubble") == "One"

def test_thinking_is_folded_and_sent_back(tab, server):
  server.answers = [Answer(["Forty-two."], thoughts=["Let me ", "think *hard*."], pause=0.4)]
  tab.ask("What?")
  tab.wait("document.querySelector('.thinking:not([hidden]) .busy')?.textContent === 'Thinking…'")
  assert tab.answered() == "Forty-two."
  assert not tab.run("document.querySelector('.thinking').open") and "Thought for" in tab.text("summary")
  tab.click("summary")
  assert tab.text(".thoughts") == "Let me think hard." and tab.text(".thoughts em") == "hard"
  tab.ask("Really?")
  tab.wait("document.querySelectorAll('article').length === 4")
  tab.answered()
  assert server.asked[1]["messages"][1] == {"role": "assistant", "content": "Forty-two.",
                                            "reasoning_content": "Let me think *hard*."}

def test_settings_are_sent_and_begin_the_next_conversation(tab, server):
  tab.click("#settings")
  assert tab.page.get_attribute("#set-temperature", "placeholder") == "0.8"  # the server's, from /props
  assert tab.page.get_attribute("#set-top_k", "placeholder") == "40"
  values = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "max_tokens": 99, "seed": 5,
            "presence_penalty": -0.5, "frequency_penalty": 1}
  for name, value in values.items(): tab.page.fill(f"#set-{name}", str(value))
  tab.page.fill("#system", "You answer briefly.")
  tab.page.select_option("#thinking", "none")
  tab.click("dialog .main")
  tab.ask("Hi")
  tab.answered()
  sent = server.asked[0]
  assert {name: sent[name] for name in values} == values
  assert sent["messages"][0] == {"role": "system", "content": "You answer briefly."}
  assert sent["chat_template_kwargs"] == {"enable_thinking": False} and sent["reasoning_effort"] == "none"
  tab.page.reload()
  tab.click("#new")
  tab.click("#settings")
  assert tab.page.input_value("#set-top_k") == "7" and tab.page.input_value("#system") == "You answer briefly."
  tab.page.fill("#set-top_p", "2")
  tab.click("dialog .main")
  assert tab.count("dialog[open]") == 1 and "Top p" in tab.text("dialog .problem")
  tab.click("text=Reset")
  tab.click("dialog .main")
  tab.ask("Hi")
  tab.answered()
  assert set(server.asked[1]) == {"messages", "stream", "stream_options"}

CONTEXT = {"code": "context_length_exceeded", "message": "..", "n_prompt_tokens": 5000, "n_ctx": 4096}
ERRORS = [(503, {"code": "queue_full", "message": "9 requests wait already"}, "Try again in a moment"),
          (400, CONTEXT, "5,000 tokens, and the model reads at most 4,096"),
          (400, {"code": "invalid_value", "message": "top_k: <b>no</b>"}, "top_k: <b>no</b>"),
          (500, {"code": "engine_error", "message": ""}, "error 500"), (503, {"code": "dead"}, "must be started again")]

@pytest.mark.parametrize("status, error, told", ERRORS, ids=lambda x: x.get("code") if isinstance(x, dict) else "")
def test_errors_are_told_in_words_and_can_be_tried_again(tab, server, status, error, told):
  server.answers = [Answer(status=status, error=error), Answer(["fine"])]
  tab.ask("Hi")
  tab.page.wait_for_selector(".problem")
  assert told in tab.text(".problem")
  tab.click(".problem button")
  tab.wait("document.querySelector('article.reply .prose')?.textContent === 'fine'")
  tab.answered()
  assert tab.count(".problem") == 0

def test_broken_stream_keeps_what_came(tab, server):
  server.answers = [Answer(["half an ans"], breaks=True), Answer(["wer"])]
  tab.ask("Hi")
  tab.page.wait_for_selector(".problem")
  assert "connection broke" in tab.text(".problem") and tab.text(f"{ANSWER} .prose") == "half an ans"
  tab.click(f"{ANSWER} [aria-label='Go on with the answer']")
  tab.wait("document.querySelector('article.reply .prose').textContent === 'half an answer'")
  tab.answered()
  assert tab.count(".problem") == 0

def test_server_that_is_gone_is_told(tab):
  tab.page.context.set_offline(True)
  tab.ask("Hi")
  tab.page.wait_for_selector(".problem")
  assert "does not answer" in tab.text(".problem")
  tab.page.wait_for_selector("body[data-health=unreachable]")
  assert "Trying again" in tab.text("#banner")
  tab.page.context.set_offline(False)
  tab.page.wait_for_selector("body[data-health=ok]")
  assert tab.count("#banner[hidden]") == 1
  tab.click(".problem button")
  assert tab.answered() == "Hello there."

def test_questions_wait_until_the_model_is_loaded(tabs, server):
  server.health = {"status": "loading", "progress": 0.4}
  tab = tabs().open(ready=False)
  tab.page.wait_for_selector("body[data-health=loading]")
  assert "40%" in tab.text("#banner") and tab.count("#banner progress") == 1
  tab.ask("Hi")
  tab.page.wait_for_selector("body.busy")
  assert server.asked == []
  server.health = {"status": "loading"}
  tab.wait("/, \\d+ s/.test(document.getElementById('banner').textContent)")
  server.health = {"status": "ok"}
  tab.page.wait_for_selector("body[data-health=ok]")
  assert tab.answered() == "Hello there." and len(server.asked) == 1

@pytest.mark.parametrize("status, told", [("draining", "about to end"), ("dead", "started again"),
                                          ("stuck", "no progress")])
def test_other_states_are_told(tabs, server, status, told):
  server.health = {"status": status}
  tab = tabs().open(ready=False)
  tab.page.wait_for_selector(f"body[data-health={status}]")
  assert told in tab.text("#banner")

def test_key_is_asked_for_and_kept_for_the_tab(tabs, server):
  server.key = "s3cret"
  tab = tabs().open(ready=False)
  tab.page.wait_for_selector("dialog[open] input[type=password]")
  tab.page.fill("#line", "wrong")
  tab.page.keyboard.press("Enter")
  tab.wait("document.querySelector('dialog .hint')?.textContent.includes('not accepted')")
  tab.page.fill("#line", "s3cret")
  tab.click("dialog .main")
  tab.ask("Hi")
  assert tab.answered() == "Hello there."
  assert tab.run("sessionStorage.getItem('key')") == "s3cret"
  assert "s3cret" not in tab.run("JSON.stringify(localStorage)")
  server.key = "other"
  tab.click(f"{ANSWER} [aria-label='Answer again']")
  tab.page.fill("dialog[open] #line", "other")
  tab.page.keyboard.press("Enter")
  assert tab.answered() == "Hello there."

def test_answers_go_on_while_another_conversation_is_shown(tab, server):
  server.answers = [Answer(words(80), pause=0.02), Answer(["short"])]
  tab.ask("Long")
  tab.wait("document.querySelector('article.reply .prose')?.textContent.length > 20")
  tab.click("#new")
  assert tab.count("article") == 0 and tab.count(".writes") == 1
  tab.ask("Short")
  assert tab.answered() == "short"
  tab.click("text=Long")
  tab.page.wait_for_selector("article")
  assert tab.answered() == "".join(words(80)).strip()

def test_page_follows_only_a_reader_at_the_end(tab, server):
  server.answers = [Answer(["line\n\n"] * 60), Answer([f"word{i}\n\n" for i in range(150)], pause=0.02)]
  tab.ask("A")
  tab.answered()
  bottom = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.getElementById('scroller'))"
  assert tab.run(bottom) < 5
  tab.ask("B")
  tab.wait("document.querySelectorAll('article')[3]?.textContent.includes('word20')")
  assert tab.run(bottom) < 60
  tab.page.mouse.move(700, 400)
  tab.page.mouse.wheel(0, -900)
  tab.page.wait_for_timeout(200)
  top = tab.run("document.getElementById('scroller').scrollTop")
  tab.page.wait_for_timeout(500)
  assert tab.run("document.getElementById('scroller').scrollTop") == top and tab.count("#down:not([hidden])") == 1
  tab.click("#down")
  tab.page.wait_for_timeout(300)
  assert tab.run(bottom) < 60 and tab.count("#down[hidden]") == 1

def test_shortcuts(tab, server):
  keys = tab.page.keyboard
  tab.ask("First question")
  tab.answered()
  for press, condition in [
      ("Alt+r", "document.querySelector('.versions span')?.textContent === '2 / 2'"),
      ("Alt+e", "document.activeElement.closest('.editor')"), ("Escape", "!document.querySelector('.editor')"),
      ("Control+k", "document.activeElement.id === 'search'"), ("Alt+q", "document.activeElement.id === 'question'"),
      ("Alt+b", "!document.body.classList.contains('list')"), ("Alt+b", "document.body.classList.contains('list')"),
      ("Alt+s", "document.querySelector('dialog[open]')"), ("Escape", "!document.querySelector('dialog')"),
      ("Alt+t", "document.documentElement.dataset.theme === 'light'"),
      ("Alt+h", "document.querySelector('dialog[open] .keys')"), ("Escape", "!document.querySelector('dialog')"),
      ("Alt+n", "!document.querySelector('article') && document.activeElement.id === 'question'")]:
    keys.press(press)
    tab.wait(condition)
    tab.page.wait_for_selector("body:not(.busy)")
  keys.type("a")
  keys.press("Shift+Enter")
  keys.type("b")
  assert tab.page.input_value("#question") == "a\nb"
  keys.press("Enter")
  tab.answered()
  assert server.asked[-1]["messages"][-1]["content"] == "a\nb"
