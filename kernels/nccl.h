#pragma once
// The part of NCCL's C interface that Holdfast uses, and where it comes from: libnccl.so.2, opened when several ranks have a device each.
// Nothing links NCCL (a library of more than 200 MB that most machines lack), and the header is not needed either: a build on a machine
// without it must serve on one that has it. So the declarations below repeat nccl.h (2.14, whose functions and layouts later versions of
// libnccl.so.2 keep; tests/unit/tp/nccl_test.cc compares them with the header where there is one).
#include <absl/status/statusor.h>

#include <climits>
#include <cstddef>
#include <string>

namespace holdfast::kernels::nccl {

enum Result : int {                      // ncclResult_t
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum DataType : int { kFloat32 = 7 };    // ncclDataType_t
struct Comm;                             // ncclComm
struct UniqueId {                        // ncclUniqueId
  char bytes[128] = {};
};
// ncclConfig_t as of 2.14: later versions read `size` bytes and take their defaults for what a config of that version did not have.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
  int undefined = INT_MIN;               // within `size`, and of no meaning in 2.14: what later versions call undefined
};

// Streams are cudaStream_t, which is the driver's CUstream: the library has its own copy of the runtime and takes ours.
struct Api {
  Result (*GetVersion)(int* version) = nullptr;
  Result (*GetUniqueId)(UniqueId* id) = nullptr;
  Result (*CommInitRankConfig)(Comm** comm, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  Result (*CommGetAsyncError)(Comm* comm, Result* error) = nullptr;
  Result (*CommFinalize)(Comm* comm) = nullptr;
  Result (*CommDestroy)(Comm* comm) = nullptr;
  Result (*CommAbort)(Comm* comm) = nullptr;
  Result (*AllGather)(const void* from, void* to, size_t count, DataType type, Comm* comm, void* stream) = nullptr;
  Result (*Send)(const void* from, size_t count, DataType type, int peer, Comm* comm, void* stream) = nullptr;
  Result (*Recv)(void* to, size_t count, DataType type, int peer, Comm* comm, void* stream) = nullptr;
  Result (*GroupStart)() = nullptr;
  Result (*GroupEnd)() = nullptr;
  const char* (*GetErrorString)(Result result) = nullptr;
  const char* (*GetLastError)(Comm* comm) = nullptr;
};

inline constexpr int kOldestVersion = 21400;          // communicators that do not block
std::string VersionText(int version);                 // "2.28.9"

// Opens the library, which stays open until the process ends. kNotFound: there is none, in the loader's words; kFailedPrecondition: it is too
// old, or no NCCL.
absl::StatusOr<const Api*> Load(const std::string& library = "libnccl.so.2");
// The version it tells, as NCCL_VERSION_CODE; kFailedPrecondition when that is too old.
absl::StatusOr<int> VersionOf(const Api& api);

}  // namespace holdfast::kernels::nccl
