#include "kernels/cuda/collective.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float Plus(float a, float b) { return a + b; }
__device__ __forceinline__ float4 Plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Each element is a chain of additions of its own, so its width changes nothing. In place: a thread has read its element before it writes it.
template <class T>
__global__ void __launch_bounds__(kThreads) SumKernel(const T* parts, int64_t stride, int ranks, int mine, T* out, int64_t n) {
  for (int64_t i = GridThread(); i < n; i += GridThreads()) {
    const T own = out[i];
    T sum = mine == 0 ? own : parts[i];
    for (int r = 1; r < ranks; ++r) sum = Plus(sum, r == mine ? own : parts[r * stride + i]);
    out[i] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) CopyKernel(ConstMat from, Mat to) {
  const int64_t n = to.rows * to.cols;
  for (int64_t i = GridThread(); i < n; i += GridThreads()) to.data[i / to.cols * to.stride + i % to.cols] = from.data[i / to.cols * from.stride + i % to.cols];
}

__global__ void __launch_bounds__(kThreads) TokensKernel(const uint32_t* tokens, int64_t first, int64_t count, uint32_t* part, int64_t rows) {
  for (int64_t t = GridThread(); t < rows; t += GridThreads()) {
    const int64_t id = static_cast<int64_t>(tokens[t]) - first;
    part[t] = id >= 0 && id < count ? static_cast<uint32_t>(id) : 0u;
  }
}

__global__ void __launch_bounds__(kThreads) ZeroKernel(const uint32_t* tokens, int64_t first, int64_t count, Mat x) {
  for (int64_t t = blockIdx.x; t < x.rows; t += gridDim.x) {
    const int64_t id = static_cast<int64_t>(tokens[t]) - first;
    if (id >= 0 && id < count) continue;
    for (int64_t c = threadIdx.x; c < x.cols; c += kThreads) x.data[t * x.stride + c] = 0.f;
  }
}

bool Quads(const void* p, int64_t a, int64_t b) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && a % 4 == 0 && b % 4 == 0; }

}  // namespace

void SumOfRanks(cudaStream_t stream, const float* parts, int64_t stride, int ranks, int mine, float* out, int64_t n) {
  if (n == 0) return;
  constexpr int64_t kMostBlocks = 4096;
  if (Quads(parts, stride, n) && Quads(out, 0, 0)) {
    Launch(SumKernel<float4>, Blocks(n / 4, kThreads, kMostBlocks), kThreads, 0, stream, reinterpret_cast<const float4*>(parts), stride / 4, ranks, mine,
           reinterpret_cast<float4*>(out), n / 4);
  } else {
    Launch(SumKernel<float>, Blocks(n, kThreads, kMostBlocks), kThreads, 0, stream, parts, stride, ranks, mine, out, n);
  }
}

void CopyMatrix(cudaStream_t stream, ConstMat from, Mat to) {
  if (to.rows * to.cols > 0) Launch(CopyKernel, Blocks(to.rows * to.cols, 4 * kThreads), kThreads, 0, stream, from, to);
}

void TokensOfPart(cudaStream_t stream, const uint32_t* tokens, int64_t first, int64_t count, uint32_t* part, int64_t rows) {
  if (rows > 0) Launch(TokensKernel, Blocks(rows, kThreads), kThreads, 0, stream, tokens, first, count, part, rows);
}

void ZeroOtherTokens(cudaStream_t stream, const uint32_t* tokens, int64_t first, int64_t count, Mat x) {
  if (x.rows > 0) Launch(ZeroKernel, Blocks(x.rows, 1), kThreads, 0, stream, tokens, first, count, x);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
