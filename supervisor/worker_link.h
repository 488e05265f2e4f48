#pragma once
// The WorkerLink service: moves messages between a worker's stream and the loop. It decides one thing itself: peers that did not come
// over the unix socket are refused. Generation, rank and token are checked by the loop.
#include <memory>

#include "supervisor/inbound.h"

namespace grpc {
class Service;
}

namespace holdfast::supervisor {

// `inbox` must outlive the server the service is registered with.
std::unique_ptr<grpc::Service> MakeWorkerLink(Inbox* inbox);

}  // namespace holdfast::supervisor
