#include "frontend/api/handlers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/api/error.h"
#include "frontend/api/http_sinks.h"
#include "frontend/api/json_out.h"
#include "frontend/api/request.h"
#include "frontend/generation_errors.h"
#include "frontend/model_view.h"
#include "frontend/text/json_value.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

// Bodies up to here are parsed where they arrive; larger ones on the text pool: 16 MB of JSON can take a second.
constexpr size_t kParsedOnLoop = 32 << 10;

}  // namespace

ParsedRequest ParseBody(const RequestMapper& parse, std::string_view body, const RequestContext& context) {
  const auto json = text::ParseJson(body);
  if (!json.ok()) return InvalidRequest("The body is not valid JSON: " + std::string(MessageOf(json.status())), "");
  return parse(*json, context);
}

ParsedRequest ParseBody(Route route, std::string_view body, const RequestContext& context) {
  return ParseBody(route == Route::kCompletions ? ParseCompletionsRequest : ParseChatRequest, body, context);
}

Api::Api(const GenerationContext& context, AdminClient& admin, ApiOptions options)
    : context_(context), admin_(admin), options_(std::move(options)) {}

void Api::Install(Router* router) {
  const auto add = [&](const char* method, const char* path, Audience audience, http::Handler handler) -> RouteEntry {
    RouteEntry entry;
    entry.method = method;
    entry.path = path;
    entry.audience = audience;
    entry.handler = std::move(handler);
    return entry;
  };
  const auto openai = [](RequestMapper parse) {
    GeneratingRoute route;
    route.parse = std::move(parse);
    route.sink = [](const Exchange& exchange, const ValidRequest& request, ResponseHead head) {
      return request.stream ? MakeStreamSink(exchange, std::move(head), request.choices(), request.include_usage)
                            : MakeBodySink(exchange, std::move(head), request.choices());
    };
    return route;
  };
  AddGenerating(router, "/v1/chat/completions", openai(ParseChatRequest));
  AddGenerating(router, "/v1/completions", openai(ParseCompletionsRequest));
  InstallDialects(router);
  router->Add(add("GET", "/v1/models", Audience::kPublic, [this](const Exchange& exchange) { Models(exchange); }));
  RouteEntry model = add("GET", "/v1/models/{id}", Audience::kPublic, nullptr);
  model.handler = [this](const Exchange& exchange) {
    OneModel(exchange, exchange->request().path.substr(std::string_view("/v1/models/").size()));
  };
  router->Add(std::move(model));
  router->Add(add("POST", "/tokenize", Audience::kPublic, [this](const Exchange& exchange) { Tokenize(exchange); }));
  router->Add(add("POST", "/detokenize", Audience::kPublic, [this](const Exchange& exchange) { Detokenize(exchange); }));

  const auto open = [&](const char* path, void (Api::*method)(const Exchange&) const) {
    RouteEntry entry = add("GET", path, Audience::kEveryone, [this, method](const Exchange& exchange) { (this->*method)(exchange); });
    entry.open = true;
    entry.quiet = true;
    router->Add(std::move(entry));
  };
  for (const char* path : {"/livez", "/health/live", "/v2/health/live"}) open(path, &Api::Live);
  for (const char* path : {"/readyz", "/health", "/health/ready", "/v2/health/ready"}) open(path, &Api::Ready);

  RouteEntry metrics = add("GET", "/metrics", Audience::kAdmin, [this](const Exchange& exchange) { Metrics(exchange); });
  metrics.open = true;  // numbers only; scrapers rarely hold keys, and the listener is not the public one
  metrics.quiet = true;
  router->Add(std::move(metrics));
  router->Add(add("GET", "/v1/cache/status", Audience::kAdmin, [this](const Exchange& exchange) { CacheStatus(exchange); }));
  router->Add(add("POST", "/v1/cache/resize", Audience::kAdmin, [this](const Exchange& exchange) { CacheResize(exchange); }));
  router->Add(add("GET", "/v1/requests", Audience::kAdmin, [this](const Exchange& exchange) { Requests(exchange); }));
  router->Add(add("GET", "/v1/quarantine", Audience::kAdmin, [this](const Exchange& exchange) { Quarantine(exchange); }));
  router->Add(add("DELETE", "/v1/quarantine", Audience::kAdmin, [this](const Exchange& exchange) { ClearQuarantine(exchange, ""); }));
  RouteEntry release = add("DELETE", "/v1/quarantine/{id}", Audience::kAdmin, nullptr);
  release.handler = [this](const Exchange& exchange) {
    ClearQuarantine(exchange, exchange->request().path.substr(std::string_view("/v1/quarantine/").size()));
  };
  router->Add(std::move(release));
  router->Add(add("GET", "/v1/stats", Audience::kAdmin, [this](const Exchange& exchange) { Stats(exchange); }));
  router->Add(add("GET", "/v1/incidents", Audience::kAdmin, [this](const Exchange& exchange) { Incidents(exchange); }));

  // Agents that are pointed at a base URL look whether somebody is there.
  RouteEntry base = add("GET", "/v1", Audience::kPublic, [](const Exchange& exchange) { exchange->Send(Json(R"({"object":"api","version":"v1"})")); });
  base.open = true;
  base.quiet = true;
  router->Add(std::move(base));

  InstallConsole(router);
}

std::unique_ptr<ApiError> Api::RefuseNow() const {
  if (draining_) return std::make_unique<ApiError>(Draining());
  const Instant now = context_.loop.Now();
  const EngineState& state = context_.state;
  if (!state.ready()) return std::make_unique<ApiError>(NotReady(state.state(), state.reason(), state.lease().retry_after_seconds(now)));
  const proto::HealthStatement& statement = *state.lease().statement();
  if (!statement.accepting()) {
    return std::make_unique<ApiError>(Drained(state.reason(), state.lease().retry_after_seconds(now)));
  }
  return nullptr;
}

std::string Api::ModelId() const {
  if (!options_.served_model_name.empty()) return options_.served_model_name;
  const auto model = context_.state.model();
  return model ? model->name() : std::string();
}

uint32_t Api::MostChoices() const {
  const proto::Limits& limits = context_.state.lease().limits();
  if (limits.max_queue() == 0) return options_.max_choices;  // not known
  // More are refused even by an idle engine: "try again" would be a lie.
  return static_cast<uint32_t>(std::min<uint64_t>(options_.max_choices, uint64_t{limits.max_running()} + limits.max_queue()));
}

RequestContext Api::MakeContext() const {
  const auto model = context_.state.model();
  RequestContext context;
  context.served_model = ModelId();
  if (model) {
    if (model->name() != context.served_model) context.aliases.push_back(model->name());
    context.vocab_size = model->vocab_size();
    const SamplingDefaults& defaults = model->sampling();
    context.defaults.temperature = defaults.temperature.value_or(context.defaults.temperature);
    context.defaults.top_p = defaults.top_p.value_or(context.defaults.top_p);
    context.defaults.top_k = defaults.top_k.value_or(context.defaults.top_k);
    context.defaults.min_p = defaults.min_p.value_or(context.defaults.min_p);
  }
  context.strict_model = options_.strict_model;
  context.max_n = context.max_prompts = MostChoices();
  return context;
}

ParsedRequest Api::Parse(Route route, std::string_view body) const { return ParseBody(route, body, MakeContext()); }

ResponseHead Api::MakeHead(const ValidRequest& request) const {
  ResponseHead head;
  head.route = request.route;
  head.id = NewResponseId(request.route);
  head.created = context_.loop.UnixMillis() / 1000;
  head.model = ModelId();
  const auto model = context_.state.model();
  head.fingerprint = "fp_" + (model ? model->fingerprint().substr(0, 12) : std::string("none"));
  head.logprobs = request.sampling.logprobs;
  head.top_logprobs = request.sampling.top_logprobs;
  head.usage_chunk = request.stream && request.include_usage;
  return head;
}

std::shared_ptr<Generation> Api::Start(ValidRequest request, std::string trace_id, std::unique_ptr<GenerationSink> sink) {
  sink = MakeLoggedSink(std::move(sink), log_, context_.loop.UnixMillis(), trace_id, request);
  auto generation = StartGeneration(context_, std::move(request), std::move(trace_id), std::move(sink));
  generations_.Add(generation);
  return generation;
}

void Api::AddGenerating(Router* router, std::string path, GeneratingRoute route) {
  RouteEntry entry;
  entry.method = "POST";
  entry.path = std::move(path);
  entry.audience = Audience::kPublic;
  entry.generates = true;
  entry.refuse = route.refuse;
  entry.handler = [this, route = std::make_shared<const GeneratingRoute>(std::move(route))](const Exchange& exchange) { Generate(route, exchange); };
  router->Add(std::move(entry));
}

void Api::Generate(const RoutePtr& route, const Exchange& exchange) {
  // The gate saw the headers some time ago: the body may have taken a while.
  if (const auto error = RefuseNow()) return exchange->Send(route->refuse(*error, exchange->request()));
  const std::string& body = exchange->request().body;
  if (body.size() <= kParsedOnLoop) return Begin(route, exchange, ParseBody(route->parse, body, MakeContext()));
  // The exchange travels to the pool and back: the last reference must not be dropped on a thread of the pool.
  auto work = [this, route, exchange, context = MakeContext(), loop = &context_.loop]() mutable {
    auto parsed = std::make_shared<ParsedRequest>(ParseBody(route->parse, exchange->request().body, context));
    loop->Post([this, route, exchange = std::move(exchange), parsed] {
      if (exchange->closed()) return;
      if (const auto error = RefuseNow()) return exchange->Send(route->refuse(*error, exchange->request()));
      Begin(route, exchange, std::move(*parsed));
    });
  };
  if (!context_.pool.Run(std::move(work))) exchange->Send(route->refuse(Overloaded("Too many large requests wait to be read", 1), exchange->request()));
}

void Api::Begin(const RoutePtr& route, const Exchange& exchange, ParsedRequest parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return exchange->Send(route->refuse(*error, exchange->request()));
  ValidRequest& request = std::get<ValidRequest>(parsed);
  const uint32_t choices = request.choices();
  if (const uint32_t most = MostChoices(); choices > most) {
    const ApiError error =
        Refused(fmt::format("{} prompts times n = {} are {} choices; at most {} in a request", choices / request.n, request.n, choices, most), "n");
    return exchange->Send(route->refuse(error, exchange->request()));
  }
  std::unique_ptr<GenerationSink> sink = route->sink(exchange, request, MakeHead(request));
  const auto generation = Start(std::move(request), exchange->request().request_id, std::move(sink));
  exchange->OnClosed([weak = std::weak_ptr(generation)] {
    if (const auto alive = weak.lock()) alive->Cancel();
  });
}

std::string Api::ModelObject() const {
  const auto model = context_.state.model();
  const uint32_t limit = context_.state.lease().limits().max_seq_len();
  JsonOut out;
  out.Begin('{').Member("id", ModelId()).Member("object", "model").Member("created", 0).Member("owned_by", "holdfast");
  if (model) {
    const uint32_t context = limit ? limit : model->context_length();
    out.Member("max_model_len", context).Member("context_length", context);
    out.Key("capabilities").Begin('[').Value("completion");
    if (model->takes_tools()) out.Value("tools");
    if (!model->reasoning_format().empty()) out.Value("thinking");
    out.End(']');
    out.Key("meta")
        .Begin('{')
        .Member("name", model->name())
        .Member("architecture", model->architecture())
        .Member("n_params", model->parameter_count())
        .Member("size", model->file_bytes())
        .Member("n_vocab", model->vocab_size())
        .Member("n_ctx_train", model->context_length())
        .Member("quantization", model->quantization())
        .End('}');
  }
  out.End('}');
  return out.Take();
}

// What the Codex agent reads of a model: without it, it complains at every start and takes the context for another model's.
std::string Api::CodexModelObject() const {
  const auto model = context_.state.model();
  const uint32_t limit = context_.state.lease().limits().max_seq_len();
  const uint32_t context = limit ? limit : model ? model->context_length() : 0;
  JsonOut out;
  out.Begin('{').Member("slug", ModelId()).Member("display_name", ModelId()).Member("description", "Served by Holdfast");
  out.Key("supported_reasoning_levels").Begin('[').End(']').Member("shell_type", "shell_command").Member("visibility", "list");
  out.Member("supported_in_api", true).Member("priority", 1).Key("upgrade").Null().Key("availability_nux").Null();
  out.Member("base_instructions",
             "You are a coding agent that works in the user's terminal, in the current folder. Use the tools you are given to look at files, to "
             "run commands and to change code. Look before you change anything, make the smallest change that does what was asked, check that it "
             "works, and then say briefly what you did. Ask when the request leaves open what would matter.");
  out.Member("supports_reasoning_summaries", false).Member("support_verbosity", false).Key("default_verbosity").Null();
  out.Key("apply_patch_tool_type").Null().Key("truncation_policy").Begin('{').Member("mode", "bytes").Member("limit", 10000).End('}');
  out.Member("supports_parallel_tool_calls", true).Key("context_window");
  if (context) out.Value(context);
  else out.Null();
  out.Key("experimental_supported_tools").Begin('[').End(']').Key("input_modalities").Begin('[').Value("text").End(']').End('}');
  return out.Take();
}

void Api::Models(const Exchange& exchange) const {
  const bool any = !ModelId().empty();
  const std::string data = any ? ModelObject() : std::string(), models = any ? CodexModelObject() : std::string();
  exchange->Send(Json(R"({"object":"list","data":[)" + data + R"(],"models":[)" + models + "]}"));
}

void Api::OneModel(const Exchange& exchange, const std::string& id) const {
  if (!id.empty() && id == ModelId()) return exchange->Send(Json(ModelObject()));
  exchange->Send(ErrorResponse(ModelNotFound(id, ModelId())));
}

}  // namespace holdfast::api
