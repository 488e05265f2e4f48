#pragma once
// chat.proto, grpc.health.v1 and reflection on a TCP address: the text level for internal services. A ChatRequest becomes the JSON body of
// /v1/chat/completions and takes the same road; refusals become gRPC statuses. Calls arrive on gRPC's threads and post.
#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "frontend/api/handlers.h"
#include "frontend/api/keys.h"

namespace holdfast::api {

struct GrpcChatOptions {
  std::string address;                       // host:port; port 0 = any
  std::shared_ptr<Keys> keys;                // as for HTTP, in the metadata key "authorization"; null = everybody may ask
  int max_message_bytes = 16 << 20;
};

class GrpcChat {
 public:
  // kUnavailable when the address cannot be bound. The Api and the loop outlive it; destroying it cancels what runs.
  static absl::StatusOr<std::unique_ptr<GrpcChat>> Listen(Loop& loop, Api& api, const GrpcChatOptions& options);
  virtual ~GrpcChat() = default;
  virtual int port() const = 0;
  // What grpc.health.v1 says of "" and of holdfast.proto.Chat. Loop thread.
  virtual void SetServing(bool serving) = 0;
};

}  // namespace holdfast::api
