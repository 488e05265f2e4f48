#include "worker/replay/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "proto/base/check.h"
#include "proto/base/version.h"
#include "worker/replay/format.h"

namespace holdfast::replay {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written as memory has it");
static_assert(sizeof(sched::SchedulerConfig) == 64, "a field of SchedulerConfig that is not recorded makes replays differ: add it here and in replay.cc");

// An entry being written behind `used`. Past the end it only remembers that there was no room.
class Recording::Entry {
 public:
  Entry(std::byte* begin, std::byte* end) : begin_(begin), at_(begin), end_(end) {}

  Entry& Bytes(const void* data, size_t size) {
    if (static_cast<size_t>(end_ - at_) < size) {
      fits_ = false;
    } else {
      std::memcpy(at_, data, size);
      at_ += size;
    }
    return *this;
  }
  template <class T>
  Entry& Fixed(T value) {
    return Bytes(&value, sizeof value);
  }
  Entry& Kind(EntryKind kind) { return Fixed(static_cast<uint8_t>(kind)); }
  Entry& Number(uint64_t value) {
    uint8_t bytes[10];
    size_t n = 0;
    while (value >= 0x80) {
      bytes[n++] = static_cast<uint8_t>(value | 0x80);
      value >>= 7;
    }
    bytes[n++] = static_cast<uint8_t>(value);
    return Bytes(bytes, n);
  }
  Entry& Text(std::string_view text) { return Number(text.size()).Bytes(text.data(), text.size()); }

  bool fits() const { return fits_; }
  const std::byte* begin() const { return begin_; }
  size_t size() const { return static_cast<size_t>(at_ - begin_); }

 private:
  std::byte* begin_;
  std::byte* at_;
  std::byte* end_;
  bool fits_ = true;
};

namespace {

constexpr uint64_t kFullBytes = 1 + kCheckBytes;  // kept free for kFull

}  // namespace

absl::StatusOr<std::unique_ptr<Recording>> Recording::Create(const sched::SchedulerConfig& config, uint64_t generation, uint32_t rank,
                                                             uint64_t capacity) {
  if (capacity < kHeaderBytes + kFullBytes) {
    return absl::InvalidArgumentError(fmt::format("a recording of {} bytes has no room; at least {} work", capacity, kHeaderBytes + kFullBytes));
  }
  std::unique_ptr<Recording> r(new Recording);
  r->fd_.Reset(memfd_create("holdfast-recording", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!r->fd_ || ftruncate(r->fd_.get(), static_cast<off_t>(capacity)) != 0) {
    return absl::ResourceExhaustedError(fmt::format("cannot make a memory file of {} bytes for the recording: {}", capacity, strerror(errno)));
  }
  fcntl(r->fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* p = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd_.get(), 0);
  if (p == MAP_FAILED) return absl::ResourceExhaustedError(fmt::format("cannot map {} bytes for the recording: {}", capacity, strerror(errno)));
  r->base_ = static_cast<std::byte*>(p);
  r->capacity_ = capacity;

  std::memcpy(r->base_, kMagic, 8);
  std::memcpy(r->base_ + 16, &generation, sizeof generation);
  std::memcpy(r->base_ + 24, &rank, sizeof rank);
  Entry c(r->base_ + kConfigOffset, r->base_ + kConfigOffset + kMaxConfigBytes);
  c.Text(kVersion).Number(config.cache.page_size).Number(config.cache.groups.size());
  for (const kv::GroupShape& g : config.cache.groups) c.Number(g.window).Number(g.pages).Number(g.reserve_pages);
  c.Number(config.max_running).Number(config.prefill_chunk).Number(config.max_seq_len).Number(config.max_waiting).Number(config.overlap_depth);
  c.Number(config.prefix_cache).Number(config.audit_period).Number(config.reserve_tokens);
  if (!c.fits()) return absl::InvalidArgumentError(fmt::format("{} page groups do not fit the header of a recording", config.cache.groups.size()));
  const uint32_t bytes = static_cast<uint32_t>(c.size());
  std::memcpy(r->base_ + 28, &bytes, sizeof bytes);
  r->chain_ = HeaderCheck(r->base_);
  std::memcpy(r->base_ + kHeaderBytes - sizeof r->chain_, &r->chain_, sizeof r->chain_);
  r->used_ = kHeaderBytes;
  r->Publish();
  return r;
}

Recording::~Recording() {
  if (base_ != nullptr) munmap(base_, capacity_);
}

void Recording::Publish() {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base_ + kUsedOffset)).store(used_, std::memory_order_release);
}

void Recording::Append(const Entry& entry) {
  Entry last = entry;
  if (!entry.fits()) {
    full_ = true;
    last = Entry(base_ + used_, base_ + capacity_);
    last.Kind(EntryKind::kFull);
  }
  chain_ = Check(chain_, last.begin(), last.size());
  const uint32_t check = static_cast<uint32_t>(chain_);
  HF_CHECK(used_ + last.size() + kCheckBytes <= capacity_);
  std::memcpy(base_ + used_ + last.size(), &check, sizeof check);
  used_ += last.size() + kCheckBytes;
  idle_times_ = 0;
  Publish();
}

#define HF_RECORD_ENTRY(entry) \
  if (full_) return;           \
  Entry entry(base_ + used_, base_ + std::max(used_, capacity_ - kFullBytes - kCheckBytes))

void Recording::Submit(const sched::SubmitCommand& command) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kSubmit).Number(command.request.v).Number(command.prompt_tokens).Number(command.max_tokens);
  e.Number((command.no_cache ? 1 : 0) | (command.prompt_logprobs ? 2 : 0) | (command.run_ahead ? 4 : 0)).Text(command.cache_salt);
  e.Number(command.anchors.size());
  for (const uint32_t a : command.anchors) e.Number(a);
  e.Number(command.tokens.size());
  for (const TokenId t : command.tokens) e.Number(t);
  Append(e);
}

void Recording::Cancel(RequestId request) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kCancel).Number(request.v);
  Append(e);
}

void Recording::Resize(const sched::ResizeCommand& command) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kResize).Number(command.operation).Number(command.full_pages).Number(command.window_pages).Number(command.cancel);
  Append(e);
}

void Recording::Plan(const sched::StepPlan* plan, uint64_t digest) {
  if (plan == nullptr && idle_times_ > 0 && idle_digest_ == digest && idle_times_ < UINT32_MAX && !full_) {
    // Taken back first: killed in between, the file ends before this entry.
    const uint32_t times = idle_times_ + 1;
    used_ = idle_at_;
    chain_ = idle_chain_;
    Publish();
    idle_times_ = times;
  } else {
    idle_times_ = 1;
  }
  const uint32_t times = idle_times_;
  HF_RECORD_ENTRY(e);
  const uint64_t at = used_, chain = chain_;
  if (plan == nullptr) {
    e.Kind(EntryKind::kIdle).Fixed(times).Fixed(digest);
  } else {
    e.Kind(EntryKind::kPlan).Number(plan->step.v).Number(plan->entries.size()).Number(plan->total_tokens).Fixed(digest);
  }
  Append(e);
  if (plan != nullptr) return;
  idle_at_ = at;
  idle_chain_ = chain;
  idle_digest_ = digest;
  idle_times_ = times;
}

void Recording::Apply(const sched::StepResult& result) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kApply).Number(result.step.v).Number(result.sampled.size());
  for (const sched::SampledToken& s : result.sampled) e.Number(s.request.v).Number(s.token).Number((s.is_stop ? 1 : 0) | (s.failed ? 2 : 0));
  Append(e);
}

void Recording::Digest(uint64_t digest) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kDigest).Fixed(digest);
  Append(e);
}

void Recording::Audit() {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kAudit);
  Append(e);
}

void Recording::SuspectPage(uint8_t group, uint32_t page) {
  HF_RECORD_ENTRY(e);
  e.Kind(EntryKind::kSuspectPage).Number(group).Number(page);
  Append(e);
}

namespace {

class RecordingScheduler final : public sched::Scheduler {
 public:
  RecordingScheduler(std::unique_ptr<sched::Scheduler> inner, std::unique_ptr<Recording> recording)
      : inner_(std::move(inner)), recording_(std::move(recording)) {}

  // What goes in is recorded before it runs: what kills the process is in the file.
  void Submit(sched::SubmitCommand command) override {
    recording_->Submit(command);
    inner_->Submit(std::move(command));
  }
  void Cancel(RequestId request) override {
    recording_->Cancel(request);
    inner_->Cancel(request);
  }
  void Resize(const sched::ResizeCommand& command) override {
    recording_->Resize(command);
    inner_->Resize(command);
  }
  const sched::StepPlan* Plan() override {
    const sched::StepPlan* plan = inner_->Plan();
    recording_->Plan(plan, inner_->digest());
    return plan;
  }
  void Apply(const sched::StepResult& result) override {
    recording_->Apply(result);
    inner_->Apply(result);
    recording_->Digest(inner_->digest());
  }
  bool Audit() override {
    recording_->Audit();
    return inner_->Audit();
  }
  void SuspectPage(uint8_t group, uint32_t page) override {
    recording_->SuspectPage(group, page);
    inner_->SuspectPage(group, page);
  }

  std::vector<sched::RequestEvent>& TakeEvents() override { return inner_->TakeEvents(); }
  std::vector<sched::PageMove> TakePageMoves() override { return inner_->TakePageMoves(); }
  uint32_t running() const override { return inner_->running(); }
  uint32_t waiting() const override { return inner_->waiting(); }
  uint32_t outstanding_steps() const override { return inner_->outstanding_steps(); }
  uint64_t digest() const override { return inner_->digest(); }
  uint32_t effective_chunk() const override { return inner_->effective_chunk(); }
  std::vector<kv::PoolView> Pools() const override { return inner_->Pools(); }
  const sched::SchedulerCounters& counters() const override { return inner_->counters(); }
  uint64_t index_nodes() const override { return inner_->index_nodes(); }
  sched::ResizeState resize() const override { return inner_->resize(); }
  uint32_t max_request_tokens() const override { return inner_->max_request_tokens(); }

 private:
  std::unique_ptr<sched::Scheduler> inner_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace

std::unique_ptr<sched::Scheduler> RecordScheduler(std::unique_ptr<sched::Scheduler> inner, std::unique_ptr<Recording> recording) {
  return std::make_unique<RecordingScheduler>(std::move(inner), std::move(recording));
}

}  // namespace holdfast::replay
