// Malformed requests on the wire: one 400 (or another refusal), then the end. What follows in the same bytes must never be served, and
// the server must be fine afterwards.
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "tests/unit/http/fixture.h"
#include "tests/unit/http/raw_client.h"

namespace holdfast::http_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("A-62 A-72 B145 B146 malformed requests get one refusal and the connection ends") {
  TestServer server;
  const std::string h = "Host: a\r\n";
  const std::string post = "POST /echo HTTP/1.1\r\n" + h;
  const struct { const char* name; std::string bytes; int status; } rows[] = {
      {"no Host", "GET /ok HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", "GET /ok HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"lower-case method", "get /ok HTTP/1.1\r\n" + h + "\r\n", 400},
      {"folded header", "GET /ok HTTP/1.1\r\n" + h + "A: b\r\n c\r\n\r\n", 400},
      {"NUL in a header", "GET /ok HTTP/1.1\r\n" + h + "A: b" + std::string(1, '\0') + "\r\n\r\n", 400},
      {"NUL in the target", "GET /o" + std::string(1, '\0') + "k HTTP/1.1\r\n" + h + "\r\n", 400},
      {"bare line feeds", "GET /ok HTTP/1.1\nHost: a\n\n", 400},
      {"space before the colon", "GET /ok HTTP/1.1\r\n" + h + "A : b\r\n\r\n", 400},
      {"garbage", "hello world\r\n\r\n", 400},
      {"HTTP/0.9", "GET /ok\r\n\r\n", 400},
      {"HTTP/3.0", "GET /ok HTTP/3.0\r\n" + h + "\r\n", 505},
      {"CL and TE", post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"TE and CL", post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"two CLs, different", post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"two CLs, equal", post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"CL list", post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {"CL negative", post + "Content-Length: -3\r\n\r\nabc", 400},
      {"CL with sign", post + "Content-Length: +3\r\n\r\nabc", 400},
      {"CL no number", post + "Content-Length: abc\r\n\r\nabc", 400},
      {"CL overflow", post + "Content-Length: 18446744073709551619\r\n\r\nabc", 400},
      {"CL huge", post + "Content-Length: 9223372036854775807\r\n\r\nabc", 413},
      {"TE identity last", post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400},
      {"TE gzip", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
      {"TE twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"TE in 1.0", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunk size -2", post + "Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n", 400},
      {"chunk size 0x2", post + "Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n", 400},
      {"chunk size with spaces", post + "Transfer-Encoding: chunked\r\n\r\n 2\r\nab\r\n0\r\n\r\n", 400},
      {"chunk size overflow", post + "Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\nab\r\n0\r\n\r\n", 400},
      {"chunk size huge", post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab\r\n0\r\n\r\n", 413},
      {"chunk ended by LF", post + "Transfer-Encoding: chunked\r\n\r\n2\nab\n0\n\n", 400},
      {"chunk longer than said", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 400},
      {"chunk data ended by XX", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nabXX0\r\n\r\n", 400},
      {"chunk line without end", post + "Transfer-Encoding: chunked\r\n\r\n2;" + std::string(40000, 'x'), 400},
      {"trailers without end", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + std::string(40000, 'x'), 400},
      {"CL in a trailer", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nContent-Length: 40\r\n\r\n", 400},
      {"gzip body", post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
      {"expectation unknown", post + "Expect: tea\r\nContent-Length: 3\r\n\r\nabc", 417},
      {"encoded NUL in the path", "GET /o%00k HTTP/1.1\r\n" + h + "\r\n", 400},
      {"broken escape", "GET /o%4 HTTP/1.1\r\n" + h + "\r\n", 400},
      {"authority-form", "CONNECT a:1 HTTP/1.1\r\n" + h + "\r\n", 400},
  };
  for (const auto& row : rows) {
    for (const bool after_good_one : {false, true}) {
      INFO(row.name << (after_good_one ? ", second on its connection" : ""));
      const int before = server.handled();
      RawClient client(server.port());
      const std::string smuggled = Post("/echo", "smuggled");
      client.Send((after_good_one ? Get("/ok") : "") + row.bytes + smuggled);
      if (after_good_one) REQUIRE(client.Read().body == "fine");
      const RawResponse r = client.Read();
      CHECK(r.status == row.status);
      CHECK(r.complete);
      CHECK(r.headers.count("x-request-id") == 1);
      CHECK(r.headers.at("connection") == "close");
      CHECK(r.body.starts_with("{\"error\":{\"message\":\""));
      CHECK(r.body.find("\"param\":null,\"code\":") != std::string::npos);
      CHECK(client.Read(1500ms).status == 0);  // never two answers
      CHECK(server.handled() == before + (after_good_one ? 1 : 0));
      REQUIRE(Once(server.port(), Get("/ok")).body == "fine");
    }
  }
}

TEST_CASE("A-73 peers that do not speak HTTP/1 are closed without a word") {
  TestServer server;
  for (const std::string& bytes : {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33),
                                   std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)}) {
    RawClient client(server.port());
    client.Send(bytes);
    CHECK(client.ReadRaw(1, 2000ms) == "");
    CHECK(client.WaitEnd());
    CHECK(Once(server.port(), Get("/ok")).body == "fine");
  }
}

TEST_CASE("A-69 a request in single bytes is one request") {
  TestServer server;
  RawClient client(server.port());
  const std::string raw = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (char c : raw) {
    REQUIRE(client.Send(std::string_view(&c, 1)));
    std::this_thread::sleep_for(200us);
  }
  CHECK(client.Read().body == "abc");
}

TEST_CASE("Mutated requests never crash or hang the server") {
  TestServer server;
  const std::string good = "POST /echo?x=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n4;e=\"q\"\r\nwxyz\r\n0\r\nT: v\r\n\r\n";
  uint64_t state = 0x9E3779B97F4A7C15ull;
  const auto random = [&](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>((state >> 33) % n);
  };
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    for (size_t k = random(4) + 1; k > 0; --k) {
      const size_t at = random(bytes.size());
      switch (random(4)) {
        case 0: bytes[at] = static_cast<char>(random(256)); break;
        case 1: bytes.erase(at, random(8) + 1); break;
        case 2: bytes.insert(at, bytes.substr(random(bytes.size()), random(10))); break;
        default: bytes.insert(at, 1, "\r\n: ;0\t"[random(7)]); break;
      }
      if (bytes.empty()) bytes = "x";
    }
    RawClient client(server.port());
    client.Send(bytes);
    client.FinishSending();
    REQUIRE(client.WaitEnd(3000ms));
  }
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
}

}  // namespace
}  // namespace holdfast::http_test
