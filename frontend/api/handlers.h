#pragma once
// The routes and what answers them. Loop thread only; nothing here blocks: text goes to the pool, the engine and the supervisor call back.
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "frontend/admin_client.h"
#include "frontend/api/metrics.h"
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

// JSON text to a request. Any thread; the time is linear in the body.
std::variant<ValidRequest, ApiError> ParseBody(Route route, std::string_view body, const RequestContext& context);

class Api final {
 public:
  // Everything outlives the Api.
  Api(const GenerationContext& context, AdminClient& admin, ApiOptions options);

  // Adds every route. The Api outlives the router's listeners.
  void Install(Router* router);

  // What a request that needs the engine is refused with now, before its body is read; null = go on.
  std::unique_ptr<ApiError> RefuseNow() const;

  // Untrusted JSON text to a request, with the model's limits and defaults. Shared with gRPC.
  std::variant<ValidRequest, ApiError> Parse(Route route, std::string_view body) const;
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

  void Generate(Route route, const Exchange& exchange);
  void Begin(Route route, const Exchange& exchange, std::variant<ValidRequest, ApiError> parsed);
  // n x prompts that a request may have: the option's, and what the engine holds at once.
  uint32_t MostChoices() const;
  // What the model allows and defaults to, for a parser on any thread.
  RequestContext MakeContext() const;
  void Models(const Exchange& exchange) const;
  void OneModel(const Exchange& exchange, const std::string& id) const;
  void Tokenize(const Exchange& exchange);
  void Detokenize(const Exchange& exchange);
  void Live(const Exchange& exchange) const;
  void Ready(const Exchange& exchange) const;
  void Metrics(const Exchange& exchange);
  void CacheStatus(const Exchange& exchange);
  void CacheResize(const Exchange& exchange);
  void Requests(const Exchange& exchange);
  void Incidents(const Exchange& exchange);

  // Runs work on the pool and its result's answer on the loop; 429 when the pool is full.
  void OnPool(const Exchange& exchange, std::function<std::variant<http::Response, ApiError>()> work);
  // 503 when there is no model yet.
  std::shared_ptr<const ModelView> ModelOr503(const Exchange& exchange) const;
  std::string ModelObject() const;

  const GenerationContext context_;
  AdminClient& admin_;
  const ApiOptions options_;
  GenerationSet generations_;
  bool draining_ = false;
};

}  // namespace holdfast::api
