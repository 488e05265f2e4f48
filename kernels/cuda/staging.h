#pragma once
// Host memory that the device copies from and to without waiting, and device memory that grows.
//
// Threads: one, the backend's caller.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "proto/base/clock.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// What the backend's parts tell it: the first error of the runtime's calls and what was being done; and how often memory that kernels know by
// address was replaced. And how to wait for the device.
class Errors {
 public:
  // True when e is success. bytes: that were asked for, of a call that takes memory.
  bool Check(cudaError_t e, const char* doing, int64_t bytes = 0);
  bool ok() const { return failure_.error == cudaSuccess && trial_.error == cudaSuccess; }
  cudaError_t first() const { return failure_.error; }
  const char* doing() const { return failure_.doing; }
  int64_t wanted_bytes() const { return failure_.wanted_bytes; }   // by what failed first; what was left then
  int64_t left_bytes() const { return failure_.left_bytes; }

  // A trial (a capture): what goes wrong in it is its own, and forgotten afterwards. What may not be part of one refuses, and fails the trial.
  struct Failure {
    cudaError_t error = cudaSuccess;
    const char* doing = "";
    int64_t wanted_bytes = 0, left_bytes = 0;
  };
  void BeginTrial() { trying_ = true; }
  Failure EndTrial();
  bool RefusesInTrial(const char* doing);   // true in a trial, which has failed then

  void Moved() { ++moves_; }
  uint64_t moves() const { return moves_; }

  // With other ranks the device may wait for them, and they may be gone: from now on every wait of the host looks at the device again and
  // again and asks go_on, with when it began, in between. False: whatever kept `stream` has been ended, and the wait is what it was. Null:
  // no other ranks any more.
  void Watch(cudaStream_t stream, std::function<bool(Instant began)> go_on);
  void Await(cudaStream_t stream, const char* doing);
  void Await(cudaEvent_t event, const char* doing);
  // Before a call that waits for the device by itself (cudaFree, copies from and to pageable memory).
  void BeforeBlocking() { if (go_on_) Await(stream_, "waiting for the device"); }

 private:
  template <class Query>
  bool Poll(Query query, const char* doing);

  Failure failure_, trial_;
  bool trying_ = false;
  uint64_t moves_ = 0;
  cudaStream_t stream_ = nullptr;
  std::function<bool(Instant)> go_on_;
};

// Device memory of the backend's own; contents undefined after each Get. Growing waits for the device.
class DeviceScratch {
 public:
  explicit DeviceScratch(Errors* errors) : errors_(errors) {}
  ~DeviceScratch() { cudaFree(data_); }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  // Null when there is no room (errors say so).
  void* Get(int64_t bytes);
  template <class T>
  T* Of(int64_t count) { return static_cast<T*>(Get(count * static_cast<int64_t>(sizeof(T)))); }

 private:
  Errors* errors_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// What the kernels of a step read, at an address that stays from step to step: one copy a step, in stream order, out of pinned memory, of which
// two sides take turns. Growing replaces it and waits for the device.
class StepBlock {
 public:
  StepBlock(Errors* errors, cudaStream_t stream) : errors_(errors), stream_(stream) {}
  ~StepBlock() { Free(); }
  StepBlock(const StepBlock&) = delete;
  StepBlock& operator=(const StepBlock&) = delete;
  std::byte* Begin(int64_t bytes);   // pinned memory to write, before Send; null when there is none. Waits for the copy of two steps ago.
  void Send(int64_t bytes);          // as many as were asked for, or less
  std::byte* device() const { return device_; }   // 256-byte aligned

 private:
  void Free();

  Errors* errors_;
  cudaStream_t stream_;
  std::byte *device_ = nullptr, *host_[2] = {nullptr, nullptr};
  cudaEvent_t copied_[2] = {nullptr, nullptr};
  bool sent_[2] = {false, false};
  int64_t bytes_ = 0;
  int side_ = 0;
};

// Small uploads: the caller writes into pinned memory and sends it to device memory of the same size. Two halves take turns; a half's
// pinned side is written again only when the copies out of it are done, its device side, in stream order, when the next copy comes.
class Uploads {
 public:
  Uploads(Errors* errors, cudaStream_t stream, int64_t half_bytes) : errors_(errors), stream_(stream), wanted_(half_bytes) {}
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  struct Piece {
    std::byte* host = nullptr;     // null when there is no memory
    std::byte* device = nullptr;   // 256-byte aligned
    int64_t bytes = 0;
  };
  Piece Take(int64_t bytes);       // write piece.host, then Send
  void Send(const Piece& piece);
  void NextHalf();                 // the next Take begins the other half

 private:
  struct Half {
    std::byte *host = nullptr, *device = nullptr;
    int64_t bytes = 0, used = 0;
    cudaEvent_t done = nullptr;
    bool sent = false;
  };
  void Free(Half* half);

  Errors* errors_;
  cudaStream_t stream_;
  int64_t wanted_;
  Half halves_[2];
  int active_ = 0;
};

// Downloads into pinned memory, handed on to where they belong when they were waited for. What is started between two marks goes by one side of
// three: two marks may be waited for while the third side fills.
class Downloads {
 public:
  Downloads(Errors* errors, cudaStream_t stream) : errors_(errors), stream_(stream) {}
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;
  void Start(std::byte* dst, const std::byte* src, int64_t bytes);
  uint64_t Mark();
  void Wait(uint64_t mark);        // also delivers what was started before
  void Deliver();                  // everything, after the stream was waited for

 private:
  static constexpr int64_t kBytes = int64_t{4} << 20;   // of a side at first
  struct Pending {
    std::byte* dst;
    int64_t at, bytes;
  };
  struct Side {
    std::byte* pinned = nullptr;
    int64_t bytes = 0, used = 0, asked = 0;   // asked: used, and what found no room
    std::vector<Pending> pending;
    cudaEvent_t done = nullptr;
    uint64_t mark = 0;             // 0: none behind it
  };
  static void Hand(Side* side);    // its copies are done

  Errors* errors_;
  cudaStream_t stream_;
  Side sides_[3];
  int active_ = 0;
  uint64_t marks_ = 0;
  int64_t wanted_ = kBytes;        // what a step was seen to start
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
