#pragma once
// Address space of a backend's memory that is backed part by part: the pages of a KV pool keep their addresses however often the pool
// shrinks and grows. Offsets and sizes are in bytes.
//
// Threads: the backend's caller.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace holdfast::kernels {

class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::byte* base() const = 0;
  virtual int64_t bytes() const = 0;
  // Memory is taken and given back in multiples of this, counted from base().
  virtual int64_t granule() const = 0;
  // [begin, end) may be used from now on; what it holds is undefined. `now`: the memory is taken at once also where it could come with the
  // first write, so that a lack of it shows here. kResourceExhausted when there is not enough; then nothing new is backed for sure.
  virtual absl::Status Back(int64_t begin, int64_t end, bool now) = 0;
  // Gives back the granules that begin in [begin, end): nothing from begin to the end of the last of them is of use. Contents are gone.
  virtual void Release(int64_t begin, int64_t end) = 0;
};

// Of the host's memory: pages come with the first write.
absl::StatusOr<std::unique_ptr<Reservation>> ReserveHost(int64_t bytes);

}  // namespace holdfast::kernels
