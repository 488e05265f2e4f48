#pragma once
// The Admin service: every call becomes a question to the loop, and Watch a stream of its statements.
#include <memory>

#include "supervisor/inbound.h"

namespace grpc {
class Service;
}

namespace holdfast::supervisor {

std::unique_ptr<grpc::Service> MakeAdminService(Inbox* inbox);

}  // namespace holdfast::supervisor
