#include "worker/exec/batch_buffers.h"

#include "proto/base/check.h"

namespace holdfast::exec {

const kernels::Batch& BatchBuffers::Fill(const sched::StepPlan& plan, const model::KvPlan& kv, int64_t vocab,
                                         std::span<const sched::SampledToken> drawn, bool on_host, size_t padding) {
  // Both are in the order in which requests run: the next one is nearly always the next one.
  size_t at = 0;
  const auto find = [&](RequestId request) {
    for (size_t i = 0; i < drawn.size(); ++i, ++at) {
      if (drawn[at % drawn.size()].request == request) return at % drawn.size();
    }
    HF_CHECKF(false, "request {} awaits a token in step {} that nobody draws", request.v, plan.step.v);
    return size_t{0};
  };
  awaited_.clear();
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  logit_rows_.clear();
  tables_.resize(kv.groups.size());
  groups_.resize(kv.groups.size());
  for (auto& t : tables_) t.clear();
  for (const sched::StepEntry& e : plan.entries) {
    HF_CHECKF(!e.tokens.empty(), "request {} has an empty share of step {}", e.request.v, plan.step.v);
    HF_CHECKF(e.tables.size() == kv.groups.size(), "request {}: {} block tables for {} groups", e.request.v, e.tables.size(), kv.groups.size());
    const int32_t first = static_cast<int32_t>(tokens_.size());
    for (size_t i = 0; i < e.tokens.size(); ++i) {
      HF_CHECKF(e.awaits || e.tokens[i] < vocab, "request {}: token {} of a vocabulary of {}", e.request.v, e.tokens[i], vocab);
      tokens_.push_back(e.tokens[i]);
      if (!on_host) awaited_.push_back(-1);
      positions_.push_back(static_cast<int32_t>(e.start + i));
      if (e.prompt_logprobs || (e.sample && i + 1 == e.tokens.size())) logit_rows_.push_back(first + static_cast<int32_t>(i));
    }
    if (e.awaits) {
      HF_CHECKF(e.tokens.size() == 1, "request {} awaits one of {} tokens", e.request.v, e.tokens.size());
      const size_t source = find(e.request);
      if (on_host) {
        tokens_.back() = drawn[source].failed ? 0 : drawn[source].token;   // what failed ends its request, and this row is for nothing
      } else {
        tokens_.back() = 0;
        awaited_.back() = static_cast<int32_t>(source);
      }
    }
    sequences_.push_back({first, static_cast<int32_t>(e.tokens.size()), static_cast<int32_t>(e.start)});
    for (size_t g = 0; g < tables_.size(); ++g) tables_[g].push_back(e.tables[g]);
  }
  tokens_.resize(tokens_.size() + padding, 0);
  positions_.resize(tokens_.size(), 0);
  if (!on_host) awaited_.resize(tokens_.size(), -1);
  for (size_t g = 0; g < tables_.size(); ++g) groups_[g] = {tables_[g], static_cast<int32_t>(kv.groups[g].window)};
  batch_.tokens = tokens_;
  batch_.positions = positions_;
  batch_.sequences = sequences_;
  batch_.groups = groups_;
  batch_.logit_rows = logit_rows_;
  batch_.page_size = kv.page_size;
  batch_.awaited = awaited_;
  return batch_;
}

}  // namespace holdfast::exec
