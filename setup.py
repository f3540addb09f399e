from setuptools import find_packages, setup

def nvidia(*names: str) -> list[str]:
  return [f"nvidia-{name}>=13,<14 ; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'" for name in names]

CUDA = nvidia("cuda-nvrtc", "cuda-runtime", "cuda-cuobjdump", "nvjitlink")  # the last assembles PTX
SERVE = [
  "llguidance>=1.7,<2",          # answers in a grammar: its matcher makes the masks
  "starlette>=1.0,<2",           # routes and middleware
  "uvicorn>=0.40,<1",            # HTTP, in the process that has the model
  "msgspec>=0.20,<1",            # requests checked and answers written, in microseconds
  "prometheus_client>=0.22,<1",  # /metrics
]

setup(
  name="tinygrad_llm",
  version="0.1.0",
  description="Local LLM inference on tinygrad: GGUF in, tokens out, kernels that a compiler finds",
  license="MIT",
  classifiers=[
    "Development Status :: 4 - Beta", "Environment :: Console", "Intended Audience :: Developers",
    "Operating System :: MacOS", "Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.12",
    "Topic :: Scientific/Engineering :: Artificial Intelligence", "Topic :: Software Development :: Compilers"],
  python_requires=">=3.11",
  packages=find_packages(include=["tinygrad_llm", "tinygrad_llm.*"]),  # patches, too, through the link
  package_data={"tinygrad_llm": ["models/*.gguf", "analysis/pages/*.html"],
                "tinygrad_llm.patches.search": ["tuned/*.json"], "tinygrad_llm.patches.host": ["*.c"],
                "tinygrad_llm.web": ["page/*.html", "page/scripts/*.js", "page/scripts/markdown/*.js",
                                     "page/styles/*.css"]},
  install_requires=[
    "tinygrad==0.14.0",      # the compiler; its internals are this project's subject, so exactly this version
    "numpy>=1.26,<3",        # header and byte handling, sampling
    "gguf>=0.17,<1",         # GGUF writer and the reference of every quant type
    "tqdm>=4.66,<5",         # progress bars
    "tokenizers>=0.20,<1",   # byte-pair encoding at native speed
    "jinja2>=3.1.6,<4",      # chat templates, in its immutable sandbox
    "huggingface_hub>=1.0,<3",  # fetches models, into the cache that it shares
  ],
  extras_require={
    "zig": ["ziglang>=0.13,<1"],                                    # a clang for the CPU device where PATH has none
    "bench": ["llama-cpp-python==0.3.36",                           # the peer, and the source of golden logits
              "matplotlib>=3.8,<4"],                                # the pictures of docs/
    "serve": SERVE,                                                 # the server, and answers in a grammar
    "ray": [*SERVE, "ray[serve]>=2.60,<2.61"],                      # replicas: its router of sessions is experimental
    "plot": ["matplotlib>=3.8,<4"],                                 # tune --plot
    "mlx": ["mlx-lm>=0.32,<1",                                      # a peer: its models and its KV cache
            "mlx>=0.32,<1 ; sys_platform == 'darwin'",              # its arrays, on Apple's GPU
            "mlx[cpu]>=0.32,<1 ; sys_platform == 'linux'"],         # the same on a processor: to test the conversion
    "opencl": [f"{name} ; sys_platform == 'linux' and platform_machine == 'x86_64'"  # runs kernels for GPUs on the CPU
               for name in ("intel-opencl-rt>=2025,<2027", "intel-cmplr-lib-rt>=2025,<2027")],
    "cuda": CUDA,                                                   # kernels for CUDA where there is no card
    "page": ["playwright>=1.50,<2"],                                # drives the server's page in Chromium
    "schema": ["schemathesis>=4.3,<5"],                             # draws requests from the server's /openapi.json
    "docs": ["mkdocs-material>=9.6,<10"],                           # docs/ as a site; a strict build checks its links
    "dev": [*SERVE, "httpx>=0.27,<1", "openai>=2,<4",               # the server, and clients that ask it
            "pytest>=8", "pytest-xdist>=3.8", "ruff>=0.8", "mypy>=1.13",  # tests, on all cores, and lint
            "setuptools>=70.1", *CUDA, *nvidia("cuda-nvdisasm"),    # a wheel, kernels for CUDA and their instructions
            "check-jsonschema>=0.29,<1",                            # the workflows, by GitHub's schema, offline
            "pytest-timeout>=2.3,<3",                               # a test that hangs fails, and the others go on
            "hypothesis>=6.100,<7"],                                # random orders of events, shrunk where one fails
  },
  entry_points={"console_scripts": [
    "tinygrad-llm=tinygrad_llm.run:main",
    "tinygrad-llm-kernels=tinygrad_llm.kernels:main",
    "tinygrad-llm-bench=tinygrad_llm.bench:main",
    "tinygrad-llm-quantize=tinygrad_llm.quantize:main",
    "tinygrad-llm-tune=tinygrad_llm.tune:main",
    "tinygrad-llm-perplexity=tinygrad_llm.perplexity:main",
    "tinygrad-llm-serve=tinygrad_llm.serve:main",
    "tinygrad-llm-replicas=tinygrad_llm.replicas:main",
  ]},
)
