// One message on the page, with what can be done to it.
import {copy, h, icon, iconButton, plural} from "./dom.js"
import {answer, ask, change, emit, goOn, running, runs} from "./chat.js"
import {MarkdownStream} from "./markdown/stream.js"
import {siblings} from "./tree.js"

const seconds = ms => ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`

export class MessageView {
  constructor(conversation, index) {
    this.conversation = conversation
    this.index = index
    this.node = conversation.nodes[index]
    this.waiting = {reasoning: "", content: ""}  // texts that are not drawn yet
    this.frame = 0
    const mine = this.node.role === "user"
    this.foot = h("div", {class: "foot"})
    this.body = mine ? h("div", {class: "bubble", dir: "auto"}, this.node.content) : h("div", {class: "answer"})
    this.element = h("article", {class: mine ? "question" : "reply", "aria-label": mine ? "You" : "The model"},
                     this.body, this.foot)
    if (!mine) this.fill()
    this.finish()
  }

  get run() {
    const run = runs.get(this.conversation.id)
    return run?.index === this.index ? run : null
  }

  fill() {
    this.thinking = h("details", {class: "thinking", hidden: true})
    this.summary = h("summary", {})
    this.thoughts = h("div", {class: "thoughts"})
    this.text = h("div", {class: "prose"})
    this.thinking.append(this.summary, this.thoughts)
    this.body.append(this.thinking, this.text)
    this.streams = {reasoning: new MarkdownStream(this.thoughts), content: new MarkdownStream(this.text)}
    for (const field of ["reasoning", "content"]) if (this.node[field]) this.streams[field].push(this.node[field])
    this.head()
  }

  head() {
    const {node, run} = this
    this.thinking.hidden = !node.reasoning
    const busy = run && !node.content
    const took = node.thought >= 1000 ? `Thought for ${seconds(node.thought)}` : "Thought for a moment"
    this.summary.replaceChildren(busy ? "Thinking…" : took)
    this.summary.className = busy ? "busy" : ""
  }

  // New text. It is drawn once in a frame, or at once with now().
  push(field, text, drawn) {
    this.waiting[field] += text
    this.frame ||= requestAnimationFrame(() => { this.now(); drawn() })
  }

  now() {
    cancelAnimationFrame(this.frame)
    this.frame = 0
    for (const [field, stream] of Object.entries(this.streams)) {
      if (this.waiting[field]) stream.push(this.waiting[field])
      this.waiting[field] = ""
    }
    this.head()
    this.live()
  }

  // How the answer goes on, while it does.
  live() {
    const {run} = this
    if (!run) return
    this.state ||= h("span", {class: "facts"})
    const rate = (run.count - 1) / ((performance.now() - run.first) / 1000)
    this.state.textContent = !run.first ? `Reading the question… ${seconds(performance.now() - run.began)}` :
      run.count > 2 ? `about ${rate.toFixed(1)} tokens a second` : ""
  }

  // The state after an answer began or ended.
  finish() {
    const {node, run} = this
    if (this.streams) {
      this.now()
      if (!run) for (const stream of Object.values(this.streams)) stream.end()
      this.element.setAttribute("aria-busy", run ? "true" : "false")
    }
    this.foot.replaceChildren(...(run ? this.busy() : this.done()))
    if (!run && node.error) this.foot.before(this.problem())
  }

  busy() { return [h("span", {class: "dots", "aria-hidden": "true"}, h("i"), h("i"), h("i")), this.state] }

  problem() {
    const {node} = this, retry = () => answer(node.parent)
    return h("div", {class: "problem", role: "alert"}, h("span", {}, node.error.message),
             h("button", {type: "button", class: "small", onclick: retry}, icon("redo"), "Try again"))
  }

  done() {
    const {node, index} = this, mine = node.role === "user", actions = [this.versions()]
    const button = (name, label, act, locked) => iconButton(name, label, act, locked ? {"data-locked": true} : {})
    actions.push(button("copy", mine ? "Copy the question" : "Copy the answer",
                        event => copy(node.content, event.currentTarget)))
    if (mine) actions.push(button("edit", "Edit the question", () => this.edit(), true))
    else {
      actions.push(button("redo", "Answer again", () => answer(node.parent), true))
      const cut = node.finish === "length" || node.finish === "stopped" || node.error
      if (cut && node.content) actions.push(button("more", "Go on with the answer", () => goOn(index), true))
      actions.push(this.facts())
    }
    return actions.filter(Boolean)
  }

  versions() {
    const all = siblings(this.conversation, this.node.parent), at = all.indexOf(this.index)
    if (all.length < 2) return null
    const turn = (name, label, to) => iconButton(name, label, () => change(all[to]), {disabled: all[to] === undefined,
                                                                                      "data-turn": name})
    return h("div", {class: "versions", role: "group", "aria-label": "Versions"},
             turn("left", "The version before", at - 1), h("span", {}, `${at + 1} / ${all.length}`),
             turn("right", "The version after", at + 1))
  }

  // The model, tokens and speed. What they mean in full is the hint.
  facts() {
    const {model, usage, timings, finish} = this.node, told = [], hints = []
    if (model) told.push(h("span", {class: "model"}, model))
    const count = timings?.predicted_n ?? usage?.completion_tokens
    if (count !== undefined) told.push(h("span", {}, plural(count, "token")))
    if (timings?.predicted_per_second) told.push(h("span", {}, `${timings.predicted_per_second.toFixed(1)} tok/s`))
    if (timings?.prompt_n !== undefined) {
      hints.push(`Read ${plural(timings.prompt_n, "token")} in ${seconds(timings.prompt_ms ?? 0)}` +
                 (timings.cache_n ? `, ${plural(timings.cache_n, "token")} from the cache` : ""))
    }
    const why = {length: "cut: it is as long as it may be", stopped: "stopped"}[finish]
    if (why) told.push(h("span", {}, why))
    return told.length ? h("span", {class: "facts", title: hints.join("\n") || null}, ...told) : null
  }

  edit() {
    if (running()) return
    const area = h("textarea", {"aria-label": "The question", rows: "3", dir: "auto"})
    area.value = this.node.content
    const close = () => {
      form.replaceWith(this.body)
      this.foot.hidden = false
      this.foot.querySelector("button").focus()
    }
    const send = () => {
      const text = area.value.trim()
      if (!text || running()) return
      ask(this.node.parent, text)
      emit("follow")
    }
    const form = h("div", {class: "editor"}, area, h("div", {class: "row"},
      h("button", {type: "button", class: "small", onclick: close}, "Cancel"),
      h("button", {type: "button", class: "small main", onclick: send}, "Ask again")))
    area.addEventListener("keydown", event => {
      if (event.key === "Escape") { event.stopPropagation(); close() }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send() }
    })
    this.body.replaceWith(form)
    this.foot.hidden = true
    area.focus()
    area.style.height = `${Math.min(area.scrollHeight + 4, innerHeight / 2)}px`
  }
}

