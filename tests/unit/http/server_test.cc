// What well-behaved clients see. Row numbers A-nn are of the API conformance table in docs.
#include <catch2/catch.hpp>
#include <string>

#include "tests/unit/http/fixture.h"
#include "tests/unit/http/raw_client.h"

namespace holdfast::http_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("A request is answered with length, date and id") {
  TestServer server;
  RawClient client(server.port());
  client.Send(Post("/echo", "hello"));
  const RawResponse r = client.Read();
  CHECK(r.status == 200);
  CHECK(r.body == "hello");
  CHECK(r.headers.at("content-length") == "5");
  CHECK(r.headers.at("content-type") == "text/plain");
  CHECK(r.headers.at("date").ends_with(" GMT"));
  CHECK(r.headers.at("x-request-id").starts_with("req-"));
  CHECK(r.headers.at("x-test") == "ab: c");   // a line break in a value can't start another header
  CHECK(r.headers.count("b") == 0);
}

TEST_CASE("A-64 query, trailing slash, escapes and absolute-form reach the handler decoded") {
  TestServer server;
  const struct { const char* target; const char* seen; } rows[] = {
      {"/info?beta=true", "GET /info beta=true 0"}, {"/info/", "GET /info  0"}, {"/inf%6F", "GET /info  0"},
      {"/info?", "GET /info  0"}, {"http://host/info?x=1", "GET /info x=1 0"}, {"HTTP://h:80/info", "GET /info  0"},
      {"/info?a=/&b=?", "GET /info a=/&b=? 0"},
  };
  for (const auto& row : rows) {
    INFO(row.target);
    CHECK(Once(server.port(), Get(row.target)).body == row.seen);
  }
  for (const char* target : {"//info", "/INFO", "/info//", "/", "/info%2fx"}) {
    INFO(target);
    CHECK(Once(server.port(), Get(target)).status == 404);
  }
}

TEST_CASE("A-65 HEAD is GET without the body") {
  TestServer server;
  RawClient client(server.port());
  for (const char* path : {"/ok", "/stream", "/gate/401"}) {
    INFO(path);
    client.Send("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n");
    const RawResponse head = client.Read(3000ms, true);
    CHECK(head.status == (std::string(path) == "/gate/401" ? 401 : 200));
    client.Send(Get("/ok"));
    CHECK(client.Read().body == "fine");
  }
  client.Send("HEAD /ok HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(client.Read(3000ms, true).headers.at("content-length") == "4");
}

TEST_CASE("A-66 a thousand requests on one connection, streams between them") {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 1000; ++i) {
    if (i % 100 == 50) {
      client.Send(Get("/stream"));
      const RawResponse r = client.Read();
      REQUIRE(r.complete);
      REQUIRE(r.body == "part0;part1;part2;part3;part4;");
      REQUIRE(r.headers.at("transfer-encoding") == "chunked");
      REQUIRE(r.headers.count("content-length") == 0);
    }
    client.Send(Post("/echo", std::to_string(i)));
    REQUIRE(client.Read().body == std::to_string(i));
  }
  CHECK(server.handled() == 1010);
  CHECK(server.connections() == 1);
}

TEST_CASE("A-66 HTTP/1.0 and Connection: close") {
  TestServer server;
  SECTION("1.0 closes by default") {
    RawClient client(server.port());
    client.Send("GET /ok HTTP/1.0\r\n\r\n");
    const RawResponse r = client.Read();
    CHECK(r.body == "fine");
    CHECK(r.headers.at("connection") == "close");
    CHECK(client.WaitEnd(500ms));
  }
  SECTION("1.0 keep-alive") {
    RawClient client(server.port());
    for (int i = 0; i < 3; ++i) {
      client.Send("GET /ok HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
      CHECK(client.Read().headers.at("connection") == "keep-alive");
    }
  }
  SECTION("a stream to 1.0 is ended by the connection, without chunks") {
    RawClient client(server.port());
    client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const RawResponse r = client.Read();
    CHECK(r.headers.count("transfer-encoding") == 0);
    CHECK(r.headers.at("connection") == "close");
    CHECK(r.body == "part0;part1;part2;part3;part4;");
    CHECK(r.complete);
  }
  SECTION("1.1 close, among other tokens") {
    RawClient client(server.port());
    client.Send("GET /ok HTTP/1.1\r\nHost: a\r\nConnection: foo, Close\r\n\r\n" + Get("/ok"));
    CHECK(client.Read().headers.at("connection") == "close");
    CHECK(client.Read(500ms).status == 0);  // the second was never served
    CHECK(server.handled() == 1);
  }
}

TEST_CASE("A-67 B145 pipelined requests are answered in order") {
  TestServer server;
  RawClient client(server.port());
  const std::string chunked = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\n";
  client.Send(Get("/late") + Post("/echo", "two") + chunked + "DELETE /info HTTP/1.1\r\nHost: a\r\n\r\n" + Get("/stream") + "\r\n" +
              Get("/gate/404") + Get("/nowhere") + Get("/ok"));
  CHECK(client.Read().body == "late");
  CHECK(client.Read().body == "two");
  CHECK(client.Read().body == "abcde");
  CHECK(client.Read().body == "DELETE /info  0");
  CHECK(client.Read().body == "part0;part1;part2;part3;part4;");
  CHECK(client.Read().status == 404);
  CHECK(client.Read().status == 404);
  CHECK(client.Read().body == "fine");
}

TEST_CASE("A-67 five thousand pipelined requests need no deep stack") {
  TestServer server;
  RawClient client(server.port());
  std::string burst;
  for (int i = 0; i < 500; ++i) burst += Get("/ok");
  for (int round = 0; round < 10; ++round) {
    REQUIRE(client.Send(burst));
    for (int i = 0; i < 500; ++i) REQUIRE(client.Read().body == "fine");
  }
}

TEST_CASE("A-67 a refusal by the gate leaves a body unread and ends the connection") {
  TestServer server;
  RawClient client(server.port());
  client.Send(Post("/gate/401", std::string(100000, 'x')) + Get("/ok"));
  const RawResponse r = client.Read();
  CHECK(r.status == 401);
  CHECK(r.headers.at("connection") == "close");
  CHECK(client.WaitEnd());
  CHECK(server.handled() == 0);
}

TEST_CASE("A-68 B152 Expect: 100-continue") {
  TestServer server;
  const auto head = [](const std::string& path, const std::string& length, const std::string& expect) {
    return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + length + "\r\nExpect: " + expect + "\r\n\r\n";
  };
  SECTION("100 comes before the body is sent") {
    RawClient client(server.port());
    client.Send(head("/echo", "5", "100-Continue"));
    CHECK(client.Read().status == 100);
    client.Send("hello");
    CHECK(client.Read().body == "hello");
    client.Send(Get("/ok"));
    CHECK(client.Read().body == "fine");
  }
  SECTION("a body that comes along needs no 100") {
    RawClient client(server.port());
    client.Send(head("/echo", "5", "100-continue") + "hello");
    CHECK(client.Read().body == "hello");
  }
  SECTION("too large: 413 and nothing is read") {
    RawClient client(server.port());
    client.Send(head("/echo", "99999999999", "100-continue"));
    const RawResponse r = client.Read();
    CHECK(r.status == 413);
    CHECK(r.body.find("content_too_large") != std::string::npos);
    CHECK(client.WaitEnd());
  }
  SECTION("the gate's refusal instead of 100") {
    RawClient client(server.port());
    client.Send(head("/gate/429", "5", "100-continue"));
    CHECK(client.Read().status == 429);
    CHECK(client.WaitEnd());
  }
  SECTION("another expectation: 417") { CHECK(Once(server.port(), head("/echo", "5", "tea")).status == 417); }
  SECTION("a Range header is ignored") {
    CHECK(Once(server.port(), "GET /ok HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1,0-1,0-1\r\n\r\n").body == "fine");
  }
}

TEST_CASE("A-73 an upgrade offer is ignored") {
  TestServer server;
  CHECK(Once(server.port(), "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                            "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n").body == "fine");
  CHECK(Once(server.port(), "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").body == "fine");
}

TEST_CASE("A-77 the request id is echoed when usable") {
  TestServer server;
  const auto id = [&](const std::string& header) {
    return Once(server.port(), "GET /ok HTTP/1.1\r\nHost: a\r\n" + header + "\r\n").headers["x-request-id"];
  };
  CHECK(id("X-Request-ID: abc-123\r\n") == "abc-123");
  CHECK(id("X-Request-ID: " + std::string(128, 'i') + "\r\n") == std::string(128, 'i'));
  CHECK(id("X-Request-ID: " + std::string(129, 'i') + "\r\n").starts_with("req-"));
  CHECK(id("X-Request-ID: a b\r\n").starts_with("req-"));
  CHECK(id("X-Request-ID: \xc3\xa9\r\n").starts_with("req-"));
  CHECK(id("X-Request-ID:\r\n").starts_with("req-"));
  CHECK(id("") != id(""));
  CHECK(Once(server.port(), "POST /echo HTTP/1.1\r\nHost: a\r\nx-request-id: mine\r\nContent-Length: 9999999\r\n\r\n")
            .headers["x-request-id"] == "mine");  // refusals too
}

TEST_CASE("A handler that forgets a request answers 500, a cut stream has no terminator") {
  TestServer server;
  const RawResponse lost = Once(server.port(), Get("/drop"));
  CHECK(lost.status == 500);
  CHECK(lost.body.find("\"server_error\"") != std::string::npos);
  RawClient client(server.port());
  client.Send(Get("/abort"));
  const RawResponse cut = client.Read();
  CHECK(cut.body == "part0;");
  CHECK_FALSE(cut.complete);
}

TEST_CASE("Drain: idle connections end, busy ones finish with Connection: close, nobody new gets in") {
  TestServer server;
  RawClient idle(server.port()), busy(server.port());
  idle.Send(Get("/ok"));
  CHECK(idle.Read().body == "fine");
  busy.Send(Get("/hold"));
  REQUIRE(Eventually([&] { return server.held() == 1; }));
  server.Drain();
  CHECK(idle.WaitEnd());
  server.Release();
  const RawResponse r = busy.Read();
  CHECK(r.body == "released");
  CHECK(r.headers.at("connection") == "close");
  CHECK(busy.WaitEnd());
  idle.Close();
  busy.Close();
  CHECK(Eventually([&] { return server.connections() == 0; }));
}

}  // namespace
}  // namespace holdfast::http_test
