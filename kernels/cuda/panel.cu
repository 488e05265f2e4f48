#include "kernels/cuda/panel.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/weight_formats.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

// A warp per tile of a row; a lane has two neighbours, 16 lanes a block of 32.
__global__ void __launch_bounds__(kThreads) Int8Kernel(ConstMat x, int64_t tiles, uint8_t* pieces, float* aux) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, blk = lane / 16;
  for (int64_t i = GridThread() / kWarp; i < x.rows * tiles; i += GridThreads() / kWarp) {
    const int64_t t = i / tiles, tile = i % tiles, k = tile * kTileK + 2 * lane;
    float v[2] = {0.f, 0.f};
    if (k < x.cols) {   // cols is a multiple of 32
      v[0] = x.data[t * x.stride + k];
      v[1] = x.data[t * x.stride + k + 1];
    }
    // Magnitudes order like their bits, infinity and NaN above all.
    unsigned top = max(__float_as_uint(v[0]) & 0x7fffffffu, __float_as_uint(v[1]) & 0x7fffffffu);
    for (int lanes = 8; lanes > 0; lanes /= 2) top = max(top, __shfl_xor_sync(kAllLanes, top, lanes));
    const bool finite = top < 0x7f800000u;
    const float amax = __uint_as_float(top), inverse = finite && amax > 0.f ? __fdiv_rn(127.f, amax) : 0.f;
    const int first = finite ? __float2int_rn(v[0] * inverse) : 0, second = finite ? __float2int_rn(v[1] * inverse) : 0;
    int sum = first + second;
    for (int lanes = 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    const int in_half = 2 * lane % 16, half = lane / 8 % 2;
    const int at = in_half / 4 * 16 + (2 * blk + half) * 4 + in_half % 4;
    *reinterpret_cast<uint16_t*>(pieces + i * 64 + at) = static_cast<uint16_t>((first & 0xff) | (second & 0xff) << 8);
    if (lane % 16 == 0) {
      const float scale = finite ? __fdiv_rn(amax, 127.f) : __uint_as_float(0x7fc00000u);
      aux[i * 4 + 2 * blk] = scale;
      aux[i * 4 + 2 * blk + 1] = scale * static_cast<float>(sum);
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

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
