"""
The matvec schedules of llama.cpp and MLX, expressed as opts on our kernel of 64 rows of 2048 weights.

Sources: llama.cpp (ggml at d99724f: mmvq.cu, ggml-metal) and MLX (846d176: qmv.cu, quantized.h). A warp is a simdgroup
there. A schedule is threads a row, rows a thread, rows a workgroup and weights a thread. It does not include the
arithmetic: llama.cpp multiplies bytes on CUDA. An opt's axis counts the kernel's ranges after the opts before it: first
the rows, then the reduction ranges; UNROLL and GROUP count only the reduction ranges.
"""
ROWS, N = 64, 2048

Peer = tuple[str, list[tuple[str, int, int]]]  # the type, and opts (name, axis, arg)

# reduction ranges of the types (iterations x stride in words of the quants, or a field's place in a word).
# Q4_0: 0: 32x8, 1: 2x4, 2: nibble, 3: 4x1, 4: half, 5: byte
# Q8_0: 0: 32x8, 1: 2x4, 2: 2x256, 3: 4x1, 4: half, 5: byte
# Q4_K: 0: 8x16 superblocks, 1: 2x8, 2: 2x4, 3: nibble, 4: 2x128, 5: 4x1, 6: byte
# Q6_K: 0: 8x16 superblocks, 1: 2x8, 2: nibble, 3: 2x4, 4: 2x128, 5: 4x1, 6: byte
BYTES_Q4_K = [("UNROLL", 6, 0), ("UNROLL", 3, 0)]  # all fields of a word: 8 weights
BYTES_Q6_K = [("UNROLL", 6, 0), ("UNROLL", 2, 0)]
BYTES_Q4_0 = [("UNROLL", 5, 0), ("UNROLL", 4, 0), ("UNROLL", 2, 0)]
BYTES_Q8_0 = [("UNROLL", 5, 0), ("UNROLL", 4, 0)]  # all fields of a word: 4 weights
PEERS: dict[str, Peer] = {
  # 4 warps a row, a row a group; 16 threads a superblock, two words each
  "llama.cpp CUDA Q4_K": ("Q4_K", [*BYTES_Q4_K, ("UNROLL", 4, 2), ("GROUP", 4, 2), ("GROUP", 3, 2), ("GROUP", 2, 2),
                                   ("GROUP", 1, 2), ("GROUP", 0, 2), ("GROUP", 0, 4)]),
  # few columns: a warp a row, 4 rows a group
  "llama.cpp CUDA Q4_K, small": ("Q4_K", [*BYTES_Q4_K, ("UNROLL", 4, 2), ("GROUP", 4, 2), ("GROUP", 3, 2),
                                          ("GROUP", 2, 2), ("GROUP", 1, 2), ("GROUP", 0, 2), ("LOCAL", 0, 4)]),
  # 4 warps a row; 32 threads a superblock, a word of low bits each
  "llama.cpp CUDA Q6_K": ("Q6_K", [*BYTES_Q6_K, ("GROUP", 4, 4), ("GROUP", 3, 2), ("GROUP", 2, 2), ("GROUP", 1, 2),
                                   ("GROUP", 0, 4)]),
  # a group of 32 x 8: a warp a row, 8 rows; 16 weights a thread
  "MLX CUDA qmv": ("Q4_0", [*BYTES_Q4_0, ("UNROLL", 2, 2), ("GROUP", 2, 2), ("GROUP", 1, 2), ("GROUP", 0, 8),
                            ("LOCAL", 0, 8)]),
  # 2 simdgroups of 2 rows; 8 lanes a superblock, x in registers for both rows
  "llama.cpp Metal Q4_K": ("Q4_K", [*BYTES_Q4_K, ("UNROLL", 4, 0), ("GROUP", 3, 2), ("GROUP", 2, 2), ("GROUP", 1, 2),
                                    ("GROUP", 0, 4), ("LOCAL", 0, 2), ("UPCAST", 0, 2)]),
  # the same, 16 lanes a superblock
  "llama.cpp Metal Q6_K": ("Q6_K", [*BYTES_Q6_K, ("UNROLL", 4, 2), ("GROUP", 4, 2), ("GROUP", 3, 2), ("GROUP", 2, 2),
                                    ("GROUP", 1, 2), ("GROUP", 0, 2), ("LOCAL", 0, 2), ("UPCAST", 0, 2)]),
  # 4 simdgroups of 2 rows
  "llama.cpp Metal Q8_0": ("Q8_0", [*BYTES_Q8_0, ("UNROLL", 3, 2), ("GROUP", 3, 2), ("GROUP", 2, 2), ("GROUP", 1, 2),
                                    ("GROUP", 0, 4), ("LOCAL", 0, 4), ("UPCAST", 0, 2)]),
  # 2 simdgroups of 4 rows
  "llama.cpp Metal Q4_0": ("Q4_0", [*BYTES_Q4_0, ("UNROLL", 2, 2), ("GROUP", 2, 2), ("GROUP", 1, 2), ("GROUP", 0, 8),
                                    ("LOCAL", 0, 2), ("UPCAST", 0, 4)]),
  # 2 simdgroups of 4 rows, 16 weights a thread
  "MLX Metal qmv_fast": ("Q4_K", [*BYTES_Q4_K, ("UNROLL", 4, 2), ("GROUP", 4, 2), ("GROUP", 3, 2), ("GROUP", 2, 2),
                                  ("GROUP", 1, 2), ("GROUP", 0, 2), ("LOCAL", 0, 2), ("UPCAST", 0, 4)]),
}
# threads of a workgroup in each
THREADS = {"llama.cpp CUDA Q4_K": 128, "llama.cpp CUDA Q4_K, small": 128, "llama.cpp CUDA Q6_K": 128,
           "MLX CUDA qmv": 256, "llama.cpp Metal Q4_K": 64, "llama.cpp Metal Q6_K": 64, "llama.cpp Metal Q8_0": 128,
           "llama.cpp Metal Q4_0": 64, "MLX Metal qmv_fast": 64}
