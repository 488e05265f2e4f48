#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). A value depends
// on its key and counter alone, so a stream can be resumed at any position and no batch neighbour can disturb it.
#include <array>
#include <cstdint>

namespace holdfast {

// Four 32-bit words of the block `counter` under `key`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

// The uniform double in [0, 1) with which the token at `position` (0 = first generated) of choice `choice` is drawn under `seed`.
double SampleUniform(uint64_t seed, uint32_t choice, uint64_t position);

// splitmix64's finaliser: a bijection of 64-bit words that mixes well. Page fingerprints and digests use it.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// For seeds, ids and jitter; never for decisions that ranks must share.
uint64_t EntropySeed();

}  // namespace holdfast
