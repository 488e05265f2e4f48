#pragma once
// The flags of holdfast-frontend. Names are kept stable: unit files and `holdfast serve` use them.
#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/log.h"

namespace holdfast::api {

struct FrontendConfig {
  std::string engine;                        // unix:/path or host:port of the supervisor
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::string admin_host = "127.0.0.1";
  std::optional<uint16_t> admin_port;        // absent: admin routes on the public listener if that is loopback only, else nowhere
  std::string grpc_address;                  // "" = off
  std::string api_key_file;
  uint32_t max_requests_per_key = 0;         // at work; 0 = as many as the engine takes
  std::string served_model_name;
  bool strict_model = false;
  std::string tool_call_parser = "auto";     // a name of tools::FormatNames(), auto or none
  std::string reasoning_parser = "auto";
  uint64_t max_body_bytes = 16u << 20;
  uint64_t max_total_body_bytes = 256u << 20;
  uint32_t max_connections = 4096;
  double drain_timeout_s = 30;
  double resume_timeout_s = 60;
  double keep_alive_s = 10;                  // silence on a stream before a comment
  uint32_t text_threads = 2;
  std::string cors_origin;                   // "" = no CORS headers
  std::string tls_certificate_file, tls_key_file;
  LogLevel log_level = LogLevel::kInfo;
};

// Fills *config. Otherwise the exit status: 0 after --help or --version, 64 after a bad flag, with the reason on stderr.
std::optional<int> ParseConfig(int argc, const char* const* argv, FrontendConfig* config);

// The host names this machine only: admin routes may share its listener.
bool IsLoopback(const std::string& host);

}  // namespace holdfast::api
