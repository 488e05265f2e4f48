#pragma once
// A step's batch as kernels see it: every pointer is device memory that lives until the step is done.
#include <cstdint>

#include "kernels/view.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// The block tables of one group: block b of sequence s is pages[first[s] + b].
struct DeviceTables {
  const int32_t* pages = nullptr;
  const int32_t* first = nullptr;       // [S]
  int32_t window = 0;                   // 0 = full attention
};

struct DeviceBatch {
  const uint32_t* tokens = nullptr;     // [T]
  const int32_t* positions = nullptr;   // [T]
  const int32_t* row_sequence = nullptr;  // [T] which sequence a row belongs to; -1: none (padding)
  const SequenceSpan* sequences = nullptr;  // [S], then one for each row that belongs to none
  int64_t rows = 0;
  int32_t sequence_count = 0;           // S
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
