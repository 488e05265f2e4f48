#pragma once
// The last requests this frontend answered, and what they add up to: /v1/requests and /v1/stats read it. Loop thread only.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/generation.h"

namespace holdfast::api {

struct RequestRecord {
  int64_t unix_ms = 0;                   // when it began
  std::string id;                        // x-request-id
  std::string path;
  int status = 200;                      // 499: the client left
  bool stream = false;
  uint64_t duration_ms = 0;
  std::optional<uint64_t> ttft_ms;       // to the first delta, when there was one
  Usage usage;
  std::string error;                     // "" when it was answered in full
};

class RequestLog final {
 public:
  static constexpr size_t kKept = 512;

  void Began() { ++active_; }
  void Ended(RequestRecord record);

  struct Page {
    std::vector<const RequestRecord*> records;   // oldest first
    uint64_t next_cursor = 0;                    // of the first record that is not in the page
  };
  // At most `limit` records from `since` on: cursors count all records there ever were. What has left the ring is skipped.
  Page Since(uint64_t since, size_t limit) const;

  struct Totals {
    uint64_t active = 0, completed = 0;          // completed: answered in full
    uint64_t prompt_tokens = 0, completion_tokens = 0;
    std::optional<double> p95_ms, ttft_mean_ms;  // over the ring's answered requests
  };
  Totals Sum() const;

 private:
  std::deque<RequestRecord> ring_;
  uint64_t ever_ = 0, active_ = 0, completed_ = 0, prompt_tokens_ = 0, completion_tokens_ = 0;
};

// Forwards to `inner` and writes the log when the request is over, however it ends. `unix_ms`: now.
std::unique_ptr<GenerationSink> MakeLoggedSink(std::unique_ptr<GenerationSink> inner, std::shared_ptr<RequestLog> log, int64_t unix_ms,
                                               std::string id, const ValidRequest& request);

// The path of a route's requests: "/v1/chat/completions".
const char* PathOf(Route route);

// {"entries":[...],"next_cursor":N}, without the braces, for a body that has more.
std::string RequestEntries(const RequestLog::Page& page, const std::string& model);

}  // namespace holdfast::api
