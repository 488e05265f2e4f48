#pragma once
// How a warp writes its tile of a panel (panel.h).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/panel.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// The int8 tile number `tile` of all (row * tiles + its place in the row): this lane has columns 2 * lane and 2 * lane + 1. The whole warp comes.
__device__ __forceinline__ void WriteInt8Tile(float left, float right, int64_t tile, uint8_t* pieces, float* aux) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, blk = lane / 16;   // 16 lanes a block of 32
  // Magnitudes order like their bits, infinity and NaN above all.
  unsigned top = max(__float_as_uint(left) & 0x7fffffffu, __float_as_uint(right) & 0x7fffffffu);
  for (int lanes = 8; lanes > 0; lanes /= 2) top = max(top, __shfl_xor_sync(kAllLanes, top, lanes));
  const bool finite = top < 0x7f800000u;
  const float amax = __uint_as_float(top), inverse = finite && amax > 0.f ? __fdiv_rn(127.f, amax) : 0.f;
  const int first = finite ? __float2int_rn(left * inverse) : 0, second = finite ? __float2int_rn(right * inverse) : 0;
  int sum = first + second;
  for (int lanes = 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  const int in_half = 2 * lane % 16, half = lane / 8 % 2;
  const int at = in_half / 4 * 16 + (2 * blk + half) * 4 + in_half % 4;
  *reinterpret_cast<uint16_t*>(pieces + tile * 64 + at) = static_cast<uint16_t>((first & 0xff) | (second & 0xff) << 8);
  if (lane % 16 == 0) {
    const float scale = finite ? __fdiv_rn(amax, 127.f) : __uint_as_float(0x7fc00000u);
    aux[tile * 4 + 2 * blk] = scale;
    aux[tile * 4 + 2 * blk + 1] = scale * static_cast<float>(sum);
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
