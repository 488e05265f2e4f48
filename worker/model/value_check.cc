#include "worker/model/value_check.h"

#include <array>
#include <cstring>

namespace holdfast::model {
namespace {

using kernels::DType;

// Byte offsets of the fp16 scales in a block.
struct Scales {
  std::array<int, 2> at;
  int count;
};
Scales ScalesOf(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL: return {{0, 0}, 1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {{0, 2}, 2};
    case DType::kQ2_K: return {{80, 82}, 2};
    case DType::kQ3_K: return {{108, 0}, 1};
    case DType::kQ6_K: return {{208, 0}, 1};
    case DType::kF16: return {{0, 0}, 1};
    case DType::kF32:
    case DType::kBF16:
    case DType::kMXFP4: return {{0, 0}, 0};
  }
  return {{0, 0}, 0};
}

}  // namespace

int64_t FirstBadBlock(DType type, const std::byte* data, uint64_t bytes) {
  const uint64_t size = kernels::InfoOf(type).block_bytes;
  const Scales scales = ScalesOf(type);
  for (uint64_t i = 0; i < bytes / size; ++i) {
    const std::byte* block = data + i * size;
    bool bad = false;
    if (type == DType::kF32) {
      uint32_t v;
      memcpy(&v, block, 4);
      bad = (v & 0x7F800000u) == 0x7F800000u;
    } else if (type == DType::kBF16) {
      uint16_t v;
      memcpy(&v, block, 2);
      bad = (v & 0x7F80u) == 0x7F80u;
    } else if (type == DType::kMXFP4) {
      bad = block[0] == std::byte{255};
    }
    for (int s = 0; s < scales.count; ++s) {
      uint16_t v;
      memcpy(&v, block + scales.at[s], 2);
      bad |= (v & 0x7C00u) == 0x7C00u;
    }
    if (bad) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace holdfast::model
