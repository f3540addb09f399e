// The server's API: requests, errors in plain words, and streams of events.
let key = recallKey()

function recallKey() { try { return sessionStorage.getItem("key") ?? "" } catch { return "" } }

export const hasKey = () => key !== ""

// The key lasts as long as the tab.
export function useKey(text) {
  key = text
  try { sessionStorage.setItem("key", text) } catch { /* it lasts as long as the page */ }
}

// code: a word for programs. more: the error as the server sent it.
export class ServerError extends Error {
  constructor(message, code, status = 0) {
    super(message)
    this.code = code
    this.status = status
  }
}

const WORDS = {
  unreachable: "The server does not answer. It may have ended, or the network is down.",
  broken: "The connection broke before the answer was whole.",
  loading: "The model is still being loaded.",
  draining: "The server is about to end and takes no more questions.",
  dead: "The model has failed, and the server must be started again.",
  stuck: "The model makes no progress. The server may have to be started again.",
  queue_full: "Too many questions wait already. Try again in a moment.",
  body_too_large: "The conversation is too large for the server.",
}

export const words = code => WORDS[code]

function serverError(error, status) {
  if (status === 401) return new ServerError("The server asks for an API key.", "key", status)
  const {code, message, n_prompt_tokens: count, n_ctx: context} = error ?? {}
  if (code === "context_length_exceeded") {
    const numbers = count && context ? `It has ${count.toLocaleString("en")} tokens, and the model reads at most ` +
      `${context.toLocaleString("en")}. ` : ""
    const advice = "Start a new one, or make an earlier message shorter."
    return new ServerError(`The conversation is too long. ${numbers}${advice}`, code, status)
  }
  const text = WORDS[code] ?? (typeof message === "string" ? message.slice(0, 500) : "")
  return new ServerError(text || `The server answered with error ${status}.`, code ?? "error", status)
}

// A response, or a ServerError. Addresses are relative, so that the page also works below a path.
export async function ask(path, body, signal) {
  const headers = key ? {Authorization: `Bearer ${key}`} : {}
  if (body) headers["Content-Type"] = "application/json"
  let response
  try {
    response = await fetch(path, {method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal,
                                  cache: "no-store"})
  } catch (e) {
    if (signal?.aborted) throw e
    throw new ServerError(WORDS.unreachable, "unreachable")
  }
  if (response.ok) return response
  let error
  try { error = (await response.json()).error } catch { /* no words of its own */ }
  throw serverError(error, response.status)
}

// The data of server-sent events, as texts. Comments are passed over.
async function* events(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = "", data = []
  try {
    for (;;) {
      let read
      try { read = await reader.read() } catch (e) {
        if (signal?.aborted) throw e
        throw new ServerError(WORDS.broken, "broken")
      }
      if (read.done) return
      const lines = (rest + read.value).split("\n")
      rest = lines.pop()
      for (const line of lines.map(each => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""))
        else if (!line && data.length) { yield data.join("\n"); data = [] }
      }
    }
  } finally { reader.cancel().catch(() => {}) }
}

// The chunks of a streamed answer. ServerError if it ends before it is whole.
export async function* chat(body, signal) {
  const asked = {...body, stream: true, stream_options: {include_usage: true}}
  for await (const text of events(await ask("v1/chat/completions", asked, signal), signal)) {
    if (text === "[DONE]") return
    let chunk
    try { chunk = JSON.parse(text) } catch { throw new ServerError(WORDS.broken, "broken") }
    if (chunk.error) throw serverError(chunk.error, chunk.error.code === "invalid_api_key" ? 401 : 0)
    yield chunk
  }
  throw new ServerError(WORDS.broken, "broken")
}
