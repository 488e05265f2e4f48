#pragma once
// absl::Status <-> (code, message): absl's codes are gRPC's, so they travel as integers.
#include <absl/status/status.h>

#include <string>
#include <string_view>

namespace holdfast {

// HF_RETURN_IF_ERROR(expr): returns the status of expr when it is not ok.
#define HF_RETURN_IF_ERROR(expr)                          \
  do {                                                    \
    if (auto hf_status_ = (expr); !hf_status_.ok()) return hf_status_; \
  } while (0)

#define HF_CONCAT_(a, b) a##b
#define HF_CONCAT(a, b) HF_CONCAT_(a, b)
// HF_ASSIGN_OR_RETURN(auto x, StatusOrCall())
#define HF_ASSIGN_OR_RETURN(lhs, expr) HF_ASSIGN_OR_RETURN_(HF_CONCAT(hf_statusor_, __LINE__), lhs, expr)
#define HF_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.status();        \
  lhs = *std::move(tmp)

inline absl::Status StatusFromWire(int code, std::string_view message) {
  return absl::Status(static_cast<absl::StatusCode>(code), absl::string_view(message.data(), message.size()));
}

inline std::string_view MessageOf(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

}  // namespace holdfast
