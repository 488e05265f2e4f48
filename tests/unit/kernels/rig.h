#pragma once
// What the kernel tests share: the backends under one name each, random data, and matrices that live in a backend's memory.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"
#include "kernels/quant_blocks.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/support/simt/engine.h"

namespace holdfast::kernels::test {

struct Backend {
  std::string name;
  std::unique_ptr<Ops> ops;
  bool int8_activations;   // for weights in blocks
  bool emulated = false;   // slow: some shapes are left to the others
};

inline std::unique_ptr<Ops> Cpu(std::string_view isa, int threads) {
  CpuOptions options;
  options.isa = isa;
  options.threads = threads;
  return MakeCpuOps(options);
}

// With HOLDFAST_ONLY_DEVICE set, tests run on the reference and a real GPU alone: for the sanitizers of the device. Without a GPU they fail then.
inline bool OnlyDevice() { return std::getenv("HOLDFAST_ONLY_DEVICE") != nullptr; }

// The CPU at every instruction set this machine has, with one and two threads.
inline std::vector<Backend> CpuBackends() {
  std::vector<Backend> all;
  if (OnlyDevice()) return all;
  for (const std::string_view isa : AvailableIsas()) {
    for (const int threads : {1, 2}) all.push_back({"cpu " + std::string(isa) + " " + std::to_string(threads), Cpu(isa, threads), true});
  }
  return all;
}

// The seed of the SIMT machine: the environment's, so that a fresh one can run beside the fixed one.
inline uint64_t SimtSeed() {
  const char* given = std::getenv("HOLDFAST_SIMT_SEED");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

// The CUDA backend on the SIMT machine, and on a GPU where there is one.
inline std::vector<Backend> CudaBackends() {
  std::vector<Backend> all;
  if (OnlyDevice()) {
    auto real = MakeCudaOps({});
    if (!real.ok()) {
      fmt::print(stderr, "HOLDFAST_ONLY_DEVICE is set, but there is no device: {}\n", std::string(real.status().message().data(), real.status().message().size()));
      std::abort();
    }
    const std::string name = (*real)->Describe();
    all.push_back({name, *std::move(real), true});
    return all;
  }
  simt::Configure({SimtSeed()});
  auto emulated = cuda_emulated::MakeOps({});
  if (!emulated.ok()) std::abort();
  all.push_back({"cuda emulated, seed " + std::to_string(SimtSeed()), *std::move(emulated), true, true});
  if (auto real = MakeCudaOps({}); real.ok()) {
    const std::string name = (*real)->Describe();
    all.push_back({name, *std::move(real), true});
  }
  return all;
}

// All but the reference.
inline std::vector<Backend> FastBackends() {
  std::vector<Backend> all = CpuBackends();
  for (Backend& b : CudaBackends()) all.push_back(std::move(b));
  return all;
}

// The reference first, then the others.
inline std::vector<Backend> Backends() {
  std::vector<Backend> all = FastBackends();
  all.insert(all.begin(), Backend{"reference", MakeReferenceOps(), false});
  return all;
}

// What one backend of each kind needs for a test of rows that must not depend on each other: CPUs with one and two threads, CUDA as it is.
inline std::vector<std::vector<Backend>> Twins() {
  std::vector<std::vector<Backend>> all;
  for (const std::string_view isa : OnlyDevice() ? std::vector<std::string_view>() : AvailableIsas()) {
    all.emplace_back();
    for (const int threads : {1, 2}) all.back().push_back({"cpu " + std::string(isa) + " " + std::to_string(threads), Cpu(isa, threads), true});
  }
  for (Backend& b : CudaBackends()) {
    all.emplace_back();
    all.back().push_back(std::move(b));
  }
  return all;
}

inline const std::vector<DType>& AllTypes() {
  static const std::vector<DType> types = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                           DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                                           DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4};
  return types;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal(float sigma = 1.f) { return sigma * normal_(engine_); }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
  std::vector<float> Normals(int64_t n, float sigma = 1.f) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = Normal(sigma);
    return v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// Squared error over squared magnitude.
inline double Nmse(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    size += static_cast<double>(want[i]) * want[i];
  }
  return size > 0 ? error / size : error;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Rows of a matrix in the file's format: quantised normals, or random bytes with sane scales where there is no quantiser.
inline std::vector<std::byte> FileRows(DType type, int64_t rows, int64_t in, Random& random) {
  const int64_t row_bytes = RowBytes(type, in);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes));
  if (CanQuantize(type)) {
    for (int64_t r = 0; r < rows; ++r) QuantizeRow(type, random.Normals(in, 0.5f).data(), bytes.data() + r * row_bytes, in);
    return bytes;
  }
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  for (size_t at = 0; at < bytes.size(); at += InfoOf(type).block_bytes) {
    const auto scale = [&](size_t offset) {  // fp16 of about 0.001 to 0.008
      const uint16_t h = static_cast<uint16_t>(0x1400 + random.Below(0x0c00));
      std::memcpy(bytes.data() + at + offset, &h, 2);
    };
    if (type == DType::kQ2_K) scale(80), scale(82);
    if (type == DType::kQ3_K) scale(108);
    if (type == DType::kQ5_K) scale(0), scale(2);
  }
  return bytes;
}

// Values in a backend's memory, copied there and back through the backend.
template <class T>
class Held {
 public:
  Held(Ops& ops, const std::vector<T>& values, int64_t cols = 1)
      : ops_(&ops), count_(values.size()), cols_(cols), buffer_(ops.Allocate(static_cast<int64_t>(values.size() * sizeof(T)))) {
    Put(values);
  }
  void Put(const std::vector<T>& values) {
    ops_->CopyFromHost(buffer_.data(), reinterpret_cast<const std::byte*>(values.data()), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    ops_->CopyToHost(reinterpret_cast<std::byte*>(values.data()), buffer_.data(), static_cast<int64_t>(count_ * sizeof(T)));
    ops_->Sync();
    return values;
  }
  T* data() const { return buffer_.template as<T>(); }
  Matrix<T> mat() const { return {data(), static_cast<int64_t>(count_) / cols_, cols_}; }
  Vec vec() const { return {data(), count_}; }

 private:
  Ops* ops_;
  size_t count_;
  int64_t cols_;
  Buffer buffer_;
};

// A weight packed by a backend.
class PackedWeight {
 public:
  PackedWeight(Ops& ops, DType type, int64_t out, int64_t in, const std::vector<std::byte>& file, WeightUse use = WeightUse::kMatMul,
               int64_t experts = 1) {
    const WeightLayout layout = ops.LayoutOf(type, out, in, use);
    const int64_t stride = (layout.bytes + 63) / 64 * 64;
    buffer_ = ops.Allocate(stride * experts);
    const int64_t file_bytes = out * RowBytes(type, in);
    std::vector<std::byte> packed(static_cast<size_t>(stride * experts));  // as the arena: on the host first
    for (int64_t e = 0; e < experts; ++e) ops.Pack(type, out, in, layout, file.data() + e * file_bytes, packed.data() + e * stride);
    ops.CopyFromHost(buffer_.data(), packed.data(), stride * experts);
    weight = Weight{buffer_.data(), type, layout.layout, out, in, experts, stride};
  }
  Weight weight;

 private:
  Buffer buffer_;
};

// What a backend with int8 activations multiplies by instead of x: per 32 values, round(x * 127 / amax) * amax / 127.
inline std::vector<float> Int8Rounded(const std::vector<float>& x, int64_t in) {
  std::vector<float> y(x.size());
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(in)) {
    for (int64_t b = 0; b < in; b += 32) {
      const float* block = x.data() + at + b;
      float amax = 0;
      for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(block[i]));
      const float d = amax / 127.f, inverse = amax > 0 ? 127.f / amax : 0.f;
      for (int i = 0; i < 32; ++i) y[at + static_cast<size_t>(b + i)] = std::nearbyint(block[i] * inverse) * d;
    }
  }
  return y;
}

inline bool InBlocks(DType type) { return InfoOf(type).block_elements > 1; }

inline Mat View(std::vector<float>& v, int64_t cols) { return {v.data(), static_cast<int64_t>(v.size()) / cols, cols}; }
inline ConstMat View(const std::vector<float>& v, int64_t cols) { return {v.data(), static_cast<int64_t>(v.size()) / cols, cols}; }

}  // namespace holdfast::kernels::test
