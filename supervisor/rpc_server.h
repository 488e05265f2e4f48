#pragma once
// The gRPC server: the unix socket (0600) and, if asked, a TCP address; the three services, grpc.health.v1 and reflection on both.
#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "supervisor/inbound.h"

namespace holdfast::supervisor {

class RpcServer {
 public:
  // tcp: "host:port", port 0 = any; empty = none. kUnavailable: an address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const std::string& socket, const std::string& tcp, Inbox* inbox);
  ~RpcServer();

  // The TCP port bound; 0 = none.
  int tcp_port() const;
  // What grpc.health.v1 says for "" and "holdfast.proto.Engine".
  void SetServing(bool serving);
  // Ends every call after `grace` and joins gRPC's threads. The inbox must be closed before.
  void Shutdown(Duration grace);

 private:
  struct Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::supervisor
