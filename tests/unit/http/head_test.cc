// The pure half: where a head ends, what Beast and the checks after it make of it, at every split of the bytes.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "frontend/http/head_scanner.h"
#include "frontend/http/request_parser.h"
#include "frontend/http/response_text.h"

namespace holdfast::http {
namespace {

HttpProblem ParseHead(const std::string& head, RequestParser* parser) {
  HeadScanner scanner(64 << 10);
  const auto result = scanner.Feed(head);
  if (result == HeadScanner::Result::kBad) return {400, scanner.problem(), ""};
  REQUIRE(result == HeadScanner::Result::kComplete);
  REQUIRE(scanner.head_bytes() == head.size());
  return parser->PutHead(head);
}

TEST_CASE("The scanner gives one verdict however the bytes are split") {
  const struct { std::string bytes; HeadScanner::Result result; size_t length; } rows[] = {
      {"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest", HeadScanner::Result::kComplete, 27},
      {"GET / HTTP/1.1\r\n\r\n", HeadScanner::Result::kComplete, 18},
      {"GET / HTTP/1.1\r\nHost: a\r\n", HeadScanner::Result::kNeedMore, 0},
      {"GET / HTTP/1.1\nHost: a\n\n", HeadScanner::Result::kBad, 0},
      {"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", HeadScanner::Result::kBad, 0},
      {"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", HeadScanner::Result::kBad, 0},
      {"GET / HTTP/1.1\r\n\tA: b\r\n\r\n", HeadScanner::Result::kBad, 0},
      {std::string("GET / HTTP/1.1\r\nA: \0\r\n\r\n", 23), HeadScanner::Result::kBad, 0},
      {"GET / HTTP/1.1\r\nA: \x01\r\n\r\n", HeadScanner::Result::kBad, 0},
      {" GET / HTTP/1.1\r\n\r\n", HeadScanner::Result::kBad, 0},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HeadScanner::Result::kNotHttp, 0},
      {"\x16\x03\x01\x02\x00", HeadScanner::Result::kNotHttp, 0},
      {std::string(200, 'x'), HeadScanner::Result::kTooLarge, 0},
      {"GET /" + std::string(95, 'x') + "\r\n\r\n", HeadScanner::Result::kTooLarge, 0},
  };
  for (const auto& row : rows) {
    for (size_t cut = 0; cut <= row.bytes.size(); ++cut) {
      INFO(row.bytes << " cut at " << cut);
      HeadScanner scanner(100);
      auto result = scanner.Feed(std::string_view(row.bytes).substr(0, cut));
      if (result == HeadScanner::Result::kNeedMore) result = scanner.Feed(row.bytes);
      CHECK(result == row.result);
      if (row.length) CHECK(scanner.head_bytes() == row.length);
    }
  }
}

TEST_CASE("Heads that RFC 9112 refuses") {
  const struct { std::string head; int status; } rows[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"Get / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
      {"GET /\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505},
      {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET ok HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%0 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nName : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: five\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1 2\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0b chunked\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", 417},
  };
  for (const auto& row : rows) {
    INFO(row.head);
    ServerLimits limits;
    RequestParser parser(limits);
    const HttpProblem problem = ParseHead(row.head, &parser);
    CHECK(problem.status == row.status);
    CHECK_FALSE(problem.message.empty());
  }
}

TEST_CASE("Heads that are fine") {
  for (const std::string head :
       {"GET / HTTP/1.1\r\nHost: \r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nhost:a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]:80\r\nX: \xff\xfe\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nA: x%0d%0aB: y\r\n\r\n"}) {
    INFO(head);
    ServerLimits limits;
    RequestParser parser(limits);
    CHECK(ParseHead(head, &parser).message == "");
    CHECK(parser.request().HeaderValue("b") == "");  // an escaped line break stays escaped
  }
}

struct BodyResult {
  int status = 0;
  bool done = false;
  std::string body;
  size_t left = 0;      // bytes after the body
};

BodyResult ParseBody(const std::string& body, const std::vector<size_t>& cuts, size_t max_body = 1 << 20) {
  ServerLimits limits;
  limits.max_body_bytes = max_body;
  RequestParser parser(limits);
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  REQUIRE_FALSE(ParseHead(head, &parser));
  BodyResult r;
  size_t at = 0;
  for (size_t i = 0; i <= cuts.size() && !parser.done() && r.status == 0; ++i) {
    const size_t until = i < cuts.size() ? cuts[i] : body.size();
    for (;;) {
      size_t taken = 0;
      r.status = parser.PutBody(std::string_view(body).substr(at, until - at), &taken).status;
      at += taken;
      if (r.status || parser.done() || taken == 0 || at == until) break;
    }
  }
  r.done = parser.done();
  r.body = parser.request().body;
  r.left = body.size() - at;
  return r;
}

TEST_CASE("B146 chunked bodies at every split") {
  const struct { std::string bytes; int status; bool done; std::string body; size_t left; } rows[] = {
      {"0\r\n\r\n", 0, true, "", 0},
      {"3\r\nabc\r\n0\r\n\r\nGET", 0, true, "abc", 3},
      {"3\r\nabc\r\n02\r\nde\r\n000\r\n\r\n", 0, true, "abcde", 0},
      {"3;a=b;c=\"d\"\r\nabc\r\n0;x\r\n\r\n", 0, true, "abc", 0},
      {"3\r\nabc\r\n0\r\nTrailer: x\r\nContent-Type: y\r\n\r\n", 0, true, "abc", 0},
      {"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", 0, true, "01234567890123456789", 0},
      {"3\r\nabc\r\n", 0, false, "abc", 2},
      {"-2\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"+2\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"0x2\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {" 2\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"g\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"2\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"2\r\nab0\r\n\r\n", 400, false, "", 0},
      {"2\r\nabc\r\n0\r\n\r\n", 400, false, "", 0},
      {"3\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"2\r\nab\n0\r\n\r\n", 400, false, "", 0},
      {"2\r\nabXX0\r\n\r\n", 400, false, "", 0},
      {"2 x\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"2\rx\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"ffffffffffffffffff\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"10000000000000002\r\nab\r\n0\r\n\r\n", 400, false, "", 0},
      {"ffffffffffffffff\r\nab\r\n0\r\n\r\n", 413, false, "", 0},
      {"200000\r\nab", 413, false, "", 0},
      {"2\r\nab\r\n0\r\nbad trailer\r\n\r\n", 400, false, "", 0},
      {"2\r\nab\r\n0\r\nContent-Length: 3\r\n\r\nabc", 400, false, "", 0},
      {"2\r\nab\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, false, "", 0},
  };
  for (const auto& row : rows) {
    for (size_t cut = 0; cut <= row.bytes.size(); ++cut) {
      INFO(row.bytes << " cut at " << cut);
      const BodyResult r = ParseBody(row.bytes, {cut});
      CHECK(r.status == row.status);
      CHECK(r.done == row.done);
      if (row.status == 0) {
        CHECK(r.body == row.body);
        CHECK(r.left == row.left);
      }
    }
    std::vector<size_t> every;
    for (size_t i = 0; i < row.bytes.size(); ++i) every.push_back(i);
    INFO(row.bytes << " byte by byte");
    CHECK(ParseBody(row.bytes, every).status == row.status);
  }
}

TEST_CASE("A chunked body is held to the limit exactly") {
  std::string body;
  for (int i = 0; i < 10; ++i) body += "1\r\nx\r\n";
  CHECK(ParseBody(body + "0\r\n\r\n", {}, 10).done);
  CHECK(ParseBody(body + "1\r\nx\r\n0\r\n\r\n", {}, 10).status == 413);
}

TEST_CASE("Response heads cannot be split by values, and the server's own headers win") {
  std::string out;
  AppendResponseHead({200, "text/plain\r\nx: y", BodyFraming::kLength, 3, Persistence::kClose, "id"},
                     {{"A\nB", "c\r\nD: e"}, {"Content-Length", "9"}, {"connection", "keep-alive"}}, &out);
  CHECK(out.find("\r\nAB: cD: e\r\n") != std::string::npos);
  CHECK(out.find("content-length: 3\r\n") != std::string::npos);
  CHECK(out.find("keep-alive") == std::string::npos);
  CHECK(out.find("\r\nx: y") == std::string::npos);
  CHECK(out.ends_with("\r\n\r\n"));
}

}  // namespace
}  // namespace holdfast::http
