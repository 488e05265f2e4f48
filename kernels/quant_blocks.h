#pragma once
// The block formats of GGUF: values out of blocks, and blocks out of values.
//
// A row is n elements (a multiple of the type's block) packed one block after another; fields are little-endian and unaligned.
// A value is computed in f32 exactly as written there (scale products first).
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace holdfast::kernels {

// out[0..n) = the row's values.
void DequantizeRow(DType type, const std::byte* row, float* out, int64_t n);

// Whether QuantizeRow knows the type: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q6_K, IQ4_NL and MXFP4.
bool CanQuantize(DType type);

// Packs n finite values into blocks by a plain rule (nearest code for a scale taken from the extremes; no search). It serves to write
// test files and demo models, not to quantise models well. HF_CHECKs CanQuantize(type).
void QuantizeRow(DType type, const float* values, std::byte* row, int64_t n);

// Pieces of the K formats that repacking needs too.
struct ScaleMin {
  uint8_t scale = 0;
  uint8_t min = 0;
};
// 6-bit scale and min of sub-block j (0..7) out of the 12 bytes of Q4_K and Q5_K.
ScaleMin KScaleMin(const uint8_t* scales, int j);
// 6-bit scale (0..63, the value is minus 32) of sub-block j (0..15) out of the 12 bytes of Q3_K.
uint8_t Q3Scale(const uint8_t* scales, int j);

// Code to value: IQ4_NL's table and MXFP4's doubled e2m1.
extern const int8_t kIq4NlValues[16];
extern const int8_t kMxfp4Values[16];
// 2^(e-128) of an E8M0 byte.
float Mxfp4Scale(uint8_t e);

// Codes of one block, unpacked: what DequantizeRow and the packing of weights share. codes[j] are the unsigned codes in element order.
void UnpackNibbles(const uint8_t* qs, uint8_t* codes);             // 16 bytes -> 32: low nibbles are 0..15
void UnpackQ5(const uint8_t* qh, const uint8_t* qs, uint8_t* codes);  // Q5_0, Q5_1: 32 codes of 5 bits
void UnpackQ2K(const uint8_t* block, uint8_t* codes);              // 256 codes of 2 bits
void UnpackQ3K(const uint8_t* block, uint8_t* codes);              // 256 codes 0..7, the value is minus 4
void UnpackQ4K(const uint8_t* block, uint8_t* codes);              // 256 codes of 4 bits
void UnpackQ5K(const uint8_t* block, uint8_t* codes);              // 256 codes of 5 bits
void UnpackQ6K(const uint8_t* block, uint8_t* codes);              // 256 codes 0..63, the value is minus 32

}  // namespace holdfast::kernels
