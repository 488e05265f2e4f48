#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "kernels/convert.h"
#include "kernels/cpu/pack_weights.h"
#include "kernels/kv_block.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

TEST_CASE("every block format reads as an independent implementation reads it") {
  std::ifstream in(std::string(HOLDFAST_SOURCE_DIR) + "/tests/golden/kernels/quant_blocks.bin", std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  REQUIRE(bytes.size() > 1000);
  int types = 0;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t header[2];
    std::memcpy(header, bytes.data() + at, 8);
    at += 8;
    const auto type = DTypeFromGguf(header[0]);
    REQUIRE(type.has_value());
    const DTypeInfo& info = InfoOf(*type);
    INFO(info.name);
    const int64_t n = int64_t{header[1]} * info.block_elements;
    std::vector<float> got(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    DequantizeRow(*type, reinterpret_cast<const std::byte*>(bytes.data() + at), got.data(), n);
    at += header[1] * info.block_bytes;
    std::memcpy(want.data(), bytes.data() + at, want.size() * 4);
    at += want.size() * 4;
    double worst = 0;  // relative to the block's largest: "d * sc * q - dmin * m" may be rounded in either order
    for (size_t i = 0; i < want.size(); i += info.block_elements) {
      float largest = 0;
      for (size_t j = i; j < i + info.block_elements; ++j) largest = std::max(largest, std::fabs(want[j]));
      for (size_t j = i; j < i + info.block_elements; ++j) {
        if (largest > 0) worst = std::max(worst, std::fabs(static_cast<double>(got[j]) - want[j]) / largest);
      }
    }
    CHECK(worst < 3e-7);
    ++types;
  }
  CHECK(types == 14);
}

TEST_CASE("quantisers stay within half a step") {
  Random random(1);
  for (const DType type : AllTypes()) {
    if (!CanQuantize(type)) continue;
    const int64_t n = 1024;
    const auto x = random.Normals(n);
    std::vector<std::byte> row(static_cast<size_t>(RowBytes(type, n)));
    std::vector<float> y(x.size());
    QuantizeRow(type, x.data(), row.data(), n);
    DequantizeRow(type, row.data(), y.data(), n);
    INFO(InfoOf(type).name);
    const double bound = type == DType::kF32    ? 0
                         : type == DType::kF16  ? 1e-7
                         : type == DType::kBF16 ? 1e-5
                         : type == DType::kQ8_0 ? 1e-4
                         : type == DType::kQ6_K ? 1e-3
                         : type == DType::kQ5_0 || type == DType::kQ5_1 ? 3e-3
                                                                        : 2e-2;
    CHECK(Nmse(y, x) <= bound);
    std::fill(row.begin(), row.end(), std::byte{0xee});
    const std::vector<float> zeros(x.size(), 0.f);
    QuantizeRow(type, zeros.data(), row.data(), n);
    DequantizeRow(type, row.data(), y.data(), n);
    CHECK(y == zeros);
  }
}

TEST_CASE("half floats: every code survives, and rounding is to nearest even") {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h)), b = Bf16ToF32(static_cast<uint16_t>(h));
    if (!std::isnan(f) && F32ToF16(f) != h) FAIL("f16 " << h);
    if (!std::isnan(b) && F32ToBf16(b) != h) FAIL("bf16 " << h);
    if (std::isnan(f) && !std::isnan(F16ToF32(F32ToF16(f)))) FAIL("f16 NaN " << h);
    if (std::isnan(b) && !std::isnan(Bf16ToF32(F32ToBf16(b)))) FAIL("bf16 NaN " << h);
  }
  CHECK(F16ToF32(0x3c00) == 1.f);
  CHECK(F16ToF32(0x0001) == 0x1p-24f);
  CHECK(F32ToF16(65519.f) == 0x7bff);
  CHECK(F32ToF16(65520.f) == 0x7c00);
  CHECK(F32ToF16(1.f + 0x1p-11f) == 0x3c00);
  CHECK(F32ToF16(1.f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(F32ToF16(0x1p-25f) == 0);
  CHECK(F32ToF16(1.5f * 0x1p-24f) == 2);
  CHECK(F32ToBf16(1.f + 0x1p-8f) == 0x3f80);
  CHECK(F32ToBf16(1.f + 3 * 0x1p-8f) == 0x3f82);
}

TEST_CASE("e4m3: codes survive, values round to the nearest code and saturate at 448") {
  std::vector<float> values;
  for (int c = 0; c < 0x7f; ++c) {
    const float f = Fp8ToF32(static_cast<uint8_t>(c));
    CHECK(F32ToFp8(f) == c);
    CHECK(F32ToFp8(-f) == (c | 0x80));
    if (c > 0) CHECK(f > values.back());
    values.push_back(f);
  }
  CHECK(values[1] == 0x1p-9f);
  CHECK(values[8] == 0x1p-6f);
  CHECK(values.back() == 448.f);
  CHECK(F32ToFp8(1e9f) == 0x7e);
  CHECK(std::isnan(Fp8ToF32(F32ToFp8(NAN))));
  Random random(2);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::fabs(random.Normal(std::ldexp(1.f, static_cast<int>(random.Below(18)) - 9)));
    if (x > 448.f) continue;
    const float got = Fp8ToF32(F32ToFp8(x));
    const auto above = std::lower_bound(values.begin(), values.end(), x);
    const float best = above == values.begin() ? *above : above == values.end() ? values.back() : std::min(*above - x, x - *(above - 1));
    if (above != values.begin() && above != values.end() && std::fabs(got - x) != best) FAIL(x << " became " << got);
  }
}

TEST_CASE("8-bit KV blocks: codes within half a step, zero stays zero, what is not finite shows") {
  Random random(3);
  for (const KvDType type : {KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    INFO(KvDTypeName(type));
    const auto x = random.Normals(32);
    uint8_t codes[32];
    const uint16_t scale = EncodeKvBlock(type, x.data(), codes);
    std::vector<float> y(32);
    for (size_t i = 0; i < 32; ++i) y[i] = DecodeKv(type, codes[i], scale);
    CHECK(Nmse(y, x) < (type == KvDType::kQ8_0 ? 1e-4 : 2e-3));
    const std::vector<float> zeros(32, 0.f);
    CHECK(DecodeKv(type, codes[0], EncodeKvBlock(type, zeros.data(), codes)) == 0.f);
    auto bad = x;
    bad[5] = NAN;
    CHECK_FALSE(std::isfinite(DecodeKv(type, 1, EncodeKvBlock(type, bad.data(), codes))));
  }
}

TEST_CASE("packing loses nothing, in any shape") {
  for (const DType type : AllTypes()) {
    for (const int64_t out : {1, 16, 35}) {
      const int64_t in = 512;
      Random random(static_cast<uint32_t>(out));
      const auto file = FileRows(type, out, in, random);
      std::vector<std::byte> packed(static_cast<size_t>(PackedGroups(out) * PackedGroupBytes(type, in)), std::byte{0xa5});
      PackWeights(type, out, in, file.data(), packed.data());
      std::vector<float> want(static_cast<size_t>(in)), got(want.size());
      for (int64_t r = 0; r < out; ++r) {
        INFO(InfoOf(type).name << ", row " << r << " of " << out);
        DequantizeRow(type, file.data() + r * RowBytes(type, in), want.data(), in);
        UnpackRow(type, in, packed.data(), r, got.data());
        CHECK(got == want);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test
