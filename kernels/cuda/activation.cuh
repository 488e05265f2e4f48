#pragma once
// Activations, in f32 with the full-precision functions.
#include "kernels/cuda/device.cuh"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

template <Activation kActivation>
__device__ __forceinline__ float ActivateValue(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    return x / (1.f + expf(-x));
  } else {
    constexpr float kRoot = 0.79788456080286535588f;  // sqrt(2 / pi)
    return 0.5f * x * (1.f + tanhf(kRoot * (x + 0.044715f * x * x * x)));
  }
}

// act(gate) * up; of swiglu-oai the clamped form of two inputs. NaN stays NaN (fminf and fmaxf would drop it).
template <Activation kActivation>
__device__ __forceinline__ float GateValue(float gate, float up) {
  if constexpr (kActivation == Activation::kSwigluOai) {
    const float g = gate > 7.f ? 7.f : gate, u = up > 7.f ? 7.f : up < -7.f ? -7.f : up;
    return g / (1.f + expf(-1.702f * g)) * (u + 1.f);
  } else {
    return ActivateValue<kActivation>(gate) * up;
  }
}

// f(std::integral_constant<Activation, A>).
template <class F>
void ForActivation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGeluTanh: return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kSwigluOai: return f(std::integral_constant<Activation, Activation::kSwigluOai>{});
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
