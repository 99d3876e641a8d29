/* In place of CUDA's header, which nccl.h includes: these examples run on host memory, where no
   CUDA is, and of CUDA's header nccl.h needs the names of two types, and size_t. */
#ifndef HOST_CUDA_RUNTIME_H
#define HOST_CUDA_RUNTIME_H

#include <stddef.h>

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#endif
