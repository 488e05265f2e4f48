#pragma once
// One client request at work: prompts become tokens, choices become engine requests, tokens become text. It lives on the loop thread as
// a small state machine
//
//   Preparing --(text pool: render, tokenise)--> Running --(all choices finished)--> Done
//                                                  |  ^
//                                    engine lost   v  |  ready again: prompt + received ids are submitted anew
//                                                Waiting --(resume_timeout)--> Done with an error
//
// and every state has an edge to Done for a client that went away. What a choice has produced depends on its token ids alone, so after a
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

enum class FinishReason : uint8_t { kStop, kLength };

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

struct ChoiceDelta {
  std::string text;                        // valid UTF-8; may be empty when there are only logprobs
  std::vector<TokenInfo> logprobs;
  bool empty() const { return text.empty() && logprobs.empty(); }
};

struct Usage {
  uint64_t prompt_tokens = 0;              // every prompt once, whatever n
  uint64_t completion_tokens = 0;          // generated, of all choices, end token included
  uint64_t cached_tokens = 0;              // of prompt_tokens, taken from the prefix cache
};

// Who hears of it. Calls come on the loop thread: OnDelta/OnFinish of choices interleave (one OnFinish a choice), then OnDone or, at any
// time instead, OnError; nothing afterwards and nothing after Generation::Cancel.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnDelta(uint32_t choice, ChoiceDelta delta) = 0;
  virtual void OnFinish(uint32_t choice, FinishReason reason) = 0;
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
