#include "kernels/quant_blocks.h"

#include <bit>
#include <cstring>

#include "kernels/convert.h"
#include "proto/base/check.h"

namespace holdfast::kernels {

const int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float Mxfp4Scale(uint8_t e) {
  if (e < 2) return std::bit_cast<float>(uint32_t{0x00200000} << e);  // 2^-128 and 2^-127 are denormals
  return std::bit_cast<float>(static_cast<uint32_t>(e - 1) << 23);
}

ScaleMin KScaleMin(const uint8_t* s, int j) {
  ScaleMin r;
  if (j < 4) {
    r.scale = s[j] & 63;
    r.min = s[j + 4] & 63;
  } else {
    r.scale = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    r.min = static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
  return r;
}

uint8_t Q3Scale(const uint8_t* s, int j) {
  const uint8_t low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return static_cast<uint8_t>(low | ((s[8 + j % 4] >> (2 * (j / 4))) & 3) << 4);
}

void UnpackNibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + 16] = qs[j] >> 4;
  }
}

void UnpackQ5(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  UnpackNibbles(qs, codes);
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((qh[j / 8] >> (j % 8)) & 1) << 4);
}

void UnpackQ2K(const uint8_t* block, uint8_t* codes) {
  const uint8_t* qs = block + 16;
  for (int i = 0; i < 256; ++i) {
    const int h = i / 128, g = i % 128 / 32, l = i % 32;
    codes[i] = (qs[32 * h + l] >> (2 * g)) & 3;
  }
}

void UnpackQ3K(const uint8_t* block, uint8_t* codes) {
  const uint8_t* qs = block + 32;
  for (int i = 0; i < 256; ++i) {
    const int h = i / 128, g = i % 128 / 32, l = i % 32;
    codes[i] = static_cast<uint8_t>(((qs[32 * h + l] >> (2 * g)) & 3) | ((block[l] >> (4 * h + g)) & 1) << 2);
  }
}

void UnpackQ4K(const uint8_t* block, uint8_t* codes) {
  const uint8_t* qs = block + 16;
  for (int i = 0; i < 256; ++i) {
    const uint8_t q = qs[32 * (i / 64) + i % 32];
    codes[i] = i % 64 < 32 ? q & 15 : q >> 4;
  }
}

void UnpackQ5K(const uint8_t* block, uint8_t* codes) {
  const uint8_t* qh = block + 16;
  const uint8_t* qs = block + 48;
  for (int i = 0; i < 256; ++i) {
    const uint8_t q = qs[32 * (i / 64) + i % 32];
    codes[i] = static_cast<uint8_t>((i % 64 < 32 ? q & 15 : q >> 4) | ((qh[i % 32] >> (i / 32)) & 1) << 4);
  }
}

void UnpackQ6K(const uint8_t* block, uint8_t* codes) {
  for (int h = 0; h < 2; ++h) {
    const uint8_t* ql = block + 64 * h;
    const uint8_t* qh = block + 128 + 32 * h;
    uint8_t* c = codes + 128 * h;
    for (int l = 0; l < 32; ++l) {
      c[l] = static_cast<uint8_t>((ql[l] & 15) | (qh[l] & 3) << 4);
      c[l + 32] = static_cast<uint8_t>((ql[l + 32] & 15) | ((qh[l] >> 2) & 3) << 4);
      c[l + 64] = static_cast<uint8_t>((ql[l] >> 4) | ((qh[l] >> 4) & 3) << 4);
      c[l + 96] = static_cast<uint8_t>((ql[l + 32] >> 4) | ((qh[l] >> 6) & 3) << 4);
    }
  }
}

namespace {

float ReadF16(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return F16ToF32(h);
}

void Block32(DType type, const uint8_t* b, float* out) {
  uint8_t c[32];
  switch (type) {
    case DType::kQ4_0: {
      const float d = ReadF16(b);
      UnpackNibbles(b + 2, c);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j] - 8) * d;
      return;
    }
    case DType::kQ4_1: {
      const float d = ReadF16(b), m = ReadF16(b + 2);
      UnpackNibbles(b + 4, c);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j]) * d + m;
      return;
    }
    case DType::kQ5_0: {
      const float d = ReadF16(b);
      UnpackQ5(b + 2, b + 6, c);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j] - 16) * d;
      return;
    }
    case DType::kQ5_1: {
      const float d = ReadF16(b), m = ReadF16(b + 2);
      UnpackQ5(b + 4, b + 8, c);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(c[j]) * d + m;
      return;
    }
    case DType::kQ8_0: {
      const float d = ReadF16(b);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
      return;
    }
    case DType::kIQ4_NL: {
      const float d = ReadF16(b);
      UnpackNibbles(b + 2, c);
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(kIq4NlValues[c[j]]);
      return;
    }
    case DType::kMXFP4: {
      const float d = Mxfp4Scale(b[0]);
      UnpackNibbles(b + 1, c);
      for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(kMxfp4Values[c[j]]) * d;
      return;
    }
    default: HF_CHECKF(false, "no block of 32: {}", InfoOf(type).name);
  }
}

void Block256(DType type, const uint8_t* b, float* out) {
  uint8_t c[256];
  switch (type) {
    case DType::kQ2_K: {
      const float d = ReadF16(b + 80), dmin = ReadF16(b + 82);
      UnpackQ2K(b, c);
      for (int i = 0; i < 256; ++i) {
        const uint8_t s = b[i / 16];
        out[i] = d * static_cast<float>(s & 15) * static_cast<float>(c[i]) - dmin * static_cast<float>(s >> 4);
      }
      return;
    }
    case DType::kQ3_K: {
      const float d = ReadF16(b + 108);
      UnpackQ3K(b, c);
      for (int i = 0; i < 256; ++i) {
        out[i] = d * static_cast<float>(Q3Scale(b + 96, i / 16) - 32) * static_cast<float>(c[i] - 4);
      }
      return;
    }
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const float d = ReadF16(b), dmin = ReadF16(b + 2);
      type == DType::kQ4_K ? UnpackQ4K(b, c) : UnpackQ5K(b, c);
      for (int i = 0; i < 256; ++i) {
        const ScaleMin s = KScaleMin(b + 4, i / 32);
        out[i] = d * static_cast<float>(s.scale) * static_cast<float>(c[i]) - dmin * static_cast<float>(s.min);
      }
      return;
    }
    case DType::kQ6_K: {
      const float d = ReadF16(b + 208);
      UnpackQ6K(b, c);
      for (int i = 0; i < 256; ++i) {
        out[i] = d * static_cast<float>(static_cast<int8_t>(b[192 + i / 16])) * static_cast<float>(c[i] - 32);
      }
      return;
    }
    default: HF_CHECKF(false, "no block of 256: {}", InfoOf(type).name);
  }
}

}  // namespace

void DequantizeRow(DType type, const std::byte* row, float* out, int64_t n) {
  const uint8_t* b = reinterpret_cast<const uint8_t*>(row);
  const DTypeInfo& info = InfoOf(type);
  HF_CHECKF(n % info.block_elements == 0, "{} elements are not whole blocks of {}", n, info.name);
  if (type == DType::kF32) {
    std::memcpy(out, row, static_cast<size_t>(n) * 4);
  } else if (type == DType::kF16 || type == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) {
      uint16_t h;
      std::memcpy(&h, b + 2 * i, 2);
      out[i] = type == DType::kF16 ? F16ToF32(h) : Bf16ToF32(h);
    }
  } else if (info.block_elements == 32) {
    for (int64_t i = 0; i < n; i += 32, b += info.block_bytes) Block32(type, b, out + i);
  } else {
    for (int64_t i = 0; i < n; i += 256, b += info.block_bytes) Block256(type, b, out + i);
  }
}

}  // namespace holdfast::kernels
