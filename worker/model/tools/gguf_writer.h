#pragma once
// Writes small GGUF v3 files: tests, tools and the offline demo model. Everything is held in memory until Finish.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

namespace holdfast::model {

class GgufWriter {
 public:
  void U32(std::string_view key, uint32_t v);
  void I32(std::string_view key, int32_t v);
  void F32(std::string_view key, float v);
  void Bool(std::string_view key, bool v);
  void String(std::string_view key, std::string_view v);
  void Strings(std::string_view key, const std::vector<std::string>& v);
  void I32s(std::string_view key, const std::vector<int32_t>& v);
  void F32s(std::string_view key, const std::vector<float>& v);
  void Bools(std::string_view key, const std::vector<bool>& v);
  // A pair with any type and bytes, for malformed files.
  void Raw(std::string_view key, uint32_t type, std::string_view bytes);

  // dims fastest first; values in memory order, their number the product of dims. HF_CHECKs that the type can be written and fits.
  void Tensor(std::string_view name, const std::vector<int64_t>& dims, kernels::DType type, std::span<const float> values);
  // A tensor info with any content; the bytes are appended to the data, padded.
  void RawTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, std::string_view bytes);

  // general.alignment is written by the caller (32 without it).
  void set_alignment(uint64_t alignment) { alignment_ = alignment; }
  std::string Finish() const;
  // False when the file cannot be written; *error says why.
  bool WriteFile(const std::string& path, std::string* error) const;

 private:
  void Key(std::string_view key, uint32_t type);

  uint64_t alignment_ = 32;
  uint64_t pairs_ = 0, tensors_ = 0;
  std::string kv_, infos_, data_;
};

void AppendU32(std::string* out, uint32_t v);
void AppendU64(std::string* out, uint64_t v);
void AppendGgufString(std::string* out, std::string_view s);

}  // namespace holdfast::model
