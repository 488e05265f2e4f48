#pragma once
// The write side of a gRPC server reactor: one write at a time (gRPC aborts on a second), one Finish, nothing after it, and a bound on
// what may wait. Include from .cc files only.
#include <grpcpp/grpcpp.h>

#include <deque>
#include <mutex>
#include <utility>

namespace holdfast::supervisor {

// Reactor is grpc::ServerBidiReactor<In, Message> or grpc::ServerWriteReactor<Message>.
template <class Reactor, class Message>
class StreamQueue : public Reactor {
 public:
  explicit StreamQueue(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Any thread. False: too much waits, the stream is ended with RESOURCE_EXHAUSTED.
  bool Push(Message message) {
    std::lock_guard lock(mutex_);
    if (closing_) return true;
    bytes_ += message.ByteSizeLong();
    if (bytes_ > max_bytes_) {
      while (queue_.size() > (writing_ ? 1u : 0u)) queue_.pop_back();
      CloseLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the peer does not read; its stream is closed"));
      return false;
    }
    queue_.push_back(std::move(message));
    Proceed();
    return true;
  }

  // As Push, but what waits and is not being written is replaced.
  void PushLatest(Message message) {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    while (queue_.size() > (writing_ ? 1u : 0u)) queue_.pop_back();
    queue_.push_back(std::move(message));
    Proceed();
  }

  // Any thread. Ends the stream once everything pushed was written.
  void Close(grpc::Status status) {
    std::lock_guard lock(mutex_);
    CloseLocked(std::move(status));
  }

 protected:
  // Runs f unless Finish was called; for StartRead.
  template <class F>
  void IfOpen(F f) {
    std::lock_guard lock(mutex_);
    if (!finished_) f();
  }

 private:
  void OnWriteDone(bool ok) final {
    std::lock_guard lock(mutex_);
    writing_ = false;
    bytes_ -= std::min(bytes_, queue_.front().ByteSizeLong());
    queue_.pop_front();
    if (!ok) {  // the peer is gone
      queue_.clear();
      CloseLocked(grpc::Status::CANCELLED);
    }
    Proceed();
  }
  void CloseLocked(grpc::Status status) {
    if (closing_) return;
    closing_ = true;
    status_ = std::move(status);
    Proceed();
  }
  void Proceed() {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (closing_) {
      finished_ = true;
      this->Finish(status_);
    }
  }

  std::mutex mutex_;
  std::deque<Message> queue_;
  const size_t max_bytes_;
  size_t bytes_ = 0;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
  grpc::Status status_;
};

}  // namespace holdfast::supervisor
