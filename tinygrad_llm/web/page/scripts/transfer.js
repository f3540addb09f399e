// Conversations as files. A file is checked field by field, for it may come from anywhere.
import {h} from "./dom.js"
import {newConversation, titleOf} from "./tree.js"
import {cleaned} from "./options.js"

const FORMAT = "tinygrad_llm conversations", TEXTS = ["content", "reasoning", "model", "finish"]
const NUMBERS = {usage: ["prompt_tokens", "completion_tokens", "total_tokens"], timings: ["cache_n", "prompt_n",
                 "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second"]}

export function download(conversations) {
  const text = JSON.stringify({format: FORMAT, version: 1, conversations}, null, 1)
  const address = URL.createObjectURL(new Blob([text], {type: "application/json"}))
  const title = conversations.length === 1 ? titleOf(conversations[0]) : "conversations"
  const name = title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation"
  h("a", {href: address, download: `${name}.json`}).click()
  setTimeout(() => URL.revokeObjectURL(address), 10_000)
}

// The conversations of a file, under new names. Error with plain words if it is another kind of file.
export function readFile(text) {
  let data
  try { data = JSON.parse(text) } catch { throw new Error("The file is not JSON.") }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations)) {
    throw new Error("The file holds no conversations of this page.")
  }
  return data.conversations.map((given, i) => {
    try { return conversation(given) } catch (e) { throw new Error(`Conversation ${i + 1} of the file: ${e.message}`) }
  })
}

function conversation(given) {
  if (!Array.isArray(given?.nodes)) throw new Error("it has no messages.")
  const found = newConversation(cleaned(given.settings))
  found.title = typeof given.title === "string" ? given.title.slice(0, 200) : ""
  found.renamed = given.renamed === true
  for (const name of ["created", "updated"]) if (Number.isFinite(given[name])) found[name] = given[name]
  found.nodes = given.nodes.map(node)
  const follows = (child, parent) => Number.isInteger(child) && found.nodes[child]?.parent === parent
  given.nodes.forEach((each, i) => { found.nodes[i].chosen = follows(each.chosen, i) ? each.chosen : -1 })
  found.chosen = follows(given.chosen, -1) ? given.chosen : found.nodes.findIndex(each => each.parent === -1)
  return found
}

function node(given, i) {
  if (given?.role !== "user" && given?.role !== "assistant") throw new Error(`message ${i + 1} is nobody's.`)
  if (!Number.isInteger(given.parent) || given.parent < -1 || given.parent >= i) {
    throw new Error(`message ${i + 1} follows none before it.`)
  }
  const found = {parent: given.parent, chosen: -1, role: given.role, content: "", created: 0}
  if (Number.isFinite(given.created)) found.created = given.created
  for (const name of TEXTS) if (typeof given[name] === "string") found[name] = given[name]
  for (const [name, fields] of Object.entries(NUMBERS)) {
    if (typeof given[name] !== "object" || given[name] === null) continue
    found[name] = Object.fromEntries(fields.filter(field => Number.isFinite(given[name][field]))
      .map(field => [field, given[name][field]]))
  }
  return found
}
