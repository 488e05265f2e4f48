#pragma once
// The routes and what answers them. Loop thread only; nothing here blocks: text goes to the pool, the engine and the supervisor call back.
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "frontend/admin_client.h"
#include "frontend/api/metrics.h"
#include "frontend/api/request_log.h"
#include "frontend/api/request.h"
#include "frontend/api/response.h"
#include "frontend/api/router.h"
#include "frontend/api/valid_request.h"
#include "frontend/engine_state.h"
#include "frontend/generation.h"

namespace holdfast::api {

struct ApiOptions {
  std::string served_model_name;    // "" = the model's own name
  bool strict_model = false;        // 404 for a request that names another model
  // Bounds of one request.
  uint32_t max_choices = 128;       // n x prompts
};

// What turns a body's JSON into a request, or says what is wrong with it. Any thread.
using RequestMapper = std::function<ParsedRequest(const text::JsonValue& body, const RequestContext& context)>;

// A route that generates is a mapper and a sink; what lies between is one for all.
struct GeneratingRoute {
  RequestMapper parse;
  // Who answers the exchange (stream or body, as the request says). Loop thread; the request is gone afterwards.
  std::function<std::unique_ptr<GenerationSink>(const std::shared_ptr<http::Exchange>& exchange, const ValidRequest& request, ResponseHead head)>
      sink;
  // An error before there is a sink, in the route's dialect.
  RefusalWriter refuse = PlainRefusal;
};

// JSON text to a request. Any thread; the time is linear in the body.
ParsedRequest ParseBody(Route route, std::string_view body, const RequestContext& context);
ParsedRequest ParseBody(const RequestMapper& parse, std::string_view body, const RequestContext& context);

// An answer whose body is this JSON text.
http::Response Json(std::string body, int status = 200);

// GET / and the files of the console; they need neither a key nor the engine.
void InstallConsole(Router* router);

class Api final {
 public:
  // Everything outlives the Api.
  Api(const GenerationContext& context, AdminClient& admin, ApiOptions options);

  // Adds every route. The Api outlives the router's listeners.
  void Install(Router* router);
  // Adds POST `path`: the body is parsed (a large one on the pool), the request is started, and a client that goes away cancels it.
  void AddGenerating(Router* router, std::string path, GeneratingRoute route);

  // What a request that needs the engine is refused with now, before its body is read; null = go on.
  std::unique_ptr<ApiError> RefuseNow() const;

  // Untrusted JSON text to a request, with the model's limits and defaults. Shared with gRPC.
  ParsedRequest Parse(Route route, std::string_view body) const;
  // What the model allows and defaults to, for a parser on any thread.
  RequestContext MakeContext() const;
  ResponseHead MakeHead(const ValidRequest& request) const;
  std::shared_ptr<Generation> Start(ValidRequest request, std::string trace_id, std::unique_ptr<GenerationSink> sink);

  // From now on generation requests are refused; running ones go on.
  void BeginDrain() { draining_ = true; }
  size_t active() { return generations_.active(); }
  // Ends what still runs with an error event.
  void FailAll(const ApiError& error) { generations_.FailAll(error); }

  std::string ModelId() const;      // "" before the first card, unless a name was configured

 private:
  using Exchange = std::shared_ptr<http::Exchange>;

  using RoutePtr = std::shared_ptr<const GeneratingRoute>;

  void Generate(const RoutePtr& route, const Exchange& exchange);
  void Begin(const RoutePtr& route, const Exchange& exchange, ParsedRequest parsed);
  // n x prompts that a request may have: the option's, and what the engine holds at once.
  uint32_t MostChoices() const;
  void Models(const Exchange& exchange) const;
  void OneModel(const Exchange& exchange, const std::string& id) const;
  void Tokenize(const Exchange& exchange);
  void Detokenize(const Exchange& exchange);
  void InstallDialects(Router* router);
  void CountTokens(const Exchange& exchange);
  void Live(const Exchange& exchange) const;
  void Ready(const Exchange& exchange) const;
  void Metrics(const Exchange& exchange);
  void CacheStatus(const Exchange& exchange);
  void CacheResize(const Exchange& exchange);
  void Requests(const Exchange& exchange);
  void Stats(const Exchange& exchange);
  void Incidents(const Exchange& exchange);
  void Quarantine(const Exchange& exchange);
  void ClearQuarantine(const Exchange& exchange, const std::string& fingerprint);  // "" = all

  // Runs work on the pool and its result's answer on the loop; 429 when the pool is full.
  void OnPool(const Exchange& exchange, std::function<std::variant<http::Response, ApiError>()> work, RefusalWriter refuse = PlainRefusal);
  // 503 when there is no model yet.
  std::shared_ptr<const ModelView> ModelOr503(const Exchange& exchange, const RefusalWriter& refuse = PlainRefusal) const;
  std::string ModelObject() const;
  std::string CodexModelObject() const;

  const GenerationContext context_;
  AdminClient& admin_;
  const ApiOptions options_;
  const std::shared_ptr<RequestLog> log_ = std::make_shared<RequestLog>();
  GenerationSet generations_;
  bool draining_ = false;
};

}  // namespace holdfast::api
