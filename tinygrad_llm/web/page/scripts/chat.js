// What the page knows: conversations, the one that is shown, answers that are being written, and the server's facts.
import {chat, ServerError} from "./api.js"
import {cleaned, fields} from "./options.js"
import * as store from "./store.js"
import {add, choose, entitle, newConversation, pathTo} from "./tree.js"

const SAVED = 2000  // milliseconds between two savings of an answer that is being written

export const conversations = new Map()
export const runs = new Map()  // {conversation's id: the answer that is being written}
export const server = {name: "", context: 0, defaults: {}, ready: null, askForKey: null}
let current = empty()

function empty() { return newConversation(cleaned(store.recall("settings", {}))) }

// Events: list (of conversations), show (another conversation or branch), delta, run (begins), end, unkept (not saved).
const bus = new EventTarget()
export const on = (name, listener) => bus.addEventListener(name, event => listener(event.detail))
export const emit = (name, detail = {}) => bus.dispatchEvent(new CustomEvent(name, {detail}))

export const shown = () => current
export const running = () => runs.get(current.id)

export function start() {
  current = empty()
  emit("show")
  emit("list")
}

export function show(id) {
  if (!conversations.has(id)) return start()
  current = conversations.get(id)
  emit("show")
  emit("list")
}

let told = false
export async function save(conversation) {
  try { await store.save(conversation); told = false } catch (e) {
    if (!told) emit("unkept", {full: e?.name === "QuotaExceededError"})
    told = true
  }
}

export function forget(conversation) {
  runs.get(conversation.id)?.controller.abort()
  conversations.delete(conversation.id)
  store.remove(conversation.id).catch(() => {})
  if (current === conversation) start()
  else emit("list")
}

export function take(conversation) {
  conversations.set(conversation.id, conversation)
  save(conversation)
  emit("list")
}

// Another tab has changed a conversation, or removed it.
export async function refresh(id) {
  if (runs.has(id)) return
  const found = await store.read(id).catch(() => null)
  if (found) conversations.set(id, found)
  else conversations.delete(id)
  if (current.id === id) found ? show(id) : start()
  else emit("list")
}

// Asks a question after the message `parent`; with the parent of another question it is a version of that one.
export function ask(parent, content) {
  const index = add(current, parent, {role: "user", content})
  conversations.set(current.id, current)
  entitle(current)
  return answer(index)
}

// Answers the question at `index`, beside answers that are there.
export function answer(index) {
  return write(current, add(current, index, {role: "assistant", content: "", reasoning: ""}))
}

// Goes on with an answer that was cut.
export const goOn = index => write(current, index)

export const stop = () => running()?.controller.abort()

export function change(index) {
  choose(current, index)
  save(current)
  emit("show")
}

function messages(conversation, index) {
  const found = pathTo(conversation, index).map(i => conversation.nodes[i])
    .filter(node => node.role === "user" || node.content)
    .map(node => ({role: node.role, content: node.content,
                   ...(node.reasoning ? {reasoning_content: node.reasoning} : {})}))
  const {system} = conversation.settings
  return system.trim() ? [{role: "system", content: system}, ...found] : found
}

// Writes the answer at `index`. It goes on while another conversation is shown.
async function write(conversation, index) {
  if (runs.has(conversation.id)) return
  const node = conversation.nodes[index], controller = new AbortController()
  const run = {index, controller, began: performance.now(), first: 0, answered: 0, count: 0, saved: performance.now()}
  runs.set(conversation.id, run)
  for (const name of ["error", "finish", "timings"]) delete node[name]
  emit("show")
  emit("list")
  emit("run", {conversation, index})
  save(conversation)
  try {
    while (!await attempt(conversation, index, run)) {
      if (!await server.askForKey()) throw new ServerError("The server asks for an API key.", "key")
    }
  } catch (e) {
    if (controller.signal.aborted) node.finish = "stopped"
    else {
      const message = e instanceof ServerError ? e.message : `The page has failed: ${e.message}`
      node.error = {message, code: e.code}
    }
  }
  runs.delete(conversation.id)
  conversation.updated = Date.now()
  if (conversations.has(conversation.id)) save(conversation)
  emit("end", {conversation, index})
  emit("list")
}

// False if the server wants a key.
async function attempt(conversation, index, run) {
  const node = conversation.nodes[index], {signal} = run.controller
  const aborted = new Promise((_, reject) => { signal.onabort = () => reject(new Error("stopped")) })
  aborted.catch(() => {})
  await Promise.race([server.ready, aborted])
  try {
    const body = {messages: messages(conversation, index), ...fields(conversation.settings)}
    for await (const chunk of chat(body, signal)) {
      accept(conversation, index, run, chunk)
      if (performance.now() - run.saved > SAVED) { run.saved = performance.now(); save(conversation) }
    }
  } catch (e) {
    if (e.status === 401) return false
    throw e
  }
  if (!node.finish) throw new ServerError("The connection broke before the answer was whole.", "broken")
  return true
}

function accept(conversation, index, run, chunk) {
  const node = conversation.nodes[index], choice = chunk.choices?.[0]
  if (typeof chunk.model === "string") node.model = chunk.model
  if (chunk.usage) node.usage = chunk.usage
  if (chunk.timings) node.timings = chunk.timings
  if (choice?.finish_reason) node.finish = choice.finish_reason
  for (const [name, field] of [["reasoning_content", "reasoning"], ["content", "content"]]) {
    const text = choice?.delta?.[name]
    if (typeof text !== "string" || !text) continue
    run.count++
    run.first ||= performance.now()
    if (field === "content") run.answered ||= performance.now()
    node[field] = (node[field] ?? "") + text
    if (field === "reasoning") node.thought = Math.round(performance.now() - run.first)
    emit("delta", {conversation, index, field, text})
  }
}
