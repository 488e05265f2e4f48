#pragma once
// Runs a StepPlan: builds the batch, calls the model, samples. The thin shell between the pure scheduler and the kernels.
//
// A step is launched, and finished later; the next one may be launched before. Backends on the host's memory compute in Launch, so that Finish
// hands out what is there; a device computes and draws while its caller goes on, and Finish waits for it. Rows with log-probabilities are copied
// and drawn by the host in Finish. With several ranks every token is known when Launch returns.
//
// Threads: the worker's step thread only. A request's sampling parameters are looked up in the SamplingTable that the worker keeps.
#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "proto/base/ids.h"
#include "worker/exec/aside.h"
#include "worker/exec/batch_buffers.h"
#include "worker/exec/flight_recorder.h"
#include "worker/exec/kv_storage.h"
#include "worker/exec/sampler.h"
#include "worker/model/model.h"
#include "worker/sched/step.h"
#include "worker/tp/collective.h"

namespace holdfast::exec {

// Sampling parameters of the requests the scheduler knows. The worker adds a request before Submit and removes it at its last event.
class SamplingTable {
 public:
  // prompt: all prompt tokens, needed only for requests with prompt_logprobs (row p scores prompt[p + 1]); else empty.
  void Add(RequestId request, SamplingParams params, std::vector<TokenId> prompt = {});
  void Remove(RequestId request);
  size_t size() const { return entries_.size(); }

  struct Entry {
    SamplingParams params;
    std::vector<TokenId> prompt;
  };
  const Entry* Find(RequestId request) const;

 private:
  absl::flat_hash_map<RequestId, Entry> entries_;
};

// Says what a constrained request may generate next. Asked on a thread of its own while the model computes, which hides its cost: the backend
// that draws is told the answer then; for a draw on the host it is asked again on the step thread. Never by both at once.
class ConstraintSource {
 public:
  virtual ~ConstraintSource() = default;
  // history[0, prompt_tokens) is the prompt. The answer is valid until the next call. An error fails this request alone, with its message.
  virtual absl::StatusOr<AllowedTokens> Allowed(RequestId request, std::span<const TokenId> history, uint32_t prompt_tokens) = 0;
};

// Log-probabilities that belong to one step; only for requests that asked.
struct StepLogprobs {
  RequestId request;
  bool prompt = false;                // of prompt tokens at positions first .. first + tokens.size() - 1; else of the token sampled
  uint32_t first = 0;
  std::vector<TokenLogprob> tokens;
  std::vector<std::vector<TokenLogprob>> top;   // one a token
};

struct ExecResult {
  sched::StepResult result;
  std::vector<std::string> failures;            // one line for each sampled entry with failed
  std::vector<StepLogprobs> logprobs;
  uint32_t step_us = 0;                         // forward and sampling
  uint32_t prefill_tokens = 0;                  // rows of entries with more than one row or without sampling
  uint32_t decode_tokens = 0;
};

struct ExecutorOptions {
  uint32_t max_step_tokens = 8192;    // most rows of a plan: the scheduler's effective chunk + max_running
  uint32_t max_logit_rows = 64;       // logits are computed in tiles of this many rows
  size_t flight_records = 256;
  tp::Collective* ranks = nullptr;    // as given to the model
};

class Executor {
 public:
  static constexpr uint32_t kMostLaunched = 2;

  // ops and model must outlive the executor. plan and cache as for KvStorage::Create. Reserves the activations.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(kernels::Ops* ops, std::unique_ptr<model::Model> model, const model::KvPlan& plan,
                                                          const kv::CacheShape& cache, const KvStorageOptions& storage,
                                                          const ExecutorOptions& options);

  // Enqueues the step behind those launched before it, kMostLaunched at most. The plan, its arrays and the table must live until its
  // Finish; the table may lose requests before that have ended, whose tokens nobody wants. kInternal when
  // an entry that samples has no parameters in the table (our bug, but the worker would rather exit 70 with words than abort). ops.Health()
  // when the device failed. With several ranks all run the same plan; rank 0 draws the tokens and the others receive them (log-probabilities
  // and failures stay with rank 0). A collective's error (tp/collective.h) when a peer is lost. After an error nothing more can be launched.
  absl::Status Launch(const sched::StepPlan& plan, const SamplingTable& table);
  // Waits for the oldest launched step: every K and V of it is in its page. ops.Health() when the device failed: nothing was drawn from what
  // it left. The result is valid until the next Launch.
  absl::StatusOr<const ExecResult*> Finish();
  uint32_t launched() const { return launched_; }
  // Launch and Finish. Nothing else may be launched.
  absl::StatusOr<const ExecResult*> Run(const sched::StepPlan& plan, const SamplingTable& table);

  void MovePage(int group, uint32_t from, uint32_t to) { storage_->MovePage(group, from, to); }
  absl::Status SetPages(int group, uint32_t pages) { return storage_->SetPages(group, pages); }

  // Must outlive the executor, or be taken back with null. Without one, a constrained request fails.
  void SetConstraints(ConstraintSource* constraints) { constraints_ = constraints; }

  void SetProgress(std::function<void()> progress) { model_->SetProgress(std::move(progress)); }

  const KvStorage& storage() const { return *storage_; }
  const model::Model& model() const { return *model_; }
  FlightRecorder& flight_recorder() { return recorder_; }

 private:
  struct WantedRow {
    int32_t row = 0;
    uint32_t entry = 0;
    bool sample = false;
    uint32_t position = 0;
    int32_t slot = -1;                // with sample: its index among the step's tokens
    int32_t constraint = -1;          // with sample: which of the flight's constraints, if any
    bool scored = false;              // and its log-probability is in the result
    int64_t logits = -1;              // where its logits come to lie among the flight's; -1: the backend draws its token
  };
  // What a constrained entry may generate.
  struct Constraint {
    const sched::StepEntry* entry = nullptr;
    const SamplingParams* params = nullptr;   // while the forward pass is enqueued
    absl::Status status;              // why nobody knows
    std::vector<uint64_t> bits;       // where the backend draws
  };
  // A launched step.
  struct Flight {
    BatchBuffers batch;
    std::vector<WantedRow> wanted;
    ExecResult result;
    const sched::StepPlan* plan = nullptr;
    const SamplingTable* table = nullptr;
    StepRecord* record = nullptr;
    uint64_t started_us = 0;
    bool has_logits = false;          // of its rows 0, 1, ...: they came with the forward pass
    std::vector<Constraint> constraints;
    // Where the backend draws:
    std::vector<kernels::Drawn> drawn;  // by slot
    std::vector<float> logits;        // of rows that the host draws from, or scores
    uint64_t mark = 0;                // behind everything of the step

    std::vector<bool> on_backend;     // by slot: whether it draws that one
    bool OnBackend(int32_t slot) const { return static_cast<size_t>(slot) < on_backend.size() && on_backend[static_cast<size_t>(slot)]; }
  };

  Executor(kernels::Ops* ops, std::unique_ptr<model::Model> model, const ExecutorOptions& options);
  static bool IsDecode(const sched::StepPlan& plan);
  absl::Status Enqueue(const sched::StepPlan& plan, const SamplingTable& table);
  Flight& Newest() { return flights_[newest_]; }
  // Has what constrained requests may generate worked out beside the forward pass.
  void PrepareConstraints(const sched::StepPlan& plan, const SamplingTable& table);
  // On the host: waits for the logits, tile by tile, and draws.
  absl::Status Sampling();
  // On the backend: enqueues logits and draws, and the copies of logits that the host needs.
  absl::Status EnqueueDraws(const sched::StepPlan& plan, const SamplingTable& table);
  // Waits for what EnqueueDraws left of a step, and makes its result of it.
  absl::Status CollectDraws(Flight* flight);
  // The rows of the newest step whose logits are wanted.
  absl::Status ListWanted(const sched::StepPlan& plan, const SamplingTable& table);
  kernels::Mat TileOf(size_t begin);
  // Log-probability of the prompt token behind the row.
  void ScoreRow(Flight* flight, const WantedRow& wanted, std::span<const float> logits);
  // Scores or draws from a row's logits, and adds what comes of it to the flight's result. No logits: the backend drew.
  void TakeRow(Flight* flight, const WantedRow& wanted, std::span<float> logits);
  // Draws under the entry's constraint. *why: words for the client when the request asked for what cannot be.
  Sample DrawToken(const Flight& flight, const WantedRow& wanted, const SamplingParams& params, std::span<float> logits, std::string* why);
  // The tokens that rank 0 drew, on every rank.
  absl::Status ShareSampled(const sched::StepPlan& plan);
  // Whether a launched step's tokens are known only when it is finished.
  bool draws_later() const { return ops_->DrawsTokens() && options_.ranks == nullptr; }
  bool draws() const { return options_.ranks == nullptr || options_.ranks->rank() == 0; }

  kernels::Ops* ops_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<KvStorage> storage_;
  ExecutorOptions options_;
  Flight flights_[kMostLaunched];
  uint32_t newest_ = 0;               // index of the step launched last
  uint32_t launched_ = 0;             // and not finished
  uint64_t finished_us_ = 0;          // when the last one was
  Sampler sampler_;
  ConstraintSource* constraints_ = nullptr;
  Aside aside_;
  kernels::Buffer logits_;
  std::vector<float> host_row_;
  std::vector<int32_t> rows_;
  std::vector<kernels::DrawSpec> specs_;
  std::vector<DrawLists> lists_;
  std::vector<std::byte> message_;
  FlightRecorder recorder_;
};

}  // namespace holdfast::exec
