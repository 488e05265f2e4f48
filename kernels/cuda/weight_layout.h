#pragma once
// How the CUDA backend keeps weights: in the order in which lanes of a warp hold them as the left operand of a tensor core's multiply
// (mma.cuh), so that a warp's loads are whole aligned lines and no shared memory is needed to bring codes where they belong.
//
// A matrix is cut into groups of 16 rows, a group's K into tiles of 64 (the last is padded with zeros), a tile into two blocks of 32. A group is a
// run of bytes: first what belongs to 256 of K (`super`, types of 256 only), then one record a tile: codes, then scales.
//
// Within a record, row r = 8 * hi + g and k = 32 * blk + 16 * half + 4 * c + j belong to lane 4g + c:
//   nibbles (512 bytes): 16 bytes a lane, word 2 * blk + hi, byte j, half 0 below and half 1 above;
//     of table types: nibble 4 * half + j of that word
//   bytes (1024): 16 bytes a lane for blk 0, then for blk 1; word 2 * half + hi, byte j
//   sixes (768): nibbles, then 8 bytes a lane: word blk, byte j, bits 2 * (2 * half + hi) and up: the high two bits
//   16-bit floats (2048): four steps of 16 k, each 16 bytes a lane: word 2 * (k % 16 / 8) + hi, half k % 2, lane 4g + k % 8 / 2
//   32-bit floats (4096): four steps of 16 k, each twice (k % 16 / 8) 16 bytes a lane: word 2 * hi + k % 2
// Scales, by g:
//   kHalf: f16 [g][blk][hi]                kHalfMin: f16 [g][blk][hi][scale, min]            kExponent: E8M0 [g][blk][hi]
//   kScaleMin: u8 [g][blk][hi][scale, min] with super f16 [g][hi][d, dmin]
//   kScale16: i8 [g][blk][half][hi] with super f16 [g][hi]
//   kScaleMin16: u8 [g][blk][half][hi][scale, min] with super f16 [g][hi][d, dmin]
// Nothing is lost: a row comes out of it with the bits that the file's blocks give.
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline constexpr int kGroupRows = 16;
inline constexpr int kTileK = 64;
// Weight::layout. No other backend has this number: a worker may be handed the packed weights of one that ran on another backend, and knows
// them by their layouts' numbers and sizes.
inline constexpr uint8_t kLayoutFile = 0, kLayoutPacked = 128;

enum class CodeKind : uint8_t { kNibble, kNibbleSigned, kNibbleTable, kByte, kSix, kFloat16, kFloat32 };
enum class ScaleKind : uint8_t { kNone, kHalf, kHalfMin, kExponent, kScaleMin, kScale16, kScaleMin16 };

struct PackedFormat {
  CodeKind codes;
  ScaleKind scales;
};

constexpr PackedFormat PackedFormatOf(DType type) {
  switch (type) {
    case DType::kF32: return {CodeKind::kFloat32, ScaleKind::kNone};
    case DType::kF16:
    case DType::kBF16: return {CodeKind::kFloat16, ScaleKind::kNone};
    case DType::kQ4_0: return {CodeKind::kNibbleSigned, ScaleKind::kHalf};
    case DType::kQ4_1: return {CodeKind::kNibble, ScaleKind::kHalfMin};
    case DType::kQ5_0:
    case DType::kQ8_0: return {CodeKind::kByte, ScaleKind::kHalf};
    case DType::kQ5_1: return {CodeKind::kByte, ScaleKind::kHalfMin};
    case DType::kQ2_K: return {CodeKind::kByte, ScaleKind::kScaleMin16};
    case DType::kQ3_K: return {CodeKind::kByte, ScaleKind::kScale16};
    case DType::kQ4_K: return {CodeKind::kNibble, ScaleKind::kScaleMin};
    case DType::kQ5_K: return {CodeKind::kByte, ScaleKind::kScaleMin};
    case DType::kQ6_K: return {CodeKind::kSix, ScaleKind::kScale16};
    case DType::kIQ4_NL: return {CodeKind::kNibbleTable, ScaleKind::kHalf};
    case DType::kMXFP4: return {CodeKind::kNibbleTable, ScaleKind::kExponent};
  }
  return {CodeKind::kFloat32, ScaleKind::kNone};
}

constexpr int CodeBytes(CodeKind kind) {
  switch (kind) {
    case CodeKind::kNibble:
    case CodeKind::kNibbleSigned:
    case CodeKind::kNibbleTable: return 512;
    case CodeKind::kSix: return 768;
    case CodeKind::kByte: return 1024;
    case CodeKind::kFloat16: return 2048;
    case CodeKind::kFloat32: return 4096;
  }
  return 0;
}
constexpr int ScaleBytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kNone: return 0;
    case ScaleKind::kExponent: return 32;
    case ScaleKind::kHalf:
    case ScaleKind::kScaleMin:
    case ScaleKind::kScale16: return 64;
    case ScaleKind::kHalfMin:
    case ScaleKind::kScaleMin16: return 128;
  }
  return 0;
}
constexpr int SuperBytes(ScaleKind kind) {
  return kind == ScaleKind::kScale16 ? 32 : kind == ScaleKind::kScaleMin || kind == ScaleKind::kScaleMin16 ? 64 : 0;
}

constexpr int RecordBytes(PackedFormat f) { return CodeBytes(f.codes) + ScaleBytes(f.scales); }
constexpr int64_t TilesOf(int64_t in) { return (in + kTileK - 1) / kTileK; }
constexpr int64_t GroupsOf(int64_t out) { return (out + kGroupRows - 1) / kGroupRows; }
constexpr int64_t SupersBytes(DType type, int64_t in) { return in / 256 * SuperBytes(PackedFormatOf(type).scales); }
constexpr int64_t GroupBytes(DType type, int64_t in) { return SupersBytes(type, in) + TilesOf(in) * RecordBytes(PackedFormatOf(type)); }
constexpr int64_t PackedBytes(DType type, int64_t out, int64_t in) { return GroupsOf(out) * GroupBytes(type, in); }

// The file's [out][in] rows into PackedBytes of dst. Any thread.
void PackWeights(DType type, int64_t out, int64_t in, const std::byte* src, std::byte* dst);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
