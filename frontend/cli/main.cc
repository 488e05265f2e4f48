// The `holdfast` tool: serve, chat, ctl, bench, replay. It starts and asks the others and knows nothing itself.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "frontend/cli/chat.h"
#include "frontend/cli/child.h"
#include "frontend/cli/ctl.h"
#include "frontend/cli/serve.h"
#include "proto/base/exit_code.h"
#include "proto/base/flag_range.h"
#include "proto/base/version.h"

namespace holdfast::cli {
namespace {

// Flags of serve that travel on: `--flag value` pairs kept in the order given.
void Forward(CLI::App* app, std::vector<std::string>* to, const std::string& name, const std::string& help) {
  app->add_option_function<std::string>(
      "--" + name,
      [to, name](const std::string& value) {
        to->push_back("--" + name);
        to->push_back(value);
      },
      help);
}

void AddServe(CLI::App& app, ServeOptions& o, int* status) {
  auto* serve = app.add_subcommand("serve", "Serve a model over HTTP: starts a supervisor and a frontend");
  serve->add_option("--model", o.model, "GGUF file")->required();
  serve->add_option("--host", o.host, "Address to listen on")->capture_default_str();
  serve->add_option("--port", o.port, "Port; 0 = any free port")->capture_default_str()->check(CLI::Range(0, 65535));
  serve->add_option("--runtime-dir", o.runtime_dir, "Folder of the supervisor's socket and incidents (default: a fresh one)");
  serve->add_option("--log-level", o.log_level, "debug, info, warn, error or off")->capture_default_str();
  serve->add_option("--drain-timeout", o.drain_timeout_s, "Seconds running streams may take to finish at a stop")->capture_default_str()->check(RealRange(0.0, 3600.0));
  auto* f = &o.frontend_flags;
  Forward(serve, f, "served-model-name", "Name that /v1/models shows (default: from the file)");
  Forward(serve, f, "api-key-file", "File with one bearer key a line; without it no key is asked for");
  Forward(serve, f, "max-requests-per-key", "Requests that one key may have at work (default: as many as the engine takes)");
  Forward(serve, f, "admin-host", "Address of the listener for admin routes and metrics");
  Forward(serve, f, "admin-port", "Port of the listener for admin routes and metrics");
  Forward(serve, f, "grpc-address", "host:port of chat.proto, grpc.health.v1 and reflection (default: off)");
  Forward(serve, f, "max-body-bytes", "Largest request body");
  Forward(serve, f, "tool-call-parser", "How the model writes tool calls: auto, none or a format's name (default: auto, from its chat template)");
  Forward(serve, f, "reasoning-parser", "How it writes thoughts, likewise");
  auto* s = &o.supervisor_flags;
  Forward(serve, s, "listen", "host:port of engine.proto and admin.proto beside the unix socket (default: off)");
  Forward(serve, s, "tp", "Tensor-parallel ranks");
  Forward(serve, s, "max-running-requests", "Sequences computed at once");
  Forward(serve, s, "max-prefill-length", "Prompt tokens computed in one step (chunk)");
  Forward(serve, s, "max-seq-len", "Longest prompt + answer");
  Forward(serve, s, "max-queue", "Requests that may wait");
  Forward(serve, s, "kv-cache-dtype", "auto, f16, bf16, q8_0 or fp8_e4m3");
  Forward(serve, s, "num-tokens", "Tokens the full KV pool holds");
  Forward(serve, s, "memory-ratio", "Share of the available memory for weights and KV");
  Forward(serve, s, "kv-reserve-tokens", "Least tokens the full KV pool must hold");
  Forward(serve, s, "reserve-output-tokens", "Answer tokens whose KV is reserved at admission (default 4096; 0 = all of max_tokens)");
  Forward(serve, s, "swa-full-tokens-ratio", "Size of the window pools relative to the full pool");
  Forward(serve, s, "page-size", "Tokens in a KV page: 1, 16, 32, ...");
  Forward(serve, s, "cache-type", "radix or none");
  Forward(serve, s, "threads", "Compute threads of a worker; 0 = the cores it may use");
  Forward(serve, s, "backend", "auto (CUDA where a device is, else the CPU), cpu, cuda or reference");
  Forward(serve, s, "cpu-isa", "auto, scalar, avx2, avx512, ...");
  Forward(serve, s, "cuda-graphs", "auto or off: decode steps as CUDA graphs");
  Forward(serve, s, "overlap", "Steps launched beyond the one that computes: auto, 0 or 1");
  Forward(serve, s, "collectives", "How ranks with a GPU each sum: auto (NCCL where all have it, else through the host's memory), nccl or host");
  // Anything else, as it stands: --supervisor-arg --hang-timeout=5
  const auto raw = [serve](const char* name, std::vector<std::string>* to, const char* help) {
    serve->add_option_function<std::string>(name, [to](const std::string& value) { to->push_back(value); }, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->trigger_on_parse();
  };
  raw("--supervisor-arg", s, "Any other argument of holdfast-supervisor, as --supervisor-arg=--hang-timeout=5 and repeatable");
  raw("--frontend-arg", f, "Any other argument of holdfast-frontend, likewise");
  serve->callback([&o, status] { *status = Serve(o); });
}

void AddCtl(CLI::App& app, CtlOptions& o, int* status) {
  static std::string runtime_dir, engine;
  static uint32_t full = 0, window = 0;
  static bool cancel = false, stop = false;
  static std::string clear;
  auto* ctl = app.add_subcommand("ctl", "Ask and steer a running supervisor");
  ctl->require_subcommand(1);
  ctl->fallthrough();
  ctl->add_option("--runtime-dir", runtime_dir, "The supervisor's runtime folder");
  ctl->add_option("--engine", engine, "unix:PATH or HOST:PORT");
  ctl->add_flag("--json", o.json, "Print the whole reply as JSON");
  ctl->add_option("--timeout", o.timeout_s, "Seconds")->capture_default_str()->check(RealRange(0.01, 86400.0));
  const auto resolve = [&o] {
    if (!engine.empty()) {
      o.target = engine;
    } else {
      const std::string socket = runtime_dir.empty() ? FindSupervisorSocket() : runtime_dir + "/supervisor.sock";
      o.target = socket.empty() ? "" : "unix:" + socket;
    }
  };
  const auto add = [&](const char* name, const char* help, std::function<int()> run) {
    auto* sub = ctl->add_subcommand(name, help);
    sub->fallthrough();
    sub->callback([resolve, run, status] {
      resolve();
      *status = run();
    });
    return sub;
  };
  add("status", "State, pools, requests; exit 2 when not ready", [&o] { return CtlStatus(o); });
  add("requests", "Requests in flight", [&o] { return CtlRequests(o); });
  add("incidents", "Losses and what was recorded of them", [&o] { return CtlIncidents(o); });
  auto* drain = add("drain", "Take no new requests, finish the running ones, and wait for `resume`", [&o] { return CtlDrain(o, stop); });
  drain->add_flag("--stop", stop, "End the engine once they have finished");
  add("resume", "Take requests again after a drain", [&o] { return CtlResume(o); });
  auto* quarantine = add("quarantine", "Requests that are refused because the engine was lost with them, again and again",
                         [&o] { return CtlQuarantine(o, clear.empty() ? std::nullopt : std::optional(clear)); });
  quarantine->add_option("--clear", clear, "Let one fingerprint in again, or `all`")->type_name("FINGERPRINT|all");
  auto* cache = add("cache", "Show the pools, or resize them while serving", [&o] { return CtlCache(o, full, window, cancel); });
  auto* to_full = cache->add_option("--full", full, "Pages of the full pool")->check(CLI::Range(1u, 1u << 24));
  auto* to_window = cache->add_option("--window", window, "Pages of each window pool")->check(CLI::Range(1u, 1u << 24));
  cache->add_flag("--cancel", cancel, "Cancel the running resize")->excludes(to_full)->excludes(to_window);
}

int Main(int argc, char** argv) {
  CLI::App app{"Holdfast: an LLM inference server that does not fall over"};
  app.set_version_flag("--version", std::string("holdfast ") + kVersion);
  app.require_subcommand(1);
  int status = 0;
  ServeOptions serve;
  ChatOptions chat;
  CtlOptions ctl;
  AddServe(app, serve, &status);
  AddCtl(app, ctl, &status);
  auto* c = app.add_subcommand("chat", "Talk to a running server");
  c->add_option("--server", chat.base_url, "Base URL")->capture_default_str();
  c->add_option("--key", chat.key, "Bearer key");
  c->add_option("--system", chat.system, "System prompt");
  c->add_option("--max-tokens", chat.max_tokens, "Longest answer")->capture_default_str();
  c->add_option("--temperature", chat.temperature, "0 = greedy (default: the server's)");
  c->add_flag_callback("--tools", [&] { chat.tools = true; }, "Offer the demo's tools (default: when the model's chat template takes tools)");
  c->add_flag_callback("--no-tools", [&] { chat.tools = false; }, "Offer none");
  c->callback([&] { status = Chat(chat); });
  // The worker owns model, scheduler and kernels; it does what these ask.
  const auto worker = [&](const char* name, const char* help) {
    auto* sub = app.add_subcommand(name, help);
    sub->prefix_command();
    sub->set_help_flag();  // --help is the worker's to answer
    sub->callback([&status, sub, name] {
      std::vector<std::string> args{OwnFolder() + "/holdfast-worker", name};
      for (const auto& a : sub->remaining()) args.push_back(a);
      std::vector<char*> raw;
      for (auto& a : args) raw.push_back(a.data());
      raw.push_back(nullptr);
      ::execv(raw[0], raw.data());
      fmt::print(stderr, "holdfast: cannot run {}: {}\n", args[0], std::strerror(errno));
      status = 127;
    });
  };
  worker("bench", "Measure prefill and decode of a model beside this machine's limits");
  worker("replay", "Re-run scheduler and page ledger from an incident bundle, without a model, and compare digests");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kConfig);
  }
  return status;
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) { return holdfast::cli::Main(argc, argv); }
