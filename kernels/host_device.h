#pragma once
// Marks inline functions that device code may call, too.
#if defined(__CUDACC__)
#define HF_HD __host__ __device__
#else
#define HF_HD
#endif
