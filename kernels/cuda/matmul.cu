#include "kernels/cuda/matmul.h"

#include <type_traits>

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

// A warp per block of 32 values.
__global__ void __launch_bounds__(kThreads) QuantizeKernel(const float* x, int64_t stride, int64_t rows, int64_t in, int8_t* codes, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t blocks = in / 32;
  for (int64_t b = GridThread() / kWarp; b < rows * blocks; b += GridThreads() / kWarp) {
    const int64_t t = b / blocks, at = b % blocks * 32 + lane;
    const float v = x[t * stride + at];
    // Magnitudes order like their bits, infinity and NaN above all.
    const unsigned top = __reduce_max_sync(kAllLanes, __float_as_uint(v) & 0x7fffffffu);
    const bool finite = top < 0x7f800000u;
    const float amax = __uint_as_float(top), inverse = finite && amax > 0.f ? 127.f / amax : 0.f;
    codes[t * in + at] = static_cast<int8_t>(finite ? __float2int_rn(v * inverse) : 0);
    if (lane == 0) scales[b] = finite ? amax / 127.f : __uint_as_float(0x7fc00000u);
  }
}

// A warp per output; its lanes take blocks of 32 values (quantised) or single values in turn.
template <DType kType>
__global__ void __launch_bounds__(kThreads) MatMulKernel(MatMulArgs a, int64_t row_bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t in = a.w.in, out = a.w.out;
  for (int64_t i = GridThread() / kWarp; i < a.y.rows * out; i += GridThreads() / kWarp) {
    const int64_t t = i / out, o = i % out, source = t / a.rows_each;
    const int64_t expert = a.experts == nullptr ? 0 : a.experts[t];
    const uint8_t* w = reinterpret_cast<const uint8_t*>(a.w.data) + expert * a.w.expert_stride + o * row_bytes;
    float sum = 0.f;
    if constexpr (BlockOf<kType>::kElements == 1) {
      const float* x = a.x.data + source * a.x.stride;
      for (int64_t c = lane; c < in; c += kWarp) sum += ValueOf<kType>(w, c) * x[c];
    } else {
      constexpr int kElements = BlockOf<kType>::kElements;
      const int8_t* codes = a.int8_x.codes + source * in;
      const float* scales = a.int8_x.scales + source * (in / 32);
      for (int64_t b = lane; b < in / 32; b += kWarp) {
        const uint8_t* block = w + b * 32 / kElements * BlockOf<kType>::kBytes;
        const int first = static_cast<int>(b * 32 % kElements);
        float part = 0.f;
        for (int half = 0; half < 32; half += 16) {  // K formats change their scale every 16 or 32 values
          int dot = 0, total = 0;
          for (int j = 0; j < 16; ++j) {
            const int q = codes[b * 32 + half + j];
            dot += CodedOf<kType>(block, first + half + j).code * q;
            total += q;
          }
          const Coded c = CodedOf<kType>(block, first + half);
          part += c.scale * static_cast<float>(dot) - c.min * static_cast<float>(total);
        }
        sum += scales[b] * part;
      }
    }
    sum = WarpSum(sum);
    if (lane != 0) continue;
    float& y = a.y.data[t * a.y.stride + o];
    if (a.bias != nullptr) sum += a.bias[expert * a.bias_stride + o];
    y = a.accumulate ? y + sum : sum;
  }
}

}  // namespace

void QuantizeRows(cudaStream_t stream, ConstMat x, void* memory) {
  const Int8Rows to = Int8At(memory, x.rows, x.cols);
  Launch(QuantizeKernel, Blocks(x.rows * (x.cols / 32), kThreads / kWarp), kThreads, 0, stream, x.data, x.stride, x.rows, x.cols,
         const_cast<int8_t*>(to.codes), const_cast<float*>(to.scales));
}

void MatMul(cudaStream_t stream, const MatMulArgs& args) {
  if (args.y.rows == 0) return;
  ForType(args.w.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    const int64_t row_bytes = args.w.in / BlockOf<kType>::kElements * BlockOf<kType>::kBytes;
    Launch(MatMulKernel<kType>, Blocks(args.y.rows * args.w.out, kThreads / kWarp), kThreads, 0, stream, args, row_bytes);
  });
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
