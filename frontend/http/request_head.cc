#include "frontend/http/request_head.h"

#include <fmt/format.h>

#include <atomic>

#include "proto/base/random.h"

namespace holdfast::http {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

HttpProblem Bad(std::string message) { return {400, std::move(message), ""}; }

// Calls fn for each member of a comma-separated list.
template <class Fn>
void ForEachToken(std::string_view list, Fn fn) {
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view token = Trim(list.substr(0, comma));
    if (!token.empty()) fn(token);
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

// Digits only: no sign, no list, no white space inside. 19 digits always fit 64 bits.
bool ParseContentLength(std::string_view text, uint64_t* out) {
  if (text.empty() || text.size() > 19) return false;
  uint64_t v = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    v = v * 10 + static_cast<uint64_t>(c - '0');
  }
  *out = v;
  return true;
}

// host [":" port]; an empty value is legal when the target has no authority.
bool HostLooksRight(std::string_view host) {
  for (char c : host) {
    const bool fine = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '-' || c == '_' ||
                      c == ':' || c == '[' || c == ']' || c == '%' || c == '~' || c == '!' || c == '$' || c == '&' || c == '\'' ||
                      c == '(' || c == ')' || c == '*' || c == '+' || c == ';' || c == '=';
    if (!fine) return false;
  }
  return true;
}

HttpProblem AnalyseTarget(std::string_view target, Request* request) {
  if (target == "*" && request->method == "OPTIONS") {
    request->path = "*";
    return {};
  }
  if (!target.starts_with('/')) {
    // absolute-form, RFC 9112 3.2.2: the authority was named by the Host header as well
    const size_t scheme = target.find("://");
    const std::string_view name = target.substr(0, scheme == std::string_view::npos ? 0 : scheme);
    if (!EqualsIgnoreCase(name, "http") && !EqualsIgnoreCase(name, "https")) {
      return Bad("the request target must be a path that begins with '/' or an absolute http URI");
    }
    const std::string_view rest = target.substr(scheme + 3);
    const size_t slash = rest.find_first_of("/?");
    if (rest.empty() || slash == 0) return Bad("the absolute request target names no host");
    target = slash == std::string_view::npos ? std::string_view("/") : rest.substr(slash);
  }
  if (target.find('#') != std::string_view::npos) return Bad("a fragment ('#') has no place in a request target");
  const size_t question = target.find('?');
  if (question != std::string_view::npos) request->query = std::string(target.substr(question + 1));
  const std::string_view raw_path = target.substr(0, question);
  if (!PercentDecode(raw_path, &request->path)) return Bad("the request path holds a broken percent escape or an encoded NUL");
  if (request->path.empty()) request->path = "/";
  if (request->path.size() > 1 && request->path.back() == '/') request->path.pop_back();
  return {};
}

HttpProblem AnalyseFraming(const Request& request, HeadFacts* facts) {
  int lengths = 0, encodings = 0, hosts = 0;
  for (const Header& h : request.headers) {
    if (EqualsIgnoreCase(h.name, "content-length")) {
      uint64_t v = 0;
      if (!ParseContentLength(h.value, &v)) return Bad("Content-Length must be one decimal number");
      if (++lengths > 1) return Bad("more than one Content-Length header");
      facts->content_length = v;
    } else if (EqualsIgnoreCase(h.name, "transfer-encoding")) {
      if (++encodings > 1) return Bad("more than one Transfer-Encoding header");
      if (!EqualsIgnoreCase(h.value, "chunked")) return Bad("Transfer-Encoding: only 'chunked' alone is supported");
      if (!facts->http11) return Bad("Transfer-Encoding does not exist in HTTP/1.0");
      facts->chunked = true;
    } else if (EqualsIgnoreCase(h.name, "host")) {
      if (++hosts > 1) return Bad("more than one Host header");
      if (!HostLooksRight(h.value)) return Bad("the Host header is no host name");
    }
  }
  if (facts->chunked && facts->content_length) return Bad("Content-Length and Transfer-Encoding in one request");
  if (facts->http11 && hosts == 0) return Bad("HTTP/1.1 needs a Host header");
  return {};
}

}  // namespace

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (Lower(a[i]) != Lower(b[i])) return false;
  }
  return true;
}

std::string_view Request::HeaderValue(std::string_view name) const {
  for (const Header& h : headers) {
    if (EqualsIgnoreCase(h.name, name)) return h.value;
  }
  return {};
}

bool PercentDecode(std::string_view in, std::string* out) {
  const auto hex = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char l = Lower(c);
    return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
  };
  out->clear();
  out->reserve(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] != '%') {
      out->push_back(in[i]);
      continue;
    }
    if (i + 2 >= in.size()) return false;
    const int high = hex(in[i + 1]), low = hex(in[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
    out->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

std::string UsableRequestId(std::string_view given) {
  bool usable = !given.empty() && given.size() <= 128;
  for (char c : given) usable = usable && c > 0x20 && c < 0x7f;
  if (usable) return std::string(given);
  static const uint64_t base = EntropySeed();
  static std::atomic<uint64_t> counter{0};
  const uint64_t n = counter.fetch_add(1, std::memory_order_relaxed);
  return fmt::format("req-{:016x}{:08x}", Mix64(base + n), static_cast<uint32_t>(Mix64(base ^ ~n)));
}

HttpProblem AnalyseHead(std::string_view target, int version, Request* request, HeadFacts* facts) {
  facts->http11 = version >= 11;
  // First, so that a refusal carries the client's id.
  request->request_id = UsableRequestId(request->HeaderValue("x-request-id"));
  for (char c : request->method) {
    if (c < 'A' || c > 'Z') return Bad("methods are written in capital letters");
  }
  if (HttpProblem p = AnalyseTarget(target, request)) return p;
  if (HttpProblem p = AnalyseFraming(*request, facts)) return p;

  bool close = false, keep = false;
  for (const Header& h : request->headers) {
    if (!EqualsIgnoreCase(h.name, "connection")) continue;
    ForEachToken(h.value, [&](std::string_view token) {
      close = close || EqualsIgnoreCase(token, "close");
      keep = keep || EqualsIgnoreCase(token, "keep-alive");
    });
  }
  facts->keep_alive = !close && (facts->http11 || keep);

  const std::string_view expect = request->HeaderValue("expect");
  if (!expect.empty() && facts->http11) {
    if (!EqualsIgnoreCase(expect, "100-continue")) return {417, "the only expectation known here is 100-continue", ""};
    facts->expect_continue = true;
  }
  return {};
}

}  // namespace holdfast::http
