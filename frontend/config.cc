#include "frontend/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "frontend/text/vocabulary.h"
#include "frontend/tools/format.h"
#include "proto/base/check.h"
#include "proto/base/exit_code.h"
#include "proto/base/flag_range.h"
#include "proto/base/status_wire.h"
#include "proto/model_card.pb.h"

namespace holdfast::api {
namespace {

// An empty address would be every address: what an unset variable in a script becomes must not open the server to the world.
std::string CheckHost(const std::string& text) {
  return text.empty() ? "an empty address; 127.0.0.1 is this machine only, 0.0.0.0 every address" : "";
}

std::string CheckTarget(const std::string& text) {
  if (text.rfind("unix:", 0) == 0) return text.size() > 5 ? "" : "unix: needs a path after it";
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return "'" + text + "' is neither unix:/path nor host:port";
  const std::string port = text.substr(colon + 1);
  if (port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5 || std::stoi(port) > 65535) {
    return "'" + port + "' is no port (0 to 65535)";
  }
  return "";
}

std::string FormatList() {
  std::string out;
  for (const std::string_view name : tools::FormatNames()) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

// Names alone, against a vocabulary of one token: which markers the model has is seen when its card comes.
std::string CheckFormat(const std::string& tool_format, const std::string& reasoning) {
  proto::ModelCard card;
  card.mutable_vocabulary()->set_model("gpt2");
  card.mutable_vocabulary()->add_tokens("a");
  card.set_vocab_size(1);
  const auto vocabulary = text::Vocabulary::Create(card);
  HF_CHECK(vocabulary.ok());
  const auto asked = [](const std::string& name) { return name == "auto" || name == "none" ? std::string() : name; };
  const auto made = tools::CreateFormat(asked(tool_format), asked(reasoning), *vocabulary);
  return made.ok() ? "" : std::string(MessageOf(made.status())) + ", and auto and none";
}

}  // namespace

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.rfind("127.", 0) == 0 || host.rfind("unix:", 0) == 0;
}

std::optional<int> ParseConfig(int argc, const char* const* argv, FrontendConfig* config) {
  CLI::App app("The HTTP and gRPC face of Holdfast. It needs no model file: the supervisor sends it what it has to know.", "holdfast-frontend");
  app.set_version_flag("--version", std::string("holdfast-frontend ") + HOLDFAST_VERSION);
  std::string log_level = "info";
  int admin_port = -1;
  app.add_option("--engine", config->engine, "The supervisor: unix:/path/of/socket or host:port")->required()->check(CheckTarget);
  app.add_option("--host", config->host, "Address to listen on, or unix:/path")->capture_default_str()->check(CheckHost);
  app.add_option("--port", config->port, "Port; 0 = any free port")->capture_default_str();
  app.add_option("--admin-host", config->admin_host, "Address of the admin listener")->capture_default_str()->check(CheckHost);
  app.add_option("--admin-port", admin_port,
                 "Port of a listener of its own for metrics and admin routes; 0 = any free port. Without it they are served on the public "
                 "listener when that is a loopback address, and nowhere otherwise")
      ->check(CLI::Range(0, 65535));
  app.add_option("--grpc-address", config->grpc_address, "host:port for chat.proto, grpc.health.v1 and reflection; off without it")
      ->check(CheckTarget);
  app.add_option("--api-key-file", config->api_key_file, "File with one key a line; requests must carry one as a bearer token");
  app.add_option("--max-requests-per-key", config->max_requests_per_key,
                 "Requests that one key may have at work on this frontend, HTTP and gRPC together; beyond it 429. 0 = no limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  app.add_option("--served-model-name", config->served_model_name, "Id of the model in answers (default: the model's own name)");
  app.add_flag("--strict-model", config->strict_model, "404 for requests that name another model");
  app.add_option("--tool-call-parser", config->tool_call_parser,
                 "How the model writes tool calls: auto (from its chat template), none, or one of " + FormatList())
      ->capture_default_str()
      ->check([](const std::string& name) { return CheckFormat(name, ""); });
  app.add_option("--reasoning-parser", config->reasoning_parser, "How it writes thoughts: auto, none, or one of the same names")
      ->capture_default_str()
      ->check([](const std::string& name) { return CheckFormat("", name); });
  app.add_option("--max-body-bytes", config->max_body_bytes, "Largest request body")->capture_default_str()->check(CLI::Range(1024.0, 4e9));
  app.add_option("--max-total-body-bytes", config->max_total_body_bytes, "Bodies of all requests together; beyond it new ones get 503. At least --max-body-bytes")
      ->capture_default_str()
      ->check(CLI::Range(1024.0, 1e12));
  app.add_option("--max-connections", config->max_connections, "Open connections")->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_option("--drain-timeout", config->drain_timeout_s, "Seconds that running requests may take after SIGTERM")
      ->capture_default_str()
      ->check(RealRange(0.0, 86400.0));
  app.add_option("--resume-timeout", config->resume_timeout_s, "Seconds that a running request waits for a lost engine")
      ->capture_default_str()
      ->check(RealRange(0.0, 86400.0));
  app.add_option("--keep-alive", config->keep_alive_s, "Seconds of silence on a stream before a comment line")
      ->capture_default_str()
      ->check(RealRange(0.01, 3600.0));
  app.add_option("--text-threads", config->text_threads, "Threads for templates and tokenising")->capture_default_str()->check(CLI::Range(1, 64));
  app.add_option("--cors-origin", config->cors_origin,
                 "Access-Control-Allow-Origin of the public routes: https://my.page, or * for every page of the web (default: none, pages of "
                 "other origins get no answers)");
  app.add_option("--tls-certificate", config->tls_certificate_file, "PEM chain; with --tls-key the listeners speak TLS");
  app.add_option("--tls-key", config->tls_key_file, "PEM key");
  app.add_option("--log-level", log_level, "debug, info, warn, error or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, std::cout, std::cerr);
    return status == 0 ? 0 : static_cast<int>(ExitCode::kConfig);
  }
  ParseLogLevel(log_level, &config->log_level);
  if (admin_port >= 0) config->admin_port = static_cast<uint16_t>(admin_port);
  if (config->cors_origin == "none") config->cors_origin.clear();
  if (app.count("--max-total-body-bytes") == 0) config->max_total_body_bytes = std::max(config->max_total_body_bytes, config->max_body_bytes);
  if (config->max_total_body_bytes < config->max_body_bytes) {
    std::cerr << "holdfast-frontend: --max-total-body-bytes " << config->max_total_body_bytes << " is less than one body may have; the nearest value that works is "
              << config->max_body_bytes << " (--max-body-bytes)\n";
    return static_cast<int>(ExitCode::kConfig);
  }
  if (config->max_requests_per_key > 0 && config->api_key_file.empty()) {
    std::cerr << "holdfast-frontend: --max-requests-per-key needs --api-key-file: without keys nobody is told from another\n";
    return static_cast<int>(ExitCode::kConfig);
  }
  if (config->tls_certificate_file.empty() != config->tls_key_file.empty()) {
    std::cerr << "holdfast-frontend: --tls-certificate and --tls-key go together\n";
    return static_cast<int>(ExitCode::kConfig);
  }
  return std::nullopt;
}

}  // namespace holdfast::api
