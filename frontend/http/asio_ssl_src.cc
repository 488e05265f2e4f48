// Asio's TLS part, compiled once.
#include <boost/asio/ssl/impl/src.hpp>
