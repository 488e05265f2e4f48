#pragma once
// One streamed chat completion, put together as its bytes arrive.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/json_value.h"

namespace holdfast::cli {

struct ToolCall {
  std::string id, name, arguments;
};

// Told what comes, in order. No text is empty.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void OnText(std::string_view text) = 0;
  virtual void OnThought(std::string_view text) = 0;
  virtual void OnCall(std::string_view name) = 0;
  virtual void OnArguments(std::string_view text) = 0;
};

class AnswerStream final {
 public:
  explicit AnswerStream(AnswerSink* sink) : sink_(*sink) {}
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  // Bytes of the event stream, cut anywhere.
  void Take(std::string_view bytes);

  const std::string& text() const { return text_; }
  const std::string& finish() const { return finish_; }       // "" before the end
  const std::string& error() const { return error_; }         // what the server said in place of an end
  uint64_t completion_tokens() const { return completion_tokens_; }   // 0 when it was not told
  // The calls to answer: none when the answer ended otherwise, the last one may be half a call then.
  const std::vector<ToolCall>& calls() const;
  // The answer as the next request's history has it.
  text::JsonValue Message() const;

 private:
  void TakeLine(std::string_view line);
  void TakeCall(const text::JsonValue& part);

  AnswerSink& sink_;
  std::string pending_, text_, finish_, error_;
  std::vector<ToolCall> calls_;
  uint64_t completion_tokens_ = 0;
};

}  // namespace holdfast::cli
