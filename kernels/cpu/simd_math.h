#pragma once
// exp, tanh and the activations on vectors. Included after simd.h by isa_vector.cc and isa_attention.cc.
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::HF_ISA {
namespace {

// exp(x) within 2 ulp; below -87.3 it stays at exp(-87.3), above 88.3 at exp(88.3); NaN stays NaN. 2^n * (Taylor to degree 7 on
// |r| <= ln 2 / 2, whose remainder is below 6e-9).
inline F32 Exp(F32 x) {
  x = Min(Set1(88.3f), Max(Set1(-87.3f), x));
  const I32 n = Round(Mul(x, Set1(1.44269504f)));
  const F32 k = ToFloat(n);
  F32 r = Fma(k, Set1(-0.693145752f), x);  // ln 2 in two parts, the first with low bits clear
  r = Fma(k, Set1(-1.42860677e-6f), r);
  F32 p = Set1(1.f / 5040);
  p = Fma(p, r, Set1(1.f / 720));
  p = Fma(p, r, Set1(1.f / 120));
  p = Fma(p, r, Set1(1.f / 24));
  p = Fma(p, r, Set1(1.f / 6));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(p, r, Set1(1.f));
  p = Fma(p, r, Set1(1.f));
  return TimesPowerOfTwo(p, n);
}

// 1 - 2 / (exp(2x) + 1): absolute error below 2e-7.
inline F32 Tanh(F32 x) {
  const F32 e = Exp(Add(x, x));
  return Sub(Set1(1.f), Div(Set1(2.f), Add(e, Set1(1.f))));
}

inline F32 Silu(F32 x) { return Div(x, Add(Set1(1.f), Exp(Sub(Zero(), x)))); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for negative x.
inline F32 GeluTanh(F32 x) {
  const F32 cubic = Mul(Mul(x, x), x);
  const F32 u = Mul(Set1(0.797884561f), Fma(Set1(0.044715f), cubic, x));
  return Div(x, Add(Set1(1.f), Exp(Mul(Set1(-2.f), u))));
}

inline F32 SwigluOai(F32 gate, F32 up) {
  const F32 g = Min(Set1(7.f), gate);
  const F32 u = Min(Set1(7.f), Max(Set1(-7.f), up));
  const F32 s = Div(g, Add(Set1(1.f), Exp(Mul(Set1(-1.702f), g))));
  return Mul(s, Add(u, Set1(1.f)));
}

}  // namespace
}  // namespace holdfast::kernels::HF_ISA
