#pragma once
// How a kernel reads one packed layout (kernel_table.h describes the bytes). Included by isa_gemm.cc only, after simd.h.
//
// Quantised formats: kRecord elements in kBytes; block s of 32 in the record; half 0 or 1 of the block; v-th vector of four k of the
// half. A value is scale * (code - zero) + min. kHalves: scale and min change every 16. kSteps: products a 16-bit Part can hold.
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline const uint16_t* Halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }
inline const float* Floats(const uint8_t* p) { return reinterpret_cast<const float*>(p); }

struct WeightsF32 {
  static constexpr bool kIsFloat = true;
  static constexpr int64_t kBytes = 64;
  static F32 Load(const uint8_t* r, int lane) { return HF_ISA::Load(Floats(r) + lane); }
};
struct WeightsF16 {
  static constexpr bool kIsFloat = true;
  static constexpr int64_t kBytes = 32;
  static F32 Load(const uint8_t* r, int lane) { return LoadF16(Halves(r) + lane); }
};
struct WeightsBF16 {
  static constexpr bool kIsFloat = true;
  static constexpr int64_t kBytes = 32;
  static F32 Load(const uint8_t* r, int lane) { return LoadBf16(Halves(r) + lane); }
};

inline Codes Nibbles(const uint8_t* vectors, int half, int v, int lane) {
  const Codes c = LoadCodes(vectors + v * 64 + lane * 4);
  return half == 0 ? LowNibbles(c) : HighNibbles(c);
}

struct WeightsQ4_0 {
  explicit WeightsQ4_0(const GemmArgs&) {}
  static constexpr bool kIsFloat = false, kHalves = false, kHasMin = false, kFull = false;
  static constexpr int kRecord = 32, kSteps = 4, kZero = 8;
  static constexpr int64_t kBytes = 288;
  static int32_t Start(const Aux& a) { return a.n8; }
  static F32 Scale(const uint8_t* r, int, int, int lane) { return LoadF16(Halves(r) + lane); }
  static Codes Load(const uint8_t* r, int, int half, int v, int lane) { return Nibbles(r + 32, half, v, lane); }
};

struct WeightsQ4_1 {
  explicit WeightsQ4_1(const GemmArgs&) {}
  static constexpr bool kIsFloat = false, kHalves = false, kHasMin = true, kFull = false;
  static constexpr int kRecord = 32, kSteps = 4, kZero = 0;
  static constexpr int64_t kBytes = 320;
  static int32_t Start(const Aux&) { return 0; }
  static F32 Scale(const uint8_t* r, int, int, int lane) { return LoadF16(Halves(r) + lane); }
  static F32 Min(const uint8_t* r, int, int, int lane) { return LoadF16(Halves(r + 32) + lane); }
  static Codes Load(const uint8_t* r, int, int half, int v, int lane) { return Nibbles(r + 64, half, v, lane); }
};

struct WeightsQ8_0 {
  explicit WeightsQ8_0(const GemmArgs&) {}
  static constexpr bool kIsFloat = false, kHalves = false, kHasMin = false, kFull = true;
  static constexpr int kRecord = 32, kSteps = 1, kZero = 128;
  static constexpr int64_t kBytes = 544;
  static int32_t Start(const Aux& a) { return kHasDpbusd ? a.n128 : 0; }
  static F32 Scale(const uint8_t* r, int, int, int lane) { return LoadF16(Halves(r) + lane); }
  static Codes Load(const uint8_t* r, int, int half, int v, int lane) { return LoadCodes(r + 32 + (half * 4 + v) * 64 + lane * 4); }
};

struct WeightsQ4_K {
  explicit WeightsQ4_K(const GemmArgs&) {}
  static constexpr bool kIsFloat = false, kHalves = false, kHasMin = true, kFull = false;
  static constexpr int kRecord = 256, kSteps = 4, kZero = 0;
  static constexpr int64_t kBytes = 64 + 256 + 2048;
  static int32_t Start(const Aux&) { return 0; }
  static F32 Scale(const uint8_t* r, int s, int, int lane) { return Mul(LoadF16(Halves(r) + lane), LoadU8(r + 64 + s * 16 + lane)); }
  static F32 Min(const uint8_t* r, int s, int, int lane) {
    return Sub(Zero(), Mul(LoadF16(Halves(r + 32) + lane), LoadU8(r + 192 + s * 16 + lane)));
  }
  static Codes Load(const uint8_t* r, int s, int half, int v, int lane) { return Nibbles(r + 320 + s * 256, half, v, lane); }
};

struct WeightsQ6_K {
  explicit WeightsQ6_K(const GemmArgs&) {}
  static constexpr bool kIsFloat = false, kHalves = true, kHasMin = false, kFull = false;
  static constexpr int kRecord = 256, kSteps = 2;
  static constexpr int64_t kBytes = 32 + 256 + 8 * 384;
  static int32_t StartHalf(int32_t sum) { return -32 * sum; }
  static F32 Scale(const uint8_t* r, int s, int half, int lane) {
    return Mul(LoadF16(Halves(r) + lane), LoadI8(r + 32 + (2 * s + half) * 16 + lane));
  }
  // Two vectors of nibbles share one of high bits: bits 0-1 and 2-3 are the low and high nibbles' of the even one, 4-7 the odd one's.
  static Codes Load(const uint8_t* r, int s, int half, int v, int lane) {
    const uint8_t* block = r + 288 + s * 384;
    const Codes low = Nibbles(block, half, v, lane);
    const Codes bits = LoadCodes(block + 256 + v / 2 * 64 + lane * 4);
    const int shift = (v % 2) * 4 + half * 2;
    return Or(low, shift == 0 ? Bits45<0>(bits) : shift == 2 ? Bits45<2>(bits) : shift == 4 ? Bits45<4>(bits) : Bits45<6>(bits));
  }
};

struct WeightsTable {
  explicit WeightsTable(const GemmArgs& a) : table(LoadTable(a.table)) {}
  static constexpr bool kIsFloat = false, kHalves = false, kHasMin = false, kFull = true;
  static constexpr int kRecord = 32, kSteps = 1, kZero = 128;
  static constexpr int64_t kBytes = 64 + 256;
  static int32_t Start(const Aux& a) { return kHasDpbusd ? a.n128 : 0; }
  static F32 Scale(const uint8_t* r, int, int, int lane) { return HF_ISA::Load(Floats(r) + lane); }
  Codes Load(const uint8_t* r, int, int half, int v, int lane) const { return Lookup(table, Nibbles(r + 64, half, v, lane)); }
  Codes table;
};

template <bool kMin>
struct WeightsWide {
  explicit WeightsWide(const GemmArgs& a) : zero(a.zero) {}
  static constexpr bool kIsFloat = false, kHalves = true, kHasMin = kMin, kFull = false;
  static constexpr int kRecord = 32, kSteps = 4;
  static constexpr int64_t kScales = kMin ? 256 : 128;
  static constexpr int64_t kBytes = kScales + 512;
  int32_t StartHalf(int32_t sum) const { return -zero * sum; }
  static F32 Scale(const uint8_t* r, int, int half, int lane) { return HF_ISA::Load(Floats(r) + half * 16 + lane); }
  static F32 Min(const uint8_t* r, int, int half, int lane) { return HF_ISA::Load(Floats(r + 128) + half * 16 + lane); }
  static Codes Load(const uint8_t* r, int, int half, int v, int lane) { return LoadCodes(r + kScales + (half * 4 + v) * 64 + lane * 4); }
  int32_t zero;
};

}  // namespace
}  // namespace holdfast::kernels::HF_ISA
