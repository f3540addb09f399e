// Markdown within a line: emphasis, code, links to http and https. The result is DOM nodes, whose texts are texts.
import {h} from "../dom.js"

const DEEPEST = 16  // emphasis in emphasis; deeper is shown as it was written
const LONGEST = 2000  // characters of a link's address
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'"}
const PUNCTUATION = /[\p{P}\p{S}]/u, TRAILING = /[*_~.,;:!?'"\]})]$/

// The address if it is one that may be opened, else null.
export function safeAddress(text) {
  try {
    const url = new URL(text)
    return ["http:", "https:"].includes(url.protocol) ? url.href : null
  } catch { return null }
}

function link(address, ...children) {
  return h("a", {href: address, target: "_blank", rel: "noopener noreferrer", title: address}, children.flat())
}

// Each item of `out` is {text} or {node, depth}. An opener keeps its place in `out`, where its own characters stand.
class Inline {
  constructor(text) {
    this.text = text
    this.out = []
    this.openers = {"*": [], "_": [], "~": []}
    this.brackets = []
    this.unclosed = new Set()  // lengths of runs of backticks that have no second one
  }

  nodes() {
    const special = /[\\`*_~[\]!<&\n]|https?:\/\//g
    for (let at = 0; at < this.text.length;) {
      special.lastIndex = at
      const found = special.exec(this.text), end = found ? found.index : this.text.length
      if (end > at) this.say(this.text.slice(at, end))
      at = found ? this.one(found[0], end) : end
    }
    return this.out.map(nodeOf)
  }

  say(text) {
    const last = this.out.at(-1)
    if (last?.joins) last.text += text
    else this.out.push({text, joins: true})
  }

  // Characters that may turn out to open something.
  mark(text) { this.out.push({text}) }
  put(node, depth = 0) { this.out.push({node, depth}) }

  // Reads what begins at `at`; returns where it ends.
  one(mark, at) {
    const {text} = this
    if (mark === "\n") return this.newline(at)
    if (mark === "\\") {
      const next = text[at + 1]
      if (next === "\n") return at + 1
      const escaped = next !== undefined && next < "\x80" && PUNCTUATION.test(next)
      this.say(escaped ? next : mark)
      return at + (escaped ? 2 : 1)
    }
    if (mark === "`") return this.code(at)
    if (mark in this.openers) return this.emphasis(mark, at)
    if (mark === "[" || mark === "!" && text[at + 1] === "[") {
      this.brackets.push({at: this.out.length, image: mark === "!"})
      this.mark(mark === "!" ? "![" : "[")
      return at + (mark === "!" ? 2 : 1)
    }
    if (mark === "]") return this.closeBracket(at)
    if (mark === "<") return this.angle(at)
    if (mark === "&") {
      const found = /&(amp|lt|gt|quot|apos|nbsp|#39);/y
      found.lastIndex = at
      const entity = found.exec(text)
      this.say(entity ? ENTITIES[entity[1]] : mark)
      return at + (entity ? entity[0].length : 1)
    }
    if (mark.startsWith("http")) return this.bare(at)
    this.say(mark)
    return at + mark.length
  }

  newline(at) {
    const last = this.out.at(-1)
    if (last?.text) last.text = last.text.trimEnd()
    this.put(h("br"))
    return at + 1
  }

  code(at) {
    let length = 1
    while (this.text[at + length] === "`") length++
    const closing = this.unclosed.has(length) ? -1 : runOf(this.text, length, at + length)
    if (closing < 0) {
      this.unclosed.add(length)
      this.say("`".repeat(length))
      return at + length
    }
    let inner = this.text.slice(at + length, closing).replaceAll("\n", " ")
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1)
    this.put(h("code", {}, inner))
    return closing + length
  }

  emphasis(mark, at) {
    const {text} = this
    let length = 1
    while (text[at + length] === mark) length++
    const end = at + length, before = text[at - 1] ?? " ", after = text[end] ?? " "
    const spaced = c => /\s/.test(c), marks = c => PUNCTUATION.test(c)
    const left = !spaced(after) && (!marks(after) || spaced(before) || marks(before))
    const right = !spaced(before) && (!marks(before) || spaced(after) || marks(after))
    const opens = left && (mark !== "_" || !right || marks(before))
    const closes = right && (mark !== "_" || !left || marks(after))
    if (length > 3 || mark === "~" && length !== 2) { this.say(mark.repeat(length)); return end }
    let rest = length
    if (closes) rest = this.close(mark, rest)
    if (!rest) return end
    if (opens) {
      this.openers[mark].push({at: this.out.length, length: rest})
      this.mark(mark.repeat(rest))
    } else this.say(mark.repeat(rest))
    return end
  }

  // Ends as much emphasis as `length` marks can; returns how many are left.
  close(mark, length) {
    const stack = this.openers[mark]
    while (length && stack.length) {
      const opener = stack.at(-1), use = Math.min(opener.length, length) >= 2 ? 2 : 1
      const depth = 1 + depthOf(this.out.slice(opener.at + 1))
      if (opener.at + 1 === this.out.length || depth > DEEPEST) {
        stack.length = 0
        break
      }
      const children = this.out.splice(opener.at + 1).map(nodeOf)
      this.forget(opener.at)
      opener.length -= use
      length -= use
      this.out[opener.at] = {text: mark.repeat(opener.length)}
      if (!opener.length) { stack.pop(); this.out.pop() }
      this.put(h(mark === "~" ? "del" : use === 2 ? "strong" : "em", {}, children), depth)
    }
    return length
  }

  // What was opened after `at` lies inside of an element now.
  forget(at) {
    for (const stack of [...Object.values(this.openers), this.brackets]) {
      while (stack.length && stack.at(-1).at > at) stack.pop()
    }
  }

  closeBracket(at) {
    const bracket = this.brackets.pop(), target = bracket && destination(this.text, at + 1)
    const address = target && safeAddress(target.address)
    if (!address) { this.say("]"); return at + 1 }
    const items = this.out.splice(bracket.at + 1)
    this.out.pop()
    this.forget(bracket.at - 1)
    const children = items.length ? items.map(nodeOf) : [address]
    const element = link(address, bracket.image ? "Image: " : "", children)
    for (const inner of element.querySelectorAll("a")) inner.replaceWith(...inner.childNodes)
    this.put(element, depthOf(items))
    return target.end
  }

  angle(at) {
    const found = /<(?:(https?:\/\/[^\s<>]+)|br\s*\/?)>/iy
    found.lastIndex = at
    const match = found.exec(this.text), address = match?.[1] && safeAddress(match[1])
    if (!match || match[1] && !address) { this.say("<"); return at + 1 }
    this.put(address ? link(address, match[1]) : h("br"))
    return at + match[0].length
  }

  bare(at) {
    const found = /https?:\/\/[^\s<>`"[\]]+/y
    found.lastIndex = at
    let text = found.exec(this.text)?.[0] ?? ""
    while (TRAILING.test(text) && !(text.endsWith(")") && text.includes("("))) text = text.slice(0, -1)
    const address = safeAddress(text)
    if (address) this.put(link(address, text))
    else this.say(text || "http")
    return at + (text.length || 4)
  }
}

const depthOf = items => items.reduce((most, item) => Math.max(most, item.depth ?? 0), 0)
const nodeOf = item => item.node ?? document.createTextNode(item.text)

// Where a run of just `length` backticks begins, from `at` on; -1 if there is none.
function runOf(text, length, at) {
  const run = /`+/g
  run.lastIndex = at
  for (let found; (found = run.exec(text));) if (found[0].length === length) return found.index
  return -1
}

// "(address)" or "(address "title")" at `at`: {address, end}, or null.
function destination(text, at) {
  if (text[at] !== "(") return null
  const inner = text.slice(at, at + LONGEST)
  const found = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()<>]|\([^\s()]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(inner)
  return found && {address: found[1] ?? found[2], end: at + found[0].length}
}

export const inline = text => new Inline(text).nodes()
