#include "worker/replay/replay.h"

#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "proto/base/finding.h"
#include "proto/base/status_wire.h"
#include "worker/kv/ids.h"
#include "worker/replay/format.h"
#include "worker/sched/scheduler.h"

namespace holdfast::replay {
namespace {

constexpr size_t kMaxFindings = 100;

// Reads forward through bytes that may be anything. After the first thing that is not there, ok() is false and all values are 0.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T Fixed() {
    T value{};
    if (!Has(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  uint64_t Number(uint64_t most = UINT64_MAX) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Fixed<uint8_t>();
      if (!ok_) return 0;
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) {
        if (value <= most) return value;
        break;
      }
    }
    ok_ = false;
    return 0;
  }
  uint32_t Number32() { return static_cast<uint32_t>(Number(UINT32_MAX)); }
  // A count of things of which each takes at least `each` bytes: never more than what is left.
  size_t Count(size_t each = 1) { return static_cast<size_t>(Number((bytes_.size() - at_) / each)); }
  std::string Text() {
    const size_t n = Count();
    if (!Has(n)) return {};
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return text;
  }
  bool ok() const { return ok_; }
  size_t at() const { return at_; }
  bool done() const { return at_ == bytes_.size(); }

 private:
  bool Has(size_t n) {
    ok_ = ok_ && bytes_.size() - at_ >= n;
    return ok_;
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

class Findings final : public FindingSink {
 public:
  explicit Findings(std::vector<std::string>* to) : to_(to) {}
  void Report(Finding finding) override {
    if (to_->size() < kMaxFindings) to_->push_back(fmt::format("{} {}: {}", SeverityName(finding.severity), finding.kind, finding.detail));
  }

 private:
  std::vector<std::string>* to_;
};

struct Header {
  uint64_t check = 0;
  sched::SchedulerConfig config;
};

absl::StatusOr<Header> ReadHeader(std::span<const std::byte> bytes, ReplayReport* report) {
  if (bytes.size() < kHeaderBytes) {
    return absl::DataLossError(fmt::format("{} bytes are no recording: its header alone has {}", bytes.size(), kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic, 8) != 0) {
    return absl::InvalidArgumentError(fmt::format("this is no recording: it does not begin with {}", kMagic));
  }
  Header header;
  std::memcpy(&header.check, bytes.data() + kHeaderBytes - sizeof header.check, sizeof header.check);
  if (header.check != HeaderCheck(bytes.data())) return absl::DataLossError("the header is damaged: its check differs");
  Cursor fixed(bytes.subspan(kUsedOffset));
  const uint64_t used = fixed.Fixed<uint64_t>();
  if (used != bytes.size()) {
    return absl::DataLossError(fmt::format("the recording has {} bytes, its header says {}: it was cut or grew", bytes.size(), used));
  }
  report->generation = fixed.Fixed<uint64_t>();
  report->rank = fixed.Fixed<uint32_t>();
  const uint32_t size = fixed.Fixed<uint32_t>();
  if (size > kMaxConfigBytes) return absl::DataLossError("the header is damaged: the configuration does not fit it");
  Cursor c(bytes.subspan(kConfigOffset, size));
  report->version = c.Text();
  sched::SchedulerConfig& config = header.config;
  config.cache.page_size = c.Number32();
  config.cache.groups.resize(c.Count(3));
  for (kv::GroupShape& g : config.cache.groups) {
    g.window = c.Number32();
    g.pages = c.Number32();
    g.reserve_pages = c.Number32();
  }
  config.max_running = c.Number32();
  config.prefill_chunk = c.Number32();
  config.max_seq_len = c.Number32();
  config.max_waiting = c.Number32();
  config.overlap_depth = c.Number32();
  config.prefix_cache = c.Number(1) != 0;
  config.audit_period = c.Number32();
  config.reserve_tokens = c.Number32();
  if (!c.ok() || !c.done()) return absl::DataLossError("the header is damaged: the configuration cannot be read");
  for (const kv::GroupShape& g : config.cache.groups) {
    if (g.reserve_pages < g.pages) return absl::DataLossError("the header is damaged: a pool reserves fewer pages than it has");
  }
  return header;
}

// One pass over the entries.
class Run {
 public:
  Run(std::span<const std::byte> bytes, uint64_t chain, sched::Scheduler* scheduler, ReplayReport* report)
      : bytes_(bytes), cursor_(bytes), chain_(chain), scheduler_(*scheduler), report_(*report) {}

  absl::Status All() {
    while (!cursor_.done() && report_.same() && !report_.full) {
      const size_t begin = cursor_.at();
      // Read, then checked, then run.
      const EntryKind kind = Read();
      const size_t size = cursor_.at() - begin;
      const uint32_t recorded = cursor_.Fixed<uint32_t>();
      chain_ = Check(chain_, bytes_.data() + begin, size);
      if (!known_ || !cursor_.ok() || recorded != static_cast<uint32_t>(chain_)) {
        return absl::DataLossError(fmt::format("entry {} at byte {} is damaged; the {} steps before it replay to the same digest", report_.entries,
                                               kHeaderBytes + begin, report_.steps));
      }
      Execute(kind);
      scheduler_.TakeEvents();
      scheduler_.TakePageMoves();
      ++report_.entries;
    }
    if (!cursor_.done() && report_.same()) {
      return absl::DataLossError(fmt::format("entry {} follows the last: the recording is damaged", report_.entries));
    }
    return absl::OkStatus();
  }

  // What the process was about to do when the recording ended. A CHECK that ended it then ends this process in the same place.
  void Beyond() {
    if (report_.same() && !report_.full) scheduler_.Plan();  // gives nothing where a result would have come next
  }

 private:
  EntryKind Read() {
    const auto kind = static_cast<EntryKind>(cursor_.Fixed<uint8_t>());
    switch (kind) {
      case EntryKind::kSubmit: {
        submit_ = sched::SubmitCommand();
        submit_.request = RequestId(cursor_.Number());
        submit_.prompt_tokens = cursor_.Number32();
        submit_.max_tokens = cursor_.Number32();
        const uint64_t flags = cursor_.Number(7);
        submit_.no_cache = (flags & 1) != 0;
        submit_.prompt_logprobs = (flags & 2) != 0;
        submit_.run_ahead = (flags & 4) != 0;
        submit_.cache_salt = cursor_.Text();
        submit_.anchors.resize(cursor_.Count());
        for (uint32_t& a : submit_.anchors) a = cursor_.Number32();
        submit_.tokens.resize(cursor_.Count());
        for (TokenId& t : submit_.tokens) t = cursor_.Number32();
        return kind;
      }
      case EntryKind::kCancel: request_ = RequestId(cursor_.Number()); return kind;
      case EntryKind::kResize:
        resize_.operation = cursor_.Number();
        resize_.full_pages = cursor_.Number32();
        resize_.window_pages = cursor_.Number32();
        resize_.cancel = cursor_.Number(1) != 0;
        return kind;
      case EntryKind::kPlan:
        step_ = cursor_.Number();
        count_ = cursor_.Number();
        total_ = cursor_.Number();
        digest_ = cursor_.Fixed<uint64_t>();
        return kind;
      case EntryKind::kIdle:
        times_ = cursor_.Fixed<uint32_t>();
        digest_ = cursor_.Fixed<uint64_t>();
        return kind;
      case EntryKind::kApply:
        result_.step = StepNo(cursor_.Number());
        result_.sampled.resize(cursor_.Count(3));
        for (sched::SampledToken& s : result_.sampled) {
          s.request = RequestId(cursor_.Number());
          s.token = cursor_.Number32();
          const uint64_t flags = cursor_.Number(3);
          s.is_stop = (flags & 1) != 0;
          s.failed = (flags & 2) != 0;
        }
        return kind;
      case EntryKind::kDigest: digest_ = cursor_.Fixed<uint64_t>(); return kind;
      case EntryKind::kSuspectPage:
        group_ = static_cast<uint8_t>(cursor_.Number(UINT8_MAX));
        page_ = cursor_.Number32();
        return kind;
      case EntryKind::kAudit:
      case EntryKind::kFull: return kind;
    }
    known_ = false;
    return kind;
  }

  void Execute(EntryKind kind) {
    switch (kind) {
      case EntryKind::kSubmit:
        ++report_.requests;
        scheduler_.Submit(std::move(submit_));
        break;
      case EntryKind::kCancel: scheduler_.Cancel(request_); break;
      case EntryKind::kResize: scheduler_.Resize(resize_); break;
      case EntryKind::kPlan: Plan(); break;
      case EntryKind::kIdle: Idle(); break;
      case EntryKind::kApply:
        scheduler_.Apply(result_);
        if (scheduler_.outstanding_steps() > 0) {
          report_.unfinished = result_.step.v + 1;  // steps have consecutive numbers
        } else {
          report_.unfinished.reset();
        }
        settled_ = result_.step.v;
        break;
      case EntryKind::kDigest:
        if (scheduler_.digest() != digest_) {
          Differ(settled_, fmt::format("after step {} the digest is {:016x}, recorded {:016x}", settled_, scheduler_.digest(), digest_));
        } else {
          ++report_.steps;
        }
        break;
      case EntryKind::kAudit: scheduler_.Audit(); break;
      case EntryKind::kSuspectPage: scheduler_.SuspectPage(group_, page_); break;
      case EntryKind::kFull: report_.full = true; break;
    }
  }

  void Plan() {
    const sched::StepPlan* plan = scheduler_.Plan();
    if (plan == nullptr) return Differ(step_, fmt::format("nothing was planned, recorded step {} of {} entries", step_, count_));
    if (!report_.unfinished) report_.unfinished = plan->step.v;
    if (plan->step.v != step_ || plan->entries.size() != count_ || plan->total_tokens != total_ || plan->digest != digest_) {
      Differ(step_, fmt::format("planned step {} of {} entries, {} tokens, digest {:016x}; recorded step {} of {} entries, {} tokens, digest {:016x}",
                                plan->step.v, plan->entries.size(), plan->total_tokens, plan->digest, step_, count_, total_, digest_));
    }
  }

  void Idle() {
    for (uint32_t i = 0; i < times_; ++i) {
      if (const sched::StepPlan* plan = scheduler_.Plan(); plan != nullptr) {
        return Differ(plan->step.v, fmt::format("planned step {} of {} entries, recorded none", plan->step.v, plan->entries.size()));
      }
    }
    if (scheduler_.digest() != digest_) Differ(settled_, fmt::format("without a step the digest is {:016x}, recorded {:016x}", scheduler_.digest(), digest_));
  }

  void Differ(uint64_t step, std::string what) { report_.divergence = Divergence{step, report_.entries, std::move(what)}; }

  std::span<const std::byte> bytes_;
  Cursor cursor_;
  uint64_t chain_;
  sched::Scheduler& scheduler_;
  ReplayReport& report_;
  bool known_ = true;
  uint64_t settled_ = 0;
  // The entry read last.
  sched::SubmitCommand submit_;
  sched::ResizeCommand resize_;
  sched::StepResult result_;
  RequestId request_;
  uint64_t step_ = 0, count_ = 0, total_ = 0, digest_ = 0;
  uint32_t times_ = 0, page_ = 0;
  uint8_t group_ = 0;
};

}  // namespace

absl::StatusOr<ReplayReport> Replay(std::span<const std::byte> recording) {
  ReplayReport report;
  HF_ASSIGN_OR_RETURN(const Header header, ReadHeader(recording, &report));
  Findings findings(&report.findings);
  auto scheduler = sched::Scheduler::Create(header.config, &findings);
  if (!scheduler.ok()) {
    return absl::DataLossError(fmt::format("no scheduler can be made with the recorded configuration: {}", std::string(scheduler.status().message())));
  }
  Run run(recording.subspan(kHeaderBytes), header.check, scheduler->get(), &report);
  HF_RETURN_IF_ERROR(run.All());
  report.digest = (*scheduler)->digest();
  run.Beyond();
  return report;
}

}  // namespace holdfast::replay
