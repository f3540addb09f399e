"""
A stand-in for an NVIDIA card: a libcuda of our own, whose kernels run on the CPU and are watched.

  child.call(answer, **build.settings())  # a process with this card, which is tinygrad's CUDA
  Card(order=1)                           # the same library called in this process, for tests of it: driver.py

tinygrad compiles for CUDA as ever (NVRTC, or its own PTX) and calls the driver as ever. The driver translates PTX to C
(translate.py, instructions.py), compiles that with the CPU device's clang and runs it: each thread is a fiber, warps
and blocks meet at shuffles, matrix instructions and barriers (warp.c, block.c). It does what a card may do and seldom
does: each launch and copy waits until something asks for it (stream.c), graphs, blocks, warps and threads run in any
order, memory begins as NaN, a buffer's address is never used again. It watches what a card does not see (touch.c): each
access to memory against the bounds of buffers, and against all others of the launch, for races.

What it finds is a line on stderr, `card: ..`, with the kernel, the thread and the instruction, and an error of the
driver's, which stays. PTX that it does not know is an error that names the instruction.

Settings are variables of the environment:
  CARD_SM           the compute capability, 80
  CARD_ORDER        blocks, warps and threads: 0 as they are numbered, 1 backwards, 2 at random
  CARD_GRAPH        nodes of a graph that are ready: 0 as they were added, 1 the last first, 2 at random
  CARD_SEED         of what is at random
  CARD_EAGER=1      each launch and copy at once
  CARD_MEMORY, CARD_PINNED  how many bytes the card has, and how many of the host may be pinned
  CARD_PTX          the newest version that loads, 87 for 8.7
  CARD_LOSE=n, CARD_LOSE_AS  the n-th launch loses the card, with that error (719)
  CARD_UNWRITTEN=1  a read of memory that nothing has written is found, even where what comes of it is not used
  CARD_CLOSE=1      threads may write floats to one place that differ in their last bits: lanes of a warp that store
                    one sum do, where the first product is contracted into it
  CARD_ZERO_GRID=1  a graph's node may be added with a grid of 0
  CARD_ABSENT=1     no card; CARD_QUIET=1: nothing on stderr; CARD_LOG: a file for what is found, and more
  CARD_KEEP=1       the PTX stays beside CARD_CACHE's libraries

NV's device runs on it, too: nv.py, which also says what of NV is not reached.

Not here: speed, the roundings of a card's own exp2, log2, sin, rsqrt and matrix instructions, ptxas, atomics, cp.async,
streams beside the first, several cards. Blocks run one after the other, so a race between them is seen by the stamps,
not by what it does. In words of memory that several threads write in part, accesses to parts are not judged.
"""
