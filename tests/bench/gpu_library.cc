#include "tests/bench/gpu_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <fmt/format.h>

namespace holdfast::bench {
namespace {

// As cublas_api.h and library_types.h have them, unchanged since CUDA 11.
using Handle = void*;
using Create = int (*)(Handle*);
using Destroy = int (*)(Handle);
using SetStream = int (*)(Handle, cudaStream_t);
using Version = int (*)(Handle, int*);
using Gemm = int (*)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int);
constexpr int kNone = 0, kTransposed = 1, kBf16 = 14, kCompute32F = 68, kAnyAlgorithm = -1;

struct DeviceMemory {
  void* p = nullptr;
  explicit DeviceMemory(size_t bytes) { if (cudaMalloc(&p, bytes) != cudaSuccess) p = nullptr; }
  ~DeviceMemory() { cudaFree(p); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
};

}  // namespace

absl::StatusOr<double> LibraryMatMulFlops(cudaStream_t stream, const std::function<std::optional<double>(const std::function<void()>&)>& seconds,
                                          std::string* called) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.12", "libcublas.so"}) {
    if (library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) break;   // never closed: it has threads and handlers of its own
  }
  if (library == nullptr) return absl::NotFoundError("no cuBLAS (libcublas.so) is found");
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  const auto destroy = reinterpret_cast<Destroy>(dlsym(library, "cublasDestroy_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
  const auto version = reinterpret_cast<Version>(dlsym(library, "cublasGetVersion_v2"));
  const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  if (!create || !destroy || !set_stream || !version || !gemm) return absl::NotFoundError("this cuBLAS lacks cublasGemmEx");
  constexpr int n = 8192;
  constexpr size_t bytes = size_t{n} * n * 2;
  // Random signs and magnitudes: a device multiplies zeros faster than it multiplies numbers.
  std::vector<uint16_t> values(size_t{n} * n);
  std::mt19937 random(1);
  for (uint16_t& v : values) v = static_cast<uint16_t>(0x3e00u + (random() & 0x81ffu));
  const DeviceMemory a(bytes), b(bytes), c(bytes);
  if (!a.p || !b.p || !c.p) return absl::ResourceExhaustedError("no room for three matrices of 128 MiB");
  if (cudaMemcpy(a.p, values.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess || cudaMemcpy(b.p, values.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess) {
    return absl::AbortedError("the matrices could not be copied");
  }
  Handle handle = nullptr;
  if (const int e = create(&handle); e != 0) return absl::AbortedError(fmt::format("cublasCreate answers {}", e));
  int number = 0, status = version(handle, &number);
  status = status != 0 ? status : set_stream(handle, stream);
  const float one = 1.f, zero = 0.f;
  const auto multiply = [&] {
    const int e = gemm(handle, kTransposed, kNone, n, n, n, &one, a.p, kBf16, n, b.p, kBf16, n, &zero, c.p, kBf16, n, kCompute32F, kAnyAlgorithm);
    if (status == 0) status = e;
  };
  multiply();
  std::vector<double> times;
  for (int round = 0; round < 5 && status == 0; ++round) {
    constexpr int each = 8;
    const auto took = seconds([&] { for (int i = 0; i < each; ++i) multiply(); });
    if (took) times.push_back(*took / each);
  }
  destroy(handle);
  if (status != 0) return absl::AbortedError(fmt::format("cuBLAS answers {}", status));
  if (times.empty()) return absl::AbortedError("cuBLAS's product could not be timed");
  std::sort(times.begin(), times.end());
  *called = fmt::format("cuBLAS {}.{}, {}^3", number / 10000, number / 100 % 100, n);
  return 2.0 * n * n * n / times[times.size() / 2];
}

}  // namespace holdfast::bench
