#pragma once
#include "cuda_runtime.h"
#include "kernels/convert.h"

namespace simt {

struct __nv_bfloat16 {
  uint16_t bits = 0;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { return {b}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline float __bfloat162float(__nv_bfloat16 h) { return ::holdfast::kernels::Bf16ToF32(h.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return {::holdfast::kernels::F32ToBf16(f)}; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {__bfloat162float(h.x), __bfloat162float(h.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)}; }

}  // namespace simt
