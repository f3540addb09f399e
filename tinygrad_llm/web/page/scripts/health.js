// Whether the server can answer. The page waits while a model is loaded, and says what is wrong otherwise.
import {$, h} from "./dom.js"
import {ask, words} from "./api.js"
import {emit, on, server} from "./chat.js"

const PERIODS = {ok: 15_000, loading: 700}, PERIOD = 3000  // milliseconds until the next look
const NAMES = {ok: "ready", loading: "loading", draining: "ending", stuck: "stuck", dead: "failed",
               unreachable: "not reached"}

let status = "", since = 0, timer = 0, known = false, isReady = null

async function look() {
  clearTimeout(timer)
  let found = "unreachable", body = {}
  try {
    const response = await fetch("health", {cache: "no-store", signal: AbortSignal.timeout(5000)})
    body = await response.json()
    found = body.status in NAMES ? body.status : response.ok ? "ok" : "dead"
  } catch { /* it is not reached */ }
  if (found !== status) since = Date.now()
  const before = status
  status = found
  if (found === "ok" && (!known || before !== "ok")) await facts()
  tell(body)
  timer = setTimeout(look, PERIODS[status] ?? PERIOD)
}

// The model's name, context and default settings. They are asked again after the server was away.
async function facts() {
  try {
    const {data} = await (await ask("v1/models")).json()
    server.name = data[0].id
    server.context = data[0].max_model_len ?? 0
    emit("facts")
    for (;;) {
      try {
        const {default_generation_settings: found} = await (await ask("props")).json()
        server.defaults = found?.params ?? {}
        server.context = found?.n_ctx ?? server.context
        break
      } catch (e) { if (e.status !== 401 || !await server.askForKey()) break }
    }
    known = true
    emit("facts")
    isReady()
  } catch { known = false }
}

function tell(body) {
  document.body.dataset.health = status
  $("health").title = `The server is ${NAMES[status]}`
  $("health-text").textContent = `The server is ${NAMES[status]}.`
  $("name").textContent = server.name || (status === "loading" ? "Loading…" : "No server")
  const banner = $("banner")
  banner.hidden = status === "ok"
  if (status === "ok") return
  if (status !== "loading") {
    if (banner.dataset.status !== status) banner.replaceChildren(h("span", {}, words(status)))
    if (status === "unreachable") banner.replaceChildren(h("span", {}, `${words(status)} Trying again…`))
  } else {
    const share = Number.isFinite(body.progress) ? Math.min(1, Math.max(0, body.progress)) : null
    const waited = Math.round((Date.now() - since) / 1000)
    const text = share === null ? `${waited} s` : `${Math.round(share * 100)}%`
    banner.replaceChildren(h("span", {}, `The model is being loaded, ${text}. Questions wait until it is ready.`),
                           h("progress", {"aria-label": "Loading", max: "1", value: share === null ? null : share}))
  }
  banner.dataset.status = status
}

export function prepare() {
  server.ready = new Promise(resolve => { isReady = resolve })
  on("end", ({conversation, index}) => { if (conversation.nodes[index].error) look() })
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look() })
  look()
}
