#pragma once
// The few vector operations the CPU kernels are written in. A kernel source is compiled once per instruction set (kernels/CMakeLists.txt)
// with HF_ISA naming the namespace, so the same text becomes the scalar, AVX2 and AVX-512 kernels. Include it only from isa_*.cc.
//
// Everything is in an unnamed namespace, and these sources include no standard header with inline code: an inline function compiled
// here with -mavx512 could otherwise be the copy the linker keeps for a machine without it.
//
//   F32, I32   kLanes floats or int32; Codes: 4 * kLanes bytes, lane r holding four consecutive codes of row r
//   Fma(a,b,c) a * b + c, fused wherever the machine fuses (products are never contracted by the compiler: -ffp-contract=off)
//   Max, Min   return the second operand when either is NaN
//   KeepRange(v, other, low, high)   lanes low..high of v, the others of `other`
//   Round, TimesPowerOfTwo           nearest-even integer; v * 2^n for n in [-126, 127]
//   Dpbusd     acc += dot of four unsigned codes with four signed bytes, per lane (kHasDpbusd)
//   DotPart, Flush   the same where there is no such instruction: products gather in a 16-bit Part, at most kSteps of them, and then
//              join the total. kFull: codes use all 8 bits with zero point 128, which DotPart already subtracts.
#if defined(__AVX512BW__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_scalar.h"
#endif
