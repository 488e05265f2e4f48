#pragma once
// Non-finite values in tensor data (--check-tensors): an fp16 scale that is inf or NaN, an E8M0 exponent of 255, a non-finite float.
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace holdfast::model {

// Index of the first bad block in `bytes` bytes of whole blocks, or -1.
int64_t FirstBadBlock(kernels::DType type, const std::byte* data, uint64_t bytes);

}  // namespace holdfast::model
