#include "worker/exec/flight_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/check.h"
#include "proto/base/unique_fd.h"

namespace holdfast::exec {
namespace {

// A line on the stack, written without the allocator or stdio: a crash handler may be running.
class Line {
 public:
  void Text(const char* s) {
    while (*s != 0 && size_ < sizeof(buffer_)) buffer_[size_++] = *s++;
  }
  void Number(const char* key, uint64_t v) {
    Text(key);
    char digits[20];
    int n = 0;
    do {
      digits[n++] = static_cast<char>('0' + v % 10);
      v /= 10;
    } while (v != 0);
    while (n > 0 && size_ < sizeof(buffer_)) buffer_[size_++] = digits[--n];
  }
  bool Write(int fd) const {
    size_t at = 0;
    while (at < size_) {
      const ssize_t n = write(fd, buffer_ + at, size_ - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }

 private:
  char buffer_[2048];
  size_t size_ = 0;
};

}  // namespace

FlightRecorder::FlightRecorder(size_t records) : ring_(records) { HF_CHECK(records > 0); }

StepRecord& FlightRecorder::Begin() {
  StepRecord& record = ring_[count_++ % ring_.size()];
  record = StepRecord();
  return record;
}

const StepRecord& FlightRecorder::At(size_t i) const {
  HF_CHECK(i < size());
  return ring_[(count_ - size() + i) % ring_.size()];
}

bool FlightRecorder::WriteTo(int fd) const {
  for (size_t i = 0; i < size(); ++i) {
    const StepRecord& r = ring_[(count_ - size() + i) % ring_.size()];
    Line line;
    line.Number("{\"step\":", r.step);
    line.Number(",\"digest\":", r.digest);
    line.Number(",\"started_us\":", r.started_us);
    line.Number(",\"step_us\":", r.step_us);
    line.Number(",\"entries\":", r.entries);
    line.Number(",\"prefill_tokens\":", r.prefill_tokens);
    line.Number(",\"decode_tokens\":", r.decode_tokens);
    line.Number(",\"failed\":", r.failed);
    line.Text(",\"shares\":[");
    for (uint32_t s = 0; s < r.entries && s < StepRecord::kRequests; ++s) {
      line.Number(s == 0 ? "{\"request\":" : ",{\"request\":", r.shares[s].request);
      line.Number(",\"start\":", r.shares[s].start);
      line.Number(",\"rows\":", r.shares[s].rows);
      if (r.shares[s].token != UINT32_MAX) line.Number(",\"token\":", r.shares[s].token);
      line.Text("}");
    }
    line.Text("]}\n");
    if (!line.Write(fd)) return false;
  }
  return true;
}

bool FlightRecorder::WriteFile(const std::string& path) const {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  return fd && WriteTo(fd.get());
}

}  // namespace holdfast::exec
