#include "proto/base/random.h"

#include <random>

namespace holdfast {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> ctr) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u, kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMul0} * ctr[0], p1 = uint64_t{kMul1} * ctr[2];
    ctr = {static_cast<uint32_t>(p1 >> 32) ^ ctr[1] ^ key[0], static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ ctr[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return ctr;
}

double SampleUniform(uint64_t seed, uint32_t choice, uint64_t position) {
  const auto w = Philox4x32({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                            {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0x686f6c64u});
  const uint64_t bits = (uint64_t{w[0]} << 21) ^ (w[1] >> 11);  // 53 bits
  return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1.0p-53;
}

uint64_t EntropySeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace holdfast
