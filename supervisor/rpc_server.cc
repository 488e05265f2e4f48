#include "supervisor/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "supervisor/admin_service.h"
#include "supervisor/engine_service.h"
#include "supervisor/worker_link.h"

namespace holdfast::supervisor {

struct RpcServer::Impl {
  std::vector<std::unique_ptr<grpc::Service>> services;  // outlive the server
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::optional<bool> serving;  // as last told
};

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() { Shutdown(Duration::zero()); }

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& socket, const std::string& tcp, Inbox* inbox) {
  constexpr int kMaxMessage = 256 << 20;  // a ModelCard holds a whole vocabulary
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto impl = std::make_unique<Impl>();
  impl->services.push_back(MakeWorkerLink(inbox));
  impl->services.push_back(MakeEngineService(inbox));
  impl->services.push_back(MakeAdminService(inbox));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  builder.SetMaxSendMessageSize(kMaxMessage);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else a second server would share the port in silence
  int unix_ok = 0;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials(), &unix_ok);
  if (!tcp.empty()) builder.AddListeningPort(tcp, grpc::InsecureServerCredentials(), &impl->port);
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  const mode_t old_mask = ::umask(0177);  // the socket is born 0600
  impl->server = builder.BuildAndStart();
  ::umask(old_mask);
  if (impl->server == nullptr) {
    return absl::UnavailableError(fmt::format("cannot listen on {}{}{}: is the address in use?", socket, tcp.empty() ? "" : " and ", tcp));
  }
  auto out = std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
  out->SetServing(false);
  return out;
}

int RpcServer::tcp_port() const { return impl_->port; }

void RpcServer::SetServing(bool serving) {
  if (impl_->serving == serving) return;  // every call is a message to whoever watches
  impl_->serving = serving;
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus("holdfast.proto.Engine", serving);
}

void RpcServer::Shutdown(Duration grace) {
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(grace));
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace holdfast::supervisor
