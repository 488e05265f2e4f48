#pragma once
// `holdfast chat`: a terminal chat that streams from a running server.
#include <string>

namespace holdfast::cli {

struct ChatOptions {
  std::string base_url = "http://127.0.0.1:8080";
  std::string key;
  std::string system;
  int max_tokens = 1024;
  double temperature = -1;   // < 0: the server's default
};

// Reads turns from stdin until Ctrl-D or /exit. 0, or 1 when the server can't be reached.
int Chat(const ChatOptions& options);

}  // namespace holdfast::cli
