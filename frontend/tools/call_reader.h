#pragma once
// Reads the calls of one format out of the symbol string of an answer. A reader lives for one section: from the symbol that opens it to the
// one that ends it, with one or more calls in between.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "frontend/text/json_value.h"
#include "frontend/tools/format.h"

namespace holdfast::tools {

// The tools that may be called in one answer.
class ToolSet final {
 public:
  // The tools that the policy allows; none with kNone. `tools` must outlive the set.
  ToolSet(std::span<const Tool> tools, const CallPolicy& policy);
  const Tool* Find(std::string_view name) const;
  bool empty() const { return tools_.empty(); }
  const std::vector<const Tool*>& all() const { return tools_; }

 private:
  std::vector<const Tool*> tools_;
};

// Where a reader puts its calls. Begin, any number of Arguments, End.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void BeginCall(std::string_view name) = 0;
  virtual void Arguments(std::string_view fragment) = 0;
  virtual void EndCall() = 0;
};

class CallReader {
 public:
  enum class Verdict : uint8_t {
    kMore,       // taken
    kEnd,        // taken, and the section is over
    kEndBefore,  // the section was over before this symbol
    kReject,     // not taken: what was fed since the last call ended (or the section began) is no call but text
  };
  virtual ~CallReader() = default;
  // Not kReject between BeginCall and EndCall.
  virtual Verdict Feed(char c) = 0;
  // The output ended. True: what was fed since the last call ended is text.
  virtual bool Finish(bool cut) = 0;
};

inline bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
std::string_view TrimBlanks(std::string_view s);
inline constexpr size_t kMaxNameBytes = 256;  // of a tool; longer ones end as text

}  // namespace holdfast::tools
