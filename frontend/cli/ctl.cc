#include "frontend/cli/ctl.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include "proto/admin.grpc.pb.h"

namespace holdfast::cli {
namespace {

class AdminCall {
 public:
  explicit AdminCall(const CtlOptions& options) : options_(options) {
    if (options.target.empty()) {
      Fail("no supervisor found; name it with --runtime-dir DIR or --engine unix:PATH|HOST:PORT");
      return;
    }
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(256 << 20);
    stub_ = proto::Admin::NewStub(grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), args));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)));
  }
  explicit operator bool() const { return stub_ != nullptr; }
  proto::Admin::Stub* operator->() const { return stub_.get(); }
  grpc::ClientContext* context() { return &context_; }

  bool Ok(const grpc::Status& status) const {
    if (status.ok()) return true;
    Fail(fmt::format("{}: {}", options_.target, status.error_message()));
    return false;
  }
  static void Fail(const std::string& why) { fmt::print(stderr, "holdfast ctl: {}\n", why); }

 private:
  const CtlOptions& options_;
  std::unique_ptr<proto::Admin::Stub> stub_;
  grpc::ClientContext context_;
};

int PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return 1;
  fmt::print("{}", text);
  return 0;
}

void PrintPools(const google::protobuf::RepeatedPtrField<proto::PoolStatus>& pools) {
  if (pools.empty()) return;
  fmt::print("{:<14}{:>10}{:>10}{:>10}{:>11}{:>10}{:>12}{:>10}{:>12}{:>10}\n", "pool", "pages", "free", "held", "evictable", "retiring",
             "quarantined", "floor", "recommended", "MiB");
  for (const auto& p : pools) {
    fmt::print("{:<14}{:>10}{:>10}{:>10}{:>11}{:>10}{:>12}{:>10}{:>12}{:>10.1f}\n", p.name(), p.capacity(), p.free(), p.held(), p.evictable(),
               p.retiring(), p.quarantined(), p.floor(), p.recommended(),
               static_cast<double>(p.capacity()) * static_cast<double>(p.bytes_per_page()) / (1 << 20));
  }
}

void PrintHits(const proto::CacheCounters& c) {
  if (c.prompt_tokens() == 0) return;
  fmt::print("prefix cache {:.1f} % of {} prompt tokens, {} nodes\n", 100.0 * static_cast<double>(c.cached_tokens()) / static_cast<double>(c.prompt_tokens()),
             c.prompt_tokens(), c.nodes());
}

}  // namespace

int CtlStatus(const CtlOptions& options) {
  AdminCall call(options);
  if (!call) return 1;
  proto::StatusReply reply;
  if (!call.Ok(call->GetStatus(call.context(), proto::StatusRequest(), &reply))) return 1;
  const auto& h = reply.health();
  if (options.json) {
    PrintJson(reply);
    return h.accepting() ? 0 : 2;
  }
  fmt::print("state        {}{}{}\n", h.state(), h.accepting() ? ", ready" : ", not ready", h.reason().empty() ? "" : ": " + h.reason());
  fmt::print("model        {}\n", reply.model_path());
  if (!reply.backend().empty()) fmt::print("backend      {}\n", reply.backend());
  fmt::print("generation   {}, {} restarts, up {:.0f} s\n", h.generation(), h.restarts(), static_cast<double>(reply.uptime_ms()) / 1000);
  if (h.has_progress() && h.progress().total_bytes() > 0) {
    fmt::print("loading      {} {}/{} MiB\n", h.progress().phase(), h.progress().done_bytes() >> 20, h.progress().total_bytes() >> 20);
  }
  fmt::print("requests     {} running, {} waiting, queue {}/{}\n", h.running(), h.waiting(), reply.queue_depth(), reply.max_queue());
  for (const auto& r : reply.ranks()) {
    fmt::print("rank {:<8}pid {}, {}, generation {}, {:.1f} MiB resident\n", r.rank(), r.pid(), r.state(), r.generation(),
               static_cast<double>(r.resident_bytes()) / (1 << 20));
  }
  if (reply.weight_bytes() > 0) {
    fmt::print("weights      {:.1f} MiB {} in {} ms, ready after {} ms\n", static_cast<double>(reply.weight_bytes()) / (1 << 20), reply.mapped_weights() ? "mapped" : "loaded",
               reply.weights_ms(), reply.load_ms());
  }
  if (reply.steps() > 0) fmt::print("steps        {}, mean {:.2f} ms\n", reply.steps(), reply.mean_step_us() / 1000.0);
  PrintPools(reply.pools());
  PrintHits(reply.cache());
  for (const auto& f : reply.findings()) fmt::print("finding      {} {}: {}\n", f.severity(), f.kind(), f.count());
  return h.accepting() ? 0 : 2;
}

int CtlRequests(const CtlOptions& options) {
  AdminCall call(options);
  if (!call) return 1;
  proto::ListRequestsReply reply;
  proto::ListRequestsRequest request;
  request.set_limit(100);
  if (!call.Ok(call->ListRequests(call.context(), request, &reply))) return 1;
  if (options.json) return PrintJson(reply);
  fmt::print("{:<10}{:>10}{:>10}{:>12}{:>10}  {}\n", "state", "prompt", "cached", "generated", "age s", "request");
  for (const auto& r : reply.requests()) {
    fmt::print("{:<10}{:>10}{:>10}{:>12}{:>10.1f}  {}\n", r.state(), r.prompt_tokens(), r.cached_tokens(), r.generated_tokens(),
               static_cast<double>(r.age_ms()) / 1000, r.trace_id());
  }
  return 0;
}

int CtlIncidents(const CtlOptions& options) {
  AdminCall call(options);
  if (!call) return 1;
  proto::ListIncidentsReply reply;
  proto::ListIncidentsRequest request;
  request.set_limit(50);
  if (!call.Ok(call->ListIncidents(call.context(), request, &reply))) return 1;
  if (options.json) return PrintJson(reply);
  if (reply.incidents().empty()) fmt::print("no incidents\n");
  for (const auto& i : reply.incidents()) {
    fmt::print("{}  generation {} rank {}  {} while {}{}\n    {}\n", i.id(), i.generation(), i.rank(), i.cause(), i.phase(),
               i.detail().empty() ? "" : ": " + i.detail(), i.path());
  }
  return 0;
}

int CtlCache(const CtlOptions& options, uint32_t full_pages, uint32_t window_pages, bool cancel) {
  AdminCall call(options);
  if (!call) return 1;
  if (full_pages == 0 && window_pages == 0 && !cancel) {
    proto::StatusReply reply;
    if (!call.Ok(call->GetStatus(call.context(), proto::StatusRequest(), &reply))) return 1;
    if (options.json) return PrintJson(reply);
    PrintPools(reply.pools());
    PrintHits(reply.cache());
    return 0;
  }
  proto::ResizeCacheRequest request;
  request.set_cancel(cancel);
  request.set_wait_ms(static_cast<uint32_t>(options.timeout_s * 1000));
  const auto add = [&](const char* pool, uint32_t pages) {
    if (pages == 0) return;
    auto* target = request.add_targets();
    target->set_pool(pool);
    target->set_pages(pages);
  };
  add("full", full_pages);
  add("window", window_pages);
  proto::ResizeCacheReply reply;
  if (!call.Ok(call->ResizeCache(call.context(), request, &reply))) return 1;
  if (options.json) return PrintJson(reply);
  const auto& report = reply.report();
  const std::string state = absl::AsciiStrToLower(proto::ResizeReport::State_Name(report.state()));
  const bool more = !report.message().empty() && report.message() != state;
  fmt::print("resize {}: {}{}{}\n", report.operation(), state, more ? ": " : "", more ? report.message() : "");
  return report.state() == proto::ResizeReport::REFUSED ? 1 : 0;
}

int CtlQuarantine(const CtlOptions& options, const std::optional<std::string>& clear) {
  AdminCall call(options);
  if (!call) return 1;
  if (clear) {
    proto::ClearQuarantineRequest request;
    if (*clear != "all") request.set_fingerprint(*clear);
    proto::ClearQuarantineReply reply;
    if (!call.Ok(call->ClearQuarantine(call.context(), request, &reply))) return 1;
    if (options.json) return PrintJson(reply);
    fmt::print("{} in quarantine cleared\n", reply.cleared());
    return 0;
  }
  proto::ListQuarantineReply reply;
  proto::ListQuarantineRequest request;
  request.set_limit(100);
  if (!call.Ok(call->ListQuarantine(call.context(), request, &reply))) return 1;
  if (options.json) return PrintJson(reply);
  if (reply.requests().empty()) fmt::print("no request is in quarantine\n");
  for (const auto& r : reply.requests()) {
    fmt::print("{} choice {}  {} losses, the last at token {}; refused {} times, for {:.0f} s yet\n", r.fingerprint(), r.choice(), r.losses(),
               r.position(), r.refused(), static_cast<double>(r.remaining_ms()) / 1000);
  }
  return 0;
}

int CtlDrain(const CtlOptions& options, bool stop) {
  AdminCall call(options);
  if (!call) return 1;
  proto::DrainRequest request;
  request.set_stop(stop);
  proto::DrainReply reply;
  if (!call.Ok(call->Drain(call.context(), request, &reply))) return 1;
  fmt::print("draining: no new requests are taken, running ones finish{}\n",
             stop ? ", then the engine stops" : "; `holdfast ctl resume` takes requests again");
  return 0;
}

int CtlResume(const CtlOptions& options) {
  AdminCall call(options);
  if (!call) return 1;
  proto::ResumeReply reply;
  if (!call.Ok(call->Resume(call.context(), proto::ResumeRequest(), &reply))) return 1;
  fmt::print("resumed: requests are taken again\n");
  return 0;
}

bool Accepting(const CtlOptions& options) {
  AdminCall call(options);
  proto::StatusReply reply;
  return call && call->GetStatus(call.context(), proto::StatusRequest(), &reply).ok() && reply.health().accepting();
}

std::string FindSupervisorSocket() {
  namespace fs = std::filesystem;
  std::error_code ec;
  const auto usable = [&](const fs::path& folder) { return fs::is_socket(folder / "supervisor.sock", ec); };
  std::vector<fs::path> places;
  if (const char* dir = std::getenv("HOLDFAST_RUNTIME_DIR")) places.emplace_back(dir);
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR")) places.push_back(fs::path(dir) / "holdfast");
  places.emplace_back("/run/holdfast");
  for (const auto& place : places) {
    if (usable(place)) return (place / "supervisor.sock").string();
  }
  fs::path newest;
  fs::file_time_type when{};
  const char* tmp = std::getenv("TMPDIR");
  for (const auto& entry : fs::directory_iterator(tmp != nullptr ? tmp : "/tmp", ec)) {
    if (entry.path().filename().string().rfind("holdfast-", 0) != 0 || !usable(entry.path())) continue;
    const auto time = fs::last_write_time(entry.path() / "supervisor.sock", ec);
    if (newest.empty() || time > when) {
      newest = entry.path();
      when = time;
    }
  }
  return newest.empty() ? std::string() : (newest / "supervisor.sock").string();
}

}  // namespace holdfast::cli
