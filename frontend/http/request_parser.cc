#include "frontend/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

namespace holdfast::http {

namespace beast = boost::beast;
using beast::error_code;

namespace {

// " HTTP/2.0": well-formed, only not spoken here. Anything else after the target is no version at all.
bool EndsInVersion(std::string_view line) {
  if (line.size() < 9) return false;
  const std::string_view v = line.substr(line.size() - 9);
  return v.starts_with(" HTTP/") && v[6] >= '0' && v[6] <= '9' && v[7] == '.' && v[8] >= '0' && v[8] <= '9';
}

}  // namespace

class RequestParser::Impl final : public beast::http::basic_parser<true> {
 public:
  explicit Impl(const ServerLimits& limits) : limits_(limits) {
    body_limit(boost::none);  // decided here, so that the header gate comes first
    header_limit(static_cast<uint32_t>(std::min<size_t>(limits.max_header_bytes + 16, UINT32_MAX)));
    eager(false);
  }

  HttpProblem Head(std::string_view head) {
    error_code ec;
    Feed(head, ec);
    if (too_many_headers_) return {431, fmt::format("more than {} headers", limits_.max_headers), ""};
    if (ec == beast::http::error::bad_version && EndsInVersion(head.substr(0, head.find('\r')))) return {505, "this server speaks HTTP/1.1 and HTTP/1.0", ""};
    if (ec) return {400, fmt::format("the request head is malformed: {}", ec.message()), ""};
    if (!is_header_done()) return {400, "the request head is malformed", ""};
    return AnalyseHead(target_, version_, &request_, &facts_);
  }

  HttpProblem Body(std::string_view bytes, size_t* taken) {
    *taken = 0;
    // The shortest chunked body is 5 bytes, and Beast 1.81 asserts (aborts) when it sees "0\r\n" and then fewer than 5 in all.
    if (facts_.chunked && !body_begun_ && bytes.size() < 5) return {};
    body_begun_ = true;
    eager(true);
    error_code ec;
    *taken = Feed(bytes, ec);
    if (too_large_) {
      return {413, fmt::format("the request body is larger than {} bytes", limits_.max_body_bytes), "content_too_large"};
    }
    if (ec && ec != beast::http::error::need_more) {
      return {400, fmt::format("the chunked request body is malformed: {}", ec.message()), ""};
    }
    return {};
  }

  const HeadFacts& facts() const { return facts_; }
  Request& request() { return request_; }

 private:
  size_t Feed(std::string_view bytes, error_code& ec) {
    size_t total = 0;
    while (!is_done()) {
      const size_t n = put(boost::asio::const_buffer(bytes.data() + total, bytes.size() - total), ec);
      total += n;
      if (ec || n == 0 || !eager() || total == bytes.size()) break;
    }
    return total;
  }

  void Append(std::string_view piece, error_code& ec) {
    if (request_.body.size() + piece.size() > limits_.max_body_bytes) {
      too_large_ = true;
      ec = beast::http::error::body_limit;
      return;
    }
    request_.body.append(piece);
  }

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target, int version, error_code&) override {
    request_.method.assign(method.data(), method.size());
    target_.assign(target.data(), target.size());
    version_ = version;
  }
  void on_response_impl(int, beast::string_view, int, error_code&) override {}
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value, error_code& ec) override {
    if (head_done_) return;  // trailers may not change what the head said
    if (request_.headers.size() >= limits_.max_headers) {
      too_many_headers_ = true;
      ec = beast::http::error::header_limit;
      return;
    }
    request_.headers.push_back({std::string(name.data(), name.size()), std::string(value.data(), value.size())});
  }
  void on_header_impl(error_code&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code&) override {
    // A claimed length is no reason to hand out memory: growth follows the bytes that came.
    if (length) request_.body.reserve(static_cast<size_t>(std::min<uint64_t>(*length, 64u << 10)));
  }
  size_t on_body_impl(beast::string_view body, error_code& ec) override {
    Append({body.data(), body.size()}, ec);
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t size, beast::string_view, error_code& ec) override {
    if (size > limits_.max_body_bytes - std::min(limits_.max_body_bytes, request_.body.size())) {
      too_large_ = true;
      ec = beast::http::error::body_limit;
    }
  }
  size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, error_code& ec) override {
    Append({body.data(), body.size()}, ec);
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  const ServerLimits& limits_;
  Request request_;
  HeadFacts facts_;
  std::string target_;
  int version_ = 11;
  bool head_done_ = false;
  bool body_begun_ = false;
  bool too_many_headers_ = false;
  bool too_large_ = false;
};

RequestParser::RequestParser(const ServerLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

HttpProblem RequestParser::PutHead(std::string_view head) {
  HttpProblem problem = impl_->Head(head);
  if (impl_->request().request_id.empty()) impl_->request().request_id = UsableRequestId(impl_->request().HeaderValue("x-request-id"));
  return problem;
}

HttpProblem RequestParser::PutBody(std::string_view bytes, size_t* taken) { return impl_->Body(bytes, taken); }
bool RequestParser::done() const { return impl_->is_done(); }
const HeadFacts& RequestParser::facts() const { return impl_->facts(); }
Request& RequestParser::request() { return impl_->request(); }

}  // namespace holdfast::http
