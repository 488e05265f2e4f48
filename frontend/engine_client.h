#pragma once
// The token-level road to the engine: one Engine.Session stream to the supervisor carries all requests of this frontend. It is opened at
// once and again whenever it breaks; a break is reported to every request on it as FINISH_LOST, whoever died.
//
// Loop thread only. Callbacks run on the loop thread, never inside a call of this class.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "frontend/loop.h"

namespace holdfast::proto {
class GenerateRequest;
class TokenEvent;
}  // namespace holdfast::proto

namespace holdfast::api {

class EngineClient {
 public:
  using OnEvent = std::function<void(const proto::TokenEvent&)>;

  virtual ~EngineClient() = default;
  // Sends the request under an id of its own (request_id is overwritten), which is returned. The last event carries a finish; after
  // it the callback is dropped. A stream that has just broken answers FINISH_ERROR with UNAVAILABLE.
  virtual uint64_t Generate(proto::GenerateRequest request, OnEvent on_event) = 0;
  // No event of this request comes after this. Unknown and ended requests are ignored.
  virtual void Cancel(uint64_t id) = 0;
  // The stream answered. True does not promise that the other side still lives.
  virtual bool connected() const = 0;
  virtual size_t in_flight() const = 0;
};

// Reconnecting by gRPC's own back-off, shortened: a restarted supervisor is found within a quarter of a second.
struct ChannelOptions {
  std::string target;                 // "unix:/path" or "host:port"
  int min_backoff_ms = 50;
  int max_backoff_ms = 200;
  int max_message_bytes = 256 << 20;  // a model card is several MB
};

// on_connected: the stream opened or broke.
std::unique_ptr<EngineClient> ConnectEngine(Loop& loop, const ChannelOptions& options, std::function<void(bool)> on_connected);

}  // namespace holdfast::api
