// npm's openai against the server at the address argv[2]: answers, streams, helpers, schemas, vectors, errors.
const assert = require("node:assert/strict");
const OpenAI = require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const asked = { model: "any", messages: [{ role: "user", content: "Tell me about a fox." }], max_tokens: 60, temperature: 0, stop: "." };

async function joined(stream, piece) {
  let text = "";
  for await (const part of stream) text += piece(part) ?? "";
  return text;
}

async function chats() {
  const { data, response } = await client.chat.completions.create(asked).withResponse();
  const text = data.choices[0].message.content;
  assert.ok(text && data.usage.completion_tokens <= 60 && response.headers.get("x-request-id"));
  assert.equal(data.object, "chat.completion");
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  assert.equal(await joined(stream, (chunk) => chunk.choices[0].delta.content), text);
  const helper = client.chat.completions.stream(asked);
  const deltas = [];
  helper.on("content", (delta) => deltas.push(delta));
  assert.equal(await helper.finalContent(), text);
  assert.equal(deltas.join(""), text);
  const long = await client.chat.completions.create({ ...asked, max_tokens: 400, stop: null, stream: true });
  let chunks = 0;
  for await (const _ of long) if (++chunks === 2) break;  // this aborts the request
  assert.ok(chunks === 2 && long.controller.signal.aborted);
}

async function schemas() {
  const animal = z.object({ name: z.string(), age: z.number().int() });
  const found = await client.chat.completions.parse({
    ...asked, stop: null, max_tokens: 200, response_format: zodResponseFormat(animal, "animal") });
  assert.ok(animal.safeParse(found.choices[0].message.parsed).success);
}

async function others() {
  const prompt = { model: "any", prompt: "Once upon", max_tokens: 8, temperature: 0 };
  const text = (await client.completions.create(prompt)).choices[0].text;
  const stream = await client.completions.create({ ...prompt, stream: true });
  assert.equal(await joined(stream, (part) => part.choices[0].text), text);
  const packed = await client.embeddings.create({ model: "any", input: "a fox" });  // this client asks for base64
  const plain = await client.embeddings.create({ model: "any", input: "a fox", encoding_format: "float" });
  assert.deepEqual(packed.data[0].embedding.map(Math.fround), plain.data[0].embedding.map(Math.fround));
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.deepEqual(await client.models.retrieve(models[0].id), models[0]);
}

async function errors() {
  await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), (e) =>
    e instanceof OpenAI.BadRequestError && e.param === "temperature");
  await assert.rejects(client.models.retrieve("absent"), OpenAI.NotFoundError);
}

(async () => {
  await chats();
  await schemas();
  await others();
  await errors();
  console.log("openai " + require("openai/version").VERSION + " of npm");
})().catch((e) => {
  console.error(e);
  process.exitCode = 1;
});
