#include "kernels/cuda/moe.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 128;

// A thread per row: a sorted list of k, in which an equal logit goes behind, so that ties fall to the lowest id.
__global__ void __launch_bounds__(kThreads) RouteKernel(const float* logits, int64_t stride, int64_t rows, int64_t experts, RouterNorm norm, Routing out) {
  for (int64_t t = GridThread(); t < rows; t += GridThreads()) {
    const float* l = logits + t * stride;
    int32_t* ids = out.ids + t * out.k;
    float* weights = out.weights + t * out.k;
    int held = 0;
    for (int e = 0; e < experts; ++e) {
      int at = held;
      while (at > 0 && l[e] > l[ids[at - 1]]) --at;
      if (at >= out.k) continue;
      held = held < out.k ? held + 1 : held;
      for (int i = held - 1; i > at; --i) ids[i] = ids[i - 1];
      ids[at] = e;
    }
    const float top = l[ids[0]];
    float sum = 0.f;
    if (norm == RouterNorm::kSoftmaxAll) {
      for (int e = 0; e < experts; ++e) sum += expf(l[e] - top);
    } else {
      for (int j = 0; j < out.k; ++j) sum += expf(l[ids[j]] - top);
    }
    for (int j = 0; j < out.k; ++j) weights[j] = expf(l[ids[j]] - top) / sum;
  }
}

__global__ void __launch_bounds__(kThreads) CombineKernel(const float* y, Routing routing, const float* scale, Mat out) {
  const int64_t d = out.cols;
  for (int64_t i = GridThread(); i < out.rows * d; i += GridThreads()) {
    const int64_t t = i / d, c = i % d;
    float sum = 0.f;
    for (int j = 0; j < routing.k; ++j) {
      const int64_t pair = t * routing.k + j;
      const float w = scale == nullptr ? routing.weights[pair] : routing.weights[pair] * scale[routing.ids[pair]];
      sum += w * y[pair * d + c];
    }
    out.data[t * out.stride + c] = sum;
  }
}

}  // namespace

void Route(cudaStream_t stream, ConstMat logits, RouterNorm norm, const Routing& out) {
  if (logits.rows == 0) return;
  Launch(RouteKernel, Blocks(logits.rows, kThreads), kThreads, 0, stream, logits.data, logits.stride, logits.rows, logits.cols, norm, out);
}

void CombineExperts(cudaStream_t stream, const float* y, const Routing& routing, const float* scale, Mat out) {
  if (out.rows == 0) return;
  Launch(CombineKernel, Blocks(out.rows * out.cols, kThreads), kThreads, 0, stream, y, routing, scale, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
