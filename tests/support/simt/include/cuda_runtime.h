#pragma once
// The part of the CUDA runtime that Holdfast uses, on the SIMT machine of tests/support/simt. Names and meanings are CUDA's; everything is in
// namespace simt, so that a program can hold this and the real runtime.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/simt/engine.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::simt::g_place->thread)
#define blockIdx (::simt::g_place->block)
#define blockDim (::simt::g_place->block_dim)
#define gridDim (::simt::g_place->grid_dim)
#define warpSize 32

namespace simt {

// ---- vector types ------------------------------------------------------------------------------------------------------------------
#define SIMT_VECTORS(T, name)                                                  \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                           \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTORS(float, float)
SIMT_VECTORS(int, int)
SIMT_VECTORS(unsigned, uint)
SIMT_VECTORS(short, short)
SIMT_VECTORS(unsigned short, ushort)
SIMT_VECTORS(signed char, char)
SIMT_VECTORS(unsigned char, uchar)
#undef SIMT_VECTORS
struct alignas(16) double2 { double x, y; };
inline double2 make_double2(double x, double y) { return {x, y}; }
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };

// ---- barriers and warp operations --------------------------------------------------------------------------------------------------
inline void __syncthreads(Where where = Where::current()) { Barrier(BlockOp::kSync, 0, where); }
inline int __syncthreads_count(int p, Where where = Where::current()) { return Barrier(BlockOp::kCount, p, where); }
inline int __syncthreads_and(int p, Where where = Where::current()) { return Barrier(BlockOp::kAnd, p, where); }
inline int __syncthreads_or(int p, Where where = Where::current()) { return Barrier(BlockOp::kOr, p, where); }
inline void __syncwarp(unsigned mask = 0xffffffffu, Where where = Where::current()) { Warp(WarpOp::kSync, mask, 0, 0, 32, where); }

template <class T>
T ShuffleAs(WarpOp op, unsigned mask, T v, unsigned argument, int width, const Where& where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  bits = Warp(op, mask, bits, argument, static_cast<uint32_t>(width), where);
  std::memcpy(&v, &bits, sizeof(T));
  return v;
}
template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32, Where where = Where::current()) {
  return ShuffleAs(WarpOp::kShfl, mask, v, static_cast<unsigned>(from), width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, Where where = Where::current()) {
  return ShuffleAs(WarpOp::kShflUp, mask, v, by, width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, Where where = Where::current()) {
  return ShuffleAs(WarpOp::kShflDown, mask, v, by, width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, Where where = Where::current()) {
  return ShuffleAs(WarpOp::kShflXor, mask, v, static_cast<unsigned>(lanes), width, where);
}
inline unsigned __ballot_sync(unsigned mask, int p, Where where = Where::current()) {
  return static_cast<unsigned>(Warp(WarpOp::kBallot, mask, p != 0, 0, 32, where));
}
inline int __all_sync(unsigned mask, int p, Where where = Where::current()) { return static_cast<int>(Warp(WarpOp::kAll, mask, p != 0, 0, 32, where)); }
inline int __any_sync(unsigned mask, int p, Where where = Where::current()) { return static_cast<int>(Warp(WarpOp::kAny, mask, p != 0, 0, 32, where)); }
template <class T>
unsigned __match_any_sync(unsigned mask, T v, Where where = Where::current()) {
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  return static_cast<unsigned>(Warp(WarpOp::kMatchAny, mask, bits, 0, 32, where));
}
#define SIMT_REDUCE(name, op)                                                                                                        \
  inline unsigned name(unsigned mask, unsigned v, Where where = Where::current()) {                                                   \
    return static_cast<unsigned>(Warp(WarpOp::op, mask, v, 0, 32, where));                                                            \
  }
SIMT_REDUCE(__reduce_add_sync, kAdd)
SIMT_REDUCE(__reduce_min_sync, kMin)
SIMT_REDUCE(__reduce_max_sync, kMax)
SIMT_REDUCE(__reduce_and_sync, kAnd)
SIMT_REDUCE(__reduce_or_sync, kOr)
SIMT_REDUCE(__reduce_xor_sync, kXor)
#undef SIMT_REDUCE
inline int __reduce_add_sync(unsigned mask, int v, Where where = Where::current()) {
  return static_cast<int>(Warp(WarpOp::kAdd, mask, static_cast<uint32_t>(v), 0, 32, where));
}
inline int __reduce_min_sync(unsigned mask, int v, Where where = Where::current()) {
  return static_cast<int>(Warp(WarpOp::kMinSigned, mask, static_cast<uint32_t>(v), 0, 32, where));
}
inline int __reduce_max_sync(unsigned mask, int v, Where where = Where::current()) {
  return static_cast<int>(Warp(WarpOp::kMaxSigned, mask, static_cast<uint32_t>(v), 0, 32, where));
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- atomics on global memory (kernels/cuda/shared_atomic.cuh has those on shared memory) -------------------------------------------------------
template <class T>
T atomicAdd(T* at, T v) { return std::exchange(*at, static_cast<T>(*at + v)); }
template <class T>
T atomicMax(T* at, T v) { return std::exchange(*at, v > *at ? v : *at); }
template <class T>
T atomicMin(T* at, T v) { return std::exchange(*at, v < *at ? v : *at); }
template <class T>
T atomicExch(T* at, T v) { return std::exchange(*at, v); }
template <class T>
T atomicOr(T* at, T v) { return std::exchange(*at, *at | v); }
template <class T>
T atomicAnd(T* at, T v) { return std::exchange(*at, *at & v); }
template <class T>
T atomicCAS(T* at, T expected, T v) {
  const T old = *at;
  if (old == expected) *at = v;
  return old;
}

// ---- arithmetic --------------------------------------------------------------------------------------------------------------------
template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += static_cast<uint8_t>(a >> (8 * i)) * static_cast<uint8_t>(b >> (8 * i));
  return c;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = select >> (4 * i) & 15;
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * i);
  }
  return r;
}
// Bytewise on four packed values.
inline unsigned __vsubss4(unsigned a, unsigned b) {
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const int d = static_cast<int8_t>(a >> (8 * i)) - static_cast<int8_t>(b >> (8 * i));
    r |= static_cast<unsigned>(static_cast<uint8_t>(d < -128 ? -128 : d > 127 ? 127 : d)) << (8 * i);
  }
  return r;
}
inline unsigned __vsub4(unsigned a, unsigned b) {
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<unsigned>(static_cast<uint8_t>((a >> (8 * i)) - (b >> (8 * i)))) << (8 * i);
  return r;
}
inline unsigned __vadd4(unsigned a, unsigned b) {
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<unsigned>(static_cast<uint8_t>((a >> (8 * i)) + (b >> (8 * i)))) << (8 * i);
  return r;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <class To, class From>
To BitsAs(From f) {
  static_assert(sizeof(To) == sizeof(From));
  To t;
  std::memcpy(&t, &f, sizeof(t));
  return t;
}
inline int __float_as_int(float f) { return BitsAs<int>(f); }
inline unsigned __float_as_uint(float f) { return BitsAs<unsigned>(f); }
inline float __int_as_float(int i) { return BitsAs<float>(i); }
inline float __uint_as_float(unsigned i) { return BitsAs<float>(i); }
inline long long __double_as_longlong(double f) { return BitsAs<long long>(f); }
inline double __longlong_as_double(long long i) { return BitsAs<double>(i); }
inline int __double2int_rn(double f) {  // saturates; NaN is 0
  return f != f ? 0 : f >= 2147483647.0 ? 2147483647 : f <= -2147483648.0 ? -2147483647 - 1 : static_cast<int>(std::nearbyint(f));
}
inline int __float2int_rn(float f) { return f != f ? 0 : __double2int_rn(std::nearbyint(f)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) { return static_cast<std::common_type_t<A, B>>(b) < static_cast<std::common_type_t<A, B>>(a) ? b : a; }
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) { return static_cast<std::common_type_t<A, B>>(a) < static_cast<std::common_type_t<A, B>>(b) ? b : a; }

// ---- the runtime ---------------------------------------------------------------------------------------------------------------------
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorSymbolNotFound = 500,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorIllegalState = 401,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
  cudaErrorUnknown = 999,
};
const char* cudaGetErrorString(cudaError_t e);
const char* cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

struct Stream;
struct Event;
struct Graph;
using cudaStream_t = Stream*;
using cudaEvent_t = Event*;
using cudaGraph_t = Graph*;
using cudaGraphExec_t = Graph*;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0;

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};
enum cudaDeviceAttr { cudaDevAttrComputeMode = 20, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

cudaError_t cudaMalloc(void** p, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) { return cudaMalloc(reinterpret_cast<void**>(p), bytes); }
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*f)(void*), void* data);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);   // cudaErrorNotSupported: the machine has no clock

enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute, int) { return cudaSuccess; }

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1, cudaDriverEntryPointVersionNotSufficent = 2 };
inline constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result = nullptr);

cudaError_t EnqueueLaunch(LaunchSpec spec, cudaStream_t stream);
// Work that may have to wait for another device: it is tried until it says true, and holds up what is behind it in the stream.
cudaError_t EnqueueAttempt(cudaStream_t stream, std::function<bool()> attempt);

// What a test makes of the device: how many there are, what a call answers.
struct FakeDevice {
  int count = 1;
  cudaError_t count_error = cudaSuccess;    // of cudaGetDeviceCount: "no driver"
  cudaError_t use_error = cudaSuccess;      // of the first use of the device: "busy", "no kernel image"
  cudaError_t launch_error = cudaSuccess;   // of every launch: "no code for this device"
  cudaError_t next_sync_error = cudaSuccess;
  cudaError_t instantiate_error = cudaSuccess;   // of every cudaGraphInstantiate: "no memory for it"
  size_t most_pinned = SIZE_MAX;            // bytes of one cudaMallocHost; more is refused
};
FakeDevice& TheFakeDevice();

// What the program asked of the runtime so far. Work inside a graph counts when it is captured, not when it is launched.
struct Counts {
  uint64_t launches = 0, copies = 0, graph_launches = 0, waits = 0;   // waits: of the host, for a stream or an event
};
Counts TheCounts();

}  // namespace simt

using namespace simt;  // NOLINT: CUDA's names are global
