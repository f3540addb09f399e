// Where questions are written, the button that sends or stops, and how much of the context is used.
import {$, icon} from "./dom.js"
import {ask, emit, on, running, server, shown, stop} from "./chat.js"
import {path} from "./tree.js"

const drafts = new Map()
let conversation = null

function grow() {
  const area = $("question")
  area.style.height = "auto"
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`
}

function button() {
  const busy = Boolean(running()), label = busy ? "Stop the answer" : "Send the question"
  const send = $("send")
  send.replaceChildren(icon(busy ? "stop" : "send"))
  send.setAttribute("aria-label", label)
  send.title = label
  send.classList.toggle("stop", busy)
  send.disabled = !busy && !$("question").value.trim()
}

function send() {
  if (running()) return
  const text = $("question").value.trim()
  if (!text) return
  $("question").value = ""
  drafts.delete(shown().id)
  grow()
  ask(path(shown()).at(-1) ?? -1, text)
  emit("follow")
}

// Tokens of the conversation so far, as the last answer counted them.
function meter() {
  const used = path(shown()).map(i => shown().nodes[i].usage?.total_tokens).findLast(count => count !== undefined)
  const {context} = server, share = context ? Math.min(1, (used ?? 0) / context) : 0
  $("context").hidden = !context
  if (!context) return
  const text = `${used ? `${used.toLocaleString("en")} of ` : ""}${context.toLocaleString("en")} tokens of context`
  $("context").title = text
  $("context-text").textContent = text
  $("context-bar").value = share
  $("context-bar").hidden = !used
  $("context").classList.toggle("nearly", share > 0.85)
}

export function prepare() {
  const area = $("question")
  area.addEventListener("input", () => { drafts.set(shown().id, area.value); grow(); button() })
  area.addEventListener("keydown", event => {
    // a phone's keyboard has no Shift+Enter: there Enter makes a new line
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return
    event.preventDefault()
    send()
  })
  $("send").addEventListener("click", () => running() ? stop() : send())
  on("show", () => {
    if (conversation !== shown()) area.value = drafts.get(shown().id) ?? ""
    conversation = shown()
    grow()
    button()
    meter()
  })
  for (const name of ["run", "end", "facts"]) on(name, () => { button(); meter() })
}
