#include "frontend/http/response_text.h"

#include <fmt/format.h>

#include <ctime>
#include <iterator>

#include "proto/base/log.h"

namespace holdfast::http {
namespace {

// IMF-fixdate, made at most once a second; each loop thread has its own.
std::string_view HttpDate() {
  static thread_local std::time_t made_for = -1;
  static thread_local char text[40] = "";
  const std::time_t now = std::time(nullptr);
  if (now != made_for) {
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    std::tm tm{};
    gmtime_r(&now, &tm);
    *fmt::format_to_n(text, sizeof text - 1, "{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[tm.tm_wday], tm.tm_mday, kMonths[tm.tm_mon],
                      tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec)
         .out = '\0';
    made_for = now;
  }
  return text;
}

void AppendClean(std::string_view text, std::string* out) {
  for (char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out->push_back(c);
  }
}

bool ServerOwns(std::string_view name) {
  for (std::string_view owned : {"content-length", "transfer-encoding", "connection", "date", "x-request-id"}) {
    if (EqualsIgnoreCase(name, owned)) return true;
  }
  return false;
}

}  // namespace

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 529: return "Overloaded";
    default: return status < 400 ? "OK" : status < 500 ? "Client Error" : "Server Error";
  }
}

bool StatusHasNoBody(int status) { return status < 200 || status == 204 || status == 304; }

void AppendResponseHead(const ResponseHead& head, const std::vector<Header>& headers, std::string* out) {
  auto to = std::back_inserter(*out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\ndate: {}\r\nserver: holdfast\r\n", head.status, ReasonPhrase(head.status), HttpDate());
  if (head.framing == BodyFraming::kLength) fmt::format_to(to, "content-length: {}\r\n", head.content_length);
  if (head.framing == BodyFraming::kChunked) out->append("transfer-encoding: chunked\r\n");
  if (!head.content_type.empty() && head.framing != BodyFraming::kNone) {
    out->append("content-type: ");
    AppendClean(head.content_type, out);
    out->append("\r\n");
  }
  if (head.persistence == Persistence::kClose) out->append("connection: close\r\n");
  if (head.persistence == Persistence::kKeepAlive10) out->append("connection: keep-alive\r\n");
  if (!head.request_id.empty()) fmt::format_to(to, "x-request-id: {}\r\n", head.request_id);
  for (const Header& h : headers) {
    if (ServerOwns(h.name)) continue;
    AppendClean(h.name, out);
    out->append(": ");
    AppendClean(h.value, out);
    out->append("\r\n");
  }
  out->append("\r\n");
}

Response ProblemResponse(const HttpProblem& problem) {
  Response response;
  response.status = problem.status;
  const char* type = problem.status == 429 ? "rate_limit_error" : problem.status == 503 ? "unavailable_error"
                     : problem.status >= 500 ? "server_error" : "invalid_request_error";
  response.body = R"({"error":{"message":")";
  AppendJsonEscaped(problem.message, &response.body);
  fmt::format_to(std::back_inserter(response.body), R"(","type":"{}","param":null,"code":)", type);
  if (problem.code.empty()) {
    response.body += "null";
  } else {
    response.body += '"';
    AppendJsonEscaped(problem.code, &response.body);
    response.body += '"';
  }
  response.body += "}}";
  if (problem.status == 503 || problem.status == 429) response.headers.push_back({"retry-after", "1"});
  return response;
}

}  // namespace holdfast::http
