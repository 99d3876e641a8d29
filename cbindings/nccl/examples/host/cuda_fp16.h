/* In place of CUDA's header (see cuda_runtime.h): nccl.h includes it, and needs nothing of it. */
