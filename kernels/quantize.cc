#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/quant_blocks.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

void WriteF16(uint8_t* p, float v) {
  const uint16_t h = F32ToF16(v);
  std::memcpy(p, &h, 2);
}

float ReadF16(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return F16ToF32(h);
}

// The value of largest magnitude, with its sign.
float Extreme(const float* x, int n) {
  float best = 0.f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}

uint8_t Clamp(float v, int high) { return static_cast<uint8_t>(std::clamp(static_cast<int>(v), 0, high)); }

void PackNibbles(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

uint8_t Nearest(const int8_t* table, float v) {
  int best = 0;
  for (int i = 1; i < 16; ++i) {
    if (std::fabs(v - static_cast<float>(table[i])) < std::fabs(v - static_cast<float>(table[best]))) best = i;
  }
  return static_cast<uint8_t>(best);
}

// Q4_0 and Q5_0: the extreme becomes the lowest code, so that its sign is free.
void Symmetric(const float* x, int bits, uint8_t* b) {
  const int half = 1 << (bits - 1);
  const float d = Extreme(x, 32) / static_cast<float>(-half);
  const float inverse = d != 0.f ? 1.f / d : 0.f;
  uint8_t c[32];
  for (int j = 0; j < 32; ++j) c[j] = Clamp(x[j] * inverse + static_cast<float>(half) + 0.5f, 2 * half - 1);
  WriteF16(b, d);
  if (bits == 4) return PackNibbles(c, b + 2);
  std::memset(b + 2, 0, 4);
  for (int j = 0; j < 32; ++j) b[2 + j / 8] = static_cast<uint8_t>(b[2 + j / 8] | (c[j] >> 4) << (j % 8));
  PackNibbles(c, b + 6);
}

// Q4_1 and Q5_1.
void Affine(const float* x, int bits, uint8_t* b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const int top = (1 << bits) - 1;
  const float d = (*high - *low) / static_cast<float>(top);
  const float inverse = d != 0.f ? 1.f / d : 0.f;
  uint8_t c[32];
  for (int j = 0; j < 32; ++j) c[j] = Clamp((x[j] - *low) * inverse + 0.5f, top);
  WriteF16(b, d);
  WriteF16(b + 2, *low);
  if (bits == 4) return PackNibbles(c, b + 4);
  std::memset(b + 4, 0, 4);
  for (int j = 0; j < 32; ++j) b[4 + j / 8] = static_cast<uint8_t>(b[4 + j / 8] | (c[j] >> 4) << (j % 8));
  PackNibbles(c, b + 8);
}

void Q8_0(const float* x, uint8_t* b) {
  const float d = std::fabs(Extreme(x, 32)) / 127.f;
  const float inverse = d != 0.f ? 1.f / d : 0.f;
  WriteF16(b, d);
  for (int j = 0; j < 32; ++j) b[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(std::lround(x[j] * inverse)));
}

void Iq4Nl(const float* x, uint8_t* b) {
  const float d = Extreme(x, 32) / -127.f;
  const float inverse = d != 0.f ? 1.f / d : 0.f;
  uint8_t c[32];
  for (int j = 0; j < 32; ++j) c[j] = Nearest(kIq4NlValues, x[j] * inverse);
  WriteF16(b, d);
  PackNibbles(c, b + 2);
}

void Mxfp4(const float* x, uint8_t* b) {
  const float amax = std::fabs(Extreme(x, 32));
  const int e = amax > 0.f ? std::clamp(static_cast<int>(std::floor(std::log2(amax))) - 2 + 127, 0, 254) : 0;
  const float scale = Mxfp4Scale(static_cast<uint8_t>(e));
  uint8_t c[32];
  for (int j = 0; j < 32; ++j) c[j] = Nearest(kMxfp4Values, x[j] / scale);
  b[0] = static_cast<uint8_t>(e);
  PackNibbles(c, b + 1);
}

void Q4_K(const float* x, uint8_t* b) {
  float scale[8], min[8], top_scale = 0.f, top_min = 0.f;
  for (int s = 0; s < 8; ++s) {
    const auto [low, high] = std::minmax_element(x + 32 * s, x + 32 * s + 32);
    min[s] = std::max(0.f, -*low);  // subtracted, so never negative
    scale[s] = (std::max(*high, 0.f) + min[s]) / 15.f;
    top_scale = std::max(top_scale, scale[s]);
    top_min = std::max(top_min, min[s]);
  }
  WriteF16(b, top_scale / 63.f);
  WriteF16(b + 2, top_min / 63.f);
  const float d = ReadF16(b), dmin = ReadF16(b + 2);
  std::memset(b + 4, 0, 12);
  uint8_t* packed = b + 4;
  for (int s = 0; s < 8; ++s) {
    const uint8_t sc = d > 0.f ? Clamp(scale[s] / d + 0.5f, 63) : 0;
    const uint8_t m = dmin > 0.f ? Clamp(min[s] / dmin + 0.5f, 63) : 0;
    if (s < 4) {
      packed[s] = static_cast<uint8_t>(packed[s] | sc);
      packed[s + 4] = static_cast<uint8_t>(packed[s + 4] | m);
    } else {
      packed[s + 4] = static_cast<uint8_t>((sc & 15) | (m & 15) << 4);
      packed[s - 4] = static_cast<uint8_t>(packed[s - 4] | (sc >> 4) << 6);
      packed[s] = static_cast<uint8_t>(packed[s] | (m >> 4) << 6);
    }
  }
  uint8_t c[256];
  for (int i = 0; i < 256; ++i) {
    const ScaleMin sm = KScaleMin(packed, i / 32);
    const float step = d * static_cast<float>(sm.scale);
    c[i] = step > 0.f ? Clamp((x[i] + dmin * static_cast<float>(sm.min)) / step + 0.5f, 15) : 0;
  }
  for (int p = 0; p < 4; ++p) {
    for (int l = 0; l < 32; ++l) b[16 + 32 * p + l] = static_cast<uint8_t>(c[64 * p + l] | c[64 * p + 32 + l] << 4);
  }
}

void Q6_K(const float* x, uint8_t* b) {
  float scale[16], top = 0.f;
  for (int s = 0; s < 16; ++s) {
    scale[s] = Extreme(x + 16 * s, 16) / -32.f;
    if (std::fabs(scale[s]) > std::fabs(top)) top = scale[s];
  }
  WriteF16(b + 208, top / -128.f);
  const float d = ReadF16(b + 208);
  uint8_t c[256];
  for (int s = 0; s < 16; ++s) {
    const float code = d != 0.f ? std::nearbyint(scale[s] / d) : 0.f;
    const int8_t sc = static_cast<int8_t>(std::clamp(code, -128.f, 127.f));
    b[192 + s] = static_cast<uint8_t>(sc);
    const float step = d * static_cast<float>(sc);
    for (int i = 16 * s; i < 16 * s + 16; ++i) c[i] = step != 0.f ? Clamp(x[i] / step + 32.5f, 63) : 32;
  }
  for (int h = 0; h < 2; ++h) {
    for (int l = 0; l < 32; ++l) {
      const uint8_t* q = c + 128 * h + l;
      b[64 * h + l] = static_cast<uint8_t>((q[0] & 15) | (q[64] & 15) << 4);
      b[64 * h + 32 + l] = static_cast<uint8_t>((q[32] & 15) | (q[96] & 15) << 4);
      b[128 + 32 * h + l] = static_cast<uint8_t>(q[0] >> 4 | (q[32] >> 4) << 2 | (q[64] >> 4) << 4 | (q[96] >> 4) << 6);
    }
  }
}

void Block(DType type, const float* x, uint8_t* b) {
  switch (type) {
    case DType::kQ4_0: return Symmetric(x, 4, b);
    case DType::kQ4_1: return Affine(x, 4, b);
    case DType::kQ5_0: return Symmetric(x, 5, b);
    case DType::kQ5_1: return Affine(x, 5, b);
    case DType::kQ8_0: return Q8_0(x, b);
    case DType::kIQ4_NL: return Iq4Nl(x, b);
    case DType::kMXFP4: return Mxfp4(x, b);
    case DType::kQ4_K: return Q4_K(x, b);
    case DType::kQ6_K: return Q6_K(x, b);
    default: HF_CHECKF(false, "no quantiser for {}", InfoOf(type).name);
  }
}

}  // namespace

bool CanQuantize(DType type) {
  return type != DType::kQ2_K && type != DType::kQ3_K && type != DType::kQ5_K;
}

void QuantizeRow(DType type, const float* values, std::byte* row, int64_t n) {
  const DTypeInfo& info = InfoOf(type);
  HF_CHECKF(CanQuantize(type), "no quantiser for {}", info.name);
  HF_CHECKF(n % info.block_elements == 0, "{} elements are not whole blocks of {}", n, info.name);
  uint8_t* b = reinterpret_cast<uint8_t*>(row);
  if (type == DType::kF32) {
    std::memcpy(row, values, static_cast<size_t>(n) * 4);
  } else if (type == DType::kF16 || type == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = type == DType::kF16 ? F32ToF16(values[i]) : F32ToBf16(values[i]);
      std::memcpy(b + 2 * i, &h, 2);
    }
  } else {
    for (int64_t i = 0; i < n; i += info.block_elements, b += info.block_bytes) Block(type, values + i, b);
  }
}

}  // namespace holdfast::kernels
