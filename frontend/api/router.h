#pragma once
// Which handler answers which request, and what is decided on the headers alone, before a body is read: unknown path (404), wrong method
// (405 with Allow), missing or wrong key (401), a body that is no JSON (415), an engine that is not there (503, or 429 by a handler), and a
// key whose requests at work are as many as it may have (429).
// One table for both listeners; each listener says which audience it serves.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/api/keys.h"
#include "frontend/api/valid_request.h"
#include "frontend/http/server.h"
#include "proto/base/clock.h"

namespace holdfast::api {

class FrontendMetrics;

enum class Audience : uint8_t { kPublic, kAdmin, kEveryone };

// An error in the dialect of a route.
using RefusalWriter = std::function<http::Response(const ApiError& error, const http::Request& request)>;
// OpenAI's.
http::Response PlainRefusal(const ApiError& error, const http::Request& request);

struct RouteEntry {
  std::string method;               // GET (HEAD comes with it) or POST
  std::string path;                 // exact, or ending in "/{id}": then the rest of the path, slashes included, belongs to the id
  Audience audience = Audience::kPublic;
  bool open = false;                // no key needed
  bool quiet = false;               // its access log is at debug level
  bool generates = false;           // needs the engine: refused at once when it is away
  http::Handler handler;
  RefusalWriter refuse = PlainRefusal;
};

struct Listener {
  bool public_routes = true;
  bool admin_routes = true;
};

struct RouterOptions {
  // Who may ask; null = everybody.
  std::shared_ptr<Keys> keys;
  // Access-Control-Allow-Origin of public routes; "" = no CORS headers.
  std::string cors_origin;
};

class Router final {
 public:
  // refuse: an error for requests that need the engine, or nothing when they can be served.
  Router(RouterOptions options, FrontendMetrics* metrics, std::function<std::unique_ptr<ApiError>()> refuse);
  ~Router();

  void Add(RouteEntry entry) { entries_.push_back(std::move(entry)); }
  http::HeaderGate Gate(Listener listener);
  http::Handler Dispatch(Listener listener);

  // The part of the path that {id} stands for.
  static std::string IdOf(const RouteEntry& entry, std::string_view path);

 private:
  struct Found {
    const RouteEntry* entry = nullptr;
    const RouteEntry* any = nullptr;  // of the path, whatever its method
    std::vector<std::string> allow;   // methods of the path, when it exists
  };
  Found Find(const http::Request& request, Listener listener) const;
  // `entry`: null when there is no such path.
  http::Response Finish(const http::Request& request, std::string_view route, const ApiError& error, const RouteEntry* entry) const;

  const RouterOptions options_;
  FrontendMetrics* const metrics_;
  const std::function<std::unique_ptr<ApiError>()> refuse_;
  std::vector<RouteEntry> entries_;
};

}  // namespace holdfast::api
