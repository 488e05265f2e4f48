#include <cstring>

#include "kernels/cuda/weight_layout.h"
#include "kernels/quant_blocks.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

// Where a row of a group lives.
struct Row {
  int g, hi;
};

void PutCodes(CodeKind kind, uint8_t* record, int blk, Row r, const uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {   // k of half 0, and its partner in half 1
    const int c = i / 4, j = i % 4, lane = 4 * r.g + c;
    const uint8_t low = codes[i], high = codes[16 + i];
    switch (kind) {
      case CodeKind::kNibble:
      case CodeKind::kNibbleSigned: record[lane * 16 + (2 * blk + r.hi) * 4 + j] = static_cast<uint8_t>((low & 15) | high << 4); break;
      case CodeKind::kNibbleTable: {
        uint8_t* word = record + lane * 16 + (2 * blk + r.hi) * 4;
        word[j / 2] = static_cast<uint8_t>(word[j / 2] | low << (4 * (j % 2)));
        word[2 + j / 2] = static_cast<uint8_t>(word[2 + j / 2] | high << (4 * (j % 2)));
        break;
      }
      case CodeKind::kByte:
        record[512 * blk + lane * 16 + r.hi * 4 + j] = low;
        record[512 * blk + lane * 16 + (2 + r.hi) * 4 + j] = high;
        break;
      case CodeKind::kSix: {
        record[lane * 16 + (2 * blk + r.hi) * 4 + j] = static_cast<uint8_t>((low & 15) | high << 4);
        uint8_t& bits = record[512 + lane * 8 + blk * 4 + j];
        bits = static_cast<uint8_t>(bits | (low >> 4 & 3) << (2 * r.hi) | (high >> 4 & 3) << (4 + 2 * r.hi));
        break;
      }
      case CodeKind::kFloat16:
      case CodeKind::kFloat32: break;
    }
  }
}

void PackFloat(DType type, int64_t in, const uint8_t* row, uint8_t* group, Row r) {
  const int record = RecordBytes(PackedFormatOf(type));
  for (int64_t k = 0; k < in; ++k) {
    uint8_t* tile = group + k / kTileK * record;
    const int step = static_cast<int>(k % kTileK) / 16, i = static_cast<int>(k % 16), lane = 4 * r.g + i % 8 / 2;
    if (type == DType::kF32) {
      std::memcpy(tile + step * 1024 + i / 8 * 512 + lane * 16 + (2 * r.hi + i % 2) * 4, row + 4 * k, 4);
    } else {
      std::memcpy(tile + step * 512 + lane * 16 + (2 * (i / 8) + r.hi) * 4 + i % 2 * 2, row + 2 * k, 2);
    }
  }
}

// A file block of 32: codes as they are multiplied (two's complement), and its scale fields.
void PackBlock32(DType type, const uint8_t* b, uint8_t* record, int blk, Row r) {
  const PackedFormat f = PackedFormatOf(type);
  uint8_t codes[32];
  uint8_t* scales = record + CodeBytes(f.codes);
  int header = 2;   // bytes of scale and min, as the record has them
  switch (type) {
    case DType::kQ4_0:
      UnpackNibbles(b + 2, codes);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(c - 8);
      break;
    case DType::kQ4_1:
      header = 4;
      UnpackNibbles(b + 4, codes);
      break;
    case DType::kQ5_0:
      UnpackQ5(b + 2, b + 6, codes);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(c - 16);
      break;
    case DType::kQ5_1:
      header = 4;
      UnpackQ5(b + 4, b + 8, codes);
      break;
    case DType::kQ8_0: std::memcpy(codes, b + 2, 32); break;
    case DType::kIQ4_NL: UnpackNibbles(b + 2, codes); break;
    default:   // MXFP4
      header = 1;
      UnpackNibbles(b + 1, codes);
  }
  std::memcpy(scales + (r.g * 4 + blk * 2 + r.hi) * header, b, static_cast<size_t>(header));
  PutCodes(f.codes, record, blk, r, codes);
}

// A file block of 256, into its super and four records.
void PackBlock256(DType type, const uint8_t* b, uint8_t* super, uint8_t* records, Row r) {
  const PackedFormat f = PackedFormatOf(type);
  const int record = RecordBytes(f);
  uint8_t codes[256];
  const auto scales_of = [&](int block) { return records + block / 2 * record + CodeBytes(f.codes); };   // block of 32
  const auto put_halves = [&](const uint8_t* d, const uint8_t* dmin) {
    std::memcpy(super + r.g * 8 + r.hi * 4, d, 2);
    std::memcpy(super + r.g * 8 + r.hi * 4 + 2, dmin, 2);
  };
  switch (type) {
    case DType::kQ2_K:
      UnpackQ2K(b, codes);
      put_halves(b + 80, b + 82);
      for (int s = 0; s < 16; ++s) {
        uint8_t* at = scales_of(s / 2) + (r.g * 8 + s / 2 % 2 * 4 + s % 2 * 2 + r.hi) * 2;
        at[0] = b[s] & 15;
        at[1] = b[s] >> 4;
      }
      break;
    case DType::kQ3_K:
    case DType::kQ6_K:
      type == DType::kQ3_K ? UnpackQ3K(b, codes) : UnpackQ6K(b, codes);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(c - (type == DType::kQ3_K ? 4 : 32));
      std::memcpy(super + r.g * 4 + r.hi * 2, b + (type == DType::kQ3_K ? 108 : 208), 2);
      for (int s = 0; s < 16; ++s) {
        scales_of(s / 2)[r.g * 8 + s / 2 % 2 * 4 + s % 2 * 2 + r.hi] =
            type == DType::kQ3_K ? static_cast<uint8_t>(Q3Scale(b + 96, s) - 32) : b[192 + s];
      }
      break;
    default:   // Q4_K, Q5_K
      type == DType::kQ4_K ? UnpackQ4K(b, codes) : UnpackQ5K(b, codes);
      put_halves(b, b + 2);
      for (int s = 0; s < 8; ++s) {
        const ScaleMin sm = KScaleMin(b + 4, s);
        uint8_t* at = scales_of(s) + (r.g * 4 + s % 2 * 2 + r.hi) * 2;
        at[0] = sm.scale;
        at[1] = sm.min;
      }
  }
  for (int s = 0; s < 8; ++s) PutCodes(f.codes, records + s / 2 * record, s % 2, r, codes + 32 * s);
}

}  // namespace

void PackWeights(DType type, int64_t out, int64_t in, const std::byte* src, std::byte* dst) {
  const DTypeInfo& info = InfoOf(type);
  const PackedFormat f = PackedFormatOf(type);
  const int64_t row_bytes = RowBytes(type, in), group_bytes = GroupBytes(type, in), supers = SupersBytes(type, in), record = RecordBytes(f);
  std::memset(dst, 0, static_cast<size_t>(PackedBytes(type, out, in)));
  for (int64_t o = 0; o < out; ++o) {
    const uint8_t* row = reinterpret_cast<const uint8_t*>(src) + o * row_bytes;
    uint8_t* group = reinterpret_cast<uint8_t*>(dst) + o / kGroupRows * group_bytes;
    const Row r{static_cast<int>(o % 8), static_cast<int>(o % kGroupRows / 8)};
    if (info.block_elements == 1) {
      PackFloat(type, in, row, group, r);
    } else if (info.block_elements == 32) {
      for (int64_t b = 0; b < in / 32; ++b) PackBlock32(type, row + b * info.block_bytes, group + b / 2 * record, static_cast<int>(b % 2), r);
    } else {
      for (int64_t b = 0; b < in / 256; ++b) {
        PackBlock256(type, row + b * info.block_bytes, group + b * SuperBytes(f.scales), group + supers + b * 4 * record, r);
      }
    }
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
