#pragma once
// Owner of backend memory: device memory on CUDA, aligned host memory elsewhere. Move-only.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace holdfast::kernels {

class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, int64_t bytes, void (*release)(std::byte*, int64_t)) : data_(data), bytes_(bytes), release_(release) {}
  Buffer(Buffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)), release_(o.release_) {}
  Buffer& operator=(Buffer&& o) noexcept {
    if (this != &o) {
      Reset();
      data_ = std::exchange(o.data_, nullptr);
      bytes_ = std::exchange(o.bytes_, 0);
      release_ = o.release_;
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { Reset(); }

  std::byte* data() const { return data_; }
  template <class T>
  T* as() const { return reinterpret_cast<T*>(data_); }
  int64_t bytes() const { return bytes_; }
  void Reset() {
    if (data_ != nullptr) release_(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  void (*release_)(std::byte*, int64_t) = nullptr;
};

}  // namespace holdfast::kernels
