#pragma once
// The implementation behind scheduler.h. Parts: scheduler.cc (commands, views), plan.cc (forming a step), admission.cc (the queue),
// settle.cc (outcomes, release), integrity.cc (findings and containment), resize.cc.
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/kv/capacity.h"
#include "worker/kv/ledger.h"
#include "worker/sched/scheduler.h"
#include "worker/sched/sequence.h"

namespace holdfast::sched {

inline constexpr uint64_t kFoldPreempt = 0x7072'6565'6d70'74ull;

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(const SchedulerConfig& config, const kv::CapacityQuestion& question, FindingSink* findings);
  ~SchedulerImpl() override;

  void Submit(SubmitCommand command) override;
  void Cancel(RequestId request) override;
  void Resize(const ResizeCommand& command) override;
  const StepPlan* Plan() override;
  void Apply(const StepResult& result) override;
  std::vector<RequestEvent>& TakeEvents() override;
  std::vector<PageMove> TakePageMoves() override;
  uint32_t running() const override { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const override { return static_cast<uint32_t>(waiting_.size()); }
  uint32_t outstanding_steps() const override { return outstanding_; }
  uint64_t digest() const override { return Mix64(digest_ ^ ledger_.digest()); }
  uint32_t effective_chunk() const override { return limits_.chunk; }
  std::vector<kv::PoolView> Pools() const override;
  const SchedulerCounters& counters() const override { return counters_; }
  uint64_t index_nodes() const override { return ledger_.index().size(); }
  ResizeState resize() const override { return resize_; }
  uint32_t max_request_tokens() const override;
  bool Audit() override;
  void SuspectPage(uint8_t group, uint32_t page) override;

 private:
  friend struct TestPeer;

  // A launched step: its plan, and for each entry the sequence and the life of it that was launched.
  struct Launch {
    StepPlan plan;
    std::vector<StepEntry> spare;  // entries of larger steps, kept for their arrays
    struct Member {
      Sequence* sequence;
      uint64_t epoch;
      uint32_t start;
      uint32_t tokens;
      bool sample;
    };
    std::vector<Member> members;  // of each entry
    // Tokens of requests that were recycled while this was the newest step: it, or one before it, may name them.
    std::vector<std::vector<TokenId>> kept;
  };

  // ---- scheduler.cc
  Sequence* NewSequence();
  void Recycle(Sequence* sequence);
  void Fold(uint64_t value) { digest_ = Mix64(digest_ ^ value); }
  RequestEvent& Emit(const Sequence& sequence);
  void End(Sequence* sequence, EndReason reason, std::string message = {}, uint32_t limit = 0);
  uint32_t Pages(uint32_t tokens) const { return tokens / page_size_ + (tokens % page_size_ != 0); }
  // Full pages admission reserves for: all it can come to, or what it has and reserve_tokens more.
  uint32_t ReservePages(const Sequence& sequence) const;
  void RefreshLimits();

  // ---- plan.cc
  const StepPlan* FormStep();
  bool CanRunAhead(const Sequence& sequence) const;
  bool SomebodyWaits() const;
  void DropRestarted(Launch* launch);
  void AddEntry(Launch* launch, Sequence* sequence, uint32_t tokens);
  bool Grow(Sequence* sequence, uint32_t tokens);
  uint32_t GrowChunk(Sequence* sequence, uint32_t tokens);
  void SecureOverruns();
  void PlanDecodes(Launch* launch, uint32_t* budget);
  void PlanPrefills(Launch* launch, uint32_t* budget);
  void FailStuck();

  // ---- admission.cc
  enum class Admission : uint8_t { kAdmitted, kHeldBack, kNoRoom };
  struct Demand {
    kv::PrefixMatch match;
    uint32_t pages = 0;       // full pages beyond the match
    uint64_t total() const { return static_cast<uint64_t>(pages) + match.pin_loss; }
  };
  void AdmitWaiting(Launch* launch, uint32_t* budget);
  Demand Measure(Sequence* sequence);
  bool HeldBack(Sequence* sequence, uint32_t blocks);
  bool StillHeldBack(const Sequence& sequence) const;
  void Admit(Sequence* sequence, const Demand& demand);
  void Enqueue(Sequence* sequence);

  // ---- settle.cc
  void SettleMember(const Launch::Member& member, const SampledToken* sampled);
  void ExtendChain(Sequence* sequence);
  void CommitRow(Sequence* sequence);
  void ReleaseRow(Sequence* sequence);     // the only caller of Ledger::Release; inflight == 0
  void LeaveRunning(Sequence* sequence);   // out of running_ and its slot
  void Preempt(Sequence* sequence);

  // ---- integrity.cc
  void Report(Severity severity, const char* kind, std::string detail);
  void CheckStep(bool settled);
  void Contain(const char* cause);
  void AuditWhenIdle();                    // once after the last step
  void Restart(Sequence* sequence);        // from its tokens, at once: drops launched steps' outcomes
  void KeepPromises();                     // I9, after pages were lost
  void Requeue(Sequence* sequence);        // forced: forgets the row, drops launched steps' outcomes
  void CountContainment();

  // ---- resize.cc
  void PumpResize();
  uint32_t FullUsable() const;
  int64_t FullHeadroom() const;            // A - R

  SchedulerConfig config_;
  kv::CapacityQuestion question_;
  FindingSink* findings_;
  uint32_t page_size_;
  kv::Ledger ledger_;
  kv::StepLimits limits_;
  std::vector<uint32_t> usable_;           // [group] scratch of RefreshLimits

  std::vector<std::unique_ptr<Sequence>> pool_;
  std::vector<Sequence*> free_;
  std::vector<Sequence*> waiting_;         // by order
  std::vector<Sequence*> running_;         // by admission; ended ones too while they hold pages
  std::vector<Sequence*> slots_;           // [slot], null = free
  std::unordered_map<uint64_t, Sequence*> by_request_;  // looked up, never iterated
  uint64_t next_order_ = 1;
  uint64_t reserved_ = 0;                  // R: sum of the running requests' `reserved`

  std::vector<Launch> launches_;           // ring of overlap_depth + 1
  uint32_t oldest_ = 0, outstanding_ = 0;
  uint64_t inflight_tokens_ = 0;
  StepNo next_step_{1};
  uint64_t digest_ = 0x7363'6865'64ull;

  std::vector<RequestEvent> events_, taken_;
  SchedulerCounters counters_;

  uint32_t steps_to_audit_ = 0;
  StepNo audited_at_{1};                   // next_step_ when everything was looked at last
  bool audit_soon_ = false;
  bool contained_now_ = false;          // a repair happened; cleared by who looks
  std::vector<uint64_t> containments_;     // step numbers of the last few

  ResizeState resize_;
  struct Target {
    uint32_t limit = 0;
    bool shrink = false;
    bool limit_set = false;
    uint32_t before = 0;
  };
  std::vector<Target> targets_;            // [group], while a resize runs
  std::vector<PageMove> moves_;
};

}  // namespace holdfast::sched
