#include "tests/unit/http/fixture.h"

#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <vector>

namespace holdfast::http_test {

namespace asio = boost::asio;
using namespace std::chrono_literals;

struct TestServer::Loop {
  asio::io_context io;
  std::unique_ptr<http::Server> server;
  std::vector<std::shared_ptr<http::Exchange>> held;
  std::thread thread;
};

http::ServerOptions TestServer::Quick() {
  http::ServerOptions o;
  o.port = 0;
  o.limits.max_body_bytes = 1 << 20;
  o.limits.max_header_bytes = 8 << 10;
  o.limits.max_headers = 40;
  o.limits.header_timeout = 300ms;
  o.limits.body_timeout = 400ms;
  o.limits.keep_alive_timeout = 2s;
  o.limits.write_timeout = 700ms;
  return o;
}

TestServer::TestServer(http::ServerOptions options) : loop_(std::make_unique<Loop>()) {
  auto gate = [](const http::Request& r) -> std::unique_ptr<http::Response> {
    if (!r.path.starts_with("/gate/")) return nullptr;
    auto answer = std::make_unique<http::Response>();
    answer->status = std::stoi(r.path.substr(6));
    answer->body = "{\"gate\":true}";
    return answer;
  };
  auto server = http::Server::Listen(loop_->io, options, gate, [this](std::shared_ptr<http::Exchange> e) { Handle(std::move(e)); });
  INFO(server.status().ToString());
  REQUIRE(server.ok());
  loop_->server = *std::move(server);
  port_ = loop_->server->port();
  address_ = loop_->server->address();
  loop_->thread = std::thread([this] {
    auto work = asio::make_work_guard(loop_->io);
    loop_->io.run();
  });
}

TestServer::~TestServer() {
  OnLoop([this] {
    loop_->server.reset();
    loop_->held.clear();
  });
  loop_->io.stop();
  loop_->thread.join();
}

void TestServer::OnLoop(std::function<void()> fn) {
  std::promise<void> done;
  asio::post(loop_->io, [&] {
    fn();
    done.set_value();
  });
  done.get_future().wait();
}

size_t TestServer::connections() {
  size_t n = 0;
  OnLoop([&] { n = loop_->server->connections(); });
  return n;
}

void TestServer::Release() {
  OnLoop([this] {
    for (const auto& e : loop_->held) e->Send({200, {}, "text/plain", "released"});
    loop_->held.clear();
    held_ = 0;
  });
}

void TestServer::Drain() {
  OnLoop([this] { loop_->server->Drain(); });
}

void TestServer::Flood(std::shared_ptr<http::Exchange> e, size_t left) {
  static const std::string block(16384, 'x');
  for (int i = 0; i < 8 && left > 0 && !e->closed(); ++i, left -= block.size()) {
    e->Write(block);
    flooded_ += block.size();
    most_buffered_ = std::max<size_t>(most_buffered_, e->buffered_bytes());
  }
  if (e->closed()) return;
  if (left == 0) return e->EndStream();
  auto timer = std::make_shared<asio::steady_timer>(loop_->io, 1ms);
  timer->async_wait([this, timer, e, left](const boost::system::error_code&) { Flood(e, left); });
}

void TestServer::Handle(std::shared_ptr<http::Exchange> e) {
  ++handled_;
  const http::Request& r = e->request();
  e->OnClosed([this] { ++closed_; });
  const auto text = [](std::string body) { return http::Response{200, {{"x-test", "a\r\nb: c"}}, "text/plain", std::move(body)}; };
  if (r.path == "/ok") return e->Send(text("fine"));
  if (r.path == "/echo") return e->Send(text(r.body));
  if (r.path == "/info") return e->Send(text(fmt::format("{} {} {} {}", r.method, r.path, r.query, r.body.size())));
  if (r.path == "/big") return e->Send(text(std::string(32 << 20, 'b')));
  if (r.path == "/drop") return;
  if (r.path == "/hold") {
    loop_->held.push_back(e);
    ++held_;
    return;
  }
  if (r.path == "/late") {
    auto timer = std::make_shared<asio::steady_timer>(loop_->io, 300ms);
    timer->async_wait([timer, e, text](const boost::system::error_code&) { e->Send(text("late")); });
    return;
  }
  if (r.path == "/stream" || r.path == "/abort") {
    e->StartStream(200, {{"cache-control", "no-cache"}}, "text/event-stream");
    for (int i = 0; i < (r.path == "/abort" ? 1 : 5); ++i) e->Write(fmt::format("part{};", i));
    return r.path == "/abort" ? e->Abort() : e->EndStream();
  }
  if (r.path == "/flood") {
    e->StartStream(200, {}, "text/event-stream");
    return Flood(e, 64u << 20);
  }
  e->Send({404, {}, "application/json", "{}"});
}

bool Eventually(const std::function<bool()>& holds, int at_most_ms) {
  for (int i = 0; i < at_most_ms / 5; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return holds();
}

}  // namespace holdfast::http_test
