#pragma once
// One client connection: reads requests, runs one exchange at a time, writes answers. A state machine over three independent operations
// (one read, one write, one timer); nothing here blocks and everything runs on the loop thread.
//
//   Handshake -> Head -> Body -> Exchange -> Flush -> Head ...        Flush -> Linger -> Closed when the connection ends
//
// Memory is bounded: a head by max_header_bytes, a body by max_body_bytes, all of them by
// max_total_body_bytes, read-ahead during an exchange by kReadAhead, output by
// max_stream_buffer_bytes. Linger: after the last answer the sending side closes and input is thrown away for a moment, because a close with
// unread input would send RST and destroy the answer on its way (RFC 9112 9.6).
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "frontend/http/head_scanner.h"
#include "frontend/http/request_parser.h"
#include "frontend/http/response_text.h"
#include "frontend/http/server.h"
#include "frontend/http/transport.h"

namespace holdfast::http {

class Connection;
class ExchangeImpl;

using LoopTimer = boost::asio::basic_waitable_timer<std::chrono::steady_clock, boost::asio::wait_traits<std::chrono::steady_clock>,
                                                    boost::asio::io_context::executor_type>;

// What the connections of a server share. Outlives the Server while connections do.
struct ServerCore {
  ServerCore(boost::asio::io_context& l, ServerLimits li, HeaderGate g, Handler h)
      : loop(l), limits(li), gate(std::move(g)), handler(std::move(h)) {}

  boost::asio::io_context& loop;
  const ServerLimits limits;
  HeaderGate gate;
  Handler handler;
  std::unordered_set<Connection*> connections;
  size_t body_bytes = 0;                          // held by BodyCharges
  bool draining = false;
  bool closed = false;                            // the Server is gone: no handler is called any more
  std::function<void()> on_connection_closed;    // the acceptor may have room again
};

// The bytes of one body in the server's account, from their arrival until whoever answers lets go of the request.
class BodyCharge {
 public:
  BodyCharge() = default;
  explicit BodyCharge(std::shared_ptr<ServerCore> core) : core_(std::move(core)) {}
  BodyCharge(BodyCharge&& other) noexcept : core_(std::move(other.core_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyCharge& operator=(BodyCharge&& other) noexcept {
    std::swap(core_, other.core_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyCharge() { Set(0); }

  void Set(size_t bytes) {
    if (core_) core_->body_bytes += bytes - std::exchange(bytes_, bytes);
  }
  // Whether `more` bytes than are held now fit beside the others; a body that is alone always fits.
  bool Fits(size_t more) const {
    return core_->body_bytes == bytes_ || core_->body_bytes + more <= core_->limits.max_total_body_bytes;
  }

 private:
  std::shared_ptr<ServerCore> core_;
  size_t bytes_ = 0;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // refuse: over the connection limit; answers its first request with 503 and ends.
  Connection(std::shared_ptr<ServerCore> core, std::unique_ptr<Transport> transport, std::string peer, bool is_unix, bool refuse);
  ~Connection();

  void Start();
  bool idle() const;                 // between requests, nothing received
  Instant since() const { return state_since_; }
  void CloseIdle();                  // orderly; only when idle()
  void CloseNow();

  // ---- for ExchangeImpl ----
  void Send(Response response);
  void StartStream(int status, const std::vector<Header>& headers, std::string_view content_type);
  void WriteChunk(std::string_view bytes);
  void EndStream();
  void AbortExchange();
  void Abandoned();                  // the last owner let go without an answer
  size_t buffered_bytes() const { return output_.size() + in_flight_.size() - written_; }
  bool answer_started() const { return answer_started_; }

 private:
  enum class State : uint8_t { kHandshake, kHead, kBody, kExchange, kFlush, kLinger, kClosed };
  static constexpr size_t kReadAhead = 16u << 10;      // input kept while an exchange runs
  static constexpr size_t kBodyRead = 64u << 10;
  static constexpr size_t kMaxChunkLine = 16u << 10;   // chunk-size line with extensions; also the trailers

  // connection.cc: the protocol
  void Enter(State state);
  void Advance();                                      // does whatever input, output and state allow
  bool StepHead();
  bool StepBody();
  bool StepFlush();
  void HeadComplete();
  void StartBody();
  void Dispatch();
  void RefuseForMemory();
  void Refuse(const HttpProblem& problem);             // answers for the HTTP layer itself and ends the connection
  void QueueResponse(const Response& response, bool head_only);
  void AnswerQueued();
  void LogAnswer();
  Persistence persistence() const;

  // connection_io.cc: bytes and time
  void StartRead();
  void OnRead(IoResult result);
  void StartWrite();
  void OnWritten(IoResult result);
  void OnSocketError();
  void PeerGone();
  void SendProbe();
  void StartLinger();
  void Close(bool reset);
  void UpdateDeadline();
  void ArmTimer(Instant at);
  void OnTimer();
  std::string_view input() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::shared_ptr<ServerCore> core_;
  std::unique_ptr<Transport> transport_;
  const std::string peer_;
  const bool is_unix_;
  const bool refuse_;

  State state_ = State::kHandshake;
  Instant state_since_;
  bool advancing_ = false;

  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool reading_ = false;
  bool peer_finished_ = false;                         // it sent FIN
  Instant last_read_;

  std::optional<HeadScanner> scanner_;
  std::optional<RequestParser> parser_;
  BodyCharge charge_;                                  // of parser_'s body

  std::string output_;                                 // not yet given to the transport
  std::string in_flight_;                              // being written
  size_t written_ = 0;                                 // of in_flight_
  bool writing_ = false;
  Instant last_write_;

  // The exchange, or the answer being flushed.
  std::weak_ptr<ExchangeImpl> exchange_;
  HeadFacts facts_;
  std::string method_, path_, request_id_;
  bool head_only_ = false;
  bool keep_alive_ = true;
  bool answer_started_ = false;
  bool chunked_ = false;
  int status_ = 0;
  size_t body_bytes_ = 0;
  Instant next_probe_;                                 // for a peer that sent FIN, in state kExchange
  bool urgent_seen_ = false;                           // the error event is useless from now on: look now and then
  bool input_full_ = false;                            // no room to notice a FIN by reading: look now and then
  bool fin_polled_ = false;                            // a FIN was seen behind unread input

  LoopTimer timer_;
  bool timer_armed_ = false;
  Instant timer_at_;
  uint64_t timer_serial_ = 0;
};

class ExchangeImpl final : public Exchange, public std::enable_shared_from_this<ExchangeImpl> {
 public:
  ExchangeImpl(std::shared_ptr<Connection> connection, Request request, BodyCharge charge)
      : connection_(std::move(connection)), request_(std::move(request)), charge_(std::move(charge)) {}
  ~ExchangeImpl() override;

  const Request& request() const override { return request_; }
  void Send(Response response) override;
  void StartStream(int status, std::vector<Header> headers, std::string content_type) override;
  void Write(std::string_view bytes) override;
  void EndStream() override;
  void Abort() override;
  bool started() const override { return started_; }
  bool closed() const override { return closed_; }
  size_t buffered_bytes() const override;
  void OnClosed(std::function<void()> callback) override;

  // From the connection: closed from now on. Gives back the callback to run from the loop, not from inside a handler's call.
  std::function<void()> ClientGone();

 private:
  void Finish();

  std::shared_ptr<Connection> connection_;   // null once finished or closed
  Request request_;
  const BodyCharge charge_;
  std::function<void()> on_closed_;
  bool started_ = false;
  bool streaming_ = false;
  bool closed_ = false;
};

}  // namespace holdfast::http
