#include "kernels/cuda/panel.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/panel.cuh"
#include "kernels/cuda/weight_formats.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

// A warp per tile of a row; a lane has two neighbours, 16 lanes a block of 32.
__global__ void __launch_bounds__(kThreads) Int8Kernel(ConstMat x, int64_t tiles, uint8_t* pieces, float* aux) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = GridThread() / kWarp; i < x.rows * tiles; i += GridThreads() / kWarp) {
    const int64_t t = i / tiles, tile = i % tiles, k = tile * kTileK + 2 * lane;
    float v[2] = {0.f, 0.f};
    if (k < x.cols) {   // cols is a multiple of 32
      v[0] = x.data[t * x.stride + k];
      v[1] = x.data[t * x.stride + k + 1];
    }
    WriteInt8Tile(v[0], v[1], i, pieces, aux);
  }
}

// The same of rows that are normed first, as elementwise.cu's kernel norms them; out gets the rows, too.
template <bool kWarpRows>
__global__ void __launch_bounds__(kNormThreads) NormInt8Kernel(ConstMat x, const float* weight, float eps, Mat out, int64_t tiles, uint8_t* pieces, float* aux) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto write = [&](int64_t t, float r, int64_t first, int64_t step) {
    const float* row = x.data + t * x.stride;
    float* to = out.data + t * out.stride;
    for (int64_t tile = first; tile < tiles; tile += step) {
      const int64_t k = tile * kTileK + 2 * lane;
      float v[2] = {0.f, 0.f};
      if (k < x.cols) {   // cols is a multiple of 32
        v[0] = to[k] = Normed(row, weight, r, k);
        v[1] = to[k + 1] = Normed(row, weight, r, k + 1);
      }
      WriteInt8Tile(v[0], v[1], t * tiles + tile, pieces, aux);
    }
  };
  if constexpr (kWarpRows) {
    for (int64_t t = GridThread() / kWarp; t < x.rows; t += GridThreads() / kWarp) {
      write(t, InverseRms(x.data + t * x.stride, x.cols, eps, lane, kWarp, [](float v) { return WarpSum(v); }), 0, 1);
    }
  } else {
    Shared<float> scratch = SharedArray<float>(0);
    for (int64_t t = blockIdx.x; t < x.rows; t += gridDim.x) {
      const float r = InverseRms(x.data + t * x.stride, x.cols, eps, static_cast<int>(threadIdx.x), kNormThreads, [&](float v) { return BlockSum(v, scratch); });
      write(t, r, warp, kNormThreads / kWarp);
    }
  }
}

__global__ void __launch_bounds__(kThreads) FloatKernel(ConstMat x, int64_t tiles, uint8_t* pieces) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = GridThread() / kWarp; i < x.rows * tiles; i += GridThreads() / kWarp) {
    const int64_t t = i / tiles, k = i % tiles * kTileK + 2 * lane;
    float first = k < x.cols ? x.data[t * x.stride + k] : 0.f, second = k + 1 < x.cols ? x.data[t * x.stride + k + 1] : 0.f;
    const int s = lane / 8, j = 2 * lane % 16;
    const int at = s / 2 * 64 + j % 8 / 2 * 16 + s % 2 * 8 + j / 8 * 4;
    for (int part = 0; part < 3; ++part) {
      *reinterpret_cast<unsigned*>(pieces + i * (kFloatPieces * 64) + part * 128 + at) = PackBf16(first, second);
      first = Rest(first);
      second = Rest(second);
    }
  }
}

}  // namespace

void MakePanel(cudaStream_t stream, ConstMat x, bool float_weights, void* memory) {
  const int64_t tiles = TilesOf(x.cols);
  if (x.rows == 0 || tiles == 0) return;
  uint8_t* pieces = static_cast<uint8_t*>(memory);
  const unsigned blocks = Blocks(x.rows * tiles, kThreads / kWarp);
  if (float_weights) {
    Launch(FloatKernel, blocks, kThreads, 0, stream, x, tiles, pieces);
  } else {
    Launch(Int8Kernel, blocks, kThreads, 0, stream, x, tiles, pieces, reinterpret_cast<float*>(pieces + x.rows * tiles * 64));
  }
}

void NormPanel(cudaStream_t stream, ConstMat x, const float* weight, float eps, Mat out, void* memory) {
  const int64_t tiles = TilesOf(x.cols);
  if (x.rows == 0 || tiles == 0) return;
  uint8_t* pieces = static_cast<uint8_t*>(memory);
  float* aux = reinterpret_cast<float*>(pieces + x.rows * tiles * 64);
  if (x.cols <= kNormWarpRow) {
    Launch(NormInt8Kernel<true>, Blocks(x.rows, kNormThreads / kWarp), kNormThreads, 0, stream, x, weight, eps, out, tiles, pieces, aux);
  } else {
    Launch(NormInt8Kernel<false>, Blocks(x.rows, 1), kNormThreads, kWarp * sizeof(float), stream, x, weight, eps, out, tiles, pieces, aux);
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
