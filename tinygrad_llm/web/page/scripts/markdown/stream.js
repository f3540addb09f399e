// Markdown that arrives in pieces. Blocks that are over are drawn once; only the last one is drawn again.
import {appendAll} from "../dom.js"
import {block, closesFence, codeBlock, dedent, fence, parse, split} from "./blocks.js"

export class MarkdownStream {
  constructor(element) {
    this.element = element
    this.rest = ""     // the text of the last block, and of nothing before it
    this.last = []     // its nodes
    this.code = null   // the code block that is open: lines are added to it, and none is drawn again
  }

  push(text) {
    this.rest += text
    this.draw()
  }

  draw() {
    const lines = split(this.rest)
    const partial = lines.pop()
    for (const node of this.last) node.remove()
    this.last = []
    let i = 0
    while (i < lines.length) {
      if (this.code) { i = this.addCode(lines, i); continue }
      if (!lines[i].trim()) { i++; continue }
      const opened = fence(lines[i])
      if (opened) { this.open(opened); i++; continue }
      const {node, next} = block(lines, i)
      if (next >= lines.length) break
      this.element.append(node)
      i = next
    }
    const tail = [...lines.slice(i), partial]
    this.rest = tail.join("\n")
    if (this.code) this.showCodeLine(partial)
    else {
      this.last = parse(tail)
      appendAll(this.element, this.last)
    }
  }

  open(opened) {
    const {element, code} = codeBlock(opened.language), whole = document.createTextNode("")
    const line = document.createTextNode("")
    code.replaceChildren(whole, line)
    this.element.append(element)
    this.code = {opened, whole, line}
  }

  // Adds the lines of the open code block; returns the line after its end, or after all lines.
  addCode(lines, i) {
    const {opened, whole, line} = this.code
    let end = i
    while (end < lines.length && !closesFence(lines[end], opened)) end++
    line.data = ""
    whole.appendData(lines.slice(i, end).map(text => dedent(text, opened.indent) + "\n").join(""))
    if (end === lines.length) return end
    this.code = null
    return end + 1
  }

  // The line that is not over yet. It is hidden while it may be the end of the code.
  showCodeLine(text) {
    const {opened, line} = this.code, bare = text.trim()
    const mayClose = bare && bare === opened.marks[0].repeat(bare.length)
    line.data = mayClose ? "" : dedent(text, opened.indent)
  }

  // The text is whole: what was hidden as a half line is drawn.
  end() {
    if (this.code && this.rest && !closesFence(this.rest, this.code.opened)) {
      this.code.line.data = dedent(this.rest, this.code.opened.indent) + "\n"
    }
  }
}

export function markdown(element, text) {
  const stream = new MarkdownStream(element)
  stream.push(text)
  stream.end()
  return element
}
