#pragma once
// Shared<T> of kernels/cuda/device.cuh on the SIMT machine: a pointer into the block's shared memory whose every access is recorded.
#include <cstddef>
#include <cstring>

#include "tests/support/simt/engine.h"

namespace simt {

template <class T>
class SharedRef {
 public:
  explicit SharedRef(T* at) : at_(at) {}
  SharedRef(const SharedRef&) = default;
  operator T() const {  // NOLINT: reads as the value
    SharedRead(at_, sizeof(T));
    return *at_;
  }
  const SharedRef& operator=(const T& v) const {
    SharedWrite(at_, sizeof(T));
    *at_ = v;
    return *this;
  }
  const SharedRef& operator=(const SharedRef& o) const { return *this = static_cast<T>(o); }
  template <class U>
  const SharedRef& operator+=(const U& v) const { return *this = static_cast<T>(static_cast<T>(*this) + v); }
  template <class U>
  const SharedRef& operator-=(const U& v) const { return *this = static_cast<T>(static_cast<T>(*this) - v); }
  template <class U>
  const SharedRef& operator*=(const U& v) const { return *this = static_cast<T>(static_cast<T>(*this) * v); }

 private:
  T* at_;
};

template <class T>
class SharedPointer {
 public:
  SharedPointer() = default;
  explicit SharedPointer(T* at) : at_(at) {}
  SharedRef<T> operator[](ptrdiff_t i) const { return SharedRef<T>(at_ + i); }
  SharedRef<T> operator*() const { return SharedRef<T>(at_); }
  SharedPointer operator+(ptrdiff_t n) const { return SharedPointer(at_ + n); }
  SharedPointer& operator+=(ptrdiff_t n) {
    at_ += n;
    return *this;
  }
  ptrdiff_t operator-(SharedPointer o) const { return at_ - o.at_; }
  T* unchecked() const { return at_; }   // for wrappers that record what they do themselves

 private:
  T* at_ = nullptr;
};

}  // namespace simt
