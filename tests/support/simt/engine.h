#pragma once
// A small SIMT machine on the host: it runs kernels that the host compiler made out of the CUDA sources, a block after the other, each thread
// of a block as a fiber, and finds fault with what a GPU would do wrong in silence.
//
// What it checks, and reports with kernel, block, thread and source line:
//  - barriers that some threads of a block never reach, or reach at another line (conditional __syncthreads);
//  - warp operations whose mask names lanes that returned, that the block does not have, or that wait at another operation; a lane not in its
//    own mask; a shuffle that reads a lane outside the mask;
//  - races in shared memory (through Shared<T>, kernels/cuda/device.cuh): two threads touch the same byte, at least one writes, and neither a
//    block barrier nor a __syncwarp of both lies between. Other warp operations order no memory, as on the device. (Where lanes of one warp
//    read a byte between __syncwarps of *different partial* masks, the least clock stands for all of them: such a race may be missed.)
//  - shared memory accessed beyond what the launch asked for;
//  - asynchronous copies (cp.async): they count as writes both when they are asked for and when they are waited for, their bytes come at the
//    wait, and none may be left when the thread returns;
//  - device memory accessed outside an allocation: each ends at a guard page, freed memory is never mapped again, and the up to 63 bytes that
//    round a size up hold a pattern that is looked at when the stream is synchronised;
//  - with Options::protect, device memory touched by the host outside kernels and copies: it faults.
// Shared and fresh device memory are filled with 0xff: NaN in every float format, -1 as an integer.
//
// Threads of a block run in an order drawn from the seed and change places only at barriers and warp operations; blocks run in a drawn order,
// too. A thread that never waits costs a function call, not a fiber.
//
// Work put into a stream runs when somebody waits for it (cudaStreamSynchronize, cudaEventSynchronize, cudaFree, ...), not before: a pinned
// buffer that is reused too early, or a result that is read too early, is seen to be wrong. Copies from pageable memory take the bytes at
// once, as the driver does.
//
// A captured stream records launches and copies with their arguments and runs nothing; a graph runs them in order at each of its launches. What
// a capture does not allow (waits, cudaMalloc, pageable copies, ...) answers with the runtime's error and makes the capture invalid. Memory that a
// graph uses and that was freed since is an access outside an allocation; a graph that is used after its end is reported. One stream a capture.
//
// Host threads: any; one launch at a time (a lock).
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

namespace simt {

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: as CUDA's, from a number
};
using Where = std::source_location;

struct Options {
  uint64_t seed = 1;
  bool protect = false;   // device memory cannot be touched outside kernels and copies (slow: two calls of the system a launch and allocation)
};
void Configure(const Options& options);
const Options& Configuration();

// Faults are printed and abort the process, unless somebody collects them. A launch that found a fault is given up, and the device then
// answers every call with cudaErrorLaunchFailure, as a real one would, until ClearFault().
class CatchReports {
 public:
  CatchReports();
  ~CatchReports();
  CatchReports(const CatchReports&) = delete;
  CatchReports& operator=(const CatchReports&) = delete;
  std::vector<std::string> Take();   // and clears the fault
};
bool Faulted();
void ClearFault();
// True when f() touches memory of the device that the host may not touch (Options::protect).
bool HostFaults(const std::function<void()>& f);

// ---- what kernels see -------------------------------------------------------------------------------------------------------------
struct Place {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
extern constinit thread_local Place* g_place;

enum class WarpOp : uint8_t { kSync, kShfl, kShflUp, kShflDown, kShflXor, kBallot, kAll, kAny, kAdd, kMin, kMax, kMinSigned, kMaxSigned, kAnd, kOr, kXor, kMatchAny, kCollective };
enum class BlockOp : uint8_t { kSync, kCount, kAnd, kOr };

uint64_t Warp(WarpOp op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width, const Where& where);
int Barrier(BlockOp op, int predicate, const Where& where);
// An instruction of a whole warp: when all 32 lanes have come, f is called once with what each lane gave, and may write through it.
void Collective(void* operands, void (*f)(void* const operands[32]), const Where& where);
// Copies into shared memory that run on: what is there is lost when the copy is asked for, what was copied is there when it is waited for.
void AsyncCopy(void* shared, const void* global, size_t bytes);
void AsyncCommit();
void AsyncWait(int groups);   // until at most so many of the groups committed last are under way
[[noreturn]] void Fault(const std::string& what);   // in a kernel: gives the launch up
unsigned LaneId();

// Dynamic shared memory of the running block; the accessors of simt_shared.h report to these. Offsets are in bytes.
std::byte* SharedBase();
void SharedRead(const void* at, size_t bytes);
void SharedWrite(const void* at, size_t bytes);
void SharedAtomic(const void* at, size_t bytes);   // no race with another of its kind; with every other access, also of the same thread

// ---- what the runtime's functions are made of --------------------------------------------------------------------------------------
struct LaunchSpec {
  const void* kernel = nullptr;     // its address: a name is looked up when a report needs one
  dim3 grid, block;
  size_t shared_bytes = 0;
  std::function<void()> body;       // one thread
};
void RunLaunch(const LaunchSpec& spec);
bool GuardedCopy(void* dst, const void* src, size_t bytes);   // false, and a report, when it leaves what is allocated
void Publish(const std::string& text);                        // a report: to who collects them, else printed, and the end
void CheckMemory(const std::string& when);                    // reports what was written beyond allocations
std::string NameOfFunction(const void* address);

}  // namespace simt
