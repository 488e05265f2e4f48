#include "worker/exec/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "proto/base/check.h"
#include "proto/base/fault.h"
#include "proto/base/status_wire.h"

namespace holdfast::exec {
namespace {

uint64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void SamplingTable::Add(RequestId request, SamplingParams params, std::vector<TokenId> prompt) {
  std::sort(params.stop_tokens.begin(), params.stop_tokens.end());
  entries_.insert_or_assign(request, Entry{std::move(params), std::move(prompt)});
}

void SamplingTable::Remove(RequestId request) { entries_.erase(request); }

const SamplingTable::Entry* SamplingTable::Find(RequestId request) const {
  const auto it = entries_.find(request);
  return it == entries_.end() ? nullptr : &it->second;
}

// Each request decodes one token: a step like those before and after it.
bool Executor::IsDecode(const sched::StepPlan& plan) {
  return !plan.entries.empty() && std::all_of(plan.entries.begin(), plan.entries.end(), [](const sched::StepEntry& e) {
    return e.sample && e.tokens.size() == 1 && !e.prompt_logprobs;
  });
}

Executor::Executor(kernels::Ops* ops, std::unique_ptr<model::Model> model, const ExecutorOptions& options)
    : ops_(ops), model_(std::move(model)), options_(options), sampler_(model_->hparams().vocab), recorder_(options.flight_records) {}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(kernels::Ops* ops, std::unique_ptr<model::Model> model, const model::KvPlan& plan,
                                                           const kv::CacheShape& cache, const KvStorageOptions& storage,
                                                           const ExecutorOptions& options) {
  HF_CHECK(options.max_logit_rows > 0 && options.max_step_tokens > 0);
  std::unique_ptr<Executor> executor(new Executor(ops, std::move(model), options));
  HF_ASSIGN_OR_RETURN(executor->storage_, KvStorage::Create(*ops, plan, cache, storage));
  executor->model_->Reserve(*ops, options.max_step_tokens);
  const int64_t vocab = executor->model_->hparams().vocab;
  HF_RETURN_IF_ERROR(ops->Health());
  if (!executor->draws()) return executor;
  executor->logits_ = ops->Allocate(static_cast<int64_t>(options.max_logit_rows) * vocab * static_cast<int64_t>(sizeof(float)));
  HF_RETURN_IF_ERROR(ops->Health());
  executor->host_row_.resize(vocab);
  return executor;
}

absl::StatusOr<const ExecResult*> Executor::Run(const sched::StepPlan& plan, const SamplingTable& table) {
  HF_CHECK(launched_ == 0);
  HF_RETURN_IF_ERROR(Launch(plan, table));
  return Finish();
}

absl::Status Executor::Launch(const sched::StepPlan& plan, const SamplingTable& table) {
  HF_CHECK(launched_ < kMostLaunched);
  HF_RETURN_IF_ERROR(Enqueue(plan, table));
  ++launched_;
  return absl::OkStatus();
}

absl::Status Executor::Enqueue(const sched::StepPlan& plan, const SamplingTable& table) {
  const std::vector<sched::SampledToken>& drawn_before = Newest().result.result.sampled;
  newest_ = (newest_ + 1) % kMostLaunched;
  Flight& flight = Newest();
  flight.plan = &plan;
  flight.started_us = NowUs();
  ExecResult& result = flight.result;
  result = ExecResult();
  result.result.step = plan.step;
  for (const sched::StepEntry& e : plan.entries) {
    const bool decode = e.sample && e.tokens.size() == 1 && e.start >= e.prompt_tokens;
    (decode ? result.decode_tokens : result.prefill_tokens) += static_cast<uint32_t>(e.tokens.size());
  }
  StepRecord& record = recorder_.Begin();
  flight.record = &record;
  record.step = plan.step.v;
  record.digest = plan.digest;
  record.started_us = flight.started_us;
  record.entries = static_cast<uint32_t>(plan.entries.size());
  record.prefill_tokens = result.prefill_tokens;
  record.decode_tokens = result.decode_tokens;
  for (size_t i = 0; i < plan.entries.size() && i < StepRecord::kRequests; ++i) {
    const sched::StepEntry& e = plan.entries[i];
    record.shares[i] = {e.request.v, e.start, static_cast<uint32_t>(e.tokens.size()), UINT32_MAX};
  }
  if (FaultPoint("exec.step")) return absl::InternalError("fault point exec.step");
  const size_t rows = plan.entries.size(), padded = IsDecode(plan) ? static_cast<size_t>(ops_->PaddedRows(static_cast<int64_t>(rows))) : 0;
  const bool repeatable = padded > 0 && padded <= options_.max_step_tokens && (options_.ranks == nullptr || options_.ranks->size() == 1);
  const kernels::Batch& batch =
      flight.batch.Fill(plan, storage_->plan(), model_->hparams().vocab, drawn_before, true, repeatable ? padded - rows : 0);
  PrepareConstraints(plan, table);
  model_->Begin(*ops_, batch);
  flight.has_logits = repeatable && padded <= options_.max_logit_rows;
  const auto compute = [&] {
    model_->Compute(*ops_, batch, storage_->view());
    if (!flight.has_logits) return;
    rows_.resize(padded);
    std::iota(rows_.begin(), rows_.end(), 0);
    model_->Logits(*ops_, rows_, {logits_.as<float>(), static_cast<int64_t>(padded), model_->hparams().vocab});
  };
  repeatable ? ops_->Repeatable(shape_, compute) : compute();
  aside_.Wait();
  if (!model_->status().ok()) return model_->status();
  return Sampling(plan, table);
}

absl::StatusOr<const ExecResult*> Executor::Finish() {
  HF_CHECK(launched_ > 0);
  Flight& flight = flights_[(newest_ + kMostLaunched - (launched_ - 1)) % kMostLaunched];
  --launched_;
  ExecResult& result = flight.result;
  // A step behind another begins when that one ends.
  const uint64_t now = NowUs();
  result.step_us = static_cast<uint32_t>(now - std::max(flight.started_us, finished_us_));
  finished_us_ = now;
  flight.record->step_us = std::max(1u, result.step_us);
  flight.record->failed = static_cast<uint32_t>(result.failures.size());
  size_t next = 0;
  for (size_t i = 0; i < flight.plan->entries.size(); ++i) {
    if (!flight.plan->entries[i].sample) continue;
    if (i < StepRecord::kRequests) flight.record->shares[i].token = result.result.sampled[next].token;
    ++next;
  }
  return &result;
}

void Executor::PrepareConstraints(const sched::StepPlan& plan, const SamplingTable& table) {
  constrained_.clear();
  if (constraints_ == nullptr || !draws()) return;
  for (const sched::StepEntry& e : plan.entries) {
    const SamplingTable::Entry* entry = e.sample ? table.Find(e.request) : nullptr;
    if (entry != nullptr && entry->params.constrained) constrained_.push_back(&e);
  }
  if (constrained_.empty()) return;
  aside_.Start([this] {
    // What fails here fails again for the draw, and is told then.
    for (const sched::StepEntry* e : constrained_) (void)constraints_->Allowed(e->request, e->history, e->prompt_tokens);
  });
}

Sample Executor::DrawToken(const sched::StepEntry& e, const SamplingParams& params, std::string* why) {
  const auto draw = [&](const AllowedTokens* allowed) {
    Sample out = sampler_.Draw(host_row_, params, e.history, e.prompt_tokens, allowed, e.awaits ? 1 : 0);
    if (out.refused) *why = fmt::format("token {} could not be drawn: {}", e.start + e.tokens.size() - e.prompt_tokens, out.why);
    return out;
  };
  if (!params.constrained) return draw(nullptr);
  const auto allowed = constraints_ == nullptr ? absl::StatusOr<AllowedTokens>(absl::InternalError("nobody knows this request's constraint"))
                                               : constraints_->Allowed(e.request, e.history, e.prompt_tokens);
  if (allowed.ok()) return draw(&*allowed);
  Sample out;
  out.failed = true;
  out.refused = !absl::IsInternal(allowed.status());
  *why = std::string(allowed.status().message());
  return out;
}

absl::Status Executor::ListWanted(const sched::StepPlan& plan, const SamplingTable& table) {
  std::vector<WantedRow>& wanted = Newest().wanted;
  wanted.clear();
  for (uint32_t i = 0; i < plan.entries.size(); ++i) {
    const sched::StepEntry& e = plan.entries[i];
    const int32_t first = Newest().batch.first_row(i);
    const SamplingTable::Entry* entry = table.Find(e.request);
    if (entry == nullptr && (e.sample || e.prompt_logprobs)) {
      return absl::InternalError(fmt::format("step {}: request {} has no sampling parameters", plan.step.v, e.request.v));
    }
    for (uint32_t r = 0; r < e.tokens.size(); ++r) {
      const uint32_t position = e.start + r;
      const bool last = r + 1 == e.tokens.size();
      // Row p scores prompt token p + 1; the row of the last prompt token has none to score.
      const bool score = e.prompt_logprobs && size_t{position} + 1 < entry->prompt.size();
      if (score || (e.sample && last)) wanted.push_back({first + static_cast<int32_t>(r), i, e.sample && last, position});
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::Sampling(const sched::StepPlan& plan, const SamplingTable& table) {
  HF_RETURN_IF_ERROR(ListWanted(plan, table));
  const std::vector<WantedRow>& wanted = Newest().wanted;
  if (wanted.empty()) {
    ops_->Sync();
    HF_RETURN_IF_ERROR(ops_->Health());
  }
  const int64_t vocab = model_->hparams().vocab;
  for (size_t begin = 0; begin < wanted.size(); begin += options_.max_logit_rows) {
    const size_t n = std::min<size_t>(options_.max_logit_rows, wanted.size() - begin);
    rows_.clear();
    for (size_t i = 0; i < n; ++i) rows_.push_back(wanted[begin + i].row);
    const kernels::Mat tile(logits_.as<float>(), static_cast<int64_t>(n), vocab);
    if (!Newest().has_logits) model_->Logits(*ops_, rows_, tile);   // else they are all there, a sequence a row
    ops_->Sync();
    HF_RETURN_IF_ERROR(ops_->Health());
    if (!model_->status().ok()) return model_->status();
    if (draws()) SampleTile(plan, table, begin, tile);
  }
  return ShareSampled(plan);
}

void Executor::SampleTile(const sched::StepPlan& plan, const SamplingTable& table, size_t begin, const kernels::Mat& tile) {
  ExecResult& result = Newest().result;
  for (size_t i = 0; i < static_cast<size_t>(tile.rows); ++i) {
    const WantedRow& w = Newest().wanted[begin + i];
    const sched::StepEntry& e = plan.entries[w.entry];
    const SamplingTable::Entry& entry = *table.Find(e.request);
    ops_->CopyToHost(reinterpret_cast<std::byte*>(host_row_.data()), reinterpret_cast<const std::byte*>(tile.row(static_cast<int64_t>(i))),
                     tile.cols * static_cast<int64_t>(sizeof(float)));
    ops_->Sync();
    if (e.prompt_logprobs && size_t{w.position} + 1 < entry.prompt.size()) {
      Sample s = sampler_.Score(host_row_, entry.prompt[w.position + 1], entry.params.top_logprobs);
      if (result.logprobs.empty() || result.logprobs.back().request != e.request || !result.logprobs.back().prompt) {
        result.logprobs.push_back({e.request, true, w.position + 1, {}, {}});
      }
      result.logprobs.back().tokens.push_back({s.token, s.logprob});
      result.logprobs.back().top.push_back(std::move(s.top));
      if (s.failed) result.failures.push_back(fmt::format("request {}: prompt position {}: {}", e.request.v, w.position, s.why));
    }
    if (!w.sample) continue;
    sched::SampledToken token;
    Sample s = DrawToken(e, entry.params, &token.why);
    token.request = e.request;
    token.token = s.token;
    token.failed = s.failed || FaultPoint("exec.sample");
    token.refused = s.refused;
    token.is_stop = !s.failed && std::binary_search(entry.params.stop_tokens.begin(), entry.params.stop_tokens.end(), s.token);
    if (token.failed) {
      const char* why = !token.why.empty() ? token.why.c_str() : s.failed ? s.why : "fault point exec.sample";
      result.failures.push_back(fmt::format("request {}: position {}: {}", e.request.v, w.position, why));
    } else if (entry.params.logprobs) {
      result.logprobs.push_back({e.request, false, w.position + 1, {{s.token, s.logprob}}, {}});
      result.logprobs.back().top.push_back(std::move(s.top));
    }
    result.result.sampled.push_back(token);
  }
}

absl::Status Executor::ShareSampled(const sched::StepPlan& plan) {
  if (options_.ranks == nullptr) return absl::OkStatus();
  struct Wire {
    uint64_t request;
    uint32_t token;
    uint8_t is_stop, failed;
    uint8_t unused[2];
  };
  static_assert(sizeof(Wire) == 16);
  std::vector<sched::SampledToken>& sampled = Newest().result.result.sampled;
  message_.resize(draws() ? sampled.size() * sizeof(Wire) : 0);
  if (draws()) {
    for (size_t i = 0; i < sampled.size(); ++i) {
      const Wire w{sampled[i].request.v, sampled[i].token, sampled[i].is_stop, sampled[i].failed, {}};
      std::memcpy(message_.data() + i * sizeof(Wire), &w, sizeof(Wire));
    }
  }
  HF_RETURN_IF_ERROR(options_.ranks->Broadcast(0, &message_));
  if (draws()) return absl::OkStatus();
  size_t at = 0;
  for (const sched::StepEntry& e : plan.entries) {
    if (!e.sample) continue;
    Wire w{};
    if (message_.size() >= at + sizeof(Wire)) std::memcpy(&w, message_.data() + at, sizeof(Wire));
    if (w.request != e.request.v) {
      return absl::InternalError(fmt::format("step {}: rank 0 drew a token for request {}, this rank waits for request {}", plan.step.v, w.request,
                                             e.request.v));
    }
    sampled.push_back({e.request, w.token, w.is_stop != 0, w.failed != 0});
    at += sizeof(Wire);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::exec
