// Beast, compiled once for every user of holdfast_http (BOOST_BEAST_SEPARATE_COMPILATION).
#include <boost/beast/src.hpp>
