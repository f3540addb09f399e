"""langchain-openai against the server at the address argv[1]: answers, streams, batches, objects by a schema."""
import asyncio
import importlib.metadata
import sys

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

class Animal(BaseModel):
  name: str
  age: int

OPTIONS = {"base_url": sys.argv[1] + "/v1", "api_key": "none", "model": "any", "max_retries": 0}
chat = ChatOpenAI(**OPTIONS, temperature=0, max_tokens=20)

def texts() -> None:
  answer = chat.invoke("Tell me about a fox.")
  assert answer.content and answer.usage_metadata["output_tokens"] <= 20
  chunks = [*chat.stream("Tell me about a fox.", stream_usage=True)]
  assert "".join(chunk.content for chunk in chunks) == answer.content
  total = sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks)
  assert total == answer.usage_metadata["output_tokens"]
  assert [a.content for a in chat.batch(["Tell me about a fox."] * 3)] == [answer.content] * 3
  async def streamed() -> str: return "".join([c.content async for c in chat.astream("Tell me about a fox.")])
  assert asyncio.run(streamed()) == answer.content
  found = chat.bind(logprobs=True).invoke("Tell me about a fox.").response_metadata["logprobs"]["content"]
  assert "".join(place["token"] for place in found).strip() == answer.content.strip()

def objects() -> None:
  writer = ChatOpenAI(**OPTIONS, temperature=0, max_tokens=200).with_structured_output(Animal, method="json_schema")
  assert isinstance(writer.invoke("Invent a dog."), Animal)
  *_, last = writer.stream("Invent a dog.")
  assert isinstance(last, Animal)

def others() -> None:
  text = OpenAI(**OPTIONS, max_tokens=8, temperature=0)
  assert "".join(text.stream("Once upon")) == text.invoke("Once upon") != ""
  vectors = OpenAIEmbeddings(**{k: v for k, v in OPTIONS.items() if k != "max_retries"},
                             check_embedding_ctx_length=False).embed_documents(["a fox", "a boat"])
  assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4

texts()
objects()
others()
print(f"langchain-openai {importlib.metadata.version('langchain-openai')}")
