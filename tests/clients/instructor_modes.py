"""
instructor against the server at the address argv[1]: objects in its modes JSON_SCHEMA and JSON.

JSON only asks the server for some JSON; the model reads the schema in its prompt. The bundled model understands no
schema, so there its answer may be of the wrong shape, or too long: that is said by instructor's own errors.
"""
import importlib.metadata
import json
import sys

import instructor
import openai
from pydantic import BaseModel

class Animal(BaseModel):
  name: str
  age: int

client, answers = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0), []

def asked(mode: instructor.Mode, question: str) -> Animal:
  writer = instructor.from_openai(client, mode=mode)
  writer.on("completion:response", answers.append)
  found = writer.chat.completions.create(model="any", response_model=Animal, max_retries=0, max_tokens=300,
                                         temperature=0, messages=[{"role": "user", "content": question}])
  assert isinstance(found, Animal)
  return found

asked(instructor.Mode.JSON_SCHEMA, "Invent a dog.")
try: asked(instructor.Mode.JSON, "Invent a dog.")
except Exception as e:
  assert type(e).__name__ in ("IncompleteOutputException", "InstructorRetryException"), e
  last = answers[-1].choices[0]
  assert last.message.content.startswith("{") and last.finish_reason in ("stop", "length")
  if last.finish_reason == "stop": json.loads(last.message.content)
print(f"instructor {importlib.metadata.version('instructor')}")
