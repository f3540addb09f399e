"""
A simulated NVIDIA GPU: a libcuda of our own that runs kernels on the CPU and checks their memory accesses.

  >>> child.call(answer, **build.settings())  # a process with this card as tinygrad's CUDA device
  >>> Card(order=1)                           # the same library in this process, for its own tests: driver.py

tinygrad compiles for CUDA as usual (NVRTC, or its own PTX) and calls the driver as usual. The driver translates PTX to
C (translate.py, instructions.py), compiles it with the CPU device's clang and runs it. Each thread is a fiber; warps
and blocks synchronise at shuffles, matrix instructions and barriers (warp.c, block.c).

The driver does what a GPU may do but seldom does. Each launch and copy is deferred until something waits for it
(stream.c). Graph nodes, blocks, warps and threads run in any order. Memory starts as NaN, and no address is reused.
It also checks what a GPU does not (touch.c): each memory access against the buffers' bounds, and against all other
accesses of the launch, for races.

A finding is a line on stderr, `card: ..`, with the kernel, the thread and the instruction, and a sticky driver error.
Unknown PTX is an error that names the instruction.

Settings are environment variables:
- CARD_SM: the compute capability (80)
- CARD_ORDER: order of blocks, warps and threads: 0 as numbered, 1 backwards, 2 random
- CARD_GRAPH: order of a graph's ready nodes: 0 as added, 1 the last first, 2 random
- CARD_SEED: the seed of random orders
- CARD_EAGER=1: each launch and copy runs at once
- CARD_MEMORY, CARD_PINNED: bytes of device memory, and of host memory that may be pinned
- CARD_PTX: the newest PTX version that loads, 87 for 8.7
- CARD_LOSE=n, CARD_LOSE_AS: the n-th launch loses the device with that error (719)
- CARD_UNWRITTEN=1: reports each read of uninitialised memory, even if its result is not used
- CARD_CLOSE=1: threads may write floats to one address that differ in their last bits. Lanes of a warp that store one
  sum do so, where the first product is contracted into it
- CARD_ZERO_GRID=1: a graph's node may be added with a grid of 0
- CARD_ABSENT=1: no device; CARD_QUIET=1: nothing on stderr; CARD_LOG: a file for findings, and more
- CARD_KEEP=1: keeps the PTX beside CARD_CACHE's libraries

tinygrad's NV device runs on it, too: nv.py, which lists what of NV is not simulated.

Not simulated: speed, a GPU's own rounding of exp2, log2, sin, rsqrt and matrix instructions, ptxas, atomics, cp.async,
a second stream, several GPUs. Blocks run one after the other, so a race between blocks shows in the access stamps, not
in the results. Accesses to parts of a word that several threads write in part are not checked.
"""
