#include "kernels/cpu/pack_weights.h"

#include <array>
#include <cstring>
#include <vector>

#include "kernels/convert.h"
#include "kernels/quant_blocks.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

uint16_t Read16(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return h;
}
float ReadF(const uint8_t* p) {
  float f;
  std::memcpy(&f, p, 4);
  return f;
}
void WriteF(uint8_t* p, float f) { std::memcpy(p, &f, 4); }

struct Geometry {
  int64_t record;   // elements of K
  int64_t bytes;    // of a record of 16 rows
};

Geometry GeometryOf(PackedLayout layout) {
  switch (layout) {
    case kPackF32: return {1, 64};
    case kPackF16:
    case kPackBF16: return {1, 32};
    case kPackQ4_0: return {32, 288};
    case kPackQ4_1: return {32, 320};
    case kPackQ8_0: return {32, 544};
    case kPackQ4_K: return {256, 2368};
    case kPackQ6_K: return {256, 3360};
    case kPackTable: return {32, 320};
    case kPackWide: return {32, 640};
    case kPackWideMin: return {32, 768};
    case kPackNone:
    case kPackCount: break;
  }
  CheckFailed(__FILE__, __LINE__, "no such packed layout", {});
}

// Four codes of row r: bytes r*4.. of a code vector. A half's vectors follow each other; with nibbles both halves share four vectors.
void PutNibbles(uint8_t* vectors, int r, const uint8_t* codes) {
  for (int j = 0; j < 16; ++j) vectors[j / 4 * 64 + r * 4 + j % 4] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
}
void GetNibbles(const uint8_t* vectors, int r, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = vectors[j / 4 * 64 + r * 4 + j % 4] & 15;
    codes[j + 16] = vectors[j / 4 * 64 + r * 4 + j % 4] >> 4;
  }
}
void PutBytes(uint8_t* vectors, int r, const uint8_t* codes) {
  for (int v = 0; v < 8; ++v) std::memcpy(vectors + v * 64 + r * 4, codes + v * 4, 4);
}
void GetBytes(const uint8_t* vectors, int r, uint8_t* codes) {
  for (int v = 0; v < 8; ++v) std::memcpy(codes + v * 4, vectors + v * 64 + r * 4, 4);
}

// Wide layouts hold what every 5-bit and small K format comes to: a scale (and a min) for each half of 32 codes.
struct WideBlock {
  float scale[2] = {0, 0};
  float min[2] = {0, 0};
  uint8_t codes[32];
};

// The 32-element pieces of one file block.
void WideBlocks(DType type, const uint8_t* b, WideBlock* out) {
  uint8_t codes[256];
  switch (type) {
    case DType::kQ5_0:
      UnpackQ5(b + 2, b + 6, out->codes);
      out->scale[0] = out->scale[1] = F16ToF32(Read16(b));
      return;
    case DType::kQ5_1:
      UnpackQ5(b + 4, b + 8, out->codes);
      out->scale[0] = out->scale[1] = F16ToF32(Read16(b));
      out->min[0] = out->min[1] = F16ToF32(Read16(b + 2));
      return;
    case DType::kQ2_K: {
      const float d = F16ToF32(Read16(b + 80)), dmin = F16ToF32(Read16(b + 82));
      UnpackQ2K(b, codes);
      for (int s = 0; s < 16; ++s) {
        out[s / 2].scale[s % 2] = d * static_cast<float>(b[s] & 15);
        out[s / 2].min[s % 2] = -(dmin * static_cast<float>(b[s] >> 4));
      }
      break;
    }
    case DType::kQ3_K: {
      const float d = F16ToF32(Read16(b + 108));
      UnpackQ3K(b, codes);
      for (int s = 0; s < 16; ++s) out[s / 2].scale[s % 2] = d * static_cast<float>(Q3Scale(b + 96, s) - 32);
      break;
    }
    case DType::kQ5_K: {
      const float d = F16ToF32(Read16(b)), dmin = F16ToF32(Read16(b + 2));
      UnpackQ5K(b, codes);
      for (int s = 0; s < 16; ++s) {
        const ScaleMin sm = KScaleMin(b + 4, s / 2);
        out[s / 2].scale[s % 2] = d * static_cast<float>(sm.scale);
        out[s / 2].min[s % 2] = -(dmin * static_cast<float>(sm.min));
      }
      break;
    }
    default: HF_CHECKF(false, "{} is not packed wide", InfoOf(type).name);
  }
  for (int i = 0; i < 8; ++i) std::memcpy(out[i].codes, codes + 32 * i, 32);
}

// One file block of row r into the record (or, for wide types of 256, the eight records) at `d`.
void PackBlock(DType type, const uint8_t* b, uint8_t* d, int r) {
  uint8_t codes[256];
  switch (type) {
    case DType::kF32: std::memcpy(d + r * 4, b, 4); return;
    case DType::kF16:
    case DType::kBF16: std::memcpy(d + r * 2, b, 2); return;
    case DType::kQ4_0:
    case DType::kQ4_1: {
      const int header = type == DType::kQ4_0 ? 1 : 2;  // the file pairs k and k + 16 in a byte, as the vectors do
      for (int i = 0; i < header; ++i) std::memcpy(d + i * 32 + r * 2, b + i * 2, 2);
      for (int v = 0; v < 4; ++v) std::memcpy(d + header * 32 + v * 64 + r * 4, b + header * 2 + v * 4, 4);
      return;
    }
    case DType::kQ8_0:
      std::memcpy(d + r * 2, b, 2);
      for (int j = 0; j < 32; ++j) codes[j] = b[2 + j] ^ 0x80;
      PutBytes(d + 32, r, codes);
      return;
    case DType::kIQ4_NL:
    case DType::kMXFP4: {
      const bool iq = type == DType::kIQ4_NL;
      WriteF(d + r * 4, iq ? F16ToF32(Read16(b)) : Mxfp4Scale(b[0]));
      UnpackNibbles(b + (iq ? 2 : 1), codes);
      PutNibbles(d + 64, r, codes);
      return;
    }
    case DType::kQ4_K:
      std::memcpy(d + r * 2, b, 2);
      std::memcpy(d + 32 + r * 2, b + 2, 2);
      UnpackQ4K(b, codes);
      for (int s = 0; s < 8; ++s) {
        const ScaleMin sm = KScaleMin(b + 4, s);
        d[64 + s * 16 + r] = sm.scale;
        d[192 + s * 16 + r] = sm.min;
        PutNibbles(d + 320 + s * 256, r, codes + s * 32);
      }
      return;
    case DType::kQ6_K:
      std::memcpy(d + r * 2, b + 208, 2);
      UnpackQ6K(b, codes);
      for (int s = 0; s < 16; ++s) d[32 + s * 16 + r] = b[192 + s];
      for (int s = 0; s < 8; ++s) {
        uint8_t* block = d + 288 + s * 384;
        uint8_t low[32];
        for (int j = 0; j < 32; ++j) low[j] = codes[s * 32 + j] & 15;
        PutNibbles(block, r, low);
        for (int j = 0; j < 16; ++j) {
          const int v = j / 4, bits = codes[s * 32 + j] >> 4 | (codes[s * 32 + 16 + j] >> 4) << 2;
          uint8_t& at = block[256 + v / 2 * 64 + r * 4 + j % 4];
          at = static_cast<uint8_t>(v % 2 == 0 ? (at & 0xf0) | bits : (at & 0x0f) | bits << 4);
        }
      }
      return;
    default: break;
  }
  const bool has_min = PackedLayoutOf(type) == kPackWideMin;
  WideBlock wide[8];
  WideBlocks(type, b, wide);
  for (uint32_t i = 0; i < InfoOf(type).block_elements / 32; ++i) {
    uint8_t* record = d + i * (has_min ? 768 : 640);
    for (int h = 0; h < 2; ++h) {
      WriteF(record + h * 64 + r * 4, wide[i].scale[h]);
      if (has_min) WriteF(record + 128 + h * 64 + r * 4, wide[i].min[h]);
    }
    PutBytes(record + (has_min ? 256 : 128), r, wide[i].codes);
  }
}

}  // namespace

PackedLayout PackedLayoutOf(DType type) {
  switch (type) {
    case DType::kF32: return kPackF32;
    case DType::kF16: return kPackF16;
    case DType::kBF16: return kPackBF16;
    case DType::kQ4_0: return kPackQ4_0;
    case DType::kQ4_1: return kPackQ4_1;
    case DType::kQ8_0: return kPackQ8_0;
    case DType::kQ4_K: return kPackQ4_K;
    case DType::kQ6_K: return kPackQ6_K;
    case DType::kIQ4_NL:
    case DType::kMXFP4: return kPackTable;
    case DType::kQ5_0:
    case DType::kQ3_K: return kPackWide;
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kQ2_K: return kPackWideMin;
  }
  CheckFailed(__FILE__, __LINE__, "unknown DType", {});
}

int64_t PackedGroupBytes(DType type, int64_t in) {
  const Geometry g = GeometryOf(PackedLayoutOf(type));
  return in / g.record * g.bytes;
}

void PackWeights(DType type, int64_t out, int64_t in, const std::byte* src, std::byte* dst) {
  const DTypeInfo& info = InfoOf(type);
  const int64_t row_bytes = RowBytes(type, in), group_bytes = PackedGroupBytes(type, in);
  const int64_t blocks = in / info.block_elements, step = group_bytes / (blocks > 0 ? blocks : 1);
  for (int64_t g = 0; g < PackedGroups(out); ++g) {
    uint8_t* group = reinterpret_cast<uint8_t*>(dst) + g * group_bytes;
    const int64_t rows = out - g * kGroupRows < kGroupRows ? out - g * kGroupRows : kGroupRows;
    if (rows < kGroupRows) std::memset(group, 0, static_cast<size_t>(group_bytes));
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* from = reinterpret_cast<const uint8_t*>(src) + (g * kGroupRows + r) * row_bytes + b * info.block_bytes;
        PackBlock(type, from, group + b * step, static_cast<int>(r));
      }
    }
  }
}

void UnpackRow(DType type, int64_t in, const std::byte* packed, int64_t row, float* values) {
  const PackedLayout layout = PackedLayoutOf(type);
  const Geometry g = GeometryOf(layout);
  const int r = static_cast<int>(row % kGroupRows);
  const uint8_t* p = reinterpret_cast<const uint8_t*>(packed) + row / kGroupRows * PackedGroupBytes(type, in);
  const int32_t zero = CodeZero(type);
  uint8_t c[32];
  for (int64_t k = 0; k < in; k += g.record, p += g.bytes) {
    float* out = values + k;
    switch (layout) {
      case kPackF32: *out = ReadF(p + r * 4); break;
      case kPackF16: *out = F16ToF32(Read16(p + r * 2)); break;
      case kPackBF16: *out = Bf16ToF32(Read16(p + r * 2)); break;
      case kPackQ4_0: {
        GetNibbles(p + 32, r, c);
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j] - 8) * F16ToF32(Read16(p + r * 2));
        break;
      }
      case kPackQ4_1: {
        GetNibbles(p + 64, r, c);
        const float d = F16ToF32(Read16(p + r * 2)), m = F16ToF32(Read16(p + 32 + r * 2));
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j]) * d + m;
        break;
      }
      case kPackQ8_0: {
        GetBytes(p + 32, r, c);
        const float d = F16ToF32(Read16(p + r * 2));
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j] - 128) * d;
        break;
      }
      case kPackQ4_K: {
        const float d = F16ToF32(Read16(p + r * 2)), dmin = F16ToF32(Read16(p + 32 + r * 2));
        for (int s = 0; s < 8; ++s) {
          GetNibbles(p + 320 + s * 256, r, c);
          for (int j = 0; j < 32; ++j) {
            out[s * 32 + j] = d * static_cast<float>(p[64 + s * 16 + r]) * static_cast<float>(c[j]) - dmin * static_cast<float>(p[192 + s * 16 + r]);
          }
        }
        break;
      }
      case kPackQ6_K: {
        const float d = F16ToF32(Read16(p + r * 2));
        for (int s = 0; s < 8; ++s) {
          const uint8_t* block = p + 288 + s * 384;
          GetNibbles(block, r, c);
          for (int j = 0; j < 32; ++j) {
            const int v = j % 16 / 4;
            const int high = block[256 + v / 2 * 64 + r * 4 + j % 4] >> (v % 2 * 4 + j / 16 * 2) & 3;
            const float scale = static_cast<float>(static_cast<int8_t>(p[32 + (2 * s + j / 16) * 16 + r]));
            out[s * 32 + j] = d * scale * static_cast<float>((c[j] | high << 4) - 32);
          }
        }
        break;
      }
      case kPackTable: {
        GetNibbles(p + 64, r, c);
        const uint8_t* table = CodeTable(type);
        for (int j = 0; j < 32; ++j) out[j] = ReadF(p + r * 4) * static_cast<float>(table[c[j]] - 128);
        break;
      }
      case kPackWide:
      case kPackWideMin: {
        const bool has_min = layout == kPackWideMin;
        GetBytes(p + (has_min ? 256 : 128), r, c);
        for (int j = 0; j < 32; ++j) {
          const float v = ReadF(p + j / 16 * 64 + r * 4) * static_cast<float>(c[j] - zero);
          out[j] = has_min ? v + ReadF(p + 128 + j / 16 * 64 + r * 4) : v;
        }
        break;
      }
      case kPackNone:
      case kPackCount: return;
    }
  }
}

const uint8_t* CodeTable(DType type) {
  static const auto tables = [] {
    std::array<std::array<uint8_t, 16>, 2> t{};
    for (size_t i = 0; i < 16; ++i) {
      t[0][i] = static_cast<uint8_t>(kIq4NlValues[i] + 128);
      t[1][i] = static_cast<uint8_t>(kMxfp4Values[i] + 128);
    }
    return t;
  }();
  return type == DType::kIQ4_NL ? tables[0].data() : type == DType::kMXFP4 ? tables[1].data() : nullptr;
}

int32_t CodeZero(DType type) { return type == DType::kQ5_0 ? 16 : type == DType::kQ3_K ? 4 : 0; }

}  // namespace holdfast::kernels
