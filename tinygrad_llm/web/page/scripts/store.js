// Conversations in the browser's database. They never leave the browser; other tabs are told of changes.
const NAME = "tinygrad_llm", TABLE = "conversations"

let database = null
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null

const done = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result)
  request.onerror = () => reject(request.error)
})

function table(mode) { return database.transaction(TABLE, mode).objectStore(TABLE) }

// All conversations. An error if the browser keeps nothing, as in some private windows.
export async function open() {
  const request = indexedDB.open(NAME, 1)
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, {keyPath: "id"})
  database = await done(request)
  return done(table("readonly").getAll())
}

export const read = id => done(table("readonly").get(id))

export async function save(conversation) {
  if (!database) return
  await done(table("readwrite").put(conversation))
  channel?.postMessage(conversation.id)
}

export async function remove(id) {
  if (!database) return
  await done(table("readwrite").delete(id))
  channel?.postMessage(id)
}

export function onChange(listener) {
  channel?.addEventListener("message", event => listener(event.data))
}

// Settings are small: they are in localStorage, which some browsers refuse, too.
export function recall(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise } catch { return otherwise }
}

export function keep(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)) } catch { /* it lasts as long as the page */ }
}
