// GET /: the console for a browser, the list of routes for everyone else.
#include <string>

#include "frontend/api/handlers.h"
#include "frontend/console/assets.h"

namespace holdfast::api {
namespace {

constexpr std::string_view kRoutes =
    "Holdfast, an LLM inference server. A browser gets its console here.\n\n"
    "POST /v1/chat/completions   OpenAI chat, streamed or not\n"
    "POST /v1/completions        OpenAI completions, text or token ids\n"
    "POST /v1/responses          OpenAI responses, stateless\n"
    "POST /v1/messages           Anthropic messages; /v1/messages/count_tokens counts\n"
    "GET  /v1/models             the model\n"
    "POST /tokenize, /detokenize\n"
    "GET  /livez                 this process\n"
    "GET  /readyz, /health       the engine\n"
    "On the admin listener: GET /metrics, /v1/stats, /v1/cache/status, /v1/requests, /v1/incidents, /v1/quarantine;\n"
    "POST /v1/cache/resize; DELETE /v1/quarantine, /v1/quarantine/{fingerprint}\n";

// Nothing but this server's own files runs in the page, and no other page frames it.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

http::Response File(const console::Asset& asset) {
  http::Response response;
  response.content_type = std::string(asset.content_type);
  response.body = std::string(asset.bytes);
  response.headers = {{"Content-Security-Policy", kPolicy}, {"X-Content-Type-Options", "nosniff"}, {"Referrer-Policy", "no-referrer"}, {"Cache-Control", "no-cache"}};
  return response;
}

}  // namespace

void InstallConsole(Router* router) {
  for (const console::Asset& asset : console::Assets()) {
    RouteEntry entry;
    entry.method = "GET";
    entry.path = std::string(asset.path);
    entry.audience = Audience::kEveryone;
    entry.open = true;
    entry.quiet = true;
    entry.handler = [&asset](const std::shared_ptr<http::Exchange>& exchange) {
      const bool page = asset.path == "/";
      if (page && exchange->request().HeaderValue("accept").find("text/html") == std::string_view::npos) {
        http::Response response;
        response.content_type = "text/plain; charset=utf-8";
        response.headers = {{"Vary", "Accept"}};
        response.body = std::string(kRoutes);
        return exchange->Send(std::move(response));
      }
      http::Response response = File(asset);
      if (page) response.headers.push_back({"Vary", "Accept"});
      exchange->Send(std::move(response));
    };
    router->Add(std::move(entry));
  }
}

}  // namespace holdfast::api
