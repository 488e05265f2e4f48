#include "kernels/reservation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

int64_t AlignUp(int64_t v, int64_t a) { return (v + a - 1) / a * a; }

class HostReservation final : public Reservation {
 public:
  HostReservation(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes), page_(sysconf(_SC_PAGESIZE)) {}
  ~HostReservation() override { munmap(base_, static_cast<size_t>(bytes_)); }
  std::byte* base() const override { return base_; }
  int64_t bytes() const override { return bytes_; }
  int64_t granule() const override { return page_; }

  absl::Status Back(int64_t begin, int64_t end, bool now) override {
    HF_CHECK(begin >= 0 && end <= bytes_);
    begin = begin / page_ * page_;
    end = AlignUp(end, page_);
    if (!now || begin >= end) return absl::OkStatus();
#ifdef MADV_POPULATE_WRITE
    if (madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {  // EINVAL: older kernel
      return absl::ResourceExhaustedError(strerror(errno));
    }
#endif
    return absl::OkStatus();
  }

  void Release(int64_t begin, int64_t end) override {
    begin = AlignUp(begin, page_);
    end = AlignUp(end, page_);
    if (begin < end) madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
  }

 private:
  std::byte* base_;
  int64_t bytes_, page_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Reservation>> ReserveHost(int64_t bytes) {
  void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return absl::ResourceExhaustedError(strerror(errno));
  madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice only
  return std::make_unique<HostReservation>(static_cast<std::byte*>(p), bytes);
}

}  // namespace holdfast::kernels
