"""Conversations in the browser: kept, searched, renamed, deleted, exported, imported."""
import json

import pytest

from tests.support.extended import extended
from tests.support.page_server import Answer

pytestmark = extended

def titles(tab) -> list[str]: return tab.page.locator("#conversations .title").all_inner_texts()

def ask(tab, server, question: str, answer: str) -> None:
  """A conversation of one question."""
  tab.click("#new")
  server.answers = [Answer([answer])]
  tab.ask(question)
  assert tab.answered() == answer

def test_conversations_outlive_the_page(tab, server):
  ask(tab, server, "About foxes", "They are red.")
  ask(tab, server, "About owls", "They see at night.")
  tab.page.reload()
  assert tab.text("article.reply .prose") == "They see at night." and titles(tab) == ["About owls", "About foxes"]
  tab.click("text=About foxes")
  assert tab.text("article.reply .prose") == "They are red." and tab.page.title() == "About foxes"
  tab.page.go_back()
  tab.wait("document.title === 'About owls'")

def test_search_rename_delete_and_undo(tab, server):
  ask(tab, server, "About foxes", "They are <b>red</b>.")
  ask(tab, server, "About owls", "They see at night.")
  tab.page.fill("#search", "<B>RED")
  tab.wait("document.querySelectorAll('#conversations li').length === 1")
  assert titles(tab) == ["About foxes"] and tab.text("#conversations mark") == "<b>red"
  tab.page.fill("#search", "nothing of this")
  tab.page.wait_for_selector("text=Nothing is found.")
  tab.page.fill("#search", "")
  tab.wait("document.querySelectorAll('#conversations li').length === 2")
  tab.click("[aria-label='Rename About owls']")
  tab.page.fill("#line", "Night birds")
  tab.page.keyboard.press("Enter")
  tab.page.wait_for_selector("text=Night birds")
  assert titles(tab) == ["Night birds", "About foxes"]
  tab.click("[aria-label='Delete Night birds']")
  assert titles(tab) == ["About foxes"] and tab.count("article") == 0
  tab.click("text=Undo")
  assert titles(tab) == ["Night birds", "About foxes"] and tab.text("article.reply .prose") == "They see at night."
  tab.click("[aria-label='Delete Night birds']")
  tab.page.reload()
  tab.page.wait_for_selector("#conversations li")
  assert titles(tab) == ["About foxes"]
  tab.click("#clear")
  tab.click("dialog .main")
  tab.page.reload()
  tab.page.wait_for_selector("#conversations .hint")
  assert titles(tab) == []

def test_export_and_import(tab, tabs, server, tmp_path):
  ask(tab, server, "About foxes", "They are red.")
  tab.click("article.reply [aria-label='Answer again']")
  tab.answered()
  with tab.page.expect_download() as download: tab.click("#export")
  file = tmp_path / "kept.json"
  download.value.save_as(file)
  data = json.loads(file.read_text())
  assert data["format"] == "tinygrad_llm conversations" and len(data["conversations"][0]["nodes"]) == 3
  other = tabs().open()
  other.page.set_input_files("#file", file)
  other.page.wait_for_selector("article.reply")
  assert titles(other) == ["About foxes"] and other.text("article.reply .versions span") == "2 / 2"
  other.page.reload()
  other.page.wait_for_selector("article.reply")
  assert other.text("article.reply .prose") == "They are red."

def conversation(**changes) -> dict:
  node = {"parent": -1, "role": "user", "content": "x"}
  return {"format": "tinygrad_llm conversations", "conversations": [{"nodes": [node], "settings": {}} | changes]}

HOSTILE = ["", "[]", "{}", '{"format": "tinygrad_llm conversations"}', "null",
           *map(json.dumps, [conversation(nodes=5), conversation(nodes=[{"parent": 0, "role": "user"}]),
                             conversation(nodes=[{"parent": -1, "role": "system", "content": "x"}]),
                             conversation(nodes=[None]), {**conversation(), "conversations": [None]}])]

@pytest.mark.parametrize("text", HOSTILE)
def test_files_of_another_kind_are_refused(tab, tmp_path, text):
  (tmp_path / "bad.json").write_text(text)
  tab.page.set_input_files("#file", tmp_path / "bad.json")
  tab.page.wait_for_selector(".toast")
  assert "Nothing is imported." in tab.text(".toast") and titles(tab) == []

def test_file_with_wild_fields_is_harmless(tab, tmp_path):
  """Links to messages that do not follow are dropped, so is everything of a wrong type."""
  nodes = [{"parent": -1, "role": "user", "content": ["x"], "chosen": 0, "__proto__": {"evil": 1}},
           {"parent": 0, "role": "assistant", "content": "<img src=x onerror=alert(1)>", "chosen": 7, "usage": "many",
            "timings": {"predicted_per_second": "fast", "predicted_n": 3}, "model": {"a": 1},
            "error": {"message": "x"}}]
  wild = conversation(nodes=nodes, chosen=1, title=5, settings={"system": 4, "top_k": -3, "temperature": "hot"})
  (tmp_path / "wild.json").write_text(json.dumps(wild))
  tab.page.set_input_files("#file", tmp_path / "wild.json")
  tab.page.wait_for_selector("article.question")
  assert tab.run("({}).evil") is None and tab.count("img") == 0

def test_full_storage_is_told_and_can_be_exported(tabs, server):
  tab = tabs()
  tab.page.add_init_script("""IDBObjectStore.prototype.put = () => {
    throw new DOMException("full", "QuotaExceededError") }""")
  tab.open()
  tab.ask("Hi")
  tab.answered()
  tab.page.wait_for_selector(".toast")
  assert "storage for this page is full" in tab.text(".toast") and tab.count(".toast") == 1
  with tab.page.expect_download() as download: tab.click(".toast >> text=Export")
  assert download.value.suggested_filename == "Hi.json"

def test_browser_without_storage_still_chats(tabs):
  tab = tabs()
  tab.page.add_init_script("""
    IDBFactory.prototype.open = () => { throw new DOMException("no", "SecurityError") }
    Storage.prototype.getItem = Storage.prototype.setItem = () => { throw new DOMException("no", "SecurityError") }""")
  tab.open()
  assert "keeps nothing" in tab.text(".toast")
  tab.ask("Hi")
  assert tab.answered() == "Hello there."

def test_other_tabs_see_changes(tab, server):
  ask(tab, server, "About foxes", "They are red.")
  second = tab.page.context.new_page()
  second.goto(tab.url)
  second.wait_for_selector("text=About foxes")
  ask(tab, server, "About owls", "They see at night.")
  second.wait_for_selector("text=About owls")
  tab.click("[aria-label='Delete About owls']")
  second.wait_for_selector("text=About owls", state="detached")
