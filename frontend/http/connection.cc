#include "frontend/http/internal/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "proto/base/log.h"

namespace holdfast::http {

Connection::Connection(std::shared_ptr<ServerCore> core, std::unique_ptr<Transport> transport, std::string peer, bool is_unix, bool refuse)
    : core_(std::move(core)),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      is_unix_(is_unix),
      refuse_(refuse),
      state_since_(std::chrono::steady_clock::now()),
      timer_(core_->loop) {
  core_->connections.insert(this);
}

Connection::~Connection() { core_->connections.erase(this); }

void Connection::Start() {
  auto self = shared_from_this();
  transport_->WaitError([self](IoResult) { self->OnSocketError(); });
  if (!transport_->needs_handshake()) {
    Enter(State::kHead);
    Advance();
    return;
  }
  UpdateDeadline();
  transport_->Handshake([self](IoResult result) {
    if (self->state_ != State::kHandshake) return;
    if (result.failed || result.eof) {
      LogDebug({{"peer", self->peer_}}, "TLS handshake failed");
      self->Close(false);
      return;
    }
    self->Enter(State::kHead);
    self->Advance();
  });
}

bool Connection::idle() const { return state_ == State::kHead && begin_ == end_; }

void Connection::CloseIdle() {
  StartLinger();
  Advance();
}

void Connection::Enter(State state) {
  state_ = state;
  state_since_ = std::chrono::steady_clock::now();
  if (state == State::kHead) {
    scanner_.emplace(core_->limits.max_header_bytes);
    parser_.reset();
  }
}

void Connection::Advance() {
  if (advancing_) return;  // a handler answered from inside; the loop below goes on
  const auto self = shared_from_this();
  advancing_ = true;
  bool progress = true;
  while (progress) {
    switch (state_) {
      case State::kHead: progress = StepHead(); break;
      case State::kBody: progress = StepBody(); break;
      case State::kFlush: progress = StepFlush(); break;
      case State::kLinger:
        if (peer_finished_) Close(false);
        progress = false;
        break;
      default: progress = false;
    }
  }
  advancing_ = false;
  if (state_ == State::kClosed) return;
  StartWrite();
  StartRead();
  UpdateDeadline();
}

bool Connection::StepHead() {
  // RFC 9112 2.2: empty lines before a request line are skipped.
  if (scanner_->head_bytes() == 0) {
    while (end_ - begin_ >= 2 && buffer_[begin_] == '\r' && buffer_[begin_ + 1] == '\n') begin_ += 2;
  }
  if (begin_ == end_) {
    if (peer_finished_) StartLinger();
    return peer_finished_;
  }
  switch (scanner_->Feed(input())) {
    case HeadScanner::Result::kComplete: HeadComplete(); return true;
    case HeadScanner::Result::kBad: Refuse({400, scanner_->problem(), ""}); return true;
    case HeadScanner::Result::kTooLarge:
      Refuse({431, fmt::format("the request head is larger than {} bytes", core_->limits.max_header_bytes), ""});
      return true;
    case HeadScanner::Result::kNotHttp:
      LogDebug({{"peer", peer_}}, "not HTTP/1: closed");
      StartLinger();
      return true;
    case HeadScanner::Result::kNeedMore: break;
  }
  if (peer_finished_) {
    Refuse({400, "the connection ended inside a request head", ""});
    return true;
  }
  return false;
}

void Connection::HeadComplete() {
  parser_.emplace(core_->limits);
  const HttpProblem problem = parser_->PutHead(input().substr(0, scanner_->head_bytes()));
  begin_ += scanner_->head_bytes();
  Request& request = parser_->request();
  request.peer = peer_;
  facts_ = parser_->facts();
  method_ = request.method;
  path_ = request.path;
  request_id_ = request.request_id;
  head_only_ = method_ == "HEAD";
  keep_alive_ = facts_.keep_alive;
  if (problem) return Refuse(problem);
  if (refuse_) {
    return Refuse({503, fmt::format("the server has all of its {} connections in use; try again", core_->limits.max_connections), ""});
  }
  if (core_->gate) {
    if (const std::unique_ptr<Response> answer = core_->gate(request)) {
      if (facts_.has_body()) keep_alive_ = false;  // the body stays unread
      QueueResponse(*answer, head_only_);
      return AnswerQueued();
    }
  }
  if (!facts_.has_body()) return Dispatch();
  StartBody();
}

void Connection::StartBody() {
  const Request& request = parser_->request();
  const std::string_view encoding = request.HeaderValue("content-encoding");
  if (!encoding.empty() && !EqualsIgnoreCase(encoding, "identity")) {
    return Refuse({415, fmt::format("Content-Encoding '{}' is not supported: send the body uncompressed", encoding), ""});
  }
  if (facts_.content_length && *facts_.content_length > core_->limits.max_body_bytes) {
    return Refuse({413, fmt::format("the request body has {} bytes, the limit is {}", *facts_.content_length, core_->limits.max_body_bytes),
                   "content_too_large"});
  }
  charge_ = BodyCharge(core_);
  if (!charge_.Fits(facts_.content_length.value_or(0))) return RefuseForMemory();
  if (facts_.expect_continue && begin_ == end_) output_ += "HTTP/1.1 100 Continue\r\n\r\n";
  Enter(State::kBody);
  last_read_ = state_since_;
}

bool Connection::StepBody() {
  if (begin_ < end_) {
    size_t taken = 0;
    const HttpProblem problem = parser_->PutBody(input(), &taken);
    begin_ += taken;
    if (problem) {
      Refuse(problem);
      return true;
    }
    charge_.Set(parser_->request().body.size());
    if (!charge_.Fits(0)) {
      RefuseForMemory();
      return true;
    }
    if (parser_->done()) {
      Dispatch();
      return true;
    }
    if (taken > 0 && begin_ < end_) return true;
    if (end_ - begin_ >= kMaxChunkLine) {
      Refuse({400, fmt::format("a chunk-size line or the trailers are longer than {} bytes", kMaxChunkLine), ""});
      return true;
    }
  }
  if (peer_finished_) {
    Refuse({400, "the connection ended inside the request body", ""});
    return true;
  }
  return false;
}

void Connection::Dispatch() {
  Enter(State::kExchange);
  answer_started_ = false;
  status_ = 0;
  next_probe_ = state_since_ + std::chrono::milliseconds(100);
  auto exchange = std::make_shared<ExchangeImpl>(shared_from_this(), std::move(parser_->request()), std::move(charge_));
  exchange_ = exchange;
  if (core_->closed) return exchange->Abort();
  core_->handler(std::move(exchange));
}

void Connection::RefuseForMemory() {
  std::string().swap(parser_->request().body);
  charge_.Set(0);
  Refuse({503, fmt::format("the bodies of the requests being served fill the {} bytes this server keeps for them; try again", core_->limits.max_total_body_bytes),
          "server_overloaded"});
}

void Connection::Refuse(const HttpProblem& problem) {
  if (request_id_.empty() || !parser_) request_id_ = UsableRequestId({});
  LogDebug({{"request", request_id_}, {"peer", peer_}}, "refused with {}: {}", problem.status, problem.message);
  keep_alive_ = false;
  QueueResponse(ProblemResponse(problem), parser_ && head_only_);
  AnswerQueued();
}

Persistence Connection::persistence() const {
  if (!keep_alive_ || core_->draining) return Persistence::kClose;
  return facts_.http11 ? Persistence::kKeepAlive : Persistence::kKeepAlive10;
}

void Connection::QueueResponse(const Response& response, bool head_only) {
  ResponseHead head;
  head.status = status_ = response.status;
  head.content_type = response.content_type;
  head.framing = StatusHasNoBody(response.status) ? BodyFraming::kNone : BodyFraming::kLength;
  head.content_length = response.body.size();
  head.persistence = persistence();
  head.request_id = request_id_;
  if (head.persistence == Persistence::kClose) keep_alive_ = false;
  AppendResponseHead(head, response.headers, &output_);
  body_bytes_ = head_only || head.framing == BodyFraming::kNone ? 0 : response.body.size();
  if (body_bytes_ > 0) output_ += response.body;
  answer_started_ = true;
}

void Connection::AnswerQueued() {
  LogAnswer();
  exchange_.reset();
  Enter(State::kFlush);
  Advance();
}

void Connection::LogAnswer() {
  if (GetLogLevel() > LogLevel::kDebug) return;
  const auto ms = ToMillis(std::chrono::steady_clock::now() - state_since_);
  LogDebug({{"request", request_id_}, {"peer", peer_}, {"status", status_}, {"bytes", static_cast<uint64_t>(body_bytes_)}, {"ms", ms}},
           "{} {}", method_, path_);
}

bool Connection::StepFlush() {
  StartWrite();
  if (writing_ || !output_.empty()) return false;
  if (!keep_alive_ || core_->draining) {
    StartLinger();
    return true;
  }
  Enter(State::kHead);
  request_id_.clear();
  method_.clear();
  path_.clear();
  return true;
}

// ---- the answer -------------------------------------------------------------------------------------------------------

void Connection::Send(Response response) {
  if (state_ != State::kExchange) return;
  QueueResponse(response, head_only_);
  AnswerQueued();
}

void Connection::StartStream(int status, const std::vector<Header>& headers, std::string_view content_type) {
  if (state_ != State::kExchange) return;
  chunked_ = facts_.http11;
  if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
  ResponseHead head;
  head.status = status_ = status;
  head.content_type = content_type;
  head.framing = chunked_ ? BodyFraming::kChunked : BodyFraming::kUntilClose;
  head.persistence = persistence();
  head.request_id = request_id_;
  if (head.persistence == Persistence::kClose) keep_alive_ = false;
  AppendResponseHead(head, headers, &output_);
  body_bytes_ = 0;
  answer_started_ = true;
  Advance();
}

void Connection::WriteChunk(std::string_view bytes) {
  if (state_ != State::kExchange || head_only_ || bytes.empty()) return;  // an empty chunk would end the body
  body_bytes_ += bytes.size();
  if (chunked_) fmt::format_to(std::back_inserter(output_), "{:x}\r\n", bytes.size());
  output_.append(bytes);
  if (chunked_) output_ += "\r\n";
  StartWrite();
  // One piece may be larger than the bound; what counts is what the reader had left over before it.
  if (buffered_bytes() - bytes.size() > core_->limits.max_stream_buffer_bytes) {
    LogDebug({{"request", request_id_}, {"peer", peer_}}, "the client reads too slowly: {} bytes wait, cut off", buffered_bytes());
    PeerGone();
    return;
  }
  UpdateDeadline();
}

void Connection::EndStream() {
  if (state_ != State::kExchange) return;
  if (chunked_ && !head_only_) output_ += "0\r\n\r\n";
  AnswerQueued();
}

void Connection::AbortExchange() {
  if (state_ != State::kExchange) return;
  // What was written still goes out, then the connection ends without the terminator.
  keep_alive_ = false;
  AnswerQueued();
}

void Connection::Abandoned() {
  if (state_ != State::kExchange) return;
  LogError({{"request", request_id_}}, "{} {}: the handler let go of the request without an answer", method_, path_);
  if (answer_started_) return AbortExchange();
  QueueResponse(ProblemResponse({500, "the server lost this request", ""}), head_only_);
  AnswerQueued();
}

}  // namespace holdfast::http
