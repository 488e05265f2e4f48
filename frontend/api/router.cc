#include "frontend/api/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/api/error.h"
#include "frontend/api/metrics.h"
#include "frontend/generation_errors.h"
#include "proto/base/log.h"

namespace holdfast::api {
namespace {

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

// application/json, with UTF-8 as the only charset. No Content-Type at all is taken for JSON, except from a page in a browser (those have an
// Origin): a page can send a body without a type to any address without asking first.
bool IsJson(std::string_view content_type, std::string_view origin) {
  if (content_type.empty()) return origin.empty();
  const std::string lower = Lower(content_type);
  const std::string_view type = Trim(std::string_view(lower).substr(0, lower.find(';')));
  if (type != "application/json" && !(type.substr(0, 12) == "application/" && type.size() > 17 && type.substr(type.size() - 5) == "+json")) {
    return false;
  }
  const size_t charset = lower.find("charset=");
  if (charset == std::string::npos) return true;
  std::string_view value = std::string_view(lower).substr(charset + 8);
  value = Trim(value.substr(0, value.find(';')));
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  return value == "utf-8" || value == "utf8";
}

// What a page may send: the headers it asks for (SDKs send a dozen of their own, and which ones changes), when they are names of headers.
std::string AllowedHeaders(std::string_view asked) {
  constexpr std::string_view kUsual = "Authorization, Content-Type, X-Api-Key, X-Request-Id, Anthropic-Version, Anthropic-Beta";
  const auto fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == ',' || c == ' ';
  };
  const bool usable = !asked.empty() && asked.size() <= 2048 && std::all_of(asked.begin(), asked.end(), fine);
  return std::string(usable ? asked : kUsual);
}

std::string_view KeyOf(const http::Request& request) {
  const std::string_view bearer = request.HeaderValue("authorization");
  return bearer.empty() ? request.HeaderValue("x-api-key") : bearer;
}

// Forwards to the server's exchange, counts and logs the answer, adds the CORS header. `place`: the key's, taken as long as this lives.
class ObservedExchange final : public http::Exchange {
 public:
  ObservedExchange(std::shared_ptr<http::Exchange> inner, const RouteEntry& entry, FrontendMetrics* metrics, std::string cors_origin,
                   std::shared_ptr<const void> place)
      : inner_(std::move(inner)), route_(entry.path), quiet_(entry.quiet), metrics_(metrics), cors_origin_(std::move(cors_origin)),
        place_(std::move(place)), began_(Clock::Real().Now()) {}

  ~ObservedExchange() override {
    if (!answered_) Count(499);  // the client left before there was an answer
  }

  const http::Request& request() const override { return inner_->request(); }
  void Send(http::Response response) override {
    AddCors(&response.headers);
    Count(response.status);
    inner_->Send(std::move(response));
  }
  void StartStream(int status, std::vector<http::Header> headers, std::string content_type) override {
    AddCors(&headers);
    Count(status);
    inner_->StartStream(status, std::move(headers), std::move(content_type));
  }
  void Write(std::string_view bytes) override { inner_->Write(bytes); }
  void EndStream() override { inner_->EndStream(); }
  void Abort() override { inner_->Abort(); }
  bool started() const override { return inner_->started(); }
  bool closed() const override { return inner_->closed(); }
  size_t buffered_bytes() const override { return inner_->buffered_bytes(); }
  void OnClosed(std::function<void()> callback) override { inner_->OnClosed(std::move(callback)); }

 private:
  void AddCors(std::vector<http::Header>* headers) const {
    if (!cors_origin_.empty()) headers->push_back({"Access-Control-Allow-Origin", cors_origin_});
  }
  void Count(int code) {
    if (std::exchange(answered_, true)) return;
    metrics_->HttpRequest(route_, code);
    LogAt(quiet_ ? LogLevel::kDebug : LogLevel::kInfo,
          {{"request", request().request_id}, {"route", route_}, {"status", code}, {"ms", ToMillis(Clock::Real().Now() - began_)}},
          "{} {}", request().method, route_);
  }

  const std::shared_ptr<http::Exchange> inner_;
  const std::string route_;
  const bool quiet_;
  FrontendMetrics* const metrics_;
  const std::string cors_origin_;
  const std::shared_ptr<const void> place_;
  const Instant began_;
  bool answered_ = false;
};

bool Serves(const Listener& listener, Audience audience) {
  switch (audience) {
    case Audience::kPublic:
      return listener.public_routes;
    case Audience::kAdmin:
      return listener.admin_routes;
    case Audience::kEveryone:
      return true;
  }
  return false;
}

bool PathMatches(const RouteEntry& entry, std::string_view path) {
  constexpr std::string_view kTail = "{id}";
  if (entry.path.size() < kTail.size() || entry.path.compare(entry.path.size() - kTail.size(), kTail.size(), kTail) != 0) {
    return entry.path == path;
  }
  const std::string_view prefix = std::string_view(entry.path).substr(0, entry.path.size() - kTail.size());
  return path.size() > prefix.size() && path.substr(0, prefix.size()) == prefix;
}

}  // namespace

Router::Router(RouterOptions options, FrontendMetrics* metrics, std::function<std::unique_ptr<ApiError>()> refuse)
    : options_(std::move(options)), metrics_(metrics), refuse_(std::move(refuse)) {}
Router::~Router() = default;

std::string Router::IdOf(const RouteEntry& entry, std::string_view path) { return std::string(path.substr(entry.path.size() - 4)); }

Router::Found Router::Find(const http::Request& request, Listener listener) const {
  Found found;
  const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
  for (const RouteEntry& entry : entries_) {
    if (!Serves(listener, entry.audience) || !PathMatches(entry, request.path)) continue;
    found.any = &entry;
    found.allow.push_back(entry.method);
    if (entry.method == "GET") found.allow.push_back("HEAD");
    if (entry.method == method || (request.method == "OPTIONS" && !found.entry)) found.entry = &entry;
  }
  return found;
}

http::Response Router::Finish(const http::Request& request, std::string_view route, const ApiError& error, const RouteEntry* entry) const {
  metrics_->HttpRequest(route, error.status);
  LogInfo({{"request", request.request_id}, {"route", route}, {"status", error.status}}, "{} refused: {}", request.method.substr(0, 16),
          error.message);
  http::Response response = entry ? entry->refuse(error, request) : ErrorResponse(error);
  if (!options_.cors_origin.empty()) response.headers.push_back({"Access-Control-Allow-Origin", options_.cors_origin});
  return response;
}

http::HeaderGate Router::Gate(Listener listener) {
  return [this, listener](const http::Request& request) -> std::unique_ptr<http::Response> {
    const Found found = Find(request, listener);
    const auto refuse = [&](std::string_view route, const ApiError& error) {
      return std::make_unique<http::Response>(Finish(request, route, error, found.any));
    };
    if (found.allow.empty()) {
      ApiError error;
      error.status = 404;
      error.code = "not_found";
      error.message = fmt::format("There is no {} here; GET / lists the routes", request.path.substr(0, 200));
      return refuse("other", error);
    }
    std::string allow;
    for (const std::string& method : found.allow) allow += method + ", ";
    allow += "OPTIONS";
    if (request.method == "OPTIONS") {
      auto response = std::make_unique<http::Response>();
      response->status = 204;
      response->content_type.clear();
      response->headers.push_back({"Allow", allow});
      if (!options_.cors_origin.empty() && found.entry->audience != Audience::kAdmin) {
        response->headers.push_back({"Access-Control-Allow-Origin", options_.cors_origin});
        response->headers.push_back({"Access-Control-Allow-Methods", allow});
        response->headers.push_back({"Access-Control-Allow-Headers", AllowedHeaders(request.HeaderValue("access-control-request-headers"))});
        response->headers.push_back({"Access-Control-Max-Age", "600"});
      }
      metrics_->HttpRequest(found.entry->path, 204);
      return response;
    }
    if (!found.entry) {
      ApiError error;
      error.status = 405;
      error.code = "method_not_allowed";
      error.message = fmt::format("{} does not take {}; use {}", request.path.substr(0, 200), request.method.substr(0, 16), found.allow.front());
      error.headers.emplace_back("Allow", allow);
      return refuse("other", error);
    }
    const RouteEntry& entry = *found.entry;
    if (!entry.open && options_.keys && !options_.keys->Admits(KeyOf(request))) {
      ApiError error;
      error.status = 401;
      error.type = "authentication_error";
      error.code = "invalid_api_key";
      error.message = "A valid key is needed: Authorization: Bearer KEY";
      error.headers.emplace_back("WWW-Authenticate", "Bearer");
      return refuse(entry.path, error);
    }
    if (entry.method == "POST" && !IsJson(request.HeaderValue("content-type"), request.HeaderValue("origin"))) {
      ApiError error;
      error.status = 415;
      error.code = "unsupported_media_type";
      error.message = "The body must be JSON in UTF-8: Content-Type: application/json";
      return refuse(entry.path, error);
    }
    if (entry.generates) {
      if (const auto error = refuse_()) return refuse(entry.path, *error);
      if (options_.keys && !options_.keys->HasPlace(KeyOf(request))) return refuse(entry.path, KeyBusy(options_.keys->max_running()));
    }
    return nullptr;
  };
}

http::Handler Router::Dispatch(Listener listener) {
  return [this, listener](std::shared_ptr<http::Exchange> exchange) {
    const Found found = Find(exchange->request(), listener);
    if (!found.entry) {
      ApiError error;
      error.status = 404;
      error.code = "not_found";
      error.message = "There is no such route; GET / lists them";
      exchange->Send(ErrorResponse(error));
      return;
    }
    const std::string cors = found.entry->audience == Audience::kAdmin ? std::string() : options_.cors_origin;
    std::shared_ptr<const void> place;
    if (options_.keys && found.entry->generates) {
      // The gate looked before the body came; bodies that came together find one place only once.
      place = options_.keys->Take(KeyOf(exchange->request()));
      if (!place) {
        exchange->Send(Finish(exchange->request(), found.entry->path, KeyBusy(options_.keys->max_running()), found.entry));
        return;
      }
    }
    found.entry->handler(std::make_shared<ObservedExchange>(std::move(exchange), *found.entry, metrics_, cors, std::move(place)));
  };
}

http::Response PlainRefusal(const ApiError& error, const http::Request&) { return ErrorResponse(error); }

}  // namespace holdfast::api
