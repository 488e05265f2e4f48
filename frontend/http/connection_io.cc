#include <boost/asio/post.hpp>

#include <algorithm>

#include "frontend/http/internal/connection.h"
#include "proto/base/log.h"

namespace holdfast::http {
namespace {

using std::chrono::milliseconds;

constexpr Duration kBodyStall = std::chrono::seconds(10);
constexpr Duration kLingerTime = std::chrono::seconds(1);
constexpr Duration kProbeEvery = std::chrono::seconds(1);
constexpr Duration kPollEvery = milliseconds(200);
constexpr size_t kFirstRead = 4u << 10;

Instant Now() { return std::chrono::steady_clock::now(); }

}  // namespace

// ---- input ------------------------------------------------------------------------------------------------------------

void Connection::StartRead() {
  if (reading_ || peer_finished_) return;
  size_t wanted = 0;  // bytes of buffer to have in all
  switch (state_) {
    case State::kHead: wanted = std::max(kFirstRead, std::min((end_ - begin_) * 2, core_->limits.max_header_bytes + 1)); break;
    case State::kBody: wanted = kBodyRead; break;
    case State::kExchange:
    case State::kFlush: wanted = kReadAhead; break;
    case State::kLinger:
      begin_ = end_ = 0;
      wanted = kFirstRead;
      break;
    default: return;
  }
  input_full_ = end_ - begin_ >= wanted;
  if (input_full_) return;
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (buffer_.size() > kReadAhead && state_ == State::kHead) std::vector<char>().swap(buffer_);  // idle connections stay small
  }
  if (buffer_.size() < wanted) {
    std::vector<char> larger(wanted);
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_), buffer_.begin() + static_cast<ptrdiff_t>(end_), larger.begin());
    buffer_ = std::move(larger);
    end_ -= begin_;
    begin_ = 0;
  } else if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_), buffer_.begin() + static_cast<ptrdiff_t>(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  reading_ = true;
  const auto self = shared_from_this();
  transport_->ReadSome(buffer_.data() + end_, wanted - end_, [self](IoResult result) { self->OnRead(result); });
}

void Connection::OnRead(IoResult result) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (result.failed) return PeerGone();
  last_read_ = Now();
  if (state_ == State::kHead && begin_ == end_ && result.bytes > 0) state_since_ = last_read_;  // header_timeout runs from here
  end_ += result.bytes;
  if (result.eof) {
    peer_finished_ = true;
    next_probe_ = last_read_ + milliseconds(100);
  }
  Advance();
}

// ---- output -----------------------------------------------------------------------------------------------------------

void Connection::StartWrite() {
  if (writing_ || output_.empty() || state_ == State::kClosed) return;
  in_flight_.clear();
  in_flight_.swap(output_);
  written_ = 0;
  writing_ = true;
  last_write_ = Now();
  const auto self = shared_from_this();
  transport_->WriteSome(in_flight_, [self](IoResult result) { self->OnWritten(result); });
}

void Connection::OnWritten(IoResult result) {
  if (state_ == State::kClosed) return;
  if (result.failed || result.eof) {
    writing_ = false;
    return PeerGone();
  }
  last_write_ = Now();
  written_ += result.bytes;
  if (written_ < in_flight_.size()) {
    const auto self = shared_from_this();
    transport_->WriteSome(std::string_view(in_flight_).substr(written_), [self](IoResult r) { self->OnWritten(r); });
    UpdateDeadline();
    return;
  }
  writing_ = false;
  written_ = 0;
  in_flight_.clear();
  if (in_flight_.capacity() > kBodyRead) in_flight_.shrink_to_fit();
  StartWrite();
  if (state_ == State::kFlush) {
    Advance();
  } else {
    UpdateDeadline();
  }
}

// ---- the peer's fate --------------------------------------------------------------------------------------------------

void Connection::OnSocketError() {
  if (state_ == State::kClosed) return;
  if (PollPeer(transport_->fd()) == PeerState::kGone) return PeerGone();
  // Urgent data raises the same event and would raise it for ever: fall back to looking now and then.
  urgent_seen_ = true;
  UpdateDeadline();
}

void Connection::PeerGone() {
  if (state_ == State::kClosed) return;
  const std::shared_ptr<ExchangeImpl> exchange = state_ == State::kExchange ? exchange_.lock() : nullptr;
  const auto self = shared_from_this();
  exchange_.reset();
  Close(true);
  if (!exchange) return;
  // Posted: from inside a handler's own Write the callback could tear down what the handler is using.
  auto callback = exchange->ClientGone();
  if (callback) boost::asio::post(core_->loop, std::move(callback));
}

// A client that closed sends the same FIN as one that only finished sending. A byte on the wire tells them apart: a closed one answers
// with RST. Before the answer starts HTTP/1.1 allows interim responses, and every client skips 100.
void Connection::SendProbe() {
  if (answer_started_ || !facts_.http11 || is_unix_ || writing_) return;
  output_ += "HTTP/1.1 100 Continue\r\n\r\n";
  StartWrite();
}

void Connection::StartLinger() {
  if (state_ == State::kClosed || state_ == State::kLinger) return;
  Enter(State::kLinger);
  transport_->ShutdownSend();
}

void Connection::CloseNow() {
  if (state_ == State::kExchange) return PeerGone();
  Close(state_ != State::kLinger);
}

void Connection::Close(bool reset) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  transport_->Close(reset);
  ++timer_serial_;
  timer_.cancel();
  core_->connections.erase(this);
  if (core_->on_connection_closed) core_->on_connection_closed();
}

// ---- time -------------------------------------------------------------------------------------------------------------

void Connection::UpdateDeadline() {
  const ServerLimits& limits = core_->limits;
  Instant at = Instant::max();
  switch (state_) {
    case State::kHandshake: at = state_since_ + limits.header_timeout; break;
    case State::kHead: at = state_since_ + (begin_ == end_ ? limits.keep_alive_timeout : limits.header_timeout); break;
    case State::kBody: at = std::min(state_since_ + limits.body_timeout, last_read_ + kBodyStall); break;
    case State::kLinger: at = state_since_ + kLingerTime; break;
    case State::kExchange:
      if (urgent_seen_ || input_full_) at = Now() + kPollEvery;
      if ((peer_finished_ || fin_polled_ || input_full_) && !answer_started_) at = std::min(at, next_probe_);
      break;
    default: break;
  }
  if (writing_) at = std::min(at, last_write_ + limits.write_timeout);
  if (at != Instant::max()) ArmTimer(at);
}

// A deadline that moves back costs nothing: the timer fires early, looks, and sleeps on.
void Connection::ArmTimer(Instant at) {
  if (state_ == State::kClosed || (timer_armed_ && timer_at_ <= at)) return;
  timer_armed_ = true;
  timer_at_ = at;
  timer_.expires_at(at);
  const auto self = shared_from_this();
  timer_.async_wait([self, serial = ++timer_serial_](const boost::system::error_code&) {
    if (serial != self->timer_serial_) return;
    self->timer_armed_ = false;
    self->OnTimer();
  });
}

void Connection::OnTimer() {
  if (state_ == State::kClosed) return;
  const ServerLimits& limits = core_->limits;
  const Instant now = Now();
  if (writing_ && now >= last_write_ + limits.write_timeout) {
    LogDebug({{"request", request_id_}, {"peer", peer_}}, "the client took nothing for {} ms: cut off", ToMillis(limits.write_timeout));
    return PeerGone();
  }
  switch (state_) {
    case State::kHandshake:
      if (now >= state_since_ + limits.header_timeout) return Close(true);
      break;
    case State::kHead:
      if (begin_ == end_) {
        if (now >= state_since_ + limits.keep_alive_timeout) {
          StartLinger();
          return Advance();
        }
      } else if (now >= state_since_ + limits.header_timeout) {
        return Refuse({408, "the request head did not arrive in time", ""});
      }
      break;
    case State::kBody:
      if (now >= state_since_ + limits.body_timeout || now >= last_read_ + kBodyStall) {
        return Refuse({408, "the request body did not arrive in time", ""});
      }
      break;
    case State::kLinger:
      if (now >= state_since_ + kLingerTime) return Close(false);
      break;
    case State::kExchange:
      if (urgent_seen_ || input_full_) {
        const PeerState peer = PollPeer(transport_->fd());
        if (peer == PeerState::kGone) return PeerGone();
        fin_polled_ = peer == PeerState::kFinished;
      }
      // With full buffers the FIN itself is stuck behind the input that nobody takes.
      if ((peer_finished_ || fin_polled_ || input_full_) && now >= next_probe_) {
        SendProbe();
        next_probe_ = now + kProbeEvery;
      }
      break;
    default: break;
  }
  UpdateDeadline();
}

}  // namespace holdfast::http
