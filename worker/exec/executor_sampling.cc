// The end of a step: from logits to tokens, on the host or by the backend.
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/check.h"
#include "proto/base/fault.h"
#include "proto/base/status_wire.h"
#include "worker/exec/executor.h"

namespace holdfast::exec {
namespace {

constexpr int64_t kMostKeptBytes = int64_t{32} << 20;   // of logits that a step keeps on the host to score prompt tokens from

}  // namespace

void Executor::PrepareConstraints(const sched::StepPlan& plan, const SamplingTable& table) {
  std::vector<Constraint>& constraints = Newest().constraints;
  constraints.clear();
  if (!draws()) return;
  for (const sched::StepEntry& e : plan.entries) {
    const SamplingTable::Entry* entry = e.sample ? table.Find(e.request) : nullptr;
    if (entry == nullptr || !entry->params.constrained) continue;
    constraints.push_back({&e, &entry->params, {}, {}});
    if (constraints_ == nullptr) constraints.back().status = absl::InternalError("nobody knows this request's constraint");
  }
  if (constraints.empty() || constraints_ == nullptr) return;
  const bool keep = ops_->DrawsTokens();
  aside_.Start([this, keep, &constraints] {
    for (Constraint& c : constraints) {
      const auto allowed = constraints_->Allowed(c.entry->request, c.entry->history, c.entry->prompt_tokens);
      if (!keep) continue;   // what fails here fails again for the draw, and is told then
      c.status = allowed.status();
      if (allowed.ok()) MaskOf(*allowed, *c.params, model_->hparams().vocab, &c.bits);
    }
  });
}

absl::Status Executor::ListWanted(const sched::StepPlan& plan, const SamplingTable& table) {
  Flight& flight = Newest();
  flight.wanted.clear();
  flight.on_backend.clear();
  int32_t slots = 0, constrained = 0;
  for (uint32_t i = 0; i < plan.entries.size(); ++i) {
    const sched::StepEntry& e = plan.entries[i];
    const int32_t first = flight.batch.first_row(i);
    const SamplingTable::Entry* entry = table.Find(e.request);
    if (entry == nullptr && (e.sample || e.prompt_logprobs)) {
      return absl::InternalError(fmt::format("step {}: request {} has no sampling parameters", plan.step.v, e.request.v));
    }
    for (uint32_t r = 0; r < e.tokens.size(); ++r) {
      const uint32_t position = e.start + r;
      const bool last = r + 1 == e.tokens.size();
      // Row p scores prompt token p + 1; the row of the last prompt token has none to score.
      const bool score = e.prompt_logprobs && size_t{position} + 1 < entry->prompt.size();
      if (!score && !(e.sample && last)) continue;
      WantedRow w{first + static_cast<int32_t>(r), i, e.sample && last, position};
      if (w.sample) {
        w.slot = slots++;
        if (draws() && entry->params.constrained) w.constraint = constrained++;
      }
      if (score || (w.sample && entry->params.logprobs)) w.logits = 0;   // EnqueueDraws says where
      if (w.sample) flight.on_backend.push_back(w.logits < 0);
      flight.wanted.push_back(w);
    }
  }
  return absl::OkStatus();
}

kernels::Mat Executor::TileOf(size_t begin) {
  const std::vector<WantedRow>& wanted = Newest().wanted;
  const size_t n = std::min<size_t>(options_.max_logit_rows, wanted.size() - begin);
  rows_.clear();
  for (size_t i = 0; i < n; ++i) rows_.push_back(wanted[begin + i].row);
  const kernels::Mat tile(logits_.as<float>(), static_cast<int64_t>(n), model_->hparams().vocab);
  if (!Newest().has_logits) model_->Logits(*ops_, rows_, tile);   // else they are all there, a sequence a row
  return tile;
}

absl::Status Executor::Sampling() {
  Flight& flight = Newest();
  if (flight.wanted.empty()) {
    ops_->Sync();
    return ops_->Health();
  }
  for (size_t begin = 0; begin < flight.wanted.size(); begin += options_.max_logit_rows) {
    const kernels::Mat tile = TileOf(begin);
    ops_->Sync();
    HF_RETURN_IF_ERROR(ops_->Health());
    if (!model_->status().ok()) return model_->status();
    for (int64_t i = 0; draws() && i < tile.rows; ++i) {
      ops_->CopyToHost(reinterpret_cast<std::byte*>(host_row_.data()), reinterpret_cast<const std::byte*>(tile.row(i)),
                       tile.cols * static_cast<int64_t>(sizeof(float)));
      ops_->Sync();
      TakeRow(&flight, flight.wanted[begin + static_cast<size_t>(i)], host_row_);
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::EnqueueDraws(const sched::StepPlan& plan, const SamplingTable& table) {
  Flight& flight = Newest();
  const int64_t vocab = model_->hparams().vocab, row_bytes = vocab * static_cast<int64_t>(sizeof(float));
  // Logits of a long prompt do not fit anywhere: such rows are waited for and scored tile by tile.
  const auto scored = std::count_if(flight.wanted.begin(), flight.wanted.end(), [](const WantedRow& w) { return !w.sample; });
  const bool scores_now = scored > std::min<int64_t>(options_.max_logit_rows, kMostKeptBytes / row_bytes);
  int64_t kept = 0;
  size_t slots = 0;
  for (WantedRow& w : flight.wanted) {
    if (w.logits >= 0 && draws() && (w.sample || !scores_now)) w.logits = vocab * kept++;
    slots += w.sample;
  }
  flight.logits.resize(static_cast<size_t>(kept * vocab));
  flight.drawn.assign(slots, {});
  if (draws_later()) {   // who draws a token is known before which: the next step's rows may await it
    for (const WantedRow& w : flight.wanted) {
      if (w.sample) flight.result.result.sampled.push_back({plan.entries[w.entry].request});
    }
  }
  lists_.resize(options_.max_logit_rows);
  for (size_t begin = 0; begin < flight.wanted.size(); begin += options_.max_logit_rows) {
    const kernels::Mat tile = TileOf(begin);
    if (!model_->status().ok()) return model_->status();
    if (!draws()) continue;
    specs_.assign(static_cast<size_t>(tile.rows), {});
    for (size_t i = 0; i < specs_.size(); ++i) {
      WantedRow& w = flight.wanted[begin + i];
      const auto* row = reinterpret_cast<const std::byte*>(tile.row(static_cast<int64_t>(i)));
      if (!w.sample && scores_now) {
        ops_->CopyToHost(reinterpret_cast<std::byte*>(host_row_.data()), row, row_bytes);
        ops_->Sync();
        HF_RETURN_IF_ERROR(ops_->Health());
        ScoreRow(&flight, w, host_row_);
        w.scored = true;
        continue;
      }
      if (w.logits >= 0) {
        ops_->CopyToHost(reinterpret_cast<std::byte*>(flight.logits.data() + w.logits), row, row_bytes);
        continue;
      }
      const sched::StepEntry& e = plan.entries[w.entry];
      const Constraint* constraint = w.constraint < 0 ? nullptr : &flight.constraints[static_cast<size_t>(w.constraint)];
      if (constraint != nullptr && !constraint->status.ok()) continue;   // nothing is drawn, and CollectDraws says why
      specs_[i] = sampler_.SpecOf(table.Find(e.request)->params, e.history, e.prompt_tokens, constraint == nullptr ? std::span<const uint64_t>() : constraint->bits,
                                  e.awaits ? 1 : 0, &lists_[i]);
      specs_[i].slot = w.slot;
    }
    ops_->Draw(tile, specs_, flight.drawn.data());
  }
  flight.mark = ops_->Mark();
  return absl::OkStatus();
}

absl::Status Executor::CollectDraws(Flight* flight) {
  ops_->Wait(flight->mark);
  HF_RETURN_IF_ERROR(ops_->Health());
  flight->result.result.sampled.clear();
  if (!draws()) return absl::OkStatus();
  const size_t vocab = static_cast<size_t>(model_->hparams().vocab);
  for (const WantedRow& w : flight->wanted) {
    if (w.scored) continue;
    TakeRow(flight, w, w.logits < 0 ? std::span<float>() : std::span(flight->logits).subspan(static_cast<size_t>(w.logits), vocab));
  }
  return absl::OkStatus();
}

Sample Executor::DrawToken(const Flight& flight, const WantedRow& w, const SamplingParams& params, std::span<float> logits, std::string* why) {
  const sched::StepEntry& e = flight.plan->entries[w.entry];
  const auto told = [&](Sample out) {
    if (out.refused) *why = fmt::format("token {} could not be drawn: {}", e.start + e.tokens.size() - e.prompt_tokens, out.why);
    return out;
  };
  const auto draw = [&](const AllowedTokens* allowed) {
    if (!logits.empty()) return told(sampler_.Draw(logits, params, e.history, e.prompt_tokens, allowed, e.awaits ? 1 : 0));
    const kernels::Drawn& drawn = flight.drawn[static_cast<size_t>(w.slot)];
    if (drawn.status != kernels::DrawStatus::kDrawn) return told(FailedSample(drawn.status, allowed != nullptr));
    Sample out;
    out.token = drawn.token;
    return out;
  };
  if (!params.constrained) return draw(nullptr);
  const Constraint& constraint = flight.constraints[static_cast<size_t>(w.constraint)];
  const auto ask = [&]() -> absl::StatusOr<AllowedTokens> {
    HF_RETURN_IF_ERROR(constraint.status);
    if (!ops_->DrawsTokens()) return constraints_->Allowed(e.request, e.history, e.prompt_tokens);
    AllowedTokens allowed;
    allowed.dense = true;
    allowed.bits = constraint.bits;
    return allowed;
  };
  const auto allowed = ask();
  if (allowed.ok()) return draw(&*allowed);
  Sample out;
  out.failed = true;
  out.refused = !absl::IsInternal(allowed.status());
  *why = std::string(allowed.status().message());
  return out;
}

void Executor::ScoreRow(Flight* flight, const WantedRow& w, std::span<const float> logits) {
  const sched::StepEntry& e = flight->plan->entries[w.entry];
  const SamplingTable::Entry& entry = *flight->table->Find(e.request);
  ExecResult& result = flight->result;
  Sample s = sampler_.Score(logits, entry.prompt[w.position + 1], entry.params.top_logprobs);
  if (result.logprobs.empty() || result.logprobs.back().request != e.request || !result.logprobs.back().prompt) {
    result.logprobs.push_back({e.request, true, w.position + 1, {}, {}});
  }
  result.logprobs.back().tokens.push_back({s.token, s.logprob});
  result.logprobs.back().top.push_back(std::move(s.top));
  if (s.failed) result.failures.push_back(fmt::format("request {}: prompt position {}: {}", e.request.v, w.position, s.why));
}

void Executor::TakeRow(Flight* flight, const WantedRow& w, std::span<float> logits) {
  const sched::StepEntry& e = flight->plan->entries[w.entry];
  const SamplingTable::Entry* entry = flight->table->Find(e.request);
  ExecResult& result = flight->result;
  if (entry == nullptr) {   // it ended since the step was launched: whatever is said here, nobody wants it
    if (w.sample) result.result.sampled.push_back({.request = e.request, .failed = true});
    return;
  }
  if (!w.sample) return ScoreRow(flight, w, logits);
  sched::SampledToken token;
  Sample s = DrawToken(*flight, w, entry->params, logits, &token.why);
  token.request = e.request;
  token.token = s.token;
  token.failed = s.failed || FaultPoint("exec.sample");
  token.refused = s.refused;
  token.is_stop = !s.failed && std::binary_search(entry->params.stop_tokens.begin(), entry->params.stop_tokens.end(), s.token);
  if (token.failed) {
    const char* why = !token.why.empty() ? token.why.c_str() : s.failed ? s.why : "fault point exec.sample";
    result.failures.push_back(fmt::format("request {}: position {}: {}", e.request.v, w.position, why));
  } else if (entry->params.logprobs) {
    result.logprobs.push_back({e.request, false, w.position + 1, {{s.token, s.logprob}}, {}});
    result.logprobs.back().top.push_back(std::move(s.top));
  }
  result.result.sampled.push_back(token);
}

}  // namespace holdfast::exec
