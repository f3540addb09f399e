"""The routes: OpenAI's API, llama-server's own, and facts for operators."""
