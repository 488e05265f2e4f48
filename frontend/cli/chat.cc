#include "frontend/cli/chat.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "frontend/cli/http_client.h"
#include "frontend/text/json_value.h"

namespace holdfast::cli {
namespace {

using text::JsonValue;

std::atomic<bool> interrupted{false};

// The text of one SSE data line's first choice, and what ended it.
struct Turn {
  std::string text;
  std::string finish;
  std::string error;
  bool thinking = false;   // a thought is being shown
};

class ChatSession {
 public:
  explicit ChatSession(const ChatOptions& options) : options_(options), tty_(::isatty(STDOUT_FILENO) != 0) {}

  int Run() {
    const auto url = ParseBaseUrl(options_.base_url);
    if (!url.ok()) return Fail(std::string(url.status().message()));
    url_ = *url;
    Reset();
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted.store(true); };
    ::sigaction(SIGINT, &action, nullptr);  // no SA_RESTART: a read at the prompt returns
    if (const int rc = WaitReady(); rc != 0) return rc;
    if (tty_) fmt::print("Chat with {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n", options_.base_url);
    std::string line;
    while (Prompt(&line)) {
      if (line.empty()) continue;
      if (line[0] == '/') {
        if (!Command(line)) break;
        continue;
      }
      if (!Ask(line)) return 1;
    }
    if (tty_) fmt::print("\n");
    // A person saw what went wrong; a script asks for the status.
    return failed_ && ::isatty(STDIN_FILENO) == 0 ? 1 : 0;
  }

 private:
  static int Fail(const std::string& why) {
    fmt::print(stderr, "holdfast chat: {}\n", why);
    return 1;
  }

  int WaitReady() {
    HttpCall call;
    call.path = "/health";
    call.timeout = std::chrono::seconds(5);
    bool told = false;
    for (;;) {
      const auto reply = Call(url_, call);
      if (!reply.ok()) return Fail(std::string(reply.status().message()) + "; is `holdfast serve` running?");
      if (reply->status == 200) return 0;
      if (!told) fmt::print(stderr, "the model is not ready yet, waiting (Ctrl-C gives up)\n");
      told = true;
      if (interrupted.load()) return 130;
      ::usleep(300'000);
    }
  }

  bool Prompt(std::string* line) {
    for (;;) {
      interrupted.store(false);
      if (tty_) {
        fmt::print("\n> ");
        std::fflush(stdout);
      }
      if (std::getline(std::cin, *line)) return true;
      if (!interrupted.load()) return false;
      std::cin.clear();  // Ctrl-C at the prompt: a fresh line
      std::clearerr(stdin);
    }
  }

  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) Append("system", options_.system);
  }

  void Append(const char* role, const std::string& content) {
    messages_.push_back(JsonValue(JsonValue::Object{{"role", role}, {"content", content}}));
  }

  bool Command(const std::string& line) {
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/reset") {
      Reset();
      fmt::print("a new conversation\n");
    } else if (line.rfind("/system ", 0) == 0) {
      options_.system = line.substr(8);
      Reset();
      fmt::print("a new conversation under that system prompt\n");
    } else {
      fmt::print("/reset        forget the conversation\n/system TEXT  start over under a system prompt\n/exit         leave\n");
    }
    return true;
  }

  // False when the server can't be reached any more.
  bool Ask(const std::string& text) {
    failed_ = true;  // until there is an answer
    Append("user", text);
    JsonValue::Object body{{"model", "default"}, {"messages", JsonValue(messages_)}, {"stream", true}, {"max_tokens", options_.max_tokens}};
    if (options_.temperature >= 0) body.emplace_back("temperature", options_.temperature);
    Turn turn;
    std::string buffered;
    HttpCall call;
    call.method = "POST";
    call.path = "/v1/chat/completions";
    call.body = JsonValue(std::move(body)).Dump();
    call.bearer = options_.key;
    call.timeout = std::chrono::seconds(600);
    call.cancel = &interrupted;
    call.on_body = [&](std::string_view bytes) {
      buffered.append(bytes);
      size_t end;
      while ((end = buffered.find('\n')) != std::string::npos) {
        TakeLine(std::string_view(buffered).substr(0, end), &turn);
        buffered.erase(0, end + 1);
      }
      return true;
    };
    const auto reply = Call(url_, call);
    if (!reply.ok() && absl::IsCancelled(reply.status())) {
      fmt::print("\n[stopped]\n");
    } else if (!reply.ok()) {
      messages_.pop_back();
      Fail(std::string(reply.status().message()));
      return absl::IsDeadlineExceeded(reply.status());
    } else if (reply->status != 200) {
      messages_.pop_back();
      const auto json = text::ParseJson(reply->body);
      const JsonValue* error = json.ok() ? json->Find("error") : nullptr;
      const JsonValue* message = error != nullptr ? error->Find("message") : nullptr;
      Fail(fmt::format("HTTP {}: {}", reply->status, message != nullptr && message->is_string() ? message->AsString() : reply->body));
      return true;
    }
    EndThought(&turn);
    failed_ = !turn.error.empty();
    if (failed_) Fail(turn.error);
    fmt::print("\n");
    if (turn.finish == "length") fmt::print("[cut at {} tokens]\n", options_.max_tokens);
    Append("assistant", turn.text);
    return true;
  }

  // A terminal obeys control characters, so a model's are not passed on: no ESC, no C1 (C2 80 to C2 9F), only line feed and tab.
  static std::string ForTerminal(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
      if (c1) ++i;
      if (c1 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
        out += "\xEF\xBF\xBD";
      } else {
        out += text[i];
      }
    }
    return out;
  }

  void TakeLine(std::string_view line, Turn* turn) const {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.substr(0, 6) != "data: " || line == "data: [DONE]") return;
    const auto event = text::ParseJson(line.substr(6));
    if (!event.ok()) return;
    if (const JsonValue* error = event->Find("error")) {
      const JsonValue* message = error->Find("message");
      turn->error = message != nullptr && message->is_string() ? message->AsString() : error->Dump();
      return;
    }
    const JsonValue* choices = event->Find("choices");
    if (choices == nullptr || !choices->is_array() || choices->AsArray().empty()) return;
    const JsonValue& choice = choices->AsArray()[0];
    if (const JsonValue* finish = choice.Find("finish_reason"); finish != nullptr && finish->is_string()) turn->finish = finish->AsString();
    const JsonValue* delta = choice.Find("delta");
    if (delta == nullptr) return;
    ShowThought(delta->Find("reasoning_content"), turn);
    ShowCalls(delta->Find("tool_calls"), turn);
    const JsonValue* content = delta->Find("content");
    if (content == nullptr || !content->is_string() || content->AsString().empty()) return;
    EndThought(turn);
    turn->text += content->AsString();
    fmt::print("{}", tty_ ? ForTerminal(content->AsString()) : content->AsString());
    std::fflush(stdout);
  }

  // Thoughts are dim on a terminal; whoever reads the output by program gets the answer alone.
  void ShowThought(const JsonValue* thought, Turn* turn) const {
    if (!tty_ || thought == nullptr || !thought->is_string()) return;
    fmt::print("{}{}", std::exchange(turn->thinking, true) ? "" : "\x1b[2m", ForTerminal(thought->AsString()));
    std::fflush(stdout);
  }

  void EndThought(Turn* turn) const {
    if (std::exchange(turn->thinking, false)) fmt::print("\x1b[0m\n");
  }

  void ShowCalls(const JsonValue* calls, Turn* turn) const {
    if (calls == nullptr || !calls->is_array()) return;
    EndThought(turn);
    for (const JsonValue& call : calls->AsArray()) {
      const JsonValue* function = call.Find("function");
      if (function == nullptr) continue;
      const JsonValue* name = function->Find("name");
      const JsonValue* arguments = function->Find("arguments");
      if (name != nullptr && name->is_string()) fmt::print("\n[calls {}] ", ForTerminal(name->AsString()));
      if (arguments != nullptr && arguments->is_string()) fmt::print("{}", tty_ ? ForTerminal(arguments->AsString()) : arguments->AsString());
    }
    std::fflush(stdout);
  }

  ChatOptions options_;
  const bool tty_;
  Url url_;
  JsonValue::Array messages_;
  bool failed_ = false;   // the last question has no answer
};

}  // namespace

int Chat(const ChatOptions& options) { return ChatSession(options).Run(); }

}  // namespace holdfast::cli
