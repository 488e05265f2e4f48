// Limits, time-outs and exhaustion: a rude client gets a status or an end, and the others do not notice.
#include <fcntl.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/http/fixture.h"
#include "tests/unit/http/raw_client.h"

namespace holdfast::http_test {
namespace {

using namespace std::chrono_literals;

size_t ResidentBytes() {
  long pages = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  return static_cast<size_t>(pages) * 4096;
}

TEST_CASE("A-62 bodies over the limit are refused with 413, those at the limit are served") {
  TestServer server;
  const size_t limit = 1 << 20;
  SECTION("by Content-Length, nothing read") {
    RawClient client(server.port());
    client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n");
    CHECK(client.Read().status == 413);
    CHECK(client.WaitEnd());
  }
  SECTION("by Content-Length, while the client sends it all: the answer still arrives") {
    RawClient client(server.port());
    std::thread sender([&] { client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n" + std::string(8000000, 'x')); });
    CHECK(client.Read().status == 413);
    sender.join();
  }
  SECTION("chunked") {
    RawClient client(server.port());
    client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n80000\r\n" + std::string(0x80000, 'x') + "\r\n80001\r\n");
    CHECK(client.Read().status == 413);
  }
  SECTION("exactly the limit") {
    CHECK(Once(server.port(), Post("/info", std::string(limit, 'x'))).body == "POST /info  1048576");
  }
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
}

TEST_CASE("B147 three megabytes of one-byte chunks: 413 at the limit, memory bounded") {
  http::ServerOptions options = TestServer::Quick();
  options.limits.max_body_bytes = 400000;
  options.limits.body_timeout = 10s;
  TestServer server(options);
  std::string chunks;
  for (int i = 0; i < 100000; ++i) chunks += "1\r\nx\r\n";
  const size_t before = ResidentBytes();
  {
    RawClient client(server.port());
    client.Send("POST /info HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 3; ++i) REQUIRE(client.Send(chunks));
    client.Send("0\r\n\r\n");
    CHECK(client.Read().body == "POST /info  300000");
  }
  {
    RawClient client(server.port());
    client.Send("POST /info HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 5; ++i) client.Send(chunks);
    CHECK(client.Read().status == 413);
  }
  CHECK(ResidentBytes() < before + (50u << 20));
}

TEST_CASE("Bodies of all requests together are bounded: 503 with a time, and room again when they are done") {
  http::ServerOptions options = TestServer::Quick();
  options.limits.max_body_bytes = 400000;
  options.limits.max_total_body_bytes = 1000000;
  options.limits.body_timeout = 10s;
  TestServer server(options);
  const std::string body(400000, 'x');
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(std::make_unique<RawClient>(server.port()));
    held.back()->Send(Post("/hold", body));
  }
  REQUIRE(Eventually([&] { return server.held() == 2; }));
  SECTION("by Content-Length, nothing read") {
    RawClient client(server.port());
    client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 200001\r\n\r\n");
    const RawResponse r = client.Read();
    CHECK(r.status == 503);
    CHECK(r.headers.at("retry-after") == "1");
    CHECK(r.body.find("server_overloaded") != std::string::npos);
    CHECK(client.WaitEnd());
  }
  SECTION("chunked, when they do not fit any more") {
    RawClient client(server.port());
    client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n30d41\r\n" + std::string(0x30d41, 'x') + "\r\n");
    CHECK(client.Read().status == 503);
  }
  SECTION("a small one fits, one without a body always") {
    CHECK(Once(server.port(), Post("/info", std::string(1000, 'x'))).status == 200);
    CHECK(Once(server.port(), Get("/ok")).body == "fine");
  }
  SECTION("a slow sender holds what it sent, not what it announced") {
    RawClient slow(server.port());
    slow.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\nxxx");
    CHECK(Once(server.port(), Post("/info", std::string(199000, 'x'))).status == 200);
  }
  held.clear();  // the clients leave; their requests are let go of
  server.Release();
  CHECK(Eventually([&] { return Once(server.port(), Post("/info", body)).status == 200; }));
}

TEST_CASE("B142 heads over the limits are refused with 431") {
  TestServer server;
  const size_t before = ResidentBytes();
  std::string many = "GET /ok HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 40; ++i) many += "A: b\r\n";
  const struct { const char* name; std::string bytes; } rows[] = {
      {"one long header", "GET /ok HTTP/1.1\r\nHost: a\r\nA: " + std::string(20000, 'x') + "\r\n\r\n"},
      {"a long request line", "GET /" + std::string(1 << 20, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n"},
      {"a header without end", "GET /ok HTTP/1.1\r\nHost: a\r\nA: " + std::string(4 << 20, 'x')},
      {"a method without end", std::string(100000, 'G')},
      {"too many headers", many + "\r\n"},
  };
  for (const auto& row : rows) {
    INFO(row.name);
    RawClient client(server.port());
    client.Send(row.bytes);
    CHECK(client.Read().status == 431);
    CHECK(client.WaitEnd());
    CHECK(Once(server.port(), Get("/ok")).body == "fine");
  }
  CHECK(Once(server.port(), many.substr(0, many.size() - 6) + "\r\n").body == "fine");  // exactly 40
  CHECK(ResidentBytes() < before + (50u << 20));
}

TEST_CASE("A-69 slow heads and bodies end with 408, silence with a close") {
  TestServer server;
  SECTION("a head that trickles") {
    RawClient client(server.port());
    const std::string bytes = "GET /ok HTTP/1.1\r\nHost: a\r\nX: ";
    client.Send(bytes);
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(20ms);
      client.Send("x");  // bytes do not buy time
    }
    CHECK(client.Read().status == 408);
    CHECK(client.WaitEnd());
  }
  SECTION("a body that trickles") {
    RawClient client(server.port());
    client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    for (int i = 0; i < 25; ++i) {
      std::this_thread::sleep_for(20ms);
      client.Send("x");
    }
    CHECK(client.Read().status == 408);
  }
  SECTION("a body that stops, after a first request") {
    RawClient client(server.port());
    client.Send(Get("/ok") + "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab");
    CHECK(client.Read().body == "fine");
    CHECK(client.Read().status == 408);
  }
  SECTION("an idle connection is closed without a word") {
    http::ServerOptions options = TestServer::Quick();
    options.limits.keep_alive_timeout = 150ms;
    TestServer quick(options);
    RawClient fresh(quick.port()), used(quick.port());
    used.Send(Get("/ok"));
    CHECK(used.Read().body == "fine");
    CHECK(fresh.ReadRaw(1, 1000ms) == "");
    CHECK(fresh.WaitEnd());
    CHECK(used.WaitEnd());
  }
  SECTION("a long answer is not an idle connection") {
    http::ServerOptions options = TestServer::Quick();
    options.limits.keep_alive_timeout = 100ms;
    options.limits.header_timeout = 100ms;
    TestServer quick(options);
    CHECK(Once(quick.port(), Get("/late")).body == "late");
  }
}

TEST_CASE("A-71 B149 a reader that does not read is cut off with bounded buffers, others are served") {
  TestServer server;
  SECTION("streams") {
    std::vector<std::unique_ptr<RawClient>> lazy;
    for (int i = 0; i < 8; ++i) {
      lazy.push_back(std::make_unique<RawClient>(server.port(), 4096));
      lazy.back()->Send(Get("/flood"));
    }
    REQUIRE(Eventually([&] { return server.closed() == 8; }, 4000));
    CHECK(server.most_buffered() <= (1u << 20) + 20000);
    CHECK(Once(server.port(), Get("/ok")).body == "fine");
    CHECK(Eventually([&] { return server.connections() <= 1; }));
  }
  SECTION("a big answer of Send: after write_timeout without progress") {
    RawClient lazy(server.port(), 4096);
    lazy.Send(Get("/big"));
    CHECK(Once(server.port(), Get("/ok")).body == "fine");
    CHECK(Eventually([&] { return server.connections() <= 1; }, 4000));
    CHECK(Eventually([&] { return server.connections() == 0; }, 4000));
  }
  SECTION("a reader that keeps up gets everything") {
    RawClient client(server.port());
    client.Send(Get("/big"));
    const RawResponse r = client.Read();
    CHECK(r.complete);
    CHECK(r.body.size() == (32u << 20));
  }
}

TEST_CASE("A-71 connections over the limit: the idle make room, the rest hear 503") {
  http::ServerOptions options = TestServer::Quick();
  options.limits.max_connections = 4;
  TestServer server(options);
  std::vector<std::unique_ptr<RawClient>> busy;
  const auto add = [&] {
    busy.push_back(std::make_unique<RawClient>(server.port()));
    busy.back()->Send(Get("/hold"));
  };
  RawClient idle(server.port());
  idle.Send(Get("/ok"));
  REQUIRE(idle.Read().body == "fine");
  for (int i = 0; i < 4; ++i) add();
  REQUIRE(Eventually([&] { return server.held() == 4; }));   // the fourth took the idle one's place
  CHECK(idle.WaitEnd());
  const RawResponse refused = Once(server.port(), Get("/ok"));
  CHECK(refused.status == 503);
  CHECK(refused.headers.at("retry-after") == "1");
  CHECK(refused.body.find("unavailable_error") != std::string::npos);
  std::vector<std::unique_ptr<RawClient>> crowd;             // far over the limit, silent
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<RawClient>(server.port()));
  server.Release();
  for (auto& b : busy) CHECK(b->Read().body == "released");
  crowd.clear();
  busy.clear();
  CHECK(Eventually([&] { return Once(server.port(), Get("/ok")).status == 200; }));
}

TEST_CASE("A-71 out of descriptors: those connected are served, accepting resumes") {
  TestServer server;
  RawClient connected(server.port());
  connected.Send(Get("/ok"));
  REQUIRE(connected.Read().body == "fine");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 128;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::vector<UniqueFd> hoard;
  for (;;) {
    UniqueFd fd(fcntl(connected.fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd) break;
    hoard.push_back(std::move(fd));
  }
  REQUIRE(hoard.size() > 3);
  hoard.pop_back();
  RawClient waiting(server.port());  // uses the last one: the kernel connects, the server cannot accept
  waiting.Send(Get("/ok"));
  CHECK(waiting.Read(250ms).status == 0);
  connected.Send(Get("/ok"));
  CHECK(connected.Read().body == "fine");
  rusage start{}, end{};
  getrusage(RUSAGE_SELF, &start);
  std::this_thread::sleep_for(400ms);
  getrusage(RUSAGE_SELF, &end);
  const auto used = [](const rusage& u) { return u.ru_utime.tv_sec * 1'000'000 + u.ru_utime.tv_usec + u.ru_stime.tv_sec * 1'000'000 + u.ru_stime.tv_usec; };
  CHECK(used(end) - used(start) < 200'000);  // no busy loop while it waits: half of the time at the very most
  hoard.clear();
  CHECK(waiting.Read().body == "fine");
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("A-71 five hundred idle connections") {
  TestServer server;
  std::vector<std::unique_ptr<RawClient>> idle;
  const size_t before = ResidentBytes();
  for (int i = 0; i < 500; ++i) {
    idle.push_back(std::make_unique<RawClient>(server.port()));
    if (i % 2) idle.back()->Send("GET /ok HTTP/1.1\r\n");
  }
  CHECK(Eventually([&] { return server.connections() == 500; }));
  CHECK(Once(server.port(), Get("/ok")).body == "fine");
  CHECK(ResidentBytes() < before + (30u << 20));
  idle.clear();
  CHECK(Eventually([&] { return server.connections() == 0; }));
}

}  // namespace
}  // namespace holdfast::http_test
