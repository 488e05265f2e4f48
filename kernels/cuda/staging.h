#pragma once
// Host memory that the device copies from and to without waiting, and device memory that grows.
//
// Threads: one, the backend's caller.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// Remembers the first error of the runtime's calls, and what was being done.
class Errors {
 public:
  // True when e is success. bytes: that were asked for, of a call that takes memory.
  bool Check(cudaError_t e, const char* doing, int64_t bytes = 0);
  bool ok() const { return first_ == cudaSuccess; }
  cudaError_t first() const { return first_; }
  const char* doing() const { return doing_; }
  int64_t wanted_bytes() const { return wanted_bytes_; }   // by what failed first; what was left then
  int64_t left_bytes() const { return left_bytes_; }

 private:
  cudaError_t first_ = cudaSuccess;
  const char* doing_ = "";
  int64_t wanted_bytes_ = 0, left_bytes_ = 0;
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

// Downloads into pinned memory, handed on to where they belong at the next wait.
class Downloads {
 public:
  Downloads(Errors* errors, cudaStream_t stream) : errors_(errors), stream_(stream) {}
  ~Downloads() { cudaFreeHost(pinned_); }
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;
  void Start(std::byte* dst, const std::byte* src, int64_t bytes);
  void Deliver();                  // after the stream was waited for

 private:
  static constexpr int64_t kBytes = int64_t{4} << 20;   // what is larger goes straight to dst, which makes the call wait
  struct Pending {
    std::byte* dst;
    int64_t at, bytes;
  };
  Errors* errors_;
  cudaStream_t stream_;
  std::byte* pinned_ = nullptr;
  int64_t used_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
