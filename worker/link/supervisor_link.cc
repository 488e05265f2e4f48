#include "worker/link/supervisor_link.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

#include "proto/base/log.h"
#include "proto/worker.grpc.pb.h"

namespace holdfast::worker {
namespace {

uint64_t ResidentBytes() {
  unsigned long total = 0, resident = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(f, "%lu %lu", &total, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void StepPulse::Fill(proto::Heartbeat* out) const {
  out->set_step(step_.load(std::memory_order_relaxed));
  out->set_step_outstanding(outstanding_.load(std::memory_order_relaxed));
  out->set_mean_step_us(mean_us_.load(std::memory_order_relaxed));
  const Duration age(Clock::Real().Now().time_since_epoch().count() - changed_.load(std::memory_order_relaxed));
  out->set_last_change_ms(static_cast<uint32_t>(std::max<int64_t>(0, ToMillis(age))));
  out->set_resident_bytes(ResidentBytes());
}

// A reactor driven from outside its callbacks: one hold is kept from StartCall until the read side ended, so that OnDone cannot come
// between two reads; writes go through one queue with at most one StartWrite outstanding.
class SupervisorLink::Impl final : public grpc::ClientBidiReactor<proto::WorkerMessage, proto::SupervisorMessage> {
 public:
  Impl(const Options& options, Inbox* inbox, const StepPulse* pulse) : options_(options), inbox_(inbox), pulse_(pulse) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(256 << 20);
    args.SetMaxSendMessageSize(256 << 20);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    channel_ = grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), args);
    stub_ = proto::WorkerLink::NewStub(channel_);
    context_.set_wait_for_ready(true);
  }

  void Start() {
    stub_->async()->Attach(&context_, this);
    AddHold();
    proto::WorkerMessage hello;
    auto* h = hello.mutable_hello();
    h->set_generation(options_.generation.v);
    h->set_rank(options_.rank.v);
    h->set_pid(static_cast<uint32_t>(::getpid()));
    h->set_token(options_.token);
    h->set_version(options_.version);
    Send(std::move(hello));
    StartRead(&incoming_);
    StartCall();
  }

  void Send(proto::WorkerMessage message) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      ended_ = true;
      queue_.clear();
    } else {
      queue_.pop_front();
      if (!queue_.empty()) StartWrite(&queue_.front());
    }
    if (queue_.empty()) drained_.notify_all();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        std::lock_guard lock(mutex_);
        ended_ = true;
      }
      inbox_->Post({Inbound::Kind::kLinkLost, nullptr});
      RemoveHold();
      return;
    }
    inbox_->Post({Inbound::Kind::kMessage, std::make_unique<proto::SupervisorMessage>(std::move(incoming_))});
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    LogDebug("link ended: {} {}", static_cast<int>(status.error_code()), status.error_message());
    std::lock_guard lock(mutex_);
    ended_ = done_ = true;
    queue_.clear();
    drained_.notify_all();
  }

  void Flush(Duration at_most) {
    std::unique_lock lock(mutex_);
    drained_.wait_for(lock, at_most, [&] { return queue_.empty() || ended_; });
  }

  void StartHeartbeats() {
    beat_ = std::thread([this] {
      std::unique_lock lock(beat_mutex_);
      while (!beat_stop_.wait_for(lock, options_.heartbeat, [&] { return stopping_; })) {
        proto::WorkerMessage message;
        pulse_->Fill(message.mutable_heartbeat());
        message.mutable_heartbeat()->set_generation(options_.generation.v);
        Send(std::move(message));
      }
    });
  }

  void Shutdown() {
    if (beat_.joinable()) {
      {
        std::lock_guard lock(beat_mutex_);
        stopping_ = true;
      }
      beat_stop_.notify_all();
      beat_.join();
    }
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    drained_.wait_for(lock, std::chrono::seconds(2), [&] { return done_; });
  }

 private:
  const Options options_;
  Inbox* const inbox_;
  const StepPulse* const pulse_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::WorkerLink::Stub> stub_;
  grpc::ClientContext context_;
  proto::SupervisorMessage incoming_;

  std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<proto::WorkerMessage> queue_;  // front is being written
  bool ended_ = false;                      // nothing can be sent any more
  bool done_ = false;

  std::mutex beat_mutex_;
  std::condition_variable beat_stop_;
  bool stopping_ = false;
  std::thread beat_;
};

SupervisorLink::SupervisorLink(const Options& options, Inbox* inbox, const StepPulse* pulse)
    : impl_(std::make_shared<Impl>(options, inbox, pulse)) {
  impl_->Start();
}

SupervisorLink::~SupervisorLink() { impl_->Shutdown(); }
void SupervisorLink::Send(proto::WorkerMessage message) { impl_->Send(std::move(message)); }
void SupervisorLink::StartHeartbeats() { impl_->StartHeartbeats(); }
void SupervisorLink::Flush(Duration at_most) { impl_->Flush(at_most); }

}  // namespace holdfast::worker
