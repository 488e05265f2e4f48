#pragma once
// Shared by the transports only (includes Asio).
#include <sys/socket.h>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <utility>

#include "frontend/http/transport.h"

namespace holdfast::http {

// TCP and unix sockets in one type; the concrete executor keeps any_io_executor's cost out.
using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;

inline Socket AdoptSocket(boost::asio::io_context& loop, UniqueFd fd, int family) {
  return Socket(loop, boost::asio::generic::stream_protocol(family, 0), fd.Release());
}

inline auto Translate(IoHandler done) {
  return [done = std::move(done)](const boost::system::error_code& ec, size_t bytes = 0) {
    done({bytes, ec == boost::asio::error::eof, ec && ec != boost::asio::error::eof});
  };
}

inline void CloseSocket(Socket& socket, bool reset) {
  boost::system::error_code ignored;
  if (!socket.is_open()) return;
  if (reset) {
    const linger hard{1, 0};
    setsockopt(socket.native_handle(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }
  socket.close(ignored);
}

inline void ShutdownSocketSend(Socket& socket) {
  if (socket.is_open()) ::shutdown(socket.native_handle(), SHUT_WR);
}

}  // namespace holdfast::http
