#include "supervisor/child_log.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

namespace holdfast::supervisor {

void ChildLog::Drain() {
  char buffer[16 * 1024];
  for (size_t got = 0; pipe_ && got < kReadPerCall;) {
    const ssize_t n = ::read(pipe_.get(), buffer, sizeof buffer);
    if (n > 0) {
      Feed({buffer, static_cast<size_t>(n)});
      got += static_cast<size_t>(n);
    } else if (n == 0) {
      Flush();
      pipe_.Reset();
    } else if (errno != EINTR) {
      if (errno != EAGAIN) pipe_.Reset();
      return;
    }
  }
}

void ChildLog::Feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t eol = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, eol);
    if (!skipping_) {
      partial_.append(piece.substr(0, kMaxLine - partial_.size()));
      if (partial_.size() == kMaxLine) {
        Line(std::move(partial_));
        partial_.clear();
        skipping_ = true;
      }
    }
    if (eol == std::string_view::npos) return;
    if (!skipping_) Line(std::move(partial_));
    partial_.clear();
    skipping_ = false;
    bytes.remove_prefix(eol + 1);
  }
}

void ChildLog::Flush() {
  if (!partial_.empty()) Line(std::move(partial_));
  partial_.clear();
  skipping_ = false;
}

std::string ChildLog::LastWords(size_t lines, size_t limit) const {
  for (auto it = lines_.rbegin(); it != lines_.rend() && lines > 0; ++it, --lines) {
    if (!it->empty() && it->front() != '{') return it->substr(0, limit);
  }
  return "";
}

void ChildLog::Line(std::string line) {
  ++total_;
  if (out_fd_ >= 0) {
    // A pipe that polls writable takes PIPE_BUF bytes without blocking, and atomically.
    pollfd p{out_fd_, POLLOUT, 0};
    std::string text = line.substr(0, kMaxLine - 1) + "\n";
    const bool can = ::poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0;
    if (!can || ::write(out_fd_, text.data(), text.size()) < 0) ++dropped_;
  }
  lines_.push_back(std::move(line));
  if (lines_.size() > kKeepLines) lines_.pop_front();
}

}  // namespace holdfast::supervisor
