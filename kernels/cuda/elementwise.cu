#include "kernels/cuda/elementwise.h"

#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = kNormThreads;

// One row by `threads` threads of which this is `self`: f(i, x[i] / rms * weight[i]).
template <class Sum, class F>
__device__ __forceinline__ void NormRow(const float* x, int64_t cols, const float* weight, float eps, int self, int threads, Sum&& sum, F&& f) {
  const float r = InverseRms(x, cols, eps, self, threads, sum);
  for (int64_t i = self; i < cols; i += threads) f(i, Normed(x, weight, r, i));
}

template <bool kWarpRows, bool kAdd>
__global__ void __launch_bounds__(kThreads) NormKernel(const float* x, int64_t x_stride, const float* weight, float eps, float* out, int64_t out_stride,
                                                       int64_t rows, int64_t cols) {
  const auto write = [&](float* o) {
    return [o](int64_t i, float v) {
      if constexpr (kAdd) v += o[i];
      o[i] = v;
    };
  };
  if constexpr (kWarpRows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int64_t t = GridThread() / kWarp; t < rows; t += GridThreads() / kWarp) {
      NormRow(x + t * x_stride, cols, weight, eps, lane, kWarp, [](float v) { return WarpSum(v); }, write(out + t * out_stride));
    }
  } else {
    Shared<float> scratch = SharedArray<float>(0);
    for (int64_t t = blockIdx.x; t < rows; t += gridDim.x) {
      NormRow(x + t * x_stride, cols, weight, eps, static_cast<int>(threadIdx.x), kThreads, [&](float v) { return BlockSum(v, scratch); },
              write(out + t * out_stride));
    }
  }
}

template <bool kAdd>
void Norm(cudaStream_t stream, ConstMat x, const float* weight, float eps, Mat out) {
  if (x.rows == 0) return;
  if (x.cols <= kNormWarpRow) {
    Launch(NormKernel<true, kAdd>, Blocks(x.rows, kThreads / kWarp), kThreads, 0, stream, x.data, x.stride, weight, eps, out.data, out.stride, x.rows,
           x.cols);
  } else {
    Launch(NormKernel<false, kAdd>, Blocks(x.rows, 1), kThreads, kWarp * sizeof(float), stream, x.data, x.stride, weight, eps, out.data, out.stride, x.rows,
           x.cols);
  }
}

// f(row, column) of every element: a block takes `kThreads * kEach` columns of a row, the next block the next.
constexpr int kEach = 4;
template <class F>
__global__ void __launch_bounds__(kThreads) ElementKernel(int64_t rows, int64_t cols, F f) {
  constexpr int64_t kPiece = int64_t{kThreads} * kEach;
  const int64_t pieces = (cols + kPiece - 1) / kPiece;
  for (int64_t b = blockIdx.x; b < rows * pieces; b += gridDim.x) {
    const int64_t row = b / pieces, begin = b % pieces * kPiece + threadIdx.x;
    HF_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (const int64_t c = begin + int64_t{i} * kThreads; c < cols) f(row, c);
    }
  }
}

template <class F>
void ForElements(cudaStream_t stream, int64_t rows, int64_t cols, F f) {
  if (rows == 0 || cols == 0) return;
  const int64_t pieces = (cols + int64_t{kThreads} * kEach - 1) / (int64_t{kThreads} * kEach);
  Launch(ElementKernel<F>, Blocks(rows * pieces, 1), kThreads, 0, stream, rows, cols, f);
}

// Rows without gaps are one long row.
template <class... M>
bool Dense(const M&... m) { return ((m.stride == m.cols) && ...); }

struct AddTo {
  Mat x;
  ConstMat y;
  __device__ void operator()(int64_t t, int64_t c) const { x.data[t * x.stride + c] += y.data[t * y.stride + c]; }
};
struct MultiplyBy {
  Mat x;
  ConstMat y;
  __device__ void operator()(int64_t t, int64_t c) const { x.data[t * x.stride + c] *= y.data[t * y.stride + c]; }
};
struct ScaleBy {
  Mat x;
  float factor;
  __device__ void operator()(int64_t t, int64_t c) const { x.data[t * x.stride + c] *= factor; }
};
struct ScaleColumnsBy {
  Mat x;
  const float* factors;
  __device__ void operator()(int64_t t, int64_t c) const { x.data[t * x.stride + c] *= factors[c]; }
};
struct SoftcapAt {
  Mat x;
  float cap;
  __device__ void operator()(int64_t t, int64_t c) const {
    float& v = x.data[t * x.stride + c];
    v = cap * tanhf(v / cap);
  }
};
template <Activation kActivation>
struct ActivateIn {
  Mat x;
  __device__ void operator()(int64_t t, int64_t c) const {
    float& v = x.data[t * x.stride + c];
    v = ActivateValue<kActivation>(v);
  }
};
template <Activation kActivation>
struct GateInto {
  ConstMat gate, up;
  Mat out;
  __device__ void operator()(int64_t t, int64_t c) const {
    out.data[t * out.stride + c] = GateValue<kActivation>(gate.data[t * gate.stride + c], up.data[t * up.stride + c]);
  }
};
struct Gather {
  ConstMat x;
  const int32_t* rows;
  Mat out;
  __device__ void operator()(int64_t t, int64_t c) const { out.data[t * out.stride + c] = x.data[rows[t] * x.stride + c]; }
};
template <DType kType>
struct EmbedRow {
  const uint8_t* table;
  int64_t row_bytes;
  const uint32_t* tokens;
  float scale;
  Mat out;
  __device__ void operator()(int64_t t, int64_t c) const {
    out.data[t * out.stride + c] = ValueOf<kType>(table + tokens[t] * row_bytes, c) * scale;
  }
};

template <class T>
void Flatten(Matrix<T>* m) { *m = Matrix<T>(m->data, 1, m->rows * m->cols); }

__global__ void __launch_bounds__(kThreads) RopeTableKernel(RopeTableSpec spec, const int32_t* positions, int64_t rows, float2* table) {
  const int64_t half = spec.dims / 2;
  for (int64_t at = GridThread(); at < rows * half; at += GridThreads()) {
    const int64_t t = at / half, i = at % half;
    double angle = positions[t] * spec.scale * pow(spec.base, -2.0 * static_cast<double>(i) / spec.dims);
    if (spec.freq_factors != nullptr) angle /= spec.freq_factors[i];
    if (spec.yarn_factor != 1.0) {
      const double far = spec.high - spec.low > 0.001 ? spec.high - spec.low : 0.001, ramp = (static_cast<double>(i) - spec.low) / far;
      const double keep = 1.0 - (ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp);
      angle = angle / spec.yarn_factor * (1.0 - keep) + angle * keep;
    }
    double s, c;
    sincos(angle, &s, &c);
    table[at] = make_float2(static_cast<float>(c * spec.attention_factor), static_cast<float>(s * spec.attention_factor));
  }
}

template <RopeKind kKind>
__global__ void __launch_bounds__(kThreads) RopeKernel(float* x, int64_t stride, int64_t rows, int heads, int head_dim, int half, const float2* table) {
  const int64_t each = int64_t{heads} * half;
  for (int64_t at = GridThread(); at < rows * each; at += GridThreads()) {
    const int64_t t = at / each;
    const int rest = static_cast<int>(at % each), h = rest / half, i = rest % half;
    float* v = x + t * stride + int64_t{h} * head_dim;
    const float2 turn = table[t * half + i];
    float* a = kKind == RopeKind::kNeox ? v + i : v + 2 * i;
    float* b = kKind == RopeKind::kNeox ? v + i + half : v + 2 * i + 1;
    const float first = *a, second = *b;
    *a = first * turn.x - second * turn.y;
    *b = first * turn.y + second * turn.x;
  }
}

}  // namespace

void RmsNorm(cudaStream_t stream, ConstMat x, const float* weight, float eps, Mat out) { Norm<false>(stream, x, weight, eps, out); }
void AddRmsNorm(cudaStream_t stream, Mat x, ConstMat y, const float* weight, float eps) { Norm<true>(stream, y, weight, eps, x); }

void Add(cudaStream_t stream, Mat x, ConstMat y) {
  if (Dense(x, y)) Flatten(&x), Flatten(&y);
  ForElements(stream, x.rows, x.cols, AddTo{x, y});
}
void Multiply(cudaStream_t stream, Mat x, ConstMat y) {
  if (Dense(x, y)) Flatten(&x), Flatten(&y);
  ForElements(stream, x.rows, x.cols, MultiplyBy{x, y});
}
void Scale(cudaStream_t stream, Mat x, float factor) {
  if (Dense(x)) Flatten(&x);
  ForElements(stream, x.rows, x.cols, ScaleBy{x, factor});
}
void ScaleColumns(cudaStream_t stream, Mat x, const float* factors) { ForElements(stream, x.rows, x.cols, ScaleColumnsBy{x, factors}); }
void Softcap(cudaStream_t stream, Mat x, float cap) {
  if (Dense(x)) Flatten(&x);
  ForElements(stream, x.rows, x.cols, SoftcapAt{x, cap});
}
void Activate(cudaStream_t stream, Mat x, Activation activation) {
  if (Dense(x)) Flatten(&x);
  if (activation == Activation::kSilu) {
    ForElements(stream, x.rows, x.cols, ActivateIn<Activation::kSilu>{x});
  } else {
    ForElements(stream, x.rows, x.cols, ActivateIn<Activation::kGeluTanh>{x});
  }
}
void Gated(cudaStream_t stream, ConstMat gate, ConstMat up, Activation activation, Mat out) {
  if (Dense(gate, up, out)) Flatten(&gate), Flatten(&up), Flatten(&out);
  ForActivation(activation, [&](auto a) { ForElements(stream, out.rows, out.cols, GateInto<decltype(a)::value>{gate, up, out}); });
}
void GatherRows(cudaStream_t stream, ConstMat x, const int32_t* rows, Mat out) { ForElements(stream, out.rows, out.cols, Gather{x, rows, out}); }

void Embed(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out) {
  ForType(table.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    const int64_t row_bytes = table.in / BlockOf<kType>::kElements * BlockOf<kType>::kBytes;
    ForElements(stream, out.rows, out.cols, EmbedRow<kType>{reinterpret_cast<const uint8_t*>(table.data), row_bytes, tokens, scale, out});
  });
}

void RopeTable(cudaStream_t stream, const RopeTableSpec& spec, const int32_t* positions, int64_t rows, float* table) {
  const int64_t work = rows * (spec.dims / 2);
  if (work == 0) return;
  Launch(RopeTableKernel, Blocks(work, kThreads), kThreads, 0, stream, spec, positions, rows, reinterpret_cast<float2*>(table));
}

void Rope(cudaStream_t stream, Mat x, int32_t heads, RopeKind kind, int32_t dims, const float* table) {
  const int64_t work = x.rows * heads * (dims / 2);
  if (work == 0) return;
  const int head_dim = static_cast<int>(x.cols / heads);
  const auto kernel = kind == RopeKind::kNeox ? RopeKernel<RopeKind::kNeox> : RopeKernel<RopeKind::kInterleaved>;
  Launch(kernel, Blocks(work, kThreads), kThreads, 0, stream, x.data, x.stride, x.rows, heads, head_dim, dims / 2, reinterpret_cast<const float2*>(table));
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
