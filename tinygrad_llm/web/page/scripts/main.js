// The page begins here.
import {$, icon, toast} from "./dom.js"
import {conversations, emit, on, refresh, running, server, show, shown, stop} from "./chat.js"
import * as composer from "./composer.js"
import {askForKey, settings, shortcuts} from "./dialogs.js"
import * as health from "./health.js"
import * as sidebar from "./sidebar.js"
import * as store from "./store.js"
import * as thread from "./thread.js"
import {download} from "./transfer.js"
import {titleOf} from "./tree.js"

const THEMES = ["auto", "light", "dark"], NAMES = {auto: "as the system", light: "light", dark: "dark"}
const ICONS = {auto: "auto", light: "sun", dark: "moon"}

function theme(name) {
  document.documentElement.dataset.theme = name
  const label = `Colours: ${NAMES[name]}`
  $("theme").replaceChildren(icon(ICONS[name]))
  $("theme").setAttribute("aria-label", label)
  $("theme").title = label
}

function nextTheme() {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]
  theme(name)
  store.keep("theme", name)
}

const KEYS = {KeyN: sidebar.fresh, KeyB: () => sidebar.toggle(), KeyS: settings, KeyT: nextTheme, KeyH: shortcuts,
              KeyQ: () => $("question").focus(), KeyE: () => thread.act("user", "Edit the question"),
              KeyR: () => thread.act("assistant", "Answer again"),
              KeyC: () => thread.act("assistant", "Copy the answer")}

function keydown(event) {
  if (document.querySelector("dialog[open]")) return
  if (event.key === "Escape") return void (running() ? stop() : $("veil").hidden || sidebar.toggle(false))
  const plain = !event.shiftKey && !event.repeat
  if (plain && (event.ctrlKey || event.metaKey) && !event.altKey && event.code === "KeyK") {
    event.preventDefault()
    sidebar.search()
  }
  if (!plain || !event.altKey || event.ctrlKey || event.metaKey || !(event.code in KEYS)) return
  event.preventDefault()
  KEYS[event.code]()
}

function unkept({full}) {
  const why = full ? "The browser's storage for this page is full." : "The browser keeps nothing of this page."
  toast(`${why} This conversation is lost when the page is closed.`, "Export", () => download([shown()]), 60)
}

async function begin() {
  const name = store.recall("theme", "auto")
  theme(THEMES.includes(name) ? name : "auto")
  server.askForKey = askForKey
  for (const part of [thread, composer, sidebar]) part.prepare()
  for (const button of document.querySelectorAll("[data-icon]")) {
    button.prepend(icon(button.dataset.icon))
    button.title ||= button.getAttribute("aria-label") ?? ""
  }
  $("theme").addEventListener("click", nextTheme)
  $("settings").addEventListener("click", settings)
  $("help").addEventListener("click", shortcuts)
  document.addEventListener("keydown", keydown)
  on("unkept", unkept)
  health.prepare()
  let kept = []
  try { kept = await store.open() } catch { unkept({full: false}) }
  for (const conversation of kept) conversations.set(conversation.id, conversation)
  store.onChange(refresh)
  on("show", () => {
    const id = conversations.has(shown().id) ? shown().id : ""
    if (location.hash.slice(1) !== id) history.pushState(null, "", id ? `#${id}` : "./")
    document.title = conversations.has(shown().id) ? titleOf(shown()) : "tinygrad_llm"
    $("title").textContent = conversations.has(shown().id) ? titleOf(shown()) : ""
    $("settings").classList.toggle("on", shown().settings.system !== "")
  })
  window.addEventListener("popstate", () => show(location.hash.slice(1)))
  const id = location.hash.slice(1)
  if (conversations.has(id) && !conversations.has(shown().id)) show(id)
  else for (const name of ["show", "list"]) emit(name)
  if (!matchMedia("(pointer: coarse)").matches) $("question").focus()
}

begin()
