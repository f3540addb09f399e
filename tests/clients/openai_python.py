"""PyPI's openai against the server at the address argv[1]: each call that answers, with strict validation of types."""
import asyncio
import sys

import numpy as np
import openai
from pydantic import BaseModel

URL, FOX = sys.argv[1] + "/v1", [{"role": "user", "content": "Tell me about a fox."}]
OPTIONS = {"base_url": URL, "api_key": "none", "max_retries": 0}
client = openai.OpenAI(**OPTIONS, _strict_response_validation=True)
# its types have no null where a streamed completion goes on, and no text for vectors in base64
lenient = openai.OpenAI(**OPTIONS)
# helpers raise an error where an answer ends by its length
asked = {"model": "any", "messages": FOX, "max_tokens": 60, "temperature": 0, "stop": "."}

class Animal(BaseModel):
  name: str
  age: int

def chats() -> str:
  answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
  text = answer.choices[0].message.content
  assert text and answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)
  chunks = [*client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
  assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == text
  assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens and not chunks[-1].choices
  several = client.chat.completions.create(**asked, n=3)
  assert [c.message.content for c in several.choices] == [text] * 3
  return text

def helpers(text: str) -> None:
  with client.chat.completions.stream(**asked) as stream:
    events = [event.type for event in stream]
    final = stream.get_final_completion()
  assert {"chunk", "content.delta", "content.done"} <= {*events} and final.choices[0].message.content == text
  raw = client.chat.completions.with_raw_response.create(**asked)
  assert raw.status_code == 200 and raw.headers["x-request-id"] and raw.parse().choices[0].message.content == text
  with client.chat.completions.with_streaming_response.create(**asked) as streamed:
    assert streamed.parse().choices[0].message.content == text

def parsed() -> None:
  question = asked | {"messages": [{"role": "user", "content": "Invent a dog."}], "max_tokens": 200, "stop": None}
  found = client.chat.completions.parse(**question, response_format=Animal).choices[0].message.parsed
  assert isinstance(found, Animal)
  with client.chat.completions.stream(**question, response_format=Animal) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == found

def others() -> None:
  whole = client.completions.create(model="any", prompt="Once upon", max_tokens=8, temperature=0, logprobs=2)
  assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens == 8
  parts = lenient.completions.create(model="any", prompt="Once upon", max_tokens=8, temperature=0, stream=True)
  assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
  texts = ["a fox", "a boat and a king"]
  plain = client.embeddings.create(model="any", input=texts, encoding_format="float")
  packed = lenient.embeddings.create(model="any", input=texts)
  np.testing.assert_allclose([x.embedding for x in plain.data], [x.embedding for x in packed.data], atol=1e-6)
  model, = client.models.list()
  assert client.models.retrieve(model.id) == model

def errors() -> None:
  try: client.chat.completions.create(**asked | {"temperature": -1})
  except openai.BadRequestError as e: assert e.param == "temperature" and e.type == "invalid_request_error"
  else: raise AssertionError("a wrong temperature was taken")
  try: client.models.retrieve("absent")
  except openai.NotFoundError as e: assert e.code == "model_not_found"
  else: raise AssertionError("an absent model was found")

async def asynchronous(text: str) -> None:
  async with openai.AsyncOpenAI(**OPTIONS, _strict_response_validation=True) as many:
    found = await asyncio.gather(*[many.chat.completions.create(**asked) for _ in range(6)])
    assert [answer.choices[0].message.content for answer in found] == [text] * 6
    stream = await many.chat.completions.create(**asked, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == text
    async with many.chat.completions.stream(**asked) as helper:
      assert (await helper.get_final_completion()).choices[0].message.content == text

text = chats()
helpers(text)
parsed()
others()
errors()
asyncio.run(asynchronous(text))
print(f"openai {openai.__version__}")
