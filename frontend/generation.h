#pragma once
// One client request at work: prompts become tokens, choices become engine requests, tokens become text. It lives on the loop thread as
// a small state machine
//
//   Preparing --(text pool: render, tokenise)--> Running --(all choices finished)--> Done
//                                                  |  ^
//                                    engine lost   v  |  ready again: prompt + received ids are submitted anew
//                                                Waiting --(resume_timeout)--> Done with an error
//
// Preparing also makes the constraint that the answer has to keep (frontend/constraint.h).
// Every state has an edge to Done for a client that went away. What a choice has produced depends on its token ids alone, so after a
// resume the client sees the same bytes as without the loss.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/engine_client.h"
#include "frontend/engine_state.h"
#include "frontend/loop.h"
#include "frontend/text_pool.h"

namespace holdfast::api {

class FrontendMetrics;

// kStop: the model ended its answer, or a stop string did. kLength: max_tokens or the context's end, also within a call. kToolCalls: the
// answer ended after at least one call (never kStop then).
enum class FinishReason : uint8_t { kStop, kLength, kToolCalls };

// How a choice ended. `stop`: the stop string that ended it, as the request wrote it; "" when none did.
struct ChoiceEnd {
  FinishReason reason = FinishReason::kStop;
  std::string stop;
};

// A token as logprobs report it. `bytes` is its part of the text (a stop string may have cut it).
struct TokenInfo {
  struct Alternative {
    std::string bytes;
    float logprob = 0;
  };
  std::string bytes;
  std::optional<float> logprob;            // none: the first token of an echoed prompt
  std::vector<Alternative> top;            // best first
  uint32_t text_offset = 0;                // code points before it in the choice's text (echoed prompt included)
};

// A part of a tool call. The fragments of `arguments` with one index, joined, are the text of one JSON object ("{}" when the model gave no
// arguments); only a call that never became complete may end earlier (max_tokens, or output that breaks off).
struct ToolCallDelta {
  uint32_t index = 0;                      // of the call within its choice, from 0; calls do not interleave
  std::string id, name;                    // both whole, with the first delta of a call and only there. "call_" + 24 letters and digits,
                                           // unique over requests, the same after a resume
  std::string arguments;
  bool complete = false;                   // the call's last delta: its arguments are whole
};

// What is new in a choice. Within one delta the reasoning comes before the text and the text before the calls; what the model wrote in
// another order comes as another delta, so that a sink that shows items in their order has it. Each call is named at most once in a delta.
struct ChoiceDelta {
  std::string reasoning;                   // valid UTF-8
  std::string text;                        // valid UTF-8; may be empty when there are only logprobs
  std::vector<TokenInfo> logprobs;         // of the tokens that made `text`
  std::vector<ToolCallDelta> tool_calls;   // ascending by index
  bool empty() const { return reasoning.empty() && text.empty() && logprobs.empty() && tool_calls.empty(); }
};

struct Usage {
  uint64_t prompt_tokens = 0;              // every prompt once, whatever n
  uint64_t completion_tokens = 0;          // generated, of all choices, end token included
  uint64_t cached_tokens = 0;              // of prompt_tokens, taken from the prefix cache
  uint64_t reasoning_tokens = 0;           // of completion_tokens, those of thoughts
};

// Who hears of it. Calls come on the loop thread: OnDelta/OnFinish of choices interleave (one OnFinish a choice), then OnDone or, at any
// time instead, OnError; nothing afterwards and nothing after Generation::Cancel.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // The engine has taken the prompt: prompt_tokens and cached_tokens are known. Once, before the first delta; with several prompts not at all.
  virtual void OnPrompt(const Usage& /*usage*/) {}
  virtual void OnDelta(uint32_t choice, ChoiceDelta delta) = 0;
  virtual void OnFinish(uint32_t choice, const ChoiceEnd& end) = 0;
  virtual void OnDone(const Usage& usage) = 0;
  virtual void OnError(const ApiError& error) = 0;
  // The request was accepted and nothing was said for a while: a stream may send a comment.
  virtual void OnSilence() = 0;
};

struct GenerationOptions {
  Duration resume_timeout = std::chrono::seconds(60);      // how long a lost request waits for the engine
  Duration resume_backoff = std::chrono::milliseconds(50); // between attempts, doubled up to 1 s
  Duration keep_alive = std::chrono::seconds(10);          // silence before OnSilence
};

// What generations share. Everything outlives them.
struct GenerationContext {
  Loop& loop;
  TextPool& pool;
  EngineClient& engine;
  EngineState& state;
  FrontendMetrics& metrics;
  GenerationOptions options;
};

class Generation {
 public:
  virtual ~Generation() = default;
  // The client is gone (or the deadline passed): engine requests are cancelled, the sink hears nothing more. Any state, idempotent.
  virtual void Cancel() = 0;
  // Ends it with this error, if it has not ended (drain).
  virtual void Fail(const ApiError& error) = 0;
  virtual bool done() const = 0;
};

// Starts a request; it keeps itself alive until it is done. There are prompts x n choices; index = prompt * n + i. The sink is not called
// before this returns.
std::shared_ptr<Generation> StartGeneration(const GenerationContext& context, ValidRequest request, std::string trace_id,
                                            std::unique_ptr<GenerationSink> sink);

// The requests at work, for drain and for metrics.
class GenerationSet final {
 public:
  void Add(const std::shared_ptr<Generation>& generation);
  size_t active();
  void FailAll(const ApiError& error);

 private:
  void Prune();
  std::vector<std::weak_ptr<Generation>> all_;
  size_t next_prune_ = 16;
};

}  // namespace holdfast::api
