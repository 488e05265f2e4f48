// Where a server can listen, and what it says when it cannot.
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/http/fixture.h"
#include "tests/unit/http/raw_client.h"

namespace holdfast::http_test {
namespace {

using namespace std::chrono_literals;

struct TempDir {
  std::string path;
  TempDir() {
    char name[] = "/tmp/holdfast-http-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
};

absl::Status TryListen(http::ServerOptions options) {
  boost::asio::io_context loop;
  return http::Server::Listen(loop, options, nullptr, [](std::shared_ptr<http::Exchange>) {}).status();
}

http::ServerOptions At(const std::string& host, uint16_t port = 0) {
  http::ServerOptions o = TestServer::Quick();
  o.host = host;
  o.port = port;
  return o;
}

TEST_CASE("A-78 port 0 gives a real port, IPv4, names and IPv6 work") {
  TestServer v4;
  CHECK(v4.port() > 0);
  CHECK(v4.address() == "http://127.0.0.1:" + std::to_string(v4.port()));
  CHECK(Once(v4.port(), Get("/ok")).body == "fine");
  TestServer named(At("localhost"));
  CHECK(named.port() > 0);
  boost::asio::io_context loop;
  if (!http::Server::Listen(loop, At("::1"), nullptr, [](std::shared_ptr<http::Exchange>) {}).ok()) {
    WARN("no IPv6 loopback on this machine: the IPv6 half is skipped");
    return;
  }
  for (const char* host : {"::1", "[::1]", "::"}) {
    INFO(host);
    TestServer v6(At(host));
    CHECK(v6.address().starts_with("http://[::"));
    RawClient client = RawClient::V6(v6.port());
    client.Send(Get("/ok"));
    CHECK(client.Read().body == "fine");
    if (std::string(host) == "::") CHECK(Once(v6.port(), Get("/ok")).body == "fine");  // both families
  }
}

TEST_CASE("A-78 a port in use, a foreign address and nonsense are said plainly") {
  TestServer first;
  absl::Status s = TryListen(At("127.0.0.1", first.port()));
  CHECK(s.code() == absl::StatusCode::kUnavailable);
  CHECK(std::string(s.message()).find("127.0.0.1:" + std::to_string(first.port()) + ": Address already in use") != std::string::npos);
  CHECK(std::string(s.message()).find("0 = any free") != std::string::npos);
  CHECK(TryListen(At("203.0.113.1")).code() == absl::StatusCode::kUnavailable);
  CHECK(TryListen(At("no such host")).code() == absl::StatusCode::kUnavailable);
  CHECK(TryListen(At("unix:")).code() == absl::StatusCode::kUnavailable);
  CHECK(TryListen(At("unix:/" + std::string(200, 'x'))).code() == absl::StatusCode::kUnavailable);
  CHECK(TryListen(At("unix:/no/such/folder/s")).code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A port is free again at once after the server ended with open connections") {
  uint16_t port = 0;
  auto client = std::make_unique<RawClient>(UniqueFd());
  {
    TestServer server;
    port = server.port();
    client = std::make_unique<RawClient>(port);
    client->Send(Get("/ok"));
    CHECK(client->Read().body == "fine");
  }
  TestServer again(At("127.0.0.1", port));
  CHECK(Once(port, Get("/ok")).body == "fine");
}

TEST_CASE("A-78 unix socket: served, mode, stale file, live file, foreign file, removal") {
  TempDir dir;
  const std::string path = dir.path + "/s";
  const mode_t umask_before = ::umask(0077);  // as under systemd; a proxy of the group connects all the same
  {
    TestServer server(At("unix:" + path));
    ::umask(umask_before);
    CHECK(server.address() == "unix:" + path);
    CHECK(server.port() == 0);
    struct stat st {};
    REQUIRE(stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0660);
    RawClient client = RawClient::Unix(path);
    client.Send(Get("/ok") + Post("/echo", "u"));
    CHECK(client.Read().body == "fine");
    CHECK(client.Read().body == "u");
    const absl::Status taken = TryListen(At("unix:" + path));
    CHECK(taken.code() == absl::StatusCode::kUnavailable);
    RawClient gone = RawClient::Unix(path);
    gone.Send(Get("/hold"));
    REQUIRE(Eventually([&] { return server.held() == 1; }));
    gone.Close();
    CHECK(Eventually([&] { return server.closed() == 1; }));
    RawClient half = RawClient::Unix(path);
    half.Send(Get("/late"));
    half.FinishSending();
    CHECK(half.Read().body == "late");
  }
  CHECK(access(path.c_str(), F_OK) != 0);  // cleaned up
  {
    UniqueFd stale(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  { TestServer server(At("unix:" + path)); }
  std::ofstream(path) << "precious";
  CHECK(TryListen(At("unix:" + path)).code() == absl::StatusCode::kUnavailable);
  CHECK(std::filesystem::file_size(path) == 8);
}

TEST_CASE("Every descriptor of a server is close-on-exec") {
  TestServer server;
  RawClient client(server.port());
  client.Send(Get("/hold"));
  REQUIRE(Eventually([&] { return server.held() == 1; }));
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    struct stat st {};
    if (fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode)) continue;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 || address.ss_family != AF_INET) continue;
    ++sockets;
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(sockets >= 3);  // listener, accepted, client
}

// ---- TLS ----------------------------------------------------------------------------------------------------------------

void WriteSelfSigned(const std::string& cert, const std::string& key) {
  EVP_PKEY* pkey = EVP_EC_gen("P-256");
  X509* x = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
  X509_gmtime_adj(X509_getm_notBefore(x), -60);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, pkey);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(x));
  REQUIRE(X509_sign(x, pkey, EVP_sha256()) > 0);
  std::FILE* f = std::fopen(cert.c_str(), "w");
  PEM_write_X509(f, x);
  std::fclose(f);
  f = std::fopen(key.c_str(), "w");
  PEM_write_PrivateKey(f, pkey, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(f);
  X509_free(x);
  EVP_PKEY_free(pkey);
}

class TlsClient {
 public:
  explicit TlsClient(uint16_t port) : raw_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    SSL_set_fd(ssl_, raw_.fd());
    static constexpr unsigned char kAlpn[] = "\x02h2\x08http/1.1";
    SSL_set_alpn_protos(ssl_, kAlpn, sizeof kAlpn - 1);
    REQUIRE(SSL_connect(ssl_) == 1);
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  void Send(const std::string& s) { REQUIRE(SSL_write(ssl_, s.data(), static_cast<int>(s.size())) == static_cast<int>(s.size())); }
  std::string ReadUntil(const std::string& mark) {
    std::string out;
    char chunk[16384];
    while (out.find(mark) == std::string::npos) {
      const int n = SSL_read(ssl_, chunk, sizeof chunk);
      if (n <= 0) break;
      out.append(chunk, static_cast<size_t>(n));
    }
    return out;
  }
  bool EndedCleanly() {
    char c;
    const int n = SSL_read(ssl_, &c, 1);
    return n <= 0 && SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN;
  }
  std::string Alpn() {
    const unsigned char* p = nullptr;
    unsigned n = 0;
    SSL_get0_alpn_selected(ssl_, &p, &n);
    return std::string(reinterpret_cast<const char*>(p), n);
  }
  RawClient& raw() { return raw_; }

 private:
  RawClient raw_;
  SSL_CTX* context_;
  SSL* ssl_;
};

TEST_CASE("TLS by flag: requests, streams, keep-alive, orderly end, peers that speak plain HTTP or go away") {
  TempDir dir;
  http::ServerOptions options = TestServer::Quick();
  options.tls_certificate_file = dir.path + "/cert.pem";
  options.tls_key_file = dir.path + "/key.pem";
  WriteSelfSigned(options.tls_certificate_file, options.tls_key_file);
  TestServer server(options);
  CHECK(server.address().starts_with("https://127.0.0.1:"));
  {
    TlsClient client(server.port());
    CHECK(client.Alpn() == "http/1.1");
    for (int i = 0; i < 3; ++i) {
      client.Send(Post("/echo", "over TLS"));
      CHECK(client.ReadUntil("over TLS").find("200 OK") != std::string::npos);
      client.Send(Get("/stream"));
      CHECK(client.ReadUntil("0\r\n\r\n").find("part4;") != std::string::npos);
    }
    client.Send(Post("/info", std::string(1 << 20, 'x')));
    CHECK(client.ReadUntil("1048576").find("200 OK") != std::string::npos);
    client.Send("GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    CHECK(client.ReadUntil("fine").find("connection: close") != std::string::npos);
    CHECK(client.EndedCleanly());
  }
  {
    TlsClient client(server.port());
    client.Send(Get("/hold"));
    REQUIRE(Eventually([&] { return server.held() == 1; }));
    client.raw().Reset();
    CHECK(Eventually([&] { return server.closed() == 1; }));
  }
  {
    TlsClient client(server.port());
    client.Send(Get("/hold"));
    REQUIRE(Eventually([&] { return server.held() == 2; }));
    client.raw().Close();
    CHECK(Eventually([&] { return server.closed() == 2; }));
  }
  RawClient plain(server.port());
  plain.Send(Get("/ok"));
  CHECK(plain.WaitEnd());
  RawClient silent(server.port());
  CHECK(silent.WaitEnd(1500ms));  // the handshake has a time-out too
  CHECK(Eventually([&] { return server.connections() == 0; }));
}

TEST_CASE("TLS files that are missing, wrong or of two pairs are refused with their names") {
  TempDir dir;
  http::ServerOptions options = At("127.0.0.1");
  options.tls_certificate_file = dir.path + "/cert.pem";
  CHECK(TryListen(options).code() == absl::StatusCode::kInvalidArgument);
  options.tls_key_file = dir.path + "/key.pem";
  absl::Status s = TryListen(options);
  CHECK(std::string(s.message()).find("cert.pem") != std::string::npos);
  WriteSelfSigned(options.tls_certificate_file, options.tls_key_file);
  CHECK(TryListen(options).ok());
  WriteSelfSigned(dir.path + "/other.pem", options.tls_key_file);
  CHECK(std::string(TryListen(options).message()).find("key.pem") != std::string::npos);
}

}  // namespace
}  // namespace holdfast::http_test
