#include "worker/model/tools/gguf_writer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernels/quant_blocks.h"
#include "proto/base/check.h"

namespace holdfast::model {
namespace {

enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

void Pad(std::string* out, uint64_t alignment) { out->append((alignment - out->size() % alignment) % alignment, '\0'); }

template <class T>
void AppendPod(std::string* out, T v) {
  out->append(reinterpret_cast<const char*>(&v), sizeof(v));
}

}  // namespace

void AppendU32(std::string* out, uint32_t v) { AppendPod(out, v); }
void AppendU64(std::string* out, uint64_t v) { AppendPod(out, v); }
void AppendGgufString(std::string* out, std::string_view s) {
  AppendU64(out, s.size());
  out->append(s);
}

void GgufWriter::Key(std::string_view key, uint32_t type) {
  ++pairs_;
  AppendGgufString(&kv_, key);
  AppendU32(&kv_, type);
}

void GgufWriter::U32(std::string_view key, uint32_t v) {
  Key(key, kU32);
  AppendU32(&kv_, v);
}
void GgufWriter::I32(std::string_view key, int32_t v) {
  Key(key, kI32);
  AppendPod(&kv_, v);
}
void GgufWriter::F32(std::string_view key, float v) {
  Key(key, kF32);
  AppendPod(&kv_, v);
}
void GgufWriter::Bool(std::string_view key, bool v) {
  Key(key, kBool);
  kv_ += static_cast<char>(v);
}
void GgufWriter::String(std::string_view key, std::string_view v) {
  Key(key, kString);
  AppendGgufString(&kv_, v);
}
void GgufWriter::Strings(std::string_view key, const std::vector<std::string>& v) {
  Key(key, kArray);
  AppendU32(&kv_, kString);
  AppendU64(&kv_, v.size());
  for (const std::string& s : v) AppendGgufString(&kv_, s);
}
void GgufWriter::I32s(std::string_view key, const std::vector<int32_t>& v) {
  Key(key, kArray);
  AppendU32(&kv_, kI32);
  AppendU64(&kv_, v.size());
  for (const int32_t x : v) AppendPod(&kv_, x);
}
void GgufWriter::F32s(std::string_view key, const std::vector<float>& v) {
  Key(key, kArray);
  AppendU32(&kv_, kF32);
  AppendU64(&kv_, v.size());
  for (const float x : v) AppendPod(&kv_, x);
}
void GgufWriter::Bools(std::string_view key, const std::vector<bool>& v) {
  Key(key, kArray);
  AppendU32(&kv_, kBool);
  AppendU64(&kv_, v.size());
  for (const bool x : v) kv_ += static_cast<char>(x);
}
void GgufWriter::Raw(std::string_view key, uint32_t type, std::string_view bytes) {
  Key(key, type);
  kv_.append(bytes);
}

void GgufWriter::Tensor(std::string_view name, const std::vector<int64_t>& dims, kernels::DType type, std::span<const float> values) {
  HF_CHECK(kernels::CanQuantize(type) && !dims.empty());
  int64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  HF_CHECKF(dims[0] * rows == static_cast<int64_t>(values.size()), "{}: {} values", name, values.size());
  HF_CHECKF(dims[0] % kernels::InfoOf(type).block_elements == 0, "{}: rows of {} as {}", name, dims[0], kernels::InfoOf(type).name);
  const int64_t row_bytes = kernels::RowBytes(type, dims[0]);
  std::string bytes(static_cast<size_t>(row_bytes * rows), '\0');
  for (int64_t r = 0; r < rows; ++r) {
    kernels::QuantizeRow(type, values.data() + r * dims[0], reinterpret_cast<std::byte*>(bytes.data() + r * row_bytes), dims[0]);
  }
  RawTensor(name, {dims.begin(), dims.end()}, static_cast<uint32_t>(type), bytes);
}

void GgufWriter::RawTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, std::string_view bytes) {
  ++tensors_;
  AppendGgufString(&infos_, name);
  AppendU32(&infos_, static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) AppendU64(&infos_, d);
  AppendU32(&infos_, type);
  AppendU64(&infos_, data_.size());
  data_.append(bytes);
  Pad(&data_, alignment_);
}

std::string GgufWriter::Finish() const {
  std::string out = "GGUF";
  AppendU32(&out, 3);
  AppendU64(&out, tensors_);
  AppendU64(&out, pairs_);
  out += kv_;
  out += infos_;
  Pad(&out, alignment_);
  out += data_;
  return out;
}

bool GgufWriter::WriteFile(const std::string& path, std::string* error) const {
  const std::string bytes = Finish();
  FILE* f = fopen(path.c_str(), "wb");
  const bool written = f != nullptr && fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
  const int saved = errno;
  const bool closed = f != nullptr && fclose(f) == 0;
  if (!written || !closed) *error = path + ": " + strerror(saved);
  return written && closed;
}

}  // namespace holdfast::model
