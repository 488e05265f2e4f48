#pragma once
// Element and block types of tensors. Values are GGUF's type ids, so a file's number converts by DTypeFromGguf alone.
#include <cstdint>
#include <optional>
#include <string_view>

namespace holdfast::kernels {

enum class DType : uint8_t {
  kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8,
  kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14,
  kIQ4_NL = 20, kBF16 = 30, kMXFP4 = 39,
};

struct DTypeInfo {
  std::string_view name;     // "q4_0"
  uint32_t block_elements;   // values in a block, along the fastest axis
  uint32_t block_bytes;
};

std::optional<DType> DTypeFromGguf(uint32_t id);   // nullopt: a type Holdfast does not read
const DTypeInfo& InfoOf(DType type);
inline int64_t RowBytes(DType type, int64_t elements) {  // elements % block_elements == 0
  const DTypeInfo& info = InfoOf(type);
  return elements / info.block_elements * info.block_bytes;
}

// Types of the KV cache. 8-bit types hold one fp16 scale per 32 values of a head, in an array of its own.
enum class KvDType : uint8_t { kF16 = 0, kBF16 = 1, kQ8_0 = 2, kFp8E4M3 = 3 };
std::string_view KvDTypeName(KvDType type);                       // "f16", "bf16", "q8_0", "fp8_e4m3"
std::optional<KvDType> KvDTypeFromName(std::string_view name);

}  // namespace holdfast::kernels
