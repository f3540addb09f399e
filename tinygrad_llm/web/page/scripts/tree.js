// A conversation: a tree of messages. A message is followed by several where it was edited or answered again.
//
// `nodes` only grows, and a node's parent comes before it (-1: none), so that a file cannot hold a circle.
// `chosen` of a node is the follower that is shown; that of the conversation is the first message.
const FIRST = -1

export function newConversation(settings) {
  const now = Date.now()
  return {id: crypto.randomUUID?.() ?? `${now}-${Math.random().toString(36).slice(2)}`, title: "", renamed: false,
          created: now, updated: now, settings, nodes: [], chosen: FIRST}
}

const holder = (conversation, parent) => parent === FIRST ? conversation : conversation.nodes[parent]

export const siblings = (conversation, parent) =>
  conversation.nodes.flatMap((node, i) => node.parent === parent ? [i] : [])

// Indices of the messages that are shown, the first one first.
export function path(conversation) {
  const found = []
  for (let i = conversation.chosen; i !== FIRST; i = conversation.nodes[i].chosen) found.push(i)
  return found
}

// Indices from the first message to this one.
export function pathTo(conversation, index) {
  const found = []
  for (let i = index; i !== FIRST; i = conversation.nodes[i].parent) found.unshift(i)
  return found
}

export function add(conversation, parent, message) {
  const index = conversation.nodes.push({parent, chosen: FIRST, created: Date.now(), ...message}) - 1
  choose(conversation, index)
  conversation.updated = Date.now()
  return index
}

export function choose(conversation, index) {
  holder(conversation, conversation.nodes[index].parent).chosen = index
}

export const titleOf = conversation => conversation.title || "New conversation"

// The first question as a title, unless somebody has given one.
export function entitle(conversation) {
  const first = conversation.nodes.find(node => node.role === "user")
  if (conversation.renamed || !first) return
  const line = first.content.trim().split("\n")[0].trim()
  conversation.title = line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line
}
