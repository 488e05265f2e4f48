// Clients that go away, in every way and at every moment.
#include <sys/resource.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "tests/unit/http/fixture.h"
#include "tests/unit/http/raw_client.h"

namespace holdfast::http_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("A-70 half-close still gets its answer") {
  TestServer server;
  SECTION("while waiting, fast answer") {
    RawClient client(server.port());
    client.Send(Post("/echo", "x"));
    client.FinishSending();
    CHECK(client.Read().body == "x");
    CHECK(client.WaitEnd());
  }
  SECTION("slow answer: only interim responses come before it") {
    RawClient client(server.port());
    client.Send(Get("/late"));
    client.FinishSending();
    RawResponse r = client.Read();
    while (r.status == 100) r = client.Read();
    CHECK(r.body == "late");
    CHECK(server.closed() == 0);
  }
  SECTION("pipelined requests before the end are all answered") {
    RawClient client(server.port());
    client.Send(Get("/ok") + Get("/stream") + Post("/echo", "y"));
    client.FinishSending();
    CHECK(client.Read().body == "fine");
    CHECK(client.Read().complete);
    CHECK(client.Read().body == "y");
    CHECK(client.WaitEnd());
  }
  SECTION("HTTP/1.0 gets no interim response") {
    RawClient client(server.port());
    client.Send("GET /late HTTP/1.0\r\n\r\n");
    client.FinishSending();
    CHECK(client.Read().body == "late");
  }
  SECTION("an end inside a head or a body is answered with 400") {
    for (const std::string raw : {"GET /ok HTTP/1.1\r\nHos", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"}) {
      RawClient client(server.port());
      client.Send(raw);
      client.FinishSending();
      CHECK(client.Read().status == 400);
      CHECK(client.WaitEnd());
    }
  }
}

TEST_CASE("A-70 B080 a client that is gone is noticed while nothing is written") {
  TestServer server;
  const auto gone = [&](const std::string& request, bool reset, int held_before) {
    RawClient client(server.port());
    client.Send(request);
    REQUIRE(Eventually([&] { return server.held() == held_before + 1; }));
    if (reset) {
      client.Reset();
    } else {
      client.Close();
    }
    REQUIRE(Eventually([&] { return server.closed() == held_before + 1; }));
  };
  SECTION("RST") { gone(Get("/hold"), true, 0); }
  SECTION("close: FIN, then RST to the probe") { gone(Get("/hold"), false, 0); }
  SECTION("RST with unread pipelined requests") { gone(Get("/hold") + Get("/ok") + Get("/ok"), true, 0); }
  SECTION("RST with more unread input than is kept") { gone(Get("/hold") + std::string(300000, 'x'), true, 0); }
  SECTION("close with more unread input than is kept") { gone(Get("/hold") + std::string(300000, 'x'), false, 0); }
  SECTION("one after another") {
    for (int i = 0; i < 6; ++i) gone(Get("/hold"), i % 2 == 0, i);
  }
  server.Release();  // answers to the dead are ignored
  CHECK(Eventually([&] { return server.connections() == 0; }));
  CHECK(server.closed() >= 1);
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
}

TEST_CASE("A-70 read-ahead is bounded and what was sent ahead is served afterwards") {
  TestServer server;
  RawClient client(server.port());
  client.Send(Get("/hold") + Post("/info", std::string(500000, 'x')) + Get("/ok"));
  REQUIRE(Eventually([&] { return server.held() == 1; }));
  server.Release();
  RawResponse first = client.Read();
  while (first.status == 100) first = client.Read();
  CHECK(first.body == "released");
  CHECK(client.Read().body == "POST /info  500000");
  CHECK(client.Read().body == "fine");
}

TEST_CASE("Urgent data is no reason to think a client gone, nor to spin") {
  TestServer server;
  RawClient client(server.port());
  client.Send(Get("/hold"));
  REQUIRE(Eventually([&] { return server.held() == 1; }));
  REQUIRE(send(client.fd(), "!", 1, MSG_OOB) == 1);
  rusage start{}, end{};
  getrusage(RUSAGE_SELF, &start);
  std::this_thread::sleep_for(400ms);
  getrusage(RUSAGE_SELF, &end);
  CHECK(server.closed() == 0);
  CHECK((end.ru_utime.tv_sec - start.ru_utime.tv_sec) * 1'000'000 + end.ru_utime.tv_usec - start.ru_utime.tv_usec < 200'000);
  SECTION("it gets its answer") {
    server.Release();
    CHECK(client.Read().body == "released");
  }
  SECTION("its reset is still noticed") {
    client.Reset();
    CHECK(Eventually([&] { return server.closed() == 1; }, 1000));
  }
}

TEST_CASE("B080 a reset in the middle of a stream reaches the handler, the server lives on") {
  TestServer server;
  for (int i = 0; i < 10; ++i) {
    RawClient client(server.port());
    client.Send(Get("/flood"));
    client.ReadRaw(1000 * static_cast<size_t>(i) + 1, 1000ms);
    client.Reset();
    REQUIRE(Eventually([&] { return server.closed() == i + 1; }));
  }
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
}

TEST_CASE("B080 resets at every offset of a request and at many of a response") {
  TestServer server;
  const std::string raw = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + Get("/stream");
  for (size_t cut = 0; cut <= raw.size(); ++cut) {
    RawClient client(server.port());
    client.Send(std::string_view(raw).substr(0, cut));
    if (cut % 2) {
      client.Reset();
    } else {
      client.Close();
    }
  }
  for (size_t cut = 0; cut < 100; ++cut) {
    RawClient client(server.port());
    client.Send(Get("/stream") + Get("/late"));
    client.ReadRaw(cut * 5, 20ms);
    client.Reset();
  }
  CHECK(Eventually([&] { return server.connections() == 0; }, 4000));
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
}

TEST_CASE("The server ends while exchanges are open: handlers hear of it") {
  http::ServerOptions options = TestServer::Quick();
  RawClient* client = nullptr;
  {
    TestServer server(options);
    client = new RawClient(server.port());
    client->Send(Get("/hold"));
    REQUIRE(Eventually([&] { return server.held() == 1; }));
  }
  CHECK(client->WaitEnd());
  delete client;
}

}  // namespace
}  // namespace holdfast::http_test
