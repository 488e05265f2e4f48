#include "kernels/dtype.h"

#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {
constexpr struct {
  DType type;
  DTypeInfo info;
} kTypes[] = {
    {DType::kF32, {"f32", 1, 4}},       {DType::kF16, {"f16", 1, 2}},       {DType::kBF16, {"bf16", 1, 2}},
    {DType::kQ4_0, {"q4_0", 32, 18}},   {DType::kQ4_1, {"q4_1", 32, 20}},   {DType::kQ5_0, {"q5_0", 32, 22}},
    {DType::kQ5_1, {"q5_1", 32, 24}},   {DType::kQ8_0, {"q8_0", 32, 34}},   {DType::kIQ4_NL, {"iq4_nl", 32, 18}},
    {DType::kMXFP4, {"mxfp4", 32, 17}}, {DType::kQ2_K, {"q2_k", 256, 84}},  {DType::kQ3_K, {"q3_k", 256, 110}},
    {DType::kQ4_K, {"q4_k", 256, 144}}, {DType::kQ5_K, {"q5_k", 256, 176}}, {DType::kQ6_K, {"q6_k", 256, 210}},
};
constexpr std::string_view kKvNames[] = {"f16", "bf16", "q8_0", "fp8_e4m3"};
}  // namespace

std::optional<DType> DTypeFromGguf(uint32_t id) {
  for (const auto& t : kTypes) {
    if (static_cast<uint32_t>(t.type) == id) return t.type;
  }
  return std::nullopt;
}

const DTypeInfo& InfoOf(DType type) {
  for (const auto& t : kTypes) {
    if (t.type == type) return t.info;
  }
  CheckFailed(__FILE__, __LINE__, "unknown DType", fmt::format("{}", static_cast<int>(type)));
}

std::string_view KvDTypeName(KvDType type) { return kKvNames[static_cast<int>(type)]; }

std::optional<KvDType> KvDTypeFromName(std::string_view name) {
  for (int i = 0; i < 4; ++i) {
    if (kKvNames[i] == name) return static_cast<KvDType>(i);
  }
  return std::nullopt;
}

}  // namespace holdfast::kernels
