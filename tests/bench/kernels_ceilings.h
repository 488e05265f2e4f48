#pragma once
// What this machine can do at best, measured in the same process as the kernels: one thread's share each.
#include <cstddef>
#include <cstdint>

namespace holdfast::bench {

// Sum of `bytes` read in four interleaved streams; the caller times it.
uint64_t ReadStreams(const std::byte* data, int64_t bytes);

// Operations (multiplications and additions) done by one call of about a hundred microseconds; 0 where this build or machine lacks them.
int64_t Int8DotOps();    // u8 x s8 quad dots: VNNI, or AVX2 maddubs + madd
int64_t Bf16DotOps();
int64_t FloatFmaOps();

}  // namespace holdfast::bench
