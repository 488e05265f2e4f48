#pragma once
// `holdfast chat`: a terminal chat that streams from a running server, and answers the demo's tools when the model calls them.
#include <optional>
#include <string>

namespace holdfast::cli {

struct ChatOptions {
  std::string base_url = "http://127.0.0.1:8080";
  std::string key;
  std::string system;
  int max_tokens = 1024;
  double temperature = -1;     // < 0: the server's default
  std::optional<bool> tools;   // unset: offered when the server says that the model takes tools
};

// Reads turns from stdin until Ctrl-D or /exit. 0, or 1 when the server can't be reached at the start or, for a script, the last question has no
// answer.
int Chat(const ChatOptions& options);

}  // namespace holdfast::cli
