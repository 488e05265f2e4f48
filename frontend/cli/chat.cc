#include "frontend/cli/chat.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "frontend/cli/answer_stream.h"
#include "frontend/cli/http_client.h"
#include "frontend/console/assets.h"
#include "frontend/console/demo_tools.h"
#include "frontend/text/json_value.h"
#include "proto/base/check.h"

namespace holdfast::cli {
namespace {

using text::JsonValue;

std::atomic<bool> interrupted{false};

// How often a question's answer may be calls before the chat says that it is enough.
constexpr int kMostRounds = 8;

constexpr char kHelp[] =
    "/tools          the tools that are offered; /tools on, /tools off, /tools NAME turns one on or off\n"
    "/reset          forget the conversation\n"
    "/system TEXT    start over under a system prompt\n"
    "/exit           leave, as Ctrl-D does\n"
    "\"\"\"             begins a message of several lines, and ends it\n"
    "Ctrl-C stops an answer. Dim words are what the model thinks before it answers. Tools are answered by this program, with made-up results.\n";

// Begins and ends a message of several lines.
constexpr std::string_view kFence = "\"\"\"";

// "16 tokens in 0.04 s"; how many that is a second, where it is more than a moment.
std::string Pace(uint64_t tokens, double seconds) {
  std::string out = fmt::format("{} tokens in {:.{}f} s", tokens, seconds, seconds < 10 ? 2 : 0);
  if (seconds >= 1) out += fmt::format(", {:.0f} a second", static_cast<double>(tokens) / seconds);
  return out;
}

// What a person sees of an answer. Thoughts are shown on a terminal only, dim; whoever reads the output by program gets the answer and the calls.
class Screen final : public AnswerSink {
 public:
  explicit Screen(bool tty) : tty_(tty) {}

  void OnText(std::string_view text) override {
    Count();
    if (std::exchange(kind_, kText) != kText) FreshLine();
    Print(text);
  }
  void OnThought(std::string_view text) override {
    Count();
    if (!tty_) return;
    if (std::exchange(kind_, kThought) != kThought) FreshLine();
    Print(text, "\x1b[2m");
  }
  void OnCall(std::string_view name) override {
    Count();
    kind_ = kCall;
    FreshLine();
    Print("* ");
    Print(name, "\x1b[1m");
    Print(" ");
  }
  void OnArguments(std::string_view text) override {
    Count();
    Print(text);
  }
  void Result(std::string_view name, std::string_view result) {
    kind_ = kNothing;
    FreshLine();
    Print(fmt::format("  {} -> {}\n", name, result), "\x1b[2m");
  }
  void Note(const std::string& text) {
    kind_ = kNothing;
    FreshLine();
    Print("[" + text + "]\n", "\x1b[2m");
  }
  void FreshLine() {
    if (!at_line_start_) Print("\n");
  }

  void Begin() {
    kind_ = kNothing;
    began_ = last_ = Clock::Real().Now();
  }
  // From the question to the last that was shown of its answer: what a person waited. The first and the last piece may well arrive together, so the
  // time between them says nothing.
  double Seconds() const { return std::chrono::duration<double>(last_ - began_).count(); }

 private:
  enum Kind { kNothing, kText, kThought, kCall };

  void Count() { last_ = Clock::Real().Now(); }

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

  // The style ends with the text, so that a chat that dies leaves no dim terminal.
  void Print(std::string_view text, std::string_view style = "") {
    if (text.empty()) return;
    at_line_start_ = text.back() == '\n';
    if (!tty_) {
      fmt::print("{}", text);
    } else if (style.empty()) {
      fmt::print("{}", ForTerminal(text));
    } else {
      fmt::print("{}{}\x1b[0m", style, ForTerminal(text));
    }
    std::fflush(stdout);
  }

  const bool tty_;
  Kind kind_ = kNothing;
  bool at_line_start_ = true;
  Instant began_{}, last_{};
};

class ChatSession {
 public:
  explicit ChatSession(const ChatOptions& options) : options_(options), tty_(::isatty(STDOUT_FILENO) != 0), screen_(tty_) {
    auto tools = console::DemoTools::Parse(console::DemoToolsJson());
    HF_CHECK(tools.ok());
    demo_ = *std::move(tools);
    for (const console::DemoTool& tool : demo_.tools()) {
      if (tool.offered) offered_.insert(tool.name);
    }
  }

  int Run() {
    const auto url = ParseBaseUrl(options_.base_url);
    if (!url.ok()) return Fail(std::string(url.status().message()));
    url_ = *url;
    Reset();
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted.store(true); };
    ::sigaction(SIGINT, &action, nullptr);  // no SA_RESTART: a read at the prompt returns
    if (const int rc = WaitReady(); rc != 0) return rc;
    if (!LookAtModel()) return 1;
    if (tty_) Greet();
    std::string line;
    while (Prompt(&line)) {
      if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      if (line[0] == '/') {
        if (!Command(line)) break;
        continue;
      }
      // A person may wait until the server is back, with the conversation as it is; a script is told.
      if (!Ask(line) && !person_) return 1;
    }
    if (tty_) fmt::print("\n");
    // A person saw what went wrong; a script asks for the status.
    return failed_ && !person_ ? 1 : 0;
  }

 private:
  static int Fail(const std::string& why) {
    std::fflush(stdout);
    fmt::print(stderr, "holdfast chat: {}\n", why);
    return 1;
  }

  static std::string Refusal(const HttpReply& reply) {
    const auto json = text::ParseJson(reply.body);
    const JsonValue* error = json.ok() ? json->Find("error") : nullptr;
    const JsonValue* message = error != nullptr ? error->Find("message") : nullptr;
    return fmt::format("HTTP {}: {}{}", reply.status, message != nullptr && message->is_string() ? message->AsString() : reply.body,
                       reply.status == 401 ? " (--key KEY gives one)" : "");
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

  // The model's name and whether its template shows it tools.
  bool LookAtModel() {
    HttpCall call;
    call.path = "/v1/models";
    call.bearer = options_.key;
    const auto reply = Call(url_, call);
    if (!reply.ok() || reply->status != 200) {
      Fail(reply.ok() ? Refusal(*reply) : std::string(reply.status().message()));
      return false;
    }
    const auto json = text::ParseJson(reply->body);
    const JsonValue* data = json.ok() ? json->Find("data") : nullptr;
    const bool any = data != nullptr && data->is_array() && !data->AsArray().empty();
    if (const JsonValue* id = any ? data->AsArray()[0].Find("id") : nullptr; id != nullptr && id->is_string()) model_ = id->AsString();
    if (const JsonValue* can = any ? data->AsArray()[0].Find("capabilities") : nullptr; can != nullptr && can->is_array()) {
      for (const JsonValue& what : can->AsArray()) takes_tools_ |= what.is_string() && what.AsString() == "tools";
    }
    tools_on_ = options_.tools.value_or(takes_tools_);
    return true;
  }

  void Greet() const {
    fmt::print("Chat with {} at {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n", model_, options_.base_url);
    if (tools_on_) fmt::print("It is offered {} tools, which /tools lists. Try: {}\n", offered_.size(), demo_.tools().front().examples.front());
  }

  // The next message; false at the end of the input. Ctrl-C drops what was typed of it.
  bool Prompt(std::string* message) {
    for (;;) {
      interrupted.store(false);
      message->clear();
      if (ReadLine("\n> ", message) && ReadRest(message)) return true;
      if (!interrupted.load()) return false;
      std::cin.clear();
      std::clearerr(stdin);
    }
  }

  bool ReadLine(const char* prompt, std::string* line) const {
    if (tty_) {
      fmt::print("{}", prompt);
      std::fflush(stdout);
    }
    return static_cast<bool>(std::getline(std::cin, *line));
  }

  // A message that began with a fence goes on until a line that ends with one. Of a person only: a script's message is a line.
  bool ReadRest(std::string* message) const {
    if (!person_ || !message->starts_with(kFence)) return true;
    message->erase(0, kFence.size());
    while (!message->ends_with(kFence)) {
      std::string line;
      if (!ReadLine(". ", &line)) return false;
      *message += (message->empty() ? "" : "\n") + line;
    }
    message->resize(message->size() - kFence.size());
    if (message->ends_with('\n')) message->pop_back();
    return true;
  }

  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back(JsonValue(JsonValue::Object{{"role", "system"}, {"content", options_.system}}));
  }

  // False when the chat is to end.
  bool Command(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space), rest = space < line.size() ? line.substr(space + 1) : "";
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/reset") {
      Reset();
      fmt::print("a new conversation\n");
    } else if (name == "/system" && rest.empty()) {
      fmt::print("{}\n", options_.system.empty() ? "there is no system prompt; /system TEXT starts over under one" : options_.system);
    } else if (name == "/system") {
      options_.system = rest;
      Reset();
      fmt::print("a new conversation under that system prompt\n");
    } else if (name == "/tools") {
      Tools(rest);
    } else if (name == "/help") {
      fmt::print("{}", kHelp);
    } else {
      fmt::print("there is no command {}\n{}", name, kHelp);
    }
    return true;
  }

  void Tools(const std::string& what) {
    if (what == "on" || what == "off") {
      tools_on_ = what == "on";
    } else if (demo_.Find(what) != nullptr) {
      // Naming a tool while all are off turns on that one, not the ones that were on before.
      if (!std::exchange(tools_on_, true)) offered_.clear();
      if (offered_.erase(what) == 0) offered_.insert(what);
    } else if (!what.empty()) {
      fmt::print("there is no tool {}\n", what);
    }
    fmt::print("tools are {}{}\n", tools_on_ ? "on" : "off", takes_tools_ ? "" : "; this model's chat template shows it none");
    for (const console::DemoTool& tool : demo_.tools()) {
      fmt::print("  [{}] {:<14}{}, as in: {}\n", tools_on_ && offered_.contains(tool.name) ? 'x' : ' ', tool.name, tool.description, tool.examples.front());
    }
  }

  JsonValue::Array Offered() const {
    JsonValue::Array list;
    for (const console::DemoTool& tool : demo_.tools()) {
      if (tools_on_ && offered_.contains(tool.name)) list.push_back(tool.declaration);
    }
    return list;
  }

  enum class Outcome { kAnswered, kStopped, kRefused, kUnreachable };

  // One request; what it says is on the screen.
  Outcome Complete(AnswerStream* answer) {
    JsonValue::Object body{{"model", "default"},
                           {"messages", JsonValue(messages_)},
                           {"stream", true},
                           {"stream_options", JsonValue(JsonValue::Object{{"include_usage", true}})},
                           {"max_tokens", options_.max_tokens}};
    if (options_.temperature >= 0) body.emplace_back("temperature", options_.temperature);
    if (JsonValue::Array tools = Offered(); !tools.empty()) body.emplace_back("tools", std::move(tools));
    HttpCall call;
    call.method = "POST";
    call.path = "/v1/chat/completions";
    call.body = JsonValue(std::move(body)).Dump();
    call.bearer = options_.key;
    call.timeout = std::chrono::seconds(600);
    call.cancel = &interrupted;
    call.on_body = [answer](std::string_view bytes) {
      answer->Take(bytes);
      return true;
    };
    screen_.Begin();
    const auto reply = Call(url_, call);
    screen_.FreshLine();
    if (!reply.ok() && absl::IsCancelled(reply.status())) return Outcome::kStopped;
    if (!reply.ok()) {
      Fail(std::string(reply.status().message()));
      return absl::IsDeadlineExceeded(reply.status()) ? Outcome::kRefused : Outcome::kUnreachable;
    }
    if (reply->status != 200) {
      Fail(Refusal(*reply));
      return Outcome::kRefused;
    }
    if (!answer->error().empty()) {
      Fail(answer->error());
      return Outcome::kRefused;
    }
    return Outcome::kAnswered;
  }

  // False when the server can't be reached any more. What has no answer is no part of the conversation.
  bool Ask(const std::string& text) {
    failed_ = true;  // until there is an answer
    const size_t before = messages_.size();
    messages_.push_back(JsonValue(JsonValue::Object{{"role", "user"}, {"content", text}}));
    for (int round = 0; round < kMostRounds; ++round) {
      AnswerStream answer(&screen_);
      const Outcome outcome = Complete(&answer);
      if (outcome == Outcome::kStopped) {
        screen_.Note("stopped");
        // What it had said so far counts; half a call, or nothing, does not.
        if (answer.text().empty()) messages_.resize(before);
        else messages_.push_back(answer.Message());
        return true;
      }
      if (outcome != Outcome::kAnswered) {
        messages_.resize(before);
        return outcome != Outcome::kUnreachable;
      }
      messages_.push_back(answer.Message());
      if (answer.finish() == "length") screen_.Note(fmt::format("cut at {} tokens", answer.completion_tokens()));
      if (answer.calls().empty()) {
        if (tty_) {
          screen_.Note(Pace(answer.completion_tokens(), screen_.Seconds()));
        }
        failed_ = false;
        return true;
      }
      for (const ToolCall& call : answer.calls()) {
        const std::string result = demo_.Answer(call.name, call.arguments);
        screen_.Result(call.name, result);
        messages_.push_back(JsonValue(JsonValue::Object{{"role", "tool"}, {"tool_call_id", call.id}, {"content", result}}));
      }
    }
    screen_.Note(fmt::format("{} answers were calls: that is enough, and no answer", kMostRounds));
    messages_.resize(before);
    return true;
  }

  ChatOptions options_;
  const bool tty_;
  const bool person_ = ::isatty(STDIN_FILENO) != 0;   // somebody types; else it is a script
  Screen screen_;
  Url url_;
  std::string model_ = "the model";
  console::DemoTools demo_;
  std::set<std::string> offered_;
  bool takes_tools_ = false, tools_on_ = false;
  JsonValue::Array messages_;
  bool failed_ = false;   // the last question has no answer
};

}  // namespace

int Chat(const ChatOptions& options) { return ChatSession(options).Run(); }

}  // namespace holdfast::cli
