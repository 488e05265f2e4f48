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
  std::stable_sort(params.logit_bias.begin(), params.logit_bias.end(), [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
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
  ops->ReserveDraws(options.max_logit_rows, options.max_step_tokens, vocab);
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
  const Flight& before = Newest();
  const std::vector<sched::SampledToken>& drawn_before = before.result.result.sampled;
  newest_ = (newest_ + 1) % kMostLaunched;
  Flight& flight = Newest();
  flight.plan = &plan;
  flight.table = &table;
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
      flight.batch.Fill(plan, storage_->plan(), model_->hparams().vocab, drawn_before, !draws_later(), repeatable ? padded - rows : 0);
  for (const int32_t slot : batch.awaited) {
    HF_CHECKF(slot < 0 || before.OnBackend(slot), "step {} awaits a token that the host draws from step {}", plan.step.v, before.plan->step.v);
  }
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
  // Nobody else's calls on this backend are the same; whatever an executor had at this address, its memory was given back since.
  repeatable ? ops_->Repeatable(reinterpret_cast<uintptr_t>(this), compute) : compute();
  aside_.Wait();
  if (!model_->status().ok()) return model_->status();
  HF_RETURN_IF_ERROR(ListWanted(plan, table));
  if (!ops_->DrawsTokens()) {
    HF_RETURN_IF_ERROR(Sampling());
    return ShareSampled(plan);
  }
  HF_RETURN_IF_ERROR(EnqueueDraws(plan, table));
  if (draws_later()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(CollectDraws(&flight));
  return ShareSampled(plan);
}

absl::StatusOr<const ExecResult*> Executor::Finish() {
  HF_CHECK(launched_ > 0);
  Flight& flight = flights_[(newest_ + kMostLaunched - (launched_ - 1)) % kMostLaunched];
  --launched_;
  if (draws_later()) HF_RETURN_IF_ERROR(CollectDraws(&flight));
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
