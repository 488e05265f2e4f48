// Asio, compiled once for every user of holdfast_http (BOOST_ASIO_SEPARATE_COMPILATION).
#include <boost/asio/impl/src.hpp>
