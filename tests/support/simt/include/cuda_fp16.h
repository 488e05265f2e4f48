#pragma once
#include "cuda_runtime.h"
#include "kernels/convert.h"

namespace simt {

struct __half {
  uint16_t bits = 0;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;
inline __half __ushort_as_half(unsigned short b) { return {b}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline float __half2float(__half h) { return ::holdfast::kernels::F16ToF32(h.bits); }
inline __half __float2half_rn(float f) { return {::holdfast::kernels::F32ToF16(f)}; }
inline __half __float2half(float f) { return __float2half_rn(f); }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }

}  // namespace simt
