# The server, as a user without rights: docs/serve.md says how to start it.
FROM python:3.12-slim

# what may be mounted: models, and a cache of compiled steps and fetched models, which the user may fill
RUN useradd --create-home --uid 10001 llm && install -d -o llm -g llm /models /cache
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface PYTHONUNBUFFERED=1

# zig is the C compiler of the CPU device
COPY . /tmp/source
RUN pip install --no-cache-dir "/tmp/source[serve,zig]" && rm -rf /tmp/source

USER llm
WORKDIR /models
VOLUME ["/models", "/cache"]
EXPOSE 8080
# a big model loads for minutes; /health says so with a 503
HEALTHCHECK --interval=5s --timeout=5s --start-period=30m \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "tinygrad_llm.serve", "--host", "0.0.0.0", "--port", "8080"]
