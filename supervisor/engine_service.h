#pragma once
// The Engine service: Session and Generate. Both become sessions of the loop; Generate is a session of one request whose stream ends
// with it.
#include <memory>

#include "supervisor/inbound.h"

namespace grpc {
class Service;
}

namespace holdfast::supervisor {

std::unique_ptr<grpc::Service> MakeEngineService(Inbox* inbox);

}  // namespace holdfast::supervisor
