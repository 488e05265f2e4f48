#pragma once
// A supervisor without a model, in the test's own process: engine.proto and admin.proto on a unix socket. What it answers is a function
// of the request, so that a resumed request goes on exactly where it was cut; what goes wrong is set by the test.
//
// Thread-safe; its own threads answer.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "proto/engine.pb.h"
#include "proto/model_card.pb.h"

namespace holdfast::testing {

class FakeEngine final {
 public:
  // The ids that follow the prompt, from the first generated one on, whatever was delivered before. The engine ends at one of the request's
  // stop tokens or at max_tokens; a script that runs out before both is an error of the test.
  using Script = std::function<std::vector<uint32_t>(const proto::GenerateRequest&)>;
  // A refusal instead of tokens.
  using Refuse = std::function<bool(const proto::GenerateRequest&, proto::EngineError*)>;

  FakeEngine(const proto::ModelCard& card, Script script);
  ~FakeEngine();

  const std::string& target() const;       // "unix:/path"
  void Start();                             // again after Stop: the same socket, a new instance
  void Stop();                              // as if killed: every stream breaks

  void SetRefuse(Refuse refuse);
  void SetTokensPerEvent(uint32_t n);
  void SetStepMicros(uint32_t micros);
  void SetCachedTokens(uint32_t n);         // reported for every admission
  // Tokens are produced only while the gate is open (open at first).
  void SetOpen(bool open);
  // After this many more tokens, counted over all requests: every running request is told FINISH_LOST, or the session breaks.
  void LoseAfter(uint32_t tokens);
  void BreakAfter(uint32_t tokens);

  // Sent to every watcher at once, and again while it is the current one, as often as the lease needs.
  void SetHealth(bool ready, const std::string& state, uint32_t lease_ms = 2000, const std::string& reason = "");
  // Stops sending statements, without breaking the stream: the lease runs out.
  void SetSilent(bool silent);
  void SetLimits(uint32_t max_seq_len, uint64_t max_request_tokens);
  void SetMetricsText(std::string text);

  std::vector<proto::GenerateRequest> requests() const;   // all that were seen, in order
  size_t cancels() const;
  size_t running() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ids of a text under the byte-level card of tiny_cards.h: one id a byte.
std::vector<uint32_t> ByteIds(std::string_view text);

}  // namespace holdfast::testing
