#pragma once
// gRPC's channel as both clients of the supervisor make it. Only for .cc files: it shows gRPC's types.
#include <grpcpp/grpcpp.h>

#include <memory>

#include "frontend/engine_client.h"

namespace holdfast::api {

inline std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, options.min_backoff_ms);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, options.min_backoff_ms);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, options.max_backoff_ms);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(options.max_message_bytes);
  args.SetMaxSendMessageSize(options.max_message_bytes);
  return grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), args);
}

}  // namespace holdfast::api
