#pragma once
// A worker's stdout and stderr: passed through to ours, and the last lines kept for the incident bundle. Whatever a worker writes, memory
// is bounded and our own loop never blocks on the way out: what cannot be written at once is dropped and counted.
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "proto/base/unique_fd.h"

namespace holdfast::supervisor {

class ChildLog {
 public:
  static constexpr size_t kMaxLine = 4096;   // longer lines are cut
  static constexpr size_t kKeepLines = 200;
  static constexpr size_t kReadPerCall = 256 * 1024;

  explicit ChildLog(UniqueFd pipe, int out_fd = 2) : pipe_(std::move(pipe)), out_fd_(out_fd) {}

  int fd() const { return pipe_.get(); }
  bool open() const { return static_cast<bool>(pipe_); }
  // Reads what is there, at most kReadPerCall bytes. At end of file the pipe closes.
  void Drain();
  // For tests and Drain: consumes bytes.
  void Feed(std::string_view bytes);
  // Ends an unfinished line.
  void Flush();

  const std::deque<std::string>& lines() const { return lines_; }
  // The last line that is none of our log objects, at most `limit` bytes: what a library or the C++ runtime said before it ended the
  // process. Empty when the last `lines` lines have none.
  std::string LastWords(size_t lines = 8, size_t limit = 300) const;
  uint64_t dropped_lines() const { return dropped_; }  // kept in the ring, but not passed through
  uint64_t total_lines() const { return total_; }

 private:
  void Line(std::string line);

  UniqueFd pipe_;
  int out_fd_;
  std::string partial_;
  bool skipping_ = false;  // the rest of a cut line
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
  uint64_t total_ = 0;
};

}  // namespace holdfast::supervisor
