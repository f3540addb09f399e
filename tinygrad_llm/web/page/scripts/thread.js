// The messages of the conversation that is shown. The page follows an answer while its reader is at the bottom.
import {$, h, say} from "./dom.js"
import {ask, emit, on, server, shown, running} from "./chat.js"
import {MessageView} from "./message.js"
import {path} from "./tree.js"

const NEAR = 60  // pixels from the bottom
const IDEAS = ["Tell me a story about a fox and a lighthouse.", "Explain how a hash table works, with an example.",
               "Plan a weekend in the mountains as a table.", "Write a Python function that reverses a list."]

let views = [], follows = true, ticks = 0

const scroller = () => $("scroller")
const bottom = () => scroller().scrollHeight - scroller().scrollTop - scroller().clientHeight

export function follow() {
  follows = true
  stay()
}

function stay() {
  if (follows) scroller().scrollTop = scroller().scrollHeight
  $("down").hidden = follows || bottom() < NEAR
}

function draw() {
  const conversation = shown(), indices = path(conversation)
  $("thread").setAttribute("aria-busy", "true")
  // what is there already is kept: only messages after a fork change
  const kept = views.findIndex((view, k) => view.conversation !== conversation || view.index !== indices[k] || view.run)
  const same = kept < 0 ? Math.min(views.length, indices.length) : Math.min(kept, indices.length)
  for (const view of views.slice(same)) view.element.remove()
  views = [...views.slice(0, same), ...indices.slice(same).map(index => new MessageView(conversation, index))]
  $("thread").append(...views.slice(same).map(view => view.element))
  for (const view of views) if (view.node.role === "user" || !view.run) view.foot.replaceChildren(...view.done())
  $("welcome").hidden = views.length > 0
  lock()
  if (!running()) $("thread").setAttribute("aria-busy", "false")
}

// While an answer is written, nothing else can be asked here.
function lock() {
  const busy = Boolean(running())
  document.body.classList.toggle("busy", busy)
  for (const button of $("thread").querySelectorAll("[data-locked], [data-turn]")) {
    if (button.dataset.locked !== undefined) button.disabled = busy
  }
}

function welcome() {
  const ideas = IDEAS.map(text => h("button", {type: "button", class: "idea",
                                               onclick: () => { ask(-1, text); emit("follow") }}, text))
  $("ideas").replaceChildren(...ideas)
}

function tick() {
  const view = views.at(-1)
  if (view?.run) view.live()
  else { clearInterval(ticks); ticks = 0 }
}

export function prepare() {
  welcome()
  let drawn = null
  on("show", () => {
    const other = drawn !== shown()
    if (other) { follows = true; $("thread").replaceChildren(); views = [] }
    drawn = shown()
    draw()
    if (other || follows) follow()
    else stay()
  })
  on("follow", follow)
  on("run", ({conversation}) => {
    if (conversation !== shown()) return
    lock()
    say("The model answers.")
    ticks ||= setInterval(tick, 500)
  })
  on("delta", ({conversation, index, field, text}) => {
    const view = views.at(-1)
    if (conversation === shown() && view?.index === index) view.push(field, text, stay)
  })
  on("end", ({conversation, index}) => {
    if (conversation !== shown()) return
    const view = views.find(each => each.index === index)
    view?.finish()
    lock()
    $("thread").setAttribute("aria-busy", "false")
    const {error, finish} = conversation.nodes[index]
    say(error ? "The answer has failed." : finish === "stopped" ? "Stopped." : "The answer is whole.")
    stay()
  })
  let before = 0
  scroller().addEventListener("scroll", () => {
    const top = scroller().scrollTop
    if (top < before - 2) follows = bottom() < 4
    else if (bottom() < NEAR) follows = true
    before = top
    $("down").hidden = follows || bottom() < NEAR
  }, {passive: true})
  new ResizeObserver(() => stay()).observe(scroller())
  $("down").addEventListener("click", follow)
  on("facts", () => { $("hello").textContent = server.name ? `Ask ${server.name}` : "Ask the model" })
}

const last = role => views.findLast(view => view.node.role === role)
export const act = (role, name) => last(role)?.foot.querySelector(`[aria-label="${name}"]:not(:disabled)`)?.click()
