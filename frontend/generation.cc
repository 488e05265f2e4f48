#include "frontend/generation.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <variant>

#include "frontend/api/metrics.h"
#include "frontend/choice.h"
#include "frontend/engine_request.h"
#include "frontend/generation_errors.h"
#include "frontend/model_view.h"
#include "frontend/prepare.h"
#include "proto/base/check.h"
#include "proto/base/log.h"
#include "proto/base/random.h"
#include "proto/base/status_wire.h"
#include "proto/engine.pb.h"

namespace holdfast::api {
namespace {

constexpr Duration kMaxBackoff = std::chrono::seconds(1);

struct PromptState : EnginePrompt {
  uint32_t cached = 0;
  bool admitted = false;
};

struct Choice {
  uint32_t prompt = 0, n = 0;
  uint64_t engine_id = 0;          // 0 = nothing submitted
  uint32_t resumes = 0;
  uint32_t failed_attempts = 0;    // since the last healthy event
  Instant retry_at{};
  bool admitted = false;
  bool accepted = false;           // the engine has spoken of it without refusing it
  bool recovering = false;         // lost, and no healthy event since
  bool finished = false;
  bool echoed = false;
  std::unique_ptr<ChoicePipeline> pipeline;
};

class GenerationImpl final : public Generation, public std::enable_shared_from_this<GenerationImpl> {
 public:
  GenerationImpl(const GenerationContext& context, ValidRequest request, std::string trace_id, std::unique_ptr<GenerationSink> sink)
      : loop_(context.loop), pool_(context.pool), engine_(context.engine), state_(context.state), metrics_(context.metrics),
        options_(context.options), request_(std::make_shared<const ValidRequest>(std::move(request))), trace_id_(std::move(trace_id)),
        sink_(std::move(sink)), started_(loop_.Now()), spoke_(started_) {}

  void Start() {
    self_ = shared_from_this();
    metrics_.RequestStarted();
    seed_ = request_->sampling.seed ? *request_->sampling.seed : EntropySeed();
    call_nonce_ = EntropySeed();
    view_ = state_.model();
    if (!view_ || !state_.ready()) {
      Later([this] { End(NotReady(state_.state(), state_.reason(), state_.lease().retry_after_seconds(loop_.Now()))); });
      return;
    }
    // The reference travels to the pool and back: the last one must not be dropped on a thread of the pool.
    auto work = [request = request_, view = view_, gone = gone_, loop = &loop_, now = loop_.UnixMillis() / 1000,
                 self = shared_from_this()]() mutable {
      auto prepared = std::make_shared<PreparedOrError>();
      if (!gone->load(std::memory_order_relaxed)) *prepared = Prepare(*request, *view, now);
      loop->Post([self = std::move(self), prepared] { self->OnPrepared(std::move(*prepared)); });
    };
    if (!pool_.Run(std::move(work))) Later([this] { End(Overloaded("Too many prompts wait to be tokenised", 1)); });
  }

  void Cancel() override {
    if (done_) return;
    const auto keep = shared_from_this();
    Close("abort");
  }

  void Fail(const ApiError& error) override {
    const auto keep = shared_from_this();
    End(error);
  }

  bool done() const override { return done_; }

 private:
  template <class F>
  void Later(F call) {
    loop_.Post([self = shared_from_this(), call] {
      if (!self->done_) call();
    });
  }

  void OnPrepared(PreparedOrError result) {
    if (done_) return;
    const std::string& param = request_->input_param;
    if (const auto* error = std::get_if<ApiError>(&result)) return End(*error);
    Prepared& prepared = std::get<Prepared>(result);
    constraint_ = std::move(prepared.constraint);
    const uint32_t context = state_.lease().limits().max_seq_len() ? state_.lease().limits().max_seq_len() : view_->context_length();
    const uint64_t pool = state_.lease().limits().max_request_tokens();
    for (PreparedPrompt& prompt : prepared.prompts) {
      const uint64_t size = prompt.tokens.size();
      if (size >= context) return End(PromptTooLong(size, context, param));
      if (pool != 0 && size >= pool) return End(PromptBeyondCache(size, pool, param));
      uint64_t room = context - size;
      if (pool != 0) room = std::min(room, pool - size);
      PromptState state;
      state.max_tokens = static_cast<uint32_t>(std::min<uint64_t>(request_->max_tokens.value_or(UINT32_MAX), room));
      state.fingerprint = Fingerprint(prompt.tokens, state.max_tokens, constraint_);
      state.prompt = std::move(prompt);
      prompts_.push_back(std::move(state));
    }
    for (uint32_t p = 0; p < prompts_.size(); ++p) {
      for (uint32_t n = 0; n < request_->n; ++n) {
        Choice choice;
        choice.prompt = p;
        choice.n = n;
        choice.pipeline = std::make_unique<ChoicePipeline>(*view_, PipelineOptions(static_cast<uint32_t>(choices_.size())));
        choices_.push_back(std::move(choice));
      }
    }
    ArmKeepAlive();
    for (uint32_t i = 0; i < choices_.size(); ++i) Submit(i);
  }

  ChoicePipeline::Options PipelineOptions(uint32_t index) const {
    ChoicePipeline::Options options;
    options.stop = request_->stop;
    options.logprobs = request_->sampling.logprobs;
    const tools::Format* const format = view_->format();
    if (!format || !request_->is_conversation()) return options;
    const bool calls = view_->has_tool_format() && !request_->tools.empty() && request_->policy.mode != tools::Mode::kNone;
    if (!calls && view_->reasoning_format().empty()) return options;
    tools::ParserOptions parser;
    if (calls) parser.tools = request_->tools;
    parser.policy = request_->policy;
    parser.separate_reasoning = request_->separate_reasoning;
    parser.prompt_tail = prompts_.front().prompt.tail;
    options.parser = format->NewParser(parser);
    options.markers = format->markers();
    options.show_reasoning = request_->show_reasoning;
    options.call_nonce = Mix64(call_nonce_ + index);
    return options;
  }

  void Submit(uint32_t index) {
    Choice& choice = choices_[index];
    // A prompt that was echoed already need not be scored again.
    const bool score_prompt = request_->echo && request_->sampling.logprobs && !choice.echoed;
    const EngineChoice ask{choice.pipeline->ids(), choice.n, choice.resumes, score_prompt};
    proto::GenerateRequest message = MakeEngineRequest(*request_, *view_, prompts_[choice.prompt], ask, constraint_, seed_, trace_id_);
    choice.engine_id = engine_.Generate(std::move(message), [weak = weak_from_this(), index](const proto::TokenEvent& event) {
      if (const auto self = weak.lock()) self->OnEvent(index, event);
    });
  }

  void OnEvent(uint32_t index, const proto::TokenEvent& event) {
    Choice& choice = choices_[index];
    if (done_ || choice.finished) return;
    if (event.finish() == proto::FINISH_LOST) {
      choice.engine_id = 0;
      if (event.tokens_size() == 0) return Lose(index);
    }
    if (event.finish() == proto::FINISH_ERROR) {
      choice.engine_id = 0;
      return OnEngineError(index, event.error());
    }
    Healthy(index);
    if (event.has_admitted() && !choice.admitted) Admitted(choice, event.admitted());
    ChoiceDeltas deltas;
    if (request_->echo && !choice.echoed) Echo(choice, event, &deltas);
    const bool stopped = TakeTokens(choice, event, &deltas);
    if (stopped) {
      engine_.Cancel(std::exchange(choice.engine_id, 0));
      return FinishChoice(index, std::move(deltas));
    }
    switch (event.finish()) {
      case proto::FINISH_STOP:
      case proto::FINISH_LENGTH:
        choice.pipeline->Finish(!EndedByToken(choice), &deltas);
        return FinishChoice(index, std::move(deltas));
      case proto::FINISH_CANCELLED:
        Emit(index, std::move(deltas));
        if (!done_) End(Internal("The engine cancelled the request"));
        return;
      case proto::FINISH_LOST:
        Emit(index, std::move(deltas));
        if (!done_) Lose(index);
        return;
      default:
        Emit(index, std::move(deltas));
    }
  }

  void Admitted(Choice& choice, const proto::Admitted& admitted) {
    choice.admitted = true;
    PromptState& prompt = prompts_[choice.prompt];
    const uint32_t cached = std::min(admitted.cached_tokens(), static_cast<uint32_t>(prompt.prompt.tokens.size()));
    // The choices of a prompt share it: whichever came first found the least, and that is what the cache had before the request.
    prompt.cached = prompt.admitted ? std::min(prompt.cached, cached) : cached;
    const bool first = !std::exchange(prompt.admitted, true);
    if (choice.n == 0) metrics_.PromptTokens(prompt.prompt.tokens.size() - cached, cached);
    if (!first || prompts_.size() != 1) return;
    Usage usage;
    usage.prompt_tokens = prompt.prompt.tokens.size();
    usage.cached_tokens = cached;
    sink_->OnPrompt(usage);
  }

  // The prompt as the beginning of the text.
  void Echo(Choice& choice, const proto::TokenEvent& event, ChoiceDeltas* deltas) {
    const bool wants_logprobs = request_->sampling.logprobs;
    if (wants_logprobs && event.prompt_size() == 0) return;  // comes with the event that ends the prefill
    choice.echoed = true;
    const ValidRequest::Prompt& source = request_->prompts[choice.prompt];
    ChoicePipeline::Options options;
    options.logprobs = wants_logprobs;
    ChoicePipeline echo(*view_, std::move(options));
    ChoiceDeltas prompt(1);
    if (wants_logprobs) {
      for (const proto::Token& token : event.prompt()) echo.PushPrompt(token, &prompt);
    } else {
      for (const uint32_t id : prompts_[choice.prompt].prompt.tokens) {
        proto::Token token;
        token.set_id(id);
        echo.PushPrompt(token, &prompt);
      }
    }
    echo.Finish(false, &prompt);
    if (!source.is_tokens) prompt.front().text = source.text;
    choice.pipeline->StartAt(echo.code_points());
    *deltas = std::move(prompt);
    if (!deltas->front().logprobs.empty()) deltas->front().logprobs.front().logprob.reset();
  }

  // True when a stop string or the last call ended the choice.
  bool TakeTokens(Choice& choice, const proto::TokenEvent& event, ChoiceDeltas* deltas) {
    const Instant now = loop_.Now();
    uint32_t taken = 0;
    bool stopped = false;
    for (const proto::Token& token : event.tokens()) {
      if (choice.pipeline->ids().size() >= prompts_[choice.prompt].max_tokens) break;
      ++taken;
      stopped = choice.pipeline->Push(token, deltas);
      if (stopped) break;
    }
    if (taken == 0) return false;
    metrics_.GeneratedTokens(taken);
    if (!first_token_) {
      metrics_.TimeToFirstToken(now - started_);
      first_token_ = true;
      for (uint32_t i = 1; i < taken; ++i) metrics_.InterToken(Duration::zero());
    } else {
      for (uint32_t i = 0; i < taken; ++i) metrics_.InterToken((now - last_token_) / taken);
    }
    last_token_ = now;
    return stopped;
  }

  bool EndedByToken(const Choice& choice) const {
    const std::vector<uint32_t>& ids = choice.pipeline->ids();
    return EndsByToken(*request_, constraint_) && !ids.empty() && view_->IsStop(ids.back());
  }

  void Emit(uint32_t index, ChoiceDeltas deltas) {
    for (ChoiceDelta& delta : deltas) {
      if (done_) return;
      if (delta.empty()) continue;
      spoke_ = loop_.Now();
      sink_->OnDelta(index, std::move(delta));
    }
  }

  // Its pipeline has ended.
  void FinishChoice(uint32_t index, ChoiceDeltas deltas) {
    Emit(index, std::move(deltas));
    if (done_) return;
    const ChoiceEnd end = choices_[index].pipeline->end();
    choices_[index].finished = true;
    choices_[index].engine_id = 0;
    Settled();
    any_length_ |= end.reason == FinishReason::kLength;
    spoke_ = loop_.Now();
    sink_->OnFinish(index, end);
    if (done_ || !std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) { return choice.finished; })) return;
    Usage usage;
    for (const PromptState& prompt : prompts_) {
      usage.prompt_tokens += prompt.prompt.tokens.size();
      usage.cached_tokens += prompt.cached;
    }
    for (const Choice& choice : choices_) {
      usage.completion_tokens += choice.pipeline->ids().size();
      usage.reasoning_tokens += choice.pipeline->reasoning_tokens();
    }
    sink_->OnDone(usage);
    if (!done_) Close(any_length_ ? "length" : "stop");
  }

  // ---- loss and resume --------------------------------------------------------------------------------------------------

  void OnEngineError(uint32_t index, const proto::EngineError& error) {
    Choice& choice = choices_[index];
    const bool passing = error.kind() == proto::EngineError::UNAVAILABLE || error.kind() == proto::EngineError::DRAINING ||
                         error.kind() == proto::EngineError::OVERLOADED;
    if (passing && (choice.accepted || choice.recovering)) return Lose(index);
    End(FromEngine(error, prompts_[choice.prompt].prompt.tokens.size(), request_->input_param));
  }

  void Lose(uint32_t index) {
    Choice& choice = choices_[index];
    // The engine may have been lost between the last token and the word that it was the last.
    if (EndedByToken(choice) || (prompts_[choice.prompt].max_tokens > 0 &&
                                 choice.pipeline->ids().size() >= prompts_[choice.prompt].max_tokens)) {
      ChoiceDeltas deltas;
      choice.pipeline->Finish(!EndedByToken(choice), &deltas);
      return FinishChoice(index, std::move(deltas));
    }
    if (!choice.recovering) {
      LogWarn({{"request", trace_id_}}, "choice {} lost after {} tokens, waits for the engine", index, choice.pipeline->ids().size());
    }
    choice.recovering = true;
    const Duration backoff = std::min<Duration>(options_.resume_backoff * (1 << std::min(choice.failed_attempts, 8u)), kMaxBackoff);
    choice.retry_at = loop_.Now() + backoff;
    ++choice.failed_attempts;
    if (subscription_ == 0) {
      subscription_ = state_.Subscribe([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->OnStateChanged();
      });
    }
    if (!deadline_) {
      deadline_ = loop_.After(options_.resume_timeout, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->GiveUp();
      });
    }
    ArmRetry();
  }

  void ArmRetry() {
    Instant next = Instant::max();
    for (const Choice& choice : choices_) {
      if (choice.recovering && choice.engine_id == 0 && !choice.finished) next = std::min(next, choice.retry_at);
    }
    if (next == Instant::max()) return retry_.reset();
    // Never faster than the first back-off: readiness is told by the subscription.
    const Duration delay = std::max<Duration>(next - loop_.Now(), std::chrono::milliseconds(1));
    retry_ = loop_.After(delay, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->TryResume();
    });
  }

  // An engine that was seen away and is back has nothing to do with the attempts that failed before.
  void OnStateChanged() {
    if (!state_.ready()) {
      seen_away_ = true;
      return;
    }
    if (std::exchange(seen_away_, false)) {
      for (Choice& choice : choices_) choice.retry_at = std::min(choice.retry_at, loop_.Now());
    }
    TryResume();
  }

  void TryResume() {
    if (done_ || !state_.ready() || !state_.lease().connected()) return;
    if (state_.model()->fingerprint() != view_->fingerprint()) {
      return End(Unavailable("The model was replaced while the request was running", 1));
    }
    for (uint32_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      if (!choice.recovering || choice.engine_id != 0 || choice.finished || loop_.Now() < choice.retry_at) continue;
      ++choice.resumes;
      LogInfo({{"request", trace_id_}}, "choice {} resumes after {} tokens (attempt {})", i, choice.pipeline->ids().size(),
              choice.failed_attempts);
      Submit(i);
    }
    ArmRetry();
  }

  void Healthy(uint32_t index) {
    Choice& choice = choices_[index];
    choice.accepted = true;
    seen_away_ = false;
    choice.failed_attempts = 0;
    if (!choice.recovering) return;
    choice.recovering = false;
    metrics_.Resumed();
    Settled();
  }

  // Nothing is lost any more: stop watching.
  void Settled() {
    if (std::any_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.recovering && !c.finished; })) return;
    deadline_.reset();
    retry_.reset();
    if (subscription_ != 0) state_.Unsubscribe(std::exchange(subscription_, 0));
  }

  void GiveUp() {
    const auto keep = shared_from_this();
    End(Unavailable(fmt::format("The engine did not come back within {} s: {}", ToMillis(options_.resume_timeout) / 1000, state_.reason()),
                    state_.lease().retry_after_seconds(loop_.Now())));
  }

  // ---- the end --------------------------------------------------------------------------------------------------------------

  void ArmKeepAlive() {
    keep_alive_ = loop_.After(options_.keep_alive, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->done_) return;
      const bool accepted = std::any_of(self->choices_.begin(), self->choices_.end(), [](const Choice& c) { return c.accepted; });
      if (accepted && self->loop_.Now() - self->spoke_ >= self->options_.keep_alive / 2) self->sink_->OnSilence();
      if (!self->done_) self->ArmKeepAlive();
    });
  }

  void End(const ApiError& error) {
    if (done_) return;
    const auto keep = shared_from_this();
    auto sink = std::move(sink_);
    Close(error.status >= 500 || error.status == 429 ? "error" : "refused");
    sink->OnError(error);
  }

  void Close(const char* end) {
    done_ = true;
    gone_->store(true, std::memory_order_relaxed);
    for (Choice& choice : choices_) {
      if (choice.engine_id != 0) engine_.Cancel(std::exchange(choice.engine_id, 0));
    }
    if (subscription_ != 0) state_.Unsubscribe(std::exchange(subscription_, 0));
    deadline_.reset();
    retry_.reset();
    keep_alive_.reset();
    metrics_.RequestEnded(end);
    // The last owner may be this very call: callers hold the object.
    loop_.Post([self = std::move(self_)] {});
  }

  Loop& loop_;
  TextPool& pool_;
  EngineClient& engine_;
  EngineState& state_;
  FrontendMetrics& metrics_;
  const GenerationOptions options_;
  const std::shared_ptr<const ValidRequest> request_;
  const std::string trace_id_;
  std::unique_ptr<GenerationSink> sink_;
  std::shared_ptr<const ModelView> view_;
  ConstraintPtr constraint_;
  uint64_t seed_ = 0, call_nonce_ = 0;
  std::vector<PromptState> prompts_;
  std::vector<Choice> choices_;
  uint64_t subscription_ = 0;
  std::unique_ptr<Timer> deadline_, retry_, keep_alive_;
  const Instant started_;
  Instant spoke_, last_token_{};
  bool first_token_ = false, any_length_ = false, done_ = false, seen_away_ = false;
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);  // read by the text pool
  std::shared_ptr<GenerationImpl> self_;
};

}  // namespace

std::shared_ptr<Generation> StartGeneration(const GenerationContext& context, ValidRequest request, std::string trace_id,
                                            std::unique_ptr<GenerationSink> sink) {
  auto generation = std::make_shared<GenerationImpl>(context, std::move(request), std::move(trace_id), std::move(sink));
  generation->Start();
  return generation;
}

void GenerationSet::Prune() {
  std::erase_if(all_, [](const std::weak_ptr<Generation>& weak) {
    const auto generation = weak.lock();
    return !generation || generation->done();
  });
}

void GenerationSet::Add(const std::shared_ptr<Generation>& generation) {
  if (all_.size() >= next_prune_) {
    Prune();
    next_prune_ = all_.size() * 2 + 16;
  }
  all_.push_back(generation);
}

size_t GenerationSet::active() {
  Prune();
  return all_.size();
}

void GenerationSet::FailAll(const ApiError& error) {
  for (const auto& weak : std::exchange(all_, {})) {
    if (const auto generation = weak.lock()) generation->Fail(error);
  }
}

}  // namespace holdfast::api
