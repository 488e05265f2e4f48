#pragma once
// What this frontend counts. Names are those of docs/operations.md. Label values come from fixed sets: nothing a client sends becomes a label.
// The counters of tokens equal the sums over the usage blocks of the requests that ended with one.
//
// Any thread.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/base/clock.h"

namespace prometheus {
class Registry;
}

namespace holdfast::api {

class FrontendMetrics final {
 public:
  explicit FrontendMetrics(prometheus::Registry& registry);
  ~FrontendMetrics();

  void RequestStarted();
  // stop | length | abort | error | refused
  void RequestEnded(std::string_view end);
  void Resumed();
  void GeneratedTokens(uint64_t n);
  // Over the last five whole seconds.
  struct Rates {
    double generated = 0, prompt = 0;    // tokens a second; prompt: computed ones
  };
  Rates TokenRates() const;
  void PromptTokens(uint64_t computed, uint64_t cached);
  void TimeToFirstToken(Duration d);
  void InterToken(Duration d);
  // route: a pattern of the router ("/v1/models/{id}") or "other".
  void HttpRequest(std::string_view route, int code);
  // Refreshed when scraped. Age below 0: no statement yet.
  void SetHealth(double lease_age_seconds, bool ready, bool engine_reached);
  // The registry in text format 0.0.4. Reading has no side effects.
  std::string Text() const;

 private:
  struct Families;
  class RateWindow;
  prometheus::Registry& registry_;
  std::unique_ptr<Families> families_;
  std::unique_ptr<RateWindow> generated_rate_, prompt_rate_;
};

// The text of this process followed by the engine's, in format 0.0.4. A family that both have is taken from `own`, so HELP and TYPE come
// once; lines of the engine's text that are no sample, comment or blank line are dropped.
std::string MergeMetricsText(std::string_view own, std::string_view engine);

}  // namespace holdfast::api
