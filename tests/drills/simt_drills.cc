// The SIMT machine's own drills: what a GPU would do wrong in silence is planted in small kernels; each must be caught with the words that
// lead to it, and the corrected kernel must pass and compute what it should.
#include <catch2/catch.hpp>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/shared_atomic.cuh"
#include "tests/support/simt/memory.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

// Reverses 256 floats of a block through shared memory.
template <bool kBarrier>
__global__ void ReverseKernel(const float* in, float* out) {
  Shared<float> s = SharedArray<float>(0);
  const int i = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  s[i] = in[int64_t{blockIdx.x} * n + i];
  if constexpr (kBarrier) __syncthreads();
  out[int64_t{blockIdx.x} * n + i] = s[n - 1 - i];
}

// Neighbours of a warp exchange through shared memory, twice.
template <int kSyncs>
__global__ void WarpExchangeKernel(float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Shared<float> s = SharedArray<float>(0) + warp * 32;
  s[lane] = static_cast<float>(lane);
  __syncwarp();
  const float first = s[lane ^ 1];
  if constexpr (kSyncs >= 2) __syncwarp();
  s[lane] = first + 100.f;
  __syncwarp();
  out[threadIdx.x] = s[lane ^ 1];
}

// A shuffle between write and read orders no memory.
__global__ void ShuffleIsNoBarrierKernel(float* out) {
  Shared<float> s = SharedArray<float>(0);
  const int lane = static_cast<int>(threadIdx.x);
  s[lane] = static_cast<float>(lane);
  const float sum = WarpSum(1.f);
  out[lane] = s[lane ^ 1] + sum;
}

// Bytes of one word by different threads are no race; the word read by another is.
template <bool kBarrier>
__global__ void BytesKernel(int* out) {
  Shared<uint8_t> bytes = SharedArray<uint8_t>(0);
  bytes[static_cast<int>(threadIdx.x)] = static_cast<uint8_t>(threadIdx.x);
  if constexpr (kBarrier) __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = SharedAs<int>(bytes)[static_cast<int>(threadIdx.x)];
}

__global__ void FillKernel(float* out, int64_t n, int64_t beyond) {
  for (int64_t i = GridThread(); i < n + beyond; i += GridThreads()) out[i] = static_cast<float>(i);
}

__global__ void SumKernel(const float* in, int64_t n, float* out) {
  float sum = 0.f;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += in[i];
  sum = BlockSum(sum, SharedArray<float>(0));
  if (threadIdx.x == 0) *out = sum;
}

__global__ void SharedIndexKernel(int index, float* out) {
  Shared<float> s = SharedArray<float>(0);
  s[index] = 1.f;
  out[0] = s[index];
}

// Threads count themselves by their id modulo 8.
template <int kKind>
__global__ void CountKernel(int* out) {
  Shared<int> s = SharedArray<int>(0);
  const int i = static_cast<int>(threadIdx.x);
  if (i < 8) s[i] = 0;
  if constexpr (kKind != 1) __syncthreads();
  if constexpr (kKind == 3) {   // a plain sum among them
    if (i == 40) s[0] += 1;
  }
  SharedAtomicAdd(s + i % 8, 1);
  if constexpr (kKind != 2) __syncthreads();
  if (i < 8) out[i] = s[i];
}

template <int kKind>
__global__ void BarrierKernel(float* out) {
  if constexpr (kKind == 1) {  // some return
    if (threadIdx.x >= 40) return;
    __syncthreads();
  }
  if constexpr (kKind == 2) {  // two places
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  }
  if constexpr (kKind == 3) {  // one warp takes it twice
    __syncthreads();
    if (threadIdx.x < 32) __syncthreads();
  }
  if constexpr (kKind == 0) __syncthreads();
  out[threadIdx.x] = 1.f;
}

template <int kKind>
__global__ void MaskKernel(float* out) {
  float v = static_cast<float>(threadIdx.x);
  if constexpr (kKind == 0) v = __shfl_xor_sync(kAllLanes, v, 1);
  if constexpr (kKind == 1) {  // half a warp with the mask of all
    if (threadIdx.x < 16) v = __shfl_xor_sync(kAllLanes, v, 1);
  }
  if constexpr (kKind == 2) {  // reads a lane outside its mask
    if (threadIdx.x < 16) v = __shfl_sync(0xffffu, v, 20);
  }
  if constexpr (kKind == 3) {  // not in its own mask
    v = __shfl_sync(0xffffu, v, 0);
  }
  if constexpr (kKind == 4) {  // lanes left
    if (threadIdx.x == 31) return;
    v = __shfl_xor_sync(kAllLanes, v, 1);
  }
  if constexpr (kKind == 5) {  // halves, each with its own mask
    const unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    v = __shfl_xor_sync(mask, v, 1);
  }
  out[threadIdx.x] = v;
}

// Copies 64 float4 into shared memory and writes them out, each by a neighbour of the thread that copied it.
template <int kKind>
__global__ void AsyncKernel(const float4* in, float4* out) {
  Shared<float4> s = SharedArray<float4>(0);
  const int i = static_cast<int>(threadIdx.x);
  if constexpr (kKind == 4) {   // a stage that others still read
    s[i] = in[i];
    __syncthreads();
    out[i] = s[i ^ 1];
  }
  CopyAsync16(SharedAs<uint8_t>(s + i), in + i);
  CopyAsyncCommit();
  if constexpr (kKind == 1) {   // one group too few is waited for
    CopyAsyncWait<1>();
  } else if constexpr (kKind != 3) {
    CopyAsyncWait<0>();
  }
  if constexpr (kKind != 2) __syncthreads();
  out[i] = s[i ^ 1];
  if constexpr (kKind == 1) {
    __syncthreads();
    CopyAsyncWait<0>();
  }
}

// [16][32] by [32][8], A[r][k] = r + k, B[k][n] = k - n.
template <int kLanes>
__global__ void MultiplyKernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, c = lane % 4;
  unsigned a[4] = {}, b[2] = {};
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 4; ++i) a[i] |= static_cast<unsigned>(g + 8 * (i % 2) + 4 * c + 16 * (i / 2) + j) << (8 * j);
    for (int i = 0; i < 2; ++i) b[i] |= static_cast<unsigned>((4 * c + 16 * i + j - g) & 0xff) << (8 * j);
  }
  int d[4] = {};
  if (lane < kLanes) MmaS8(d, a, b, 7);
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * c + i % 2] = d[i];
}

class Device {
 public:
  explicit Device(int64_t floats) : count_(static_cast<size_t>(floats)) { REQUIRE(cudaMalloc(&data, count_ * 4) == cudaSuccess); }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  std::vector<float> Read() const {
    std::vector<float> v(count_);
    REQUIRE(cudaMemcpy(v.data(), data, count_ * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    return v;
  }
  void Write(const std::vector<float>& v) { REQUIRE(cudaMemcpy(data, v.data(), v.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess); }
  float* data = nullptr;

 private:
  size_t count_;
};

// Under several orders of threads; every one must say all the words.
void MustCatch(const std::vector<std::string>& words, const std::function<void()>& launch) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    simt::Configure({seed});
    simt::CatchReports reports;
    launch();
    const cudaError_t error = cudaStreamSynchronize(nullptr);
    const auto said = reports.Take();
    CHECK(error == cudaErrorLaunchFailure);
    REQUIRE(said.size() == 1);
    INFO(said[0]);
    for (const std::string& w : words) CHECK(said[0].find(w) != said[0].npos);
    if (seed == 1) fmt::print("  caught: {}\n", said[0]);
    cudaGetLastError();
  }
  simt::Configure({});
}

TEST_CASE("a missing block barrier is a race, whatever the order of threads") {
  const int64_t n = 256;
  Device in(2 * n), out(2 * n);
  std::vector<float> v(2 * n);
  std::iota(v.begin(), v.end(), 0.f);
  in.Write(v);
  MustCatch({"ReverseKernel<false>", "race", "no barrier between", "block ("}, [&] { Launch(ReverseKernel<false>, 2, n, n * 4, nullptr, in.data, out.data); });
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    simt::Configure({seed});
    Launch(ReverseKernel<true>, 2, n, n * 4, nullptr, in.data, out.data);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const auto got = out.Read();
    for (int64_t i = 0; i < n; ++i) CHECK(got[static_cast<size_t>(n + i)] == static_cast<float>(2 * n - 1 - i));
  }
  simt::Configure({});
}

TEST_CASE("lanes of a warp race, too, and a shuffle is no barrier") {
  Device out(64);
  MustCatch({"WarpExchangeKernel<1>", "race"}, [&] { Launch(WarpExchangeKernel<1>, 1, 64, 256, nullptr, out.data); });
  MustCatch({"ShuffleIsNoBarrierKernel", "race"}, [&] { Launch(ShuffleIsNoBarrierKernel, 1, 32, 128, nullptr, out.data); });
  Launch(WarpExchangeKernel<2>, 1, 64, 256, nullptr, out.data);
  const auto got = out.Read();
  for (size_t i = 0; i < 64; ++i) CHECK(got[i] == static_cast<float>(i % 32) + 100.f);
}

TEST_CASE("neighbouring bytes are no race, the word over them is") {
  Device out(16);
  const auto ints = [&] { return reinterpret_cast<int*>(out.data); };
  MustCatch({"BytesKernel<false>", "race"}, [&] { Launch(BytesKernel<false>, 1, 64, 64, nullptr, ints()); });
  Launch(BytesKernel<true>, 1, 64, 64, nullptr, ints());
  const auto got = out.Read();
  CHECK(__float_as_int(got[15]) == 0x3f3e3d3c);
}

TEST_CASE("atomic operations on shared memory race with plain ones, and not with each other") {
  Device out(8);
  const auto ints = [&] { return reinterpret_cast<int*>(out.data); };
  MustCatch({"CountKernel<1>", "race"}, [&] { Launch(CountKernel<1>, 1, 64, 32, nullptr, ints()); });
  MustCatch({"CountKernel<2>", "race", "an atomic operation wrote"}, [&] { Launch(CountKernel<2>, 1, 64, 32, nullptr, ints()); });
  MustCatch({"CountKernel<3>", "race"}, [&] { Launch(CountKernel<3>, 1, 64, 32, nullptr, ints()); });
  Launch(CountKernel<0>, 1, 64, 32, nullptr, ints());
  for (const float f : out.Read()) CHECK(__float_as_int(f) == 8);
}

TEST_CASE("a write beyond an allocation is caught, at once or when the stream is synchronised") {
  for (const int64_t n : {1024, 1000, 5}) {  // of 64-byte size: the guard page; else the rounding first
    Device out(n);
    MustCatch(n == 1024 ? std::vector<std::string>{"FillKernel", "writes 0 bytes beyond the end of an allocation of 4096 bytes"}
                        : std::vector<std::string>{"beyond the end of an allocation", "was written"},
              [&] { Launch(FillKernel, 4, 64, 0, nullptr, out.data, n, 1); });
  }
  Device out(1024);
  MustCatch({"FillKernel", "writes 14284 bytes beyond the end of an allocation of 4096 bytes"},
            [&] { Launch(FillKernel, 1, 1, 0, nullptr, out.data + 4595 - 1024 + 1024, 1, 0); });
  Launch(FillKernel, 4, 64, 0, nullptr, out.data, 1024, 0);
  CHECK(out.Read()[1023] == 1023.f);
  float* freed = nullptr;
  {
    Device gone(1024);
    freed = gone.data;
  }
  MustCatch({"FillKernel", "writes", "of freed memory of 4096 bytes"}, [&] { Launch(FillKernel, 1, 1, 0, nullptr, freed, 1, 0); });
}

TEST_CASE("fresh memory is NaN, a sum over a block is right and the same in every order") {
  Device in(1000), out(1);
  for (const float f : in.Read()) CHECK(std::isnan(f));
  std::vector<float> v(1000);
  for (size_t i = 0; i < v.size(); ++i) v[i] = 1.f / static_cast<float>(i + 1);
  in.Write(v);
  float first = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    simt::Configure({seed});
    Launch(SumKernel, 1, 256, 128, nullptr, in.data, int64_t{1000}, out.data);
    const float sum = out.Read()[0];
    CHECK(sum == Approx(7.48547).epsilon(1e-6));
    if (seed == 1) first = sum;
    CHECK(sum == first);
  }
  simt::Configure({});
}

TEST_CASE("shared memory beyond the launch's is caught") {
  Device out(1);
  MustCatch({"SharedIndexKernel", "writes 4 bytes at 256 of shared memory, of which the launch gave 256"},
            [&] { Launch(SharedIndexKernel, 1, 1, 256, nullptr, 64, out.data); });
  MustCatch({"SharedIndexKernel", "at -4 of shared memory"}, [&] { Launch(SharedIndexKernel, 1, 1, 256, nullptr, -1, out.data); });
  Launch(SharedIndexKernel, 1, 1, 256, nullptr, 63, out.data);
  CHECK(out.Read()[0] == 1.f);
}

TEST_CASE("barriers that not all threads of a block reach are caught") {
  Device out(64);
  MustCatch({"BarrierKernel<1>", "never reach"}, [&] { Launch(BarrierKernel<1>, 1, 41, 0, nullptr, out.data); });
  MustCatch({"BarrierKernel<2>", "simt_drills.cc", "while", "wait at the one of"}, [&] { Launch(BarrierKernel<2>, 1, 64, 0, nullptr, out.data); });
  MustCatch({"BarrierKernel<3>", "never reach"}, [&] { Launch(BarrierKernel<3>, 1, 64, 0, nullptr, out.data); });
  Launch(BarrierKernel<0>, 1, 64, 0, nullptr, out.data);
  CHECK(out.Read()[63] == 1.f);
}

TEST_CASE("masks that lie are caught") {
  Device out(32);
  MustCatch({"MaskKernel<1>", "mask 0xffffffff"}, [&] { Launch(MaskKernel<1>, 1, 32, 0, nullptr, out.data); });
  MustCatch({"MaskKernel<2>", "reads lane 20, which is not in the mask 0xffff"}, [&] { Launch(MaskKernel<2>, 1, 32, 0, nullptr, out.data); });
  MustCatch({"MaskKernel<3>", "is not in the mask 0xffff of its own"}, [&] { Launch(MaskKernel<3>, 1, 32, 0, nullptr, out.data); });
  MustCatch({"MaskKernel<4>", "0xffffffff"}, [&] { Launch(MaskKernel<4>, 1, 32, 0, nullptr, out.data); });
  MustCatch({"MaskKernel<0>", "does not have"}, [&] { Launch(MaskKernel<0>, 1, 16, 0, nullptr, out.data); });
  for (const auto kernel : {MaskKernel<0>, MaskKernel<5>}) {
    Launch(kernel, 1, 32, 0, nullptr, out.data);
    const auto got = out.Read();
    for (size_t i = 0; i < 32; ++i) CHECK(got[i] == static_cast<float>(i ^ 1));
  }
}

TEST_CASE("copies that nobody waits for, and stages that are overwritten too early, are caught") {
  Device in(256), out(256);
  std::vector<float> v(256);
  std::iota(v.begin(), v.end(), 0.f);
  in.Write(v);
  const auto run = [&](void (*kernel)(const float4*, float4*)) {
    Launch(kernel, 1, 64, 1024, nullptr, reinterpret_cast<const float4*>(in.data), reinterpret_cast<float4*>(out.data));
  };
  MustCatch({"AsyncKernel<2>", "race"}, [&] { run(AsyncKernel<2>); });
  MustCatch({"AsyncKernel<3>", "returns while 1 of its asynchronous copies are under way"}, [&] { run(AsyncKernel<3>); });
  MustCatch({"AsyncKernel<4>", "race"}, [&] { run(AsyncKernel<4>); });
  run(AsyncKernel<0>);
  const auto good = out.Read();
  for (size_t i = 0; i < 256; ++i) CHECK(good[i] == static_cast<float>(i ^ 4));
  // That a group too few was waited for, only the result shows: no byte is there before its wait.
  run(AsyncKernel<1>);
  for (const float f : out.Read()) CHECK(std::isnan(f));
}

TEST_CASE("a tensor core's multiply needs the whole warp, and has the fragments of the manual") {
  Device out(128);
  MustCatch({"MultiplyKernel<31>", "0xffffffff"}, [&] { Launch(MultiplyKernel<31>, 1, 32, 0, nullptr, reinterpret_cast<int*>(out.data)); });
  Launch(MultiplyKernel<32>, 1, 32, 0, nullptr, reinterpret_cast<int*>(out.data));
  const auto got = out.Read();
  for (int r = 0; r < 16; ++r) {
    for (int n = 0; n < 8; ++n) {
      int want = 7;
      for (int k = 0; k < 32; ++k) want += (r + k) * (k - n);
      CHECK(__float_as_int(got[static_cast<size_t>(r * 8 + n)]) == want);
    }
  }
}

TEST_CASE("launches that no device takes are caught") {
  Device out(4);
  MustCatch({"FillKernel", "no device takes"}, [&] { Launch(FillKernel, dim3(1, 1, 70000), 32, 0, nullptr, out.data, 4, 0); });
  MustCatch({"FillKernel", "no device takes"}, [&] { Launch(FillKernel, 1, 2048, 0, nullptr, out.data, 4, 0); });
}

TEST_CASE("work waits for a wait: a staging buffer reused too early shows, a pageable one does not") {
  Device out(4);
  float *pinned = nullptr, pageable[4] = {1, 2, 3, 4};
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 16) == cudaSuccess);
  for (int i = 0; i < 4; ++i) pinned[i] = pageable[i];
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  cudaMemcpyAsync(out.data, pageable, 16, cudaMemcpyHostToDevice, stream);
  pageable[0] = 9;
  cudaStreamSynchronize(stream);
  CHECK(out.Read()[0] == 1.f);
  cudaMemcpyAsync(out.data, pinned, 16, cudaMemcpyHostToDevice, stream);
  pinned[0] = 9;
  cudaStreamSynchronize(stream);
  CHECK(out.Read()[0] == 9.f);
  cudaStreamDestroy(stream);
  cudaFreeHost(pinned);
}

TEST_CASE("with the switch on, the host cannot touch device memory, and kernels and copies can") {
  Device out(256);
  simt::Configure({1, true});
  CHECK(simt::HostFaults([&] { out.data[3] = 1.f; }));
  CHECK(simt::HostFaults([&] { static_cast<void>(*static_cast<volatile float*>(out.data)); }));
  Launch(FillKernel, 1, 64, 0, nullptr, out.data, 256, 0);
  CHECK(out.Read()[255] == 255.f);
  Device more(16);
  CHECK(simt::HostFaults([&] { more.data[0] = 1.f; }));
  simt::Configure({});
  CHECK(!simt::HostFaults([&] { out.data[3] = 1.f; }));
}

// Not a bound that a loaded machine could miss: what a switch costs is printed.
TEST_CASE("what a switch between threads costs") {
  Device in(4096), out(1);
  const std::clock_t begin = std::clock();  // of the processor: the machine has other work, too
  const int launches = 200;
  for (int i = 0; i < launches; ++i) Launch(SumKernel, 1, 256, 128, nullptr, in.data, int64_t{4096}, out.data);
  cudaStreamSynchronize(nullptr);
  const double ns = static_cast<double>(std::clock() - begin) * 1e9 / CLOCKS_PER_SEC;
  fmt::print("  {:.0f} ns a switch ({} launches of 256 threads with 5 shuffles and 2 barriers each)\n", ns / launches / 256 / 7, launches);
  SUCCEED();
}

}  // namespace
}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
