#pragma once
// The supervisor's admin face: a Watch stream that feeds the health lease, and single calls with deadlines.
//
// Loop thread only. Callbacks run on the loop thread; a call that is pending when the client is destroyed never calls back.
#include <absl/status/status.h>

#include <functional>
#include <memory>

#include "frontend/engine_client.h"
#include "proto/admin.pb.h"

namespace holdfast::api {

class AdminClient {
 public:
  template <class Reply>
  using Done = std::function<void(const absl::Status&, const Reply&)>;

  virtual ~AdminClient() = default;
  virtual void GetModelCard(const proto::ModelCardRequest& request, Done<proto::ModelCardReply> done) = 0;
  virtual void GetStatus(Done<proto::StatusReply> done) = 0;
  virtual void GetMetrics(Done<proto::MetricsReply> done) = 0;
  virtual void ListRequests(const proto::ListRequestsRequest& request, Done<proto::ListRequestsReply> done) = 0;
  virtual void ListIncidents(const proto::ListIncidentsRequest& request, Done<proto::ListIncidentsReply> done) = 0;
  virtual void ListQuarantine(const proto::ListQuarantineRequest& request, Done<proto::ListQuarantineReply> done) = 0;
  virtual void ClearQuarantine(const proto::ClearQuarantineRequest& request, Done<proto::ClearQuarantineReply> done) = 0;
  virtual void ResizeCache(const proto::ResizeCacheRequest& request, Done<proto::ResizeCacheReply> done) = 0;
};

struct AdminEvents {
  std::function<void(const proto::HealthStatement&)> statement;
  std::function<void()> disconnected;
};

// Opens the Watch stream at once, and again whenever it breaks.
std::unique_ptr<AdminClient> ConnectAdmin(Loop& loop, const ChannelOptions& options, AdminEvents events);

}  // namespace holdfast::api
