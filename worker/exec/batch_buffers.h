#pragma once
// The arrays behind a kernels::Batch, refilled from a StepPlan each step without allocating once they have grown.
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/view.h"
#include "worker/model/kv_plan.h"
#include "worker/sched/step.h"

namespace holdfast::exec {

class BatchBuffers {
 public:
  // The batch is valid until the next call and as long as the plan's arrays. HF_CHECKs what the scheduler promises: entries are not
  // empty, tokens are below vocab, each entry has one table for each group, and what it awaits was drawn. `drawn`: what the step before draws,
  // in its order; on_host: its tokens are known already, else the batch says which of them a row takes. padding: so many rows behind the plan's
  // that belong to no sequence.
  const kernels::Batch& Fill(const sched::StepPlan& plan, const model::KvPlan& kv, int64_t vocab, std::span<const sched::SampledToken> drawn,
                             bool on_host, size_t padding = 0);
  // Row of entry i's first token.
  int32_t first_row(size_t i) const { return sequences_[i].first_row; }

 private:
  std::vector<uint32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> awaited_;
  std::vector<kernels::SequenceSpan> sequences_;
  std::vector<std::vector<const int32_t*>> tables_;   // [group][sequence]
  std::vector<kernels::BlockTables> groups_;
  std::vector<int32_t> logit_rows_;
  kernels::Batch batch_;
};

}  // namespace holdfast::exec
