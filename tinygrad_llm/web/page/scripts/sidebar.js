// The list of conversations: search, rename, delete, export, import.
import {$, h, icon, iconButton, plural, toast} from "./dom.js"
import {conversations, emit, forget, on, runs, save, show, shown, start, take} from "./chat.js"
import {confirm, line} from "./dialogs.js"
import {download, readFile} from "./transfer.js"
import {titleOf} from "./tree.js"

const AROUND = 30  // characters around what was found

const narrow = () => matchMedia("(max-width: 800px)").matches

export function toggle(open = !document.body.classList.contains("list")) {
  document.body.classList.toggle("list", open)
  $("menu").setAttribute("aria-expanded", String(open))
  $("sidebar").inert = !open
  $("main").inert = open && narrow()
  $("veil").hidden = !(open && narrow())
}

const leave = () => { if (narrow()) toggle(false) }

function day(time) {
  const midnight = new Date().setHours(0, 0, 0, 0), days = Math.ceil((midnight - time) / 86_400_000)
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : "Earlier"
}

// A text with what is wanted marked; null if it is not in it.
function marked(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted), end = at + wanted.length
  return at < 0 ? null : [text.slice(0, at), h("mark", {}, text.slice(at, end)), text.slice(end)]
}

// The text around the first match; nothing if only the title has one, null if nothing has.
function snippet(conversation, wanted) {
  for (const {content} of conversation.nodes) {
    const at = content.toLowerCase().indexOf(wanted), begin = Math.max(0, at - AROUND)
    if (at < 0) continue
    const around = content.slice(begin, at + wanted.length + AROUND * 2)
    return h("span", {class: "found"}, begin ? "…" : "", marked(around, wanted))
  }
  return marked(titleOf(conversation), wanted) ? "" : null
}

function row(conversation, wanted, around) {
  const current = conversation === shown(), title = titleOf(conversation)
  const open = h("button", {type: "button", class: "open", "aria-current": current ? "true" : null,
                            onclick: () => { show(conversation.id); leave() }},
                 h("span", {class: "title", dir: "auto"}, wanted && marked(title, wanted) || title), around)
  const writes = h("span", {class: "writes", role: "img", "aria-label": "is being answered"})
  if (runs.has(conversation.id)) open.append(writes)
  return h("li", {class: current ? "current" : ""}, open, h("div", {class: "actions"},
    iconButton("edit", `Rename ${title}`, () => rename(conversation)),
    iconButton("export", `Export ${title}`, () => download([conversation])),
    iconButton("trash", `Delete ${title}`, () => remove(conversation))))
}

function draw() {
  const wanted = $("search").value.trim().toLowerCase(), groups = new Map()
  for (const conversation of [...conversations.values()].sort((a, b) => b.updated - a.updated)) {
    const around = wanted ? snippet(conversation, wanted) : ""
    if (around === null) continue
    const name = day(conversation.updated)
    if (!groups.has(name)) groups.set(name, [])
    groups.get(name).push(row(conversation, wanted, around))
  }
  const parts = [...groups].map(([name, rows]) => h("section", {"aria-label": name}, h("h2", {}, name),
                                                    h("ul", {}, ...rows)))
  const nothing = wanted ? "Nothing is found." : "Conversations are kept here, in this browser only."
  if (!parts.length) parts.push(h("p", {class: "hint"}, nothing))
  $("conversations").replaceChildren(...parts)
  $("export").disabled = $("clear").disabled = !conversations.size
}

async function rename(conversation) {
  const title = await line("Rename", "Title", titleOf(conversation))
  if (!title) return
  conversation.title = title.slice(0, 200)
  conversation.renamed = true
  save(conversation)
  emit("list")
}

function remove(conversation) {
  forget(conversation)
  toast(`“${titleOf(conversation)}” is deleted.`, "Undo", () => { take(conversation); show(conversation.id) })
}

async function clear() {
  const count = plural(conversations.size, "conversation")
  const text = `${count} will be gone for good. An export keeps them as a file.`
  if (!await confirm("Delete all?", text, "Delete all")) return
  for (const conversation of [...conversations.values()]) forget(conversation)
}

async function load(file) {
  try {
    const read = readFile(await file.text())
    for (const conversation of read) take(conversation)
    if (read.length) show(read[0].id)
    toast(`${plural(read.length, "conversation")} imported.`)
  } catch (e) { toast(`Nothing is imported. ${e.message}`) }
}

export function prepare() {
  toggle(!narrow())
  matchMedia("(max-width: 800px)").addEventListener("change", () => toggle(!narrow()))
  $("menu").addEventListener("click", () => toggle())
  $("veil").addEventListener("click", () => toggle(false))
  $("hide").addEventListener("click", () => toggle(false))
  $("new").addEventListener("click", fresh)
  $("export").addEventListener("click", () => download([...conversations.values()]))
  $("clear").addEventListener("click", clear)
  $("import").addEventListener("click", () => $("file").click())
  $("file").addEventListener("change", async () => { await load($("file").files[0]); $("file").value = "" })
  let wait = 0
  $("search").addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(draw, 120) })
  on("list", draw)
}

export function search() {
  toggle(true)
  $("search").select()
  $("search").focus()
}

export function fresh() {
  start()
  leave()
  $("question").focus()
}
